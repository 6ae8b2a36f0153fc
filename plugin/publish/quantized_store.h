// SPDX-License-Identifier: Apache-2.0
// QuantizedStore: the codes and scales of a publisher rank that keeps no snapshot, neither of them
// nor of its bfloat16 weights. A LiveStore captures what changes in the weights; a version carries
// what that changes in codes and scales:
//
//   of each block the largest magnitude at the last version is kept, and with it its scale
//   a changed weight's old code follows from its old value; its block is looked at again only if
//   the weight was the largest and is smaller now
//   a block whose scale changed is coded anew, all of it
//
// Weights on a GPU are measured and quantized there; codes and scales that a version carries lie in
// host memory.
//
// Memory: 4 bytes for each block that this rank has a part of, and what LiveStore and the changes
// of codes take.
#pragma once

#include <array>
#include <deque>

#include "plugin/publish/live_store.h"
#include "plugin/publish/quantized_weights.h"

namespace driftless {

struct WeightChange {
  std::uint64_t at = 0;  // in the box
  std::uint16_t before = 0, now = 0;
};

// Of a matrix: what its blocks hold, and what changed.
struct MatrixBlocks {
  std::vector<std::uint16_t> own;      // the largest of each block here, at the last version
  std::vector<std::uint16_t> largest;  // the same, of all boxes: it decides the scale
  std::vector<DiffPiece> pieces;       // what changed since then, where LiveStore has it
  std::vector<WeightChange> changes;   // the same, ascending; after measure()
  std::map<std::uint32_t, std::uint16_t> own_now;  // of blocks with changes, and of joint ones
  std::vector<std::uint16_t> largest_now;          // after settle()
  std::vector<std::uint16_t> own_after;            // likewise; empty: own, with own_now
};

// One thread at a time.
class QuantizedStore final : public WeightStore {
 public:
  struct Options {
    LiveStore::Options live;
    // A tensor of which more than this share is coded anew, since scales changed, is sent whole.
    double whole_above = 0.25;
  };
  // `numbers`: of each of QuantizedWeights::tensors(), its number here. `own_layout`: the trainer's
  // tensors; `own`: what this rank owns of them, by `own_numbers` of each that it offers. All
  // outlive it.
  struct Parts {
    std::vector<OwnedTensor> owned;
    std::vector<std::uint32_t> numbers;
    const WeightLayout* own_layout = nullptr;
    std::vector<OwnedTensor> own;
    std::vector<std::uint32_t> own_numbers;
    PublisherDevice* device = nullptr;  // null: the weights lie in host memory
  };
  QuantizedStore(const WeightLayout& layout, QuantizedWeights& weights, Parts parts,
                 const Options& options);

  [[nodiscard]] LiveStore& live() { return live_; }
  // One place for each number of the trainer's. Measures what blocks hold; ranks must agree on
  // those that they share before digests().
  [[nodiscard]] Status open(std::vector<LivePlace> places);
  // At version 0: what the weights differ by from the base is the first version's.
  [[nodiscard]] Status compare(WeightSource& base);
  void forget_base() { from_base_.clear(); }

  // The steps of a version. prepare() takes what was captured and measures what changed; then ranks
  // agree on blocks that they share; settle() makes changes of codes and scales of it. `tracked`:
  // the digests of codes and scales at the last version, by tensor. The sweep, if one is due,
  // quantizes all weights and compares their digest. The notes name tensors that are sent whole.
  [[nodiscard]] Status prepare(const LiveStore::Version& version, std::vector<std::string>& notes);
  [[nodiscard]] Status settle(std::span<const Digest> tracked, std::vector<std::string>& notes);
  [[nodiscard]] Status prove_read(const LiveStore::Version& version);
  // For a full version: all of it, some at a time. What `use` is given stays until the second call
  // after it, or the next version.
  [[nodiscard]] Status each_batch(const std::function<Status(std::span<const PairedTensor>)>& use);

  [[nodiscard]] Result<std::vector<Digest>> digests() const override;
  [[nodiscard]] bool captured() const override { return true; }
  [[nodiscard]] Status each_change(std::span<const PairedTensor> batch,
                                   std::uint64_t dense_above_units, FoundChanges& found,
                                   const UseChange& use) override;
  [[nodiscard]] bool sent_whole(std::uint32_t number) const override { return sent_.whole(number); }
  void commit() override;

 private:
  using Matrix = QuantizedWeights::Matrix;
  // Codes and scales of a matrix.
  struct Quantized {
    std::vector<std::byte> codes, scales;
    std::vector<std::uint16_t> largest;
  };

  // Rows of weights, by the first one of them; in host memory.
  using Rows = std::map<std::uint64_t, std::vector<std::byte>>;

  [[nodiscard]] const std::byte* weights_of(std::size_t matrix) const;
  [[nodiscard]] bool on_gpu() const { return live_.memory_kind() == MemoryKind::kDevice; }
  [[nodiscard]] std::uint32_t codes_of(const Matrix& matrix) const {
    return numbers_[matrix.codes];
  }
  [[nodiscard]] Status quantize(std::size_t matrix, Quantized& made) const;
  // The units of a tensor that is not quantized, in host memory: where they lie, or in `held`.
  [[nodiscard]] Result<const std::byte*> kept_units(std::uint32_t number,
                                                    std::vector<std::byte>& held) const;
  [[nodiscard]] Status measure_joint(std::size_t matrix);
  // All matrices; measure_changes() is done for those whose changes are known.
  [[nodiscard]] Status measure(bool doubtful);
  [[nodiscard]] Status measure_changes(std::size_t matrix, std::span<const std::uint32_t> fell);
  void choose_whole(std::vector<std::string>& notes);
  [[nodiscard]] bool is_whole(std::size_t matrix) const;
  [[nodiscard]] std::set<std::uint32_t> blocks_anew(std::size_t matrix) const;
  [[nodiscard]] Result<Rows> rows_of(std::size_t matrix,
                                     const std::set<std::uint32_t>& blocks) const;
  [[nodiscard]] Status translate();
  void translate(std::size_t matrix, const std::set<std::uint32_t>& anew, const Rows& rows);
  void add_scales(std::size_t matrix);
  [[nodiscard]] Status scan(std::size_t matrix);
  [[nodiscard]] Status sum_whole(std::span<const Digest> tracked);
  [[nodiscard]] Status sweep(std::span<const Digest> tracked, std::vector<std::string>& notes);
  void mark_whole(std::uint32_t tensor);
  [[nodiscard]] Status each_unit(std::uint32_t number, const UseChange& use) const;

  QuantizedWeights& weights_;
  Options options_;
  std::vector<std::uint32_t> numbers_;      // here, of each of weights_.tensors()
  std::vector<std::uint32_t> own_numbers_;  // in live_, of each of the trainer's
  LiveStore live_;
  std::vector<std::uint32_t> kept_;               // of each number in live_: here; or kNotHere
  std::vector<std::uint32_t> live_of_;            // the other way round
  std::vector<std::optional<std::size_t>> made_;  // of each number here: its matrix
  std::vector<MatrixBlocks> blocks_;              // of each matrix
  ChangeStore from_base_, sent_;
  std::map<std::uint32_t, Digest> changes_;            // by tensor, as sent_
  std::vector<Digest> own_digests_, own_digests_now_;  // of the weights, by tensor of own_layout
  std::set<std::uint32_t> whole_;                      // tensors of the layout
  bool full_ = false, sweeps_ = false, coded_anew_ = false;
  std::uint64_t since_sweep_ = 0;  // versions
  std::array<std::deque<Quantized>, 2> batches_;
};

}  // namespace driftless
