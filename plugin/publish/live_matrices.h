// SPDX-License-Identifier: Apache-2.0
// LiveMatrices: the matrices that a rank without a snapshot quantizes. They are read where the
// trainer has them, in host memory or on a GPU. For FP8 blocks it keeps the largest magnitude of
// each block at the last version, and finds those of the next version and the changes of codes
// that follow:
//
//   the largest magnitude of a block gives its scale
//   a changed weight's old code follows from its old value; its block is measured again only if
//   the weight was the largest and is smaller now
//   a block whose scale changed is coded anew as a whole
//
// A group in INT4 has so few weights that nothing is kept for it: if one of them changed, the group
// is coded twice, from its old weights and from the new ones. Its other weights are read; on a GPU,
// slices that have such groups are copied to the host.
//
// Memory: 4 bytes for each FP8 block that this rank has a part of, and the changes of weights.
// Private to plugin/publish.
#pragma once

#include "plugin/publish/live_store.h"
#include "plugin/publish/quantized_weights.h"

namespace driftless {

struct WeightChange {
  std::uint64_t at = 0;  // in the box
  std::uint16_t before = 0, now = 0;
};

struct CodeChange {
  std::uint64_t at = 0;  // in the box
  std::uint8_t before = 0, now = 0;
};

// Units of a box that changed, ascending, and their values.
struct BoxChanges {
  std::vector<std::uint64_t> at;
  std::vector<std::byte> before, now;
};

// The blocks of a matrix, and its changes.
struct MatrixBlocks {
  std::vector<std::uint16_t> local;    // the maximum of each block here, at the last version
  std::vector<std::uint16_t> largest;  // the largest of all boxes: it decides the scale
  std::vector<DiffPiece> pieces;       // the changes since then, in LiveStore's memory
  std::vector<WeightChange> changes;   // the same changes, ascending; set by measure()
  std::map<std::uint32_t, std::uint16_t> local_now;  // of changed and of shared blocks
  std::vector<std::uint16_t> largest_now;            // set by settle()
  // The next `local`, set by scan(). Empty: the next one is `local` with the maxima of local_now.
  std::vector<std::uint16_t> local_after;
};

// One thread at a time; code_changes() on several. Matrices are numbered as
// QuantizedWeights::matrices().
class LiveMatrices {
 public:
  // Codes and scales of a matrix.
  struct Quantized {
    std::vector<std::byte> codes, scales;
    std::vector<std::uint16_t> largest;
  };
  // Rows of weights, by the first one of them; in host memory.
  using Rows = std::map<std::uint64_t, std::vector<std::byte>>;

  // `trainer_numbers`: the number in `live` of each of the trainer's tensors. The weights and the
  // store outlive this.
  LiveMatrices(QuantizedWeights& weights, LiveStore& live,
               std::span<const std::uint32_t> trainer_numbers, unsigned threads);

  [[nodiscard]] std::size_t size() const { return blocks_.size(); }
  // The number in the LiveStore.
  [[nodiscard]] std::uint32_t number(std::size_t matrix) const { return numbers_[matrix]; }
  [[nodiscard]] const std::byte* weights_of(std::size_t matrix) const;
  [[nodiscard]] const MatrixBlocks& blocks(std::size_t matrix) const { return blocks_[matrix]; }
  // Measures all blocks. Ranks must agree on shared blocks before anything is quantized.
  [[nodiscard]] Status open();
  void set_largest(std::size_t matrix, std::vector<std::uint16_t> largest) {
    blocks_[matrix].largest = std::move(largest);
  }
  [[nodiscard]] Status quantize(std::size_t matrix, Quantized& made) const;

  // The steps of a version, in order.
  void clear();  // forgets what was found for a version that was not committed
  void add(std::size_t matrix, const DiffPiece& piece) { blocks_[matrix].pieces.push_back(piece); }
  // Measures all matrices whose changes are known. `in_doubt`: also the joint blocks of all
  // matrices, because weights may have been written without capture(); `full`: of all, only these.
  [[nodiscard]] Status measure(bool full, bool in_doubt);
  void settle();  // once ranks agreed on shared blocks
  // Measures every block of a matrix, if its changes are not known.
  [[nodiscard]] Status scan(std::size_t matrix);
  // The blocks whose scale changed, the rows that they touch, and the changes of codes.
  [[nodiscard]] std::set<std::uint32_t> blocks_anew(std::size_t matrix) const;
  [[nodiscard]] Result<Rows> rows_of(std::size_t matrix,
                                     const std::set<std::uint32_t>& blocks) const;
  [[nodiscard]] std::vector<CodeChange> code_changes(std::size_t matrix,
                                                     const std::set<std::uint32_t>& anew,
                                                     const Rows& rows) const;
  // INT4: the changes of packed codes (int32) and of scales (bfloat16). For weights on a GPU, one
  // thread at a time.
  [[nodiscard]] Status group_changes(std::size_t matrix, BoxChanges& packed,
                                     BoxChanges& scales) const;
  void commit();

 private:
  using Matrix = QuantizedWeights::Matrix;
  [[nodiscard]] bool on_gpu() const { return live_.memory_kind() == MemoryKind::kDevice; }
  [[nodiscard]] Status measure_joint(std::size_t matrix);
  [[nodiscard]] Status measure_changes(std::size_t matrix, std::span<const std::uint32_t> fell);

  QuantizedWeights& weights_;
  LiveStore& live_;
  unsigned threads_;
  std::vector<std::uint32_t> numbers_;  // in live_, by matrix
  std::vector<MatrixBlocks> blocks_;    // by matrix
};

}  // namespace driftless
