// SPDX-License-Identifier: Apache-2.0
// QuantizedStore: the codes and scales of a publisher rank that keeps no snapshot, neither of its
// bfloat16 weights nor of codes and scales. A LiveStore captures the changes of the weights; a
// version carries the changes of codes and scales that follow from them (LiveMatrices).
//
// Weights on a GPU are measured and quantized there; the codes and scales that a version carries
// lie in host memory.
//
// Memory: that of LiveMatrices and LiveStore, and the changes of codes.
#pragma once

#include <array>
#include <deque>

#include "plugin/publish/live_matrices.h"

namespace driftless {

// One thread at a time.
class QuantizedStore final : public WeightStore {
 public:
  struct Options {
    LiveStore::Options live;
    // A tensor is sent whole if scales changed and more than this share of it is coded anew.
    double whole_above = 0.25;
  };
  // `numbers`: for each of QuantizedWeights::tensors(), its number here. `trainer_layout`: the
  // trainer's tensors; `local`: this rank's parts of them; `trainer_numbers`: for each tensor that
  // the rank offers, its index in `local`. The layout and the device outlive the store.
  struct Parts {
    std::vector<OwnedTensor> owned;
    std::vector<std::uint32_t> numbers;
    const WeightLayout* trainer_layout = nullptr;
    std::vector<OwnedTensor> local;
    std::vector<std::uint32_t> trainer_numbers;
    PublisherDevice* device = nullptr;  // null: the weights lie in host memory
  };
  QuantizedStore(const WeightLayout& layout, QuantizedWeights& weights, Parts parts,
                 const Options& options);

  [[nodiscard]] LiveStore& live() { return live_; }
  // One place for each of the trainer's numbers. Measures the blocks; ranks must agree on shared
  // blocks before digests().
  [[nodiscard]] Status open(std::vector<LivePlace> places);
  // At version 0: compares the weights with the base. The first version carries the differences.
  [[nodiscard]] Status compare(WeightSource& base);
  void forget_base() { from_base_.clear(); }

  // The steps of a version. prepare() takes the captured changes and measures blocks; then ranks
  // agree on shared blocks; settle() computes the changes of codes and scales. `tracked`: the
  // digests of codes and scales at the last version, by tensor. If a sweep is due, it quantizes all
  // weights and compares their digests. The notes name tensors that are sent whole.
  [[nodiscard]] Status prepare(const LiveStore::Version& version, std::vector<std::string>& notes);
  [[nodiscard]] Status settle(std::span<const Digest> tracked, std::vector<std::string>& notes);
  [[nodiscard]] Status prove_read(const LiveStore::Version& version);
  // For a full version: passes everything in batches. The data of a batch stays valid until the
  // second call of `use` after it, or the next version.
  [[nodiscard]] Status each_batch(const std::function<Status(std::span<const PairedTensor>)>& use);

  [[nodiscard]] Result<std::vector<Digest>> digests() const override;
  [[nodiscard]] bool captured() const override { return true; }
  [[nodiscard]] Status each_change(std::span<const PairedTensor> batch,
                                   std::uint64_t dense_above_units, FoundChanges& found,
                                   const UseChange& use) override;
  [[nodiscard]] bool sent_whole(std::uint32_t number) const override { return sent_.whole(number); }
  void commit() override;

 private:
  static constexpr std::uint32_t kNotHere = ~std::uint32_t{0};
  using Matrix = QuantizedWeights::Matrix;
  [[nodiscard]] bool on_gpu() const { return live_.memory_kind() == MemoryKind::kDevice; }
  [[nodiscard]] std::uint32_t codes_of(const Matrix& matrix) const {
    return numbers_[matrix.codes];
  }
  // The units of a tensor that is not quantized, in host memory: where they lie, or in `held`.
  [[nodiscard]] Result<const std::byte*> kept_units(std::uint32_t number,
                                                    std::vector<std::byte>& held) const;
  void choose_whole(std::vector<std::string>& notes);
  [[nodiscard]] bool is_whole(std::size_t matrix) const;
  [[nodiscard]] Status translate();
  void add_scales(std::size_t matrix);
  [[nodiscard]] Status sum_whole(std::span<const Digest> tracked);
  [[nodiscard]] Status sweep(std::span<const Digest> tracked, std::vector<std::string>& notes);
  // Finds weights that were written without capture() and whose codes and scales did not change.
  // The published version is right; later changes are measured against these weights.
  [[nodiscard]] Status adopt(std::vector<Digest> now, std::vector<std::string>& notes);
  void mark_whole(std::uint32_t tensor);
  // The units of a number that is the codes, the scales or the shape of a quantized matrix.
  [[nodiscard]] const std::byte* made_units(std::uint32_t number,
                                            const LiveMatrices::Quantized& made) const;
  [[nodiscard]] Status each_unit(std::uint32_t number, const UseChange& use) const;

  QuantizedWeights& weights_;
  Options options_;
  std::vector<std::uint32_t> numbers_;  // the number here of each of weights_.tensors()
  LiveStore live_;
  LiveMatrices matrices_;
  std::vector<std::uint32_t> kept_;               // number in live_ -> number here, or kNotHere
  std::vector<std::uint32_t> live_of_;            // number here -> number in live_
  std::vector<std::optional<std::size_t>> made_;  // number here -> its matrix
  ChangeStore from_base_, sent_;
  std::map<std::uint32_t, Digest> changes_;  // by tensor, summed from sent_
  std::vector<Digest> trainer_digests_,
      trainer_digests_now_;        // of the weights, by tensor of trainer_layout
  std::set<std::uint32_t> whole_;  // tensors of the layout
  bool full_ = false, sweeps_ = false, coded_anew_ = false;
  std::uint64_t since_sweep_ = 0;  // versions
  std::array<std::deque<LiveMatrices::Quantized>, 2> batches_;
};

}  // namespace driftless
