// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/live_matrices.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"

namespace driftless {
namespace {

std::uint16_t unit_16(const std::byte* units, std::uint64_t at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, units + at * sizeof(bits), sizeof(bits));
  return bits;
}

// Finds the block that contains an element of a part. Fast if elements ascend, because most lie in
// the last one's row.
class BlockFinder {
 public:
  explicit BlockFinder(const MatrixPart& part) : part_(part) {}
  [[nodiscard]] std::uint32_t find(std::uint64_t at) {
    if (at - row_begin_ >= part_.columns) {
      const std::uint64_t row = at / part_.columns;
      row_begin_ = row * part_.columns;
      row_block_ = (part_.row + row) / kQuantizeBlock * part_.blocks_wide();
    }
    const std::uint64_t column = at - row_begin_;
    return static_cast<std::uint32_t>(row_block_ + (part_.column + column) / kQuantizeBlock);
  }

 private:
  const MatrixPart& part_;
  std::uint64_t row_begin_ = 0, row_block_ = 0;  // of the last element's row
};

// Computes all codes of a block whose scale changed. `rows`: the matrix's rows, from the block's
// first row on.
void code_anew(QuantizeRule rule, const QuantizedWeights::Matrix& matrix,
               const MatrixBlocks& blocks, const std::byte* rows, std::uint32_t block,
               std::vector<CodeChange>& changes) {
  const BoxOfBlock here = box_of_block(matrix.part, block);
  const Fp8Coder coder(rule, blocks.largest[block]), coder_now(rule, blocks.largest_now[block]);
  for (std::uint64_t i = here.row; i < here.row + here.rows; ++i) {
    const std::uint64_t first = i * matrix.part.columns + here.column;
    auto change = std::ranges::lower_bound(blocks.changes, first, {}, &WeightChange::at);
    for (std::uint64_t at = first; at < first + here.columns; ++at) {
      const std::uint16_t now = unit_16(rows, at - here.row * matrix.part.columns);
      while (change != blocks.changes.end() && change->at < at) ++change;
      const bool changed = change != blocks.changes.end() && change->at == at;
      const std::uint8_t old_code = coder.code(changed ? change->before : now);
      const std::uint8_t code = coder_now.code(now);
      if (old_code != code) changes.push_back({at, old_code, code});
    }
  }
}

// To code INT4 groups, at most this many weights are copied from a GPU at a time. A multiple of
// every group size.
constexpr std::uint64_t kSliceWeights = std::uint64_t{1} << 20;

// A group in INT4: its weights, and what they are coded as.
struct CodedGroup {
  static constexpr unsigned kMostWeights = 128;
  std::uint16_t weights[kMostWeights];
  std::uint32_t packed[kMostWeights / kInt4InWord];
  std::uint16_t scale;

  void code(unsigned group) { quantizer().groups(group, 1, group, group, weights, packed, &scale); }
};

template <typename Unit>
void add_unit(std::uint64_t at, Unit before, Unit now, BoxChanges& changes) {
  if (before == now) return;
  const auto put = [](Unit unit, std::vector<std::byte>& to) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&unit);
    to.insert(to.end(), bytes, bytes + sizeof(unit));
  };
  changes.at.push_back(at);
  put(before, changes.before);
  put(now, changes.now);
}

void take_changes(MatrixBlocks& blocks) {
  std::size_t count = 0;
  for (const DiffPiece& piece : blocks.pieces) count += piece.delta.count();
  blocks.changes.reserve(count);
  for (const DiffPiece& piece : blocks.pieces) {
    const DeltaView& delta = piece.delta;
    for (std::uint64_t i = 0; i < delta.count(); ++i) {
      blocks.changes.push_back({delta.origin + delta.offsets[i], unit_16(piece.old_values, i),
                                unit_16(delta.values, i)});
    }
  }
}

// Applies the changes of a matrix to the largest magnitudes of its blocks. Returns the blocks that
// must be measured: their largest weight fell, and no other one rose above it.
std::vector<std::uint32_t> apply_changes(const MatrixPart& part, MatrixBlocks& blocks) {
  std::vector<std::uint16_t> now = blocks.local;
  for (const auto& [block, size] : blocks.local_now) now[block] = size;  // measured before
  std::vector<bool> changed(now.size()), fell(now.size());
  BlockFinder finder(part);
  for (const WeightChange& change : blocks.changes) {
    const std::uint32_t block = finder.find(change.at);
    const std::uint16_t local = blocks.local[block], size = counted_size(change.now);
    changed[block] = true;
    if (counted_size(change.before) == local && size < local) fell[block] = true;
    now[block] = std::max(now[block], size);
  }
  std::vector<std::uint32_t> unknown;
  for (std::uint32_t block = 0; block < now.size(); ++block) {
    if (!changed[block]) continue;
    blocks.local_now[block] = now[block];
    if (fell[block] && now[block] <= blocks.local[block]) unknown.push_back(block);
  }
  return unknown;
}

}  // namespace

LiveMatrices::LiveMatrices(QuantizedWeights& weights, LiveStore& live,
                           std::span<const std::uint32_t> trainer_numbers, unsigned threads)
    : weights_(weights), live_(live), threads_(threads), blocks_(weights.matrices().size()) {
  for (const Matrix& matrix : weights.matrices()) numbers_.push_back(trainer_numbers[matrix.from]);
}

const std::byte* LiveMatrices::weights_of(std::size_t matrix) const {
  return live_.data(numbers_[matrix]);
}

Status LiveMatrices::open() {
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    if (matrix.group > 0) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(blocks_[m].local,
                               weights_.sizes_of_all(matrix, weights_of(m), live_.memory_kind()));
    for (const std::uint32_t block : matrix.joint) {
      weights_.measured(m, block, blocks_[m].local[block]);
    }
  }
  return {};
}

Status LiveMatrices::quantize(std::size_t number, Quantized& made) const {
  const Matrix& matrix = weights_.matrices()[number];
  made.codes.resize(matrix.code_bytes());
  made.scales.resize(matrix.scale_bytes());
  return weights_.quantize(matrix, weights_of(number), live_.memory_kind(), made.largest,
                           made.codes.data(), matrix.scales ? made.scales.data() : nullptr);
}

void LiveMatrices::clear() {
  for (MatrixBlocks& blocks : blocks_) {
    blocks.pieces.clear();
    blocks.changes.clear();
    blocks.local_now.clear();
    blocks.local_after.clear();
    blocks.largest_now.clear();
  }
}

Status LiveMatrices::measure_joint(std::size_t number) {
  const Matrix& matrix = weights_.matrices()[number];
  if (matrix.joint.empty()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::vector<std::uint16_t> sizes,
      weights_.sizes_of(matrix, matrix.joint, weights_of(number), live_.memory_kind()));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    blocks_[number].local_now[matrix.joint[i]] = sizes[i];
    weights_.measured(number, matrix.joint[i], sizes[i]);
  }
  return {};
}

Status LiveMatrices::measure(bool full, bool in_doubt) {
  std::vector<std::vector<std::uint32_t>> fell(blocks_.size());
  const auto is_known = [&](std::size_t m) { return !full && !live_.sent_whole(numbers_[m]); };
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    if (full || in_doubt || !is_known(m)) DRIFTLESS_RETURN_IF_ERROR(measure_joint(m));
  }
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(blocks_.size(), threads_, [&](std::size_t m, unsigned) {
    if (!is_known(m)) return Status();
    const Matrix& matrix = weights_.matrices()[m];
    take_changes(blocks_[m]);
    if (matrix.group == 0) fell[m] = apply_changes(matrix.part, blocks_[m]);
    return Status();
  }));
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    if (is_known(m)) DRIFTLESS_RETURN_IF_ERROR(measure_changes(m, fell[m]));
  }
  return {};
}

// Measures a block only if its largest weight is smaller now.
Status LiveMatrices::measure_changes(std::size_t number, std::span<const std::uint32_t> fell) {
  const Matrix& matrix = weights_.matrices()[number];
  MatrixBlocks& blocks = blocks_[number];
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::vector<std::uint16_t> sizes,
      weights_.sizes_of(matrix, fell, weights_of(number), live_.memory_kind()));
  for (std::size_t i = 0; i < sizes.size(); ++i) blocks.local_now[fell[i]] = sizes[i];
  for (const std::uint32_t block : matrix.joint) {
    const auto now = blocks.local_now.find(block);
    weights_.measured(number, block,
                      now != blocks.local_now.end() ? now->second : blocks.local[block]);
  }
  return {};
}

void LiveMatrices::settle() {
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    MatrixBlocks& blocks = blocks_[m];
    blocks.largest_now = blocks.largest;
    for (const auto& [block, size] : blocks.local_now) blocks.largest_now[block] = size;
    for (const std::uint32_t block : matrix.joint) blocks.largest_now[block] = matrix.known[block];
  }
}

// Measures every block of a matrix whose changes are not known.
Status LiveMatrices::scan(std::size_t number) {
  const Matrix& matrix = weights_.matrices()[number];
  if (matrix.group > 0) return {};  // nothing is kept of it
  MatrixBlocks& blocks = blocks_[number];
  DRIFTLESS_ASSIGN_OR_RETURN(
      blocks.local_after, weights_.sizes_of_all(matrix, weights_of(number), live_.memory_kind()));
  blocks.largest_now = blocks.local_after;
  for (const std::uint32_t block : matrix.joint) {
    blocks.largest_now[block] = std::max(matrix.known[block], blocks.local_after[block]);
  }
  return {};
}

std::set<std::uint32_t> LiveMatrices::blocks_anew(std::size_t number) const {
  const MatrixBlocks& blocks = blocks_[number];
  std::set<std::uint32_t> anew;
  const auto look = [&](std::uint32_t block) {
    if (!same_fp8_rule(weights_.rule(), blocks.largest[block], blocks.largest_now[block])) {
      anew.insert(block);
    }
  };
  for (const auto& [block, size] : blocks.local_now) look(block);
  for (const std::uint32_t block : weights_.matrices()[number].joint) look(block);
  return anew;
}

// Copies whole rows of weights: one copy from the GPU for each row of blocks that `blocks` touch.
// Empty for host memory.
Result<LiveMatrices::Rows> LiveMatrices::rows_of(std::size_t number,
                                                 const std::set<std::uint32_t>& blocks) const {
  Rows rows;
  if (!on_gpu()) return rows;
  const MatrixPart& part = weights_.matrices()[number].part;
  const std::uint64_t row_bytes = part.columns * sizeof(std::uint16_t);
  for (const std::uint32_t block : blocks) {
    const BoxOfBlock here = box_of_block(part, block);
    std::vector<std::byte>& held = rows[here.row];
    if (!held.empty()) continue;
    held.resize(here.rows * row_bytes);
    DRIFTLESS_RETURN_IF_ERROR(
        live_.memory()->fetch(held, weights_of(number) + here.row * row_bytes));
  }
  return rows;
}

std::vector<CodeChange> LiveMatrices::code_changes(std::size_t number,
                                                   const std::set<std::uint32_t>& anew,
                                                   const Rows& rows) const {
  const Matrix& matrix = weights_.matrices()[number];
  const MatrixBlocks& blocks = blocks_[number];
  const QuantizeRule rule = weights_.rule();
  std::vector<CodeChange> changes;
  std::vector<bool> is_anew(blocks.largest.size());
  for (const std::uint32_t block : anew) is_anew[block] = true;
  std::vector<Fp8Coder> coders;  // by block; the same before and after, unless coded anew
  for (const std::uint16_t largest : blocks.largest_now) coders.emplace_back(rule, largest);
  BlockFinder finder(matrix.part);
  for (const auto& [at, before, now] : blocks.changes) {
    const std::uint32_t block = finder.find(at);
    if (is_anew[block]) continue;
    const std::uint8_t old_code = coders[block].code(before), code = coders[block].code(now);
    if (old_code != code) changes.push_back({at, old_code, code});
  }
  for (const std::uint32_t block : anew) {
    const std::uint64_t row = box_of_block(matrix.part, block).row;
    const std::byte* const first =
        on_gpu() ? rows.at(row).data()
                 : weights_of(number) + row * matrix.part.columns * sizeof(std::uint16_t);
    code_anew(rule, matrix, blocks, first, block, changes);
  }
  if (!anew.empty()) std::ranges::sort(changes, {}, &CodeChange::at);
  return changes;
}

Status LiveMatrices::group_changes(std::size_t number, BoxChanges& packed,
                                   BoxChanges& scales) const {
  const unsigned group = weights_.matrices()[number].group, words = group / kInt4InWord;
  const std::vector<WeightChange>& changes = blocks_[number].changes;
  std::vector<std::byte> held;
  CodedGroup before{}, now{};
  // Rows are whole groups, so group g has the weights from g * group on.
  for (auto change = changes.begin(); change != changes.end();) {
    const std::uint64_t slice_end = (change->at / kSliceWeights + 1) * kSliceWeights;
    const auto end = std::lower_bound(
        change, changes.end(), slice_end,
        [](const WeightChange& each, std::uint64_t stop) { return each.at < stop; });
    const std::uint64_t first = change->at / group * group;
    const std::byte* weights = weights_of(number) + first * sizeof(std::uint16_t);
    if (on_gpu()) {
      held.resize((((end - 1)->at / group + 1) * group - first) * sizeof(std::uint16_t));
      DRIFTLESS_RETURN_IF_ERROR(live_.memory()->fetch(held, weights));
      weights = held.data();
    }
    while (change != end) {
      const std::uint64_t of_group = change->at / group, begin = of_group * group;
      std::memcpy(now.weights, weights + (begin - first) * sizeof(std::uint16_t),
                  group * sizeof(std::uint16_t));
      std::copy_n(now.weights, group, before.weights);
      for (; change != end && change->at / group == of_group; ++change) {
        before.weights[change->at - begin] = change->before;
        now.weights[change->at - begin] = change->now;
      }
      before.code(group);
      now.code(group);
      for (unsigned i = 0; i < words; ++i) {
        add_unit(of_group * words + i, before.packed[i], now.packed[i], packed);
      }
      add_unit(of_group, before.scale, now.scale, scales);
    }
  }
  return {};
}

void LiveMatrices::commit() {
  for (MatrixBlocks& blocks : blocks_) {
    if (!blocks.local_after.empty()) {
      blocks.local = std::exchange(blocks.local_after, {});
    } else {
      for (const auto& [block, size] : blocks.local_now) blocks.local[block] = size;
    }
    blocks.local_now.clear();
    blocks.pieces.clear();
    blocks.changes.clear();
    if (!blocks.largest_now.empty()) blocks.largest = std::exchange(blocks.largest_now, {});
  }
}

}  // namespace driftless
