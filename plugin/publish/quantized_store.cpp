// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/quantized_store.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "plugin/publish/scale_jumps.h"

namespace driftless {
namespace {

std::uint16_t unit_16(const std::byte* units, std::uint64_t at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, units + at * sizeof(bits), sizeof(bits));
  return bits;
}

std::vector<ChangeStore::Block> blocks_of(const WeightStore& store) {
  std::vector<ChangeStore::Block> blocks;
  for (std::uint32_t i = 0; i < store.owned().size(); ++i) {
    blocks.push_back({store.owned(i).place().units, unit_bytes(store.spec(i).dtype)});
  }
  return blocks;
}

void copy_changes(const ChangeStore& from, ChangeStore& to) {
  for (std::uint32_t number = 0; number < from.blocks(); ++number) {
    if (from.whole(number)) to.mark_whole(number);
    for (std::uint64_t piece = 0; piece < from.pieces(number); ++piece) {
      const DeltaView delta = from.delta(number, piece);
      if (delta.count() > 0) to.add(delta, from.old_values(number, piece));
    }
  }
}

// The sweep of codes and scales covers the weights, so LiveStore needs none.
LiveStore::Options without_sweep(LiveStore::Options options) {
  options.sweep_every = 0;
  return options;
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

struct CodeChange {
  std::uint64_t at = 0;  // in the box
  std::uint8_t before = 0, now = 0;
};

void add_codes(std::uint32_t number, std::span<const CodeChange> changes, ChangeStore& store) {
  for (std::size_t i = 0; i < changes.size();) {
    const std::uint64_t piece = changes[i].at / ChangeStore::kPieceBytes;
    PieceChanges found;
    for (; i < changes.size() && changes[i].at / ChangeStore::kPieceBytes == piece; ++i) {
      found.offsets.push_back(static_cast<std::uint32_t>(changes[i].at % ChangeStore::kPieceBytes));
      found.values.push_back(std::byte{changes[i].now});
      found.old_values.push_back(std::byte{changes[i].before});
    }
    store.add(number, piece, std::move(found));
  }
}

// Adds the units of a block that differ.
Status add_diff(const WeightStore& of, std::uint32_t number, const std::byte* before,
                const std::byte* now, unsigned threads, ChangeStore& store) {
  const TensorPair pair{number, unit_bytes(of.spec(number).dtype), of.owned(number).place().units,
                        before, now};
  DiffOptions options;
  options.threads = threads;
  options.piece_bytes = ChangeStore::kPieceBytes;
  options.old_values = true;
  return diff_tensors(
      host_kernels(), {&pair, 1}, options,
      [&](const DiffPiece& piece) {
        store.add(piece.delta, piece.old_values);
        return Status();
      },
      [](const DiffPiece&) { return Status(); });
}

// The change of each tensor's digest.
Result<std::map<std::uint32_t, Digest>> sum_changes(const WeightStore& of, const ChangeStore& store,
                                                    unsigned threads) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> tasks;
  for (std::uint32_t i = 0; i < store.blocks(); ++i) {
    for (std::uint64_t piece = 0; piece < store.pieces(i); ++piece) {
      if (store.delta(i, piece).count() > 0) tasks.emplace_back(i, piece);
    }
  }
  std::vector<Digest> local(tasks.size());
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(tasks.size(), threads, [&](std::size_t task, unsigned) {
    const auto [i, piece] = tasks[task];
    local[task] =
        digest_block_change(host_kernels(), digest_tensor_key(of.spec(i).name), of.owned(i).place(),
                            store.delta(i, piece), store.old_values(i, piece));
    return Status();
  }));
  std::map<std::uint32_t, Digest> sums;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    sums[of.owned(tasks[i].first).tensor()] += local[i];
  }
  return sums;
}

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

QuantizedStore::QuantizedStore(const WeightLayout& layout, QuantizedWeights& weights, Parts parts,
                               const Options& options)
    : WeightStore(layout, std::move(parts.owned), nullptr, make_host_memory(),
                  options.live.threads),
      weights_(weights),
      options_(options),
      numbers_(std::move(parts.numbers)),
      trainer_numbers_(std::move(parts.trainer_numbers)),
      live_(*parts.trainer_layout, std::move(parts.local), parts.device,
            without_sweep(options.live)),
      kept_(live_.owned().size(), kNotHere),
      live_of_(owned().size(), kNotHere),
      made_(owned().size()),
      blocks_(weights.matrices().size()),
      from_base_(blocks_of(*this), options.live.capture_bytes),
      sent_(blocks_of(*this), ~std::uint64_t{0}) {
  for (std::size_t from = 0; from < weights_.offered(); ++from) {
    const QuantizedWeights::Place& at = weights_.place(from);
    if (!at.matrix) {
      kept_[trainer_numbers_[from]] = numbers_[at.kept];
      live_of_[numbers_[at.kept]] = trainer_numbers_[from];
      continue;
    }
    const Matrix& matrix = weights_.matrices()[*at.matrix];
    made_[codes_of(matrix)] = *at.matrix;
    if (matrix.scales) made_[numbers_[*matrix.scales]] = *at.matrix;
  }
}

const std::byte* QuantizedStore::weights_of(std::size_t matrix) const {
  return live_.data(trainer_numbers_[weights_.matrices()[matrix].from]);
}

Status QuantizedStore::open(std::vector<LivePlace> places) {
  DRIFTLESS_RETURN_IF_ERROR(live_.open(std::move(places)));
  for (std::uint32_t i = 0; i < kept_.size() && !on_gpu(); ++i) {
    if (kept_[i] != kNotHere) place(kept_[i], live_.data(i));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(trainer_digests_, live_.digests());
  trainer_digests_now_ = trainer_digests_;
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    DRIFTLESS_ASSIGN_OR_RETURN(blocks_[m].local,
                               weights_.sizes_of_all(matrix, weights_of(m), live_.memory_kind()));
    for (const std::uint32_t block : matrix.joint) {
      weights_.measured(m, block, blocks_[m].local[block]);
    }
  }
  return {};
}

Status QuantizedStore::quantize(std::size_t number, Quantized& made) const {
  const Matrix& matrix = weights_.matrices()[number];
  made.codes.resize(matrix.part.rows * matrix.part.columns);
  made.scales.resize(matrix.scale_count() * sizeof(float));
  return weights_.quantize(matrix, weights_of(number), live_.memory_kind(), made.largest,
                           made.codes.data(), matrix.scales ? made.scales.data() : nullptr);
}

Result<const std::byte*> QuantizedStore::kept_units(std::uint32_t number,
                                                    std::vector<std::byte>& held) const {
  const std::uint32_t local = live_of_[number];
  if (!on_gpu()) return live_.data(local);
  held.resize(live_.size_bytes(local));
  DRIFTLESS_RETURN_IF_ERROR(live_.memory()->fetch(held, live_.data(local)));
  return held.data();
}

Status QuantizedStore::compare(WeightSource& base) {
  Quantized made;
  std::size_t held = blocks_.size();  // of the matrix in `made`
  const auto compare_one = [&](const OfferedTensor& offered) -> Status {
    const std::uint32_t number = numbers_[offered.tensor];
    const std::optional<std::size_t> of = made_[number];
    if (!of) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const units, kept_units(number, made.codes));
      held = blocks_.size();
      return add_diff(*this, number, offered.data, units, threads(), from_base_);
    }
    if (std::exchange(held, *of) != *of) {
      DRIFTLESS_RETURN_IF_ERROR(quantize(*of, made));
      blocks_[*of].largest = made.largest;
    }
    const bool codes = number == codes_of(weights_.matrices()[*of]);
    return add_diff(*this, number, offered.data, codes ? made.codes.data() : made.scales.data(),
                    threads(), from_base_);
  };
  DRIFTLESS_RETURN_IF_ERROR(base.visit([&](std::span<const OfferedTensor> batch) -> Status {
    for (const OfferedTensor& each : batch) DRIFTLESS_RETURN_IF_ERROR(compare_one(each));
    return {};
  }));
  from_base_.release_whole();
  return {};
}

Status QuantizedStore::measure_joint(std::size_t number) {
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

Status QuantizedStore::measure(bool in_doubt) {
  std::vector<std::vector<std::uint32_t>> fell(blocks_.size());
  const auto is_known = [&](std::size_t m) {
    return !full_ && !live_.sent_whole(trainer_numbers_[weights_.matrices()[m].from]);
  };
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    if (full_ || sweeps_ || in_doubt || !is_known(m)) DRIFTLESS_RETURN_IF_ERROR(measure_joint(m));
  }
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(blocks_.size(), threads(), [&](std::size_t m, unsigned) {
    if (!is_known(m)) return Status();
    take_changes(blocks_[m]);
    fell[m] = apply_changes(weights_.matrices()[m].part, blocks_[m]);
    return Status();
  }));
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    if (is_known(m)) DRIFTLESS_RETURN_IF_ERROR(measure_changes(m, fell[m]));
  }
  return {};
}

// Measures a block only if its largest weight is smaller now.
Status QuantizedStore::measure_changes(std::size_t number, std::span<const std::uint32_t> fell) {
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

Status QuantizedStore::prepare(const LiveStore::Version& version, std::vector<std::string>& notes) {
  full_ = version.full;
  for (auto& batch : batches_) batch.clear();
  const bool in_doubt = live_.in_doubt();
  sweeps_ = options_.live.sweep_every > 0 && since_sweep_ + 1 >= options_.live.sweep_every;
  DRIFTLESS_RETURN_IF_ERROR(live_.prepare(version, trainer_digests_, notes));
  trainer_digests_now_ = trainer_digests_;
  sent_.clear();
  changes_.clear();
  whole_.clear();
  for (MatrixBlocks& blocks : blocks_) {
    blocks.pieces.clear();
    blocks.changes.clear();
    blocks.local_now.clear();
    blocks.local_after.clear();
    blocks.largest_now.clear();
  }
  if (full_) {
    DRIFTLESS_ASSIGN_OR_RETURN(trainer_digests_now_, live_.digests());
  } else {
    copy_changes(from_base_, sent_);
    FoundChanges found;
    std::map<std::uint32_t, std::size_t> matrix_of;
    for (std::size_t m = 0; m < blocks_.size(); ++m) {
      matrix_of[trainer_numbers_[weights_.matrices()[m].from]] = m;
    }
    const auto take = [&](const DiffPiece& piece) -> Status {
      const std::uint32_t number = piece.delta.tensor;
      if (const auto matrix = matrix_of.find(number); matrix != matrix_of.end()) {
        if (!live_.sent_whole(number)) blocks_[matrix->second].pieces.push_back(piece);
      } else if (live_.sent_whole(number)) {
        sent_.mark_whole(kept_[number]);
      } else {
        DeltaView delta = piece.delta;
        delta.tensor = kept_[number];
        sent_.add(delta, piece.old_values);
      }
      return {};
    };
    DRIFTLESS_RETURN_IF_ERROR(live_.each_change(live_.offer(), ~std::uint64_t{0}, found, take));
    for (const auto& [tensor, change] : found.digests) trainer_digests_now_[tensor] += change;
  }
  return measure(in_doubt);
}

void QuantizedStore::mark_whole(std::uint32_t tensor) {
  whole_.insert(tensor);
  for (std::uint32_t i = 0; i < owned().size(); ++i) {
    if (owned(i).tensor() == tensor) sent_.mark_whole(i);
  }
}

bool QuantizedStore::is_whole(std::size_t matrix) const {
  return whole_.contains(owned(codes_of(weights_.matrices()[matrix])).tensor());
}

// Chooses tensors to be sent whole: those whose changes LiveStore does not know, and those in which
// many scales changed.
void QuantizedStore::choose_whole(std::vector<std::string>& notes) {
  ScaleJumps jumps(options_.whole_above);
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    const MatrixBlocks& blocks = blocks_[m];
    std::uint64_t anew = 0;
    for (std::uint32_t block = 0; block < blocks.largest.size(); ++block) {
      const bool same =
          same_fp8_rule(weights_.rule(), blocks.largest[block], blocks.largest_now[block]);
      anew += same ? 0 : 1;
    }
    const std::uint32_t tensor = owned(codes_of(matrix)).tensor();
    const bool unknown = live_.sent_whole(trainer_numbers_[matrix.from]);
    const bool jumped = jumps.is_jump(anew, blocks.local.size());
    if (!unknown && !jumped) continue;
    if (!unknown) jumps.add(tensor, anew, blocks.local.size());
    mark_whole(tensor);
    if (matrix.scales) mark_whole(owned(numbers_[*matrix.scales]).tensor());
  }
  if (auto note = jumps.note(layout(), options_.live.rank, ": sent whole")) {
    notes.push_back(std::move(*note));
  }
}

Status QuantizedStore::settle(std::span<const Digest> tracked, std::vector<std::string>& notes) {
  Stopwatch watch;
  coded_anew_ = false;
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    MatrixBlocks& blocks = blocks_[m];
    blocks.largest_now = blocks.largest;
    for (const auto& [block, size] : blocks.local_now) blocks.largest_now[block] = size;
    for (const std::uint32_t block : matrix.joint) blocks.largest_now[block] = matrix.known[block];
  }
  if (full_) {
    for (std::size_t m = 0; m < blocks_.size(); ++m) DRIFTLESS_RETURN_IF_ERROR(scan(m));
    return {};
  }
  choose_whole(notes);
  DRIFTLESS_RETURN_IF_ERROR(translate());
  // If a block of a tensor is sent whole, so is all of the tensor.
  for (std::uint32_t i = 0; i < owned().size(); ++i) {
    if (sent_.whole(i)) mark_whole(owned(i).tensor());
  }
  sent_.release_whole();
  DRIFTLESS_ASSIGN_OR_RETURN(changes_, sum_changes(*this, sent_, threads()));
  if (sweeps_) DRIFTLESS_RETURN_IF_ERROR(sweep(tracked, notes));
  DRIFTLESS_RETURN_IF_ERROR(sum_whole(tracked));
  live_.costs().sweep_ms += watch.lap_ms();
  return {};
}

std::set<std::uint32_t> QuantizedStore::blocks_anew(std::size_t number) const {
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

// Copies all rows that the blocks touch, so that each row is one copy from a GPU. Empty for host
// memory.
Result<QuantizedStore::Rows> QuantizedStore::rows_of(std::size_t number,
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

// Computes the changes of codes and scales for all matrices that are not sent whole.
Status QuantizedStore::translate() {
  std::vector<std::set<std::uint32_t>> anew(blocks_.size());
  std::vector<Rows> rows(blocks_.size());
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    if (is_whole(m)) continue;
    anew[m] = blocks_anew(m);
    coded_anew_ = coded_anew_ || !anew[m].empty();
    DRIFTLESS_ASSIGN_OR_RETURN(rows[m], rows_of(m, anew[m]));
  }
  return parallel_for(blocks_.size(), threads(), [&](std::size_t m, unsigned) {
    if (!is_whole(m)) translate(m, anew[m], rows[m]);
    return Status();
  });
}

void QuantizedStore::translate(std::size_t number, const std::set<std::uint32_t>& anew,
                               const Rows& rows) {
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
  add_codes(codes_of(matrix), changes, sent_);
  if (matrix.scales && !anew.empty()) add_scales(number);
}

void QuantizedStore::add_scales(std::size_t number) {
  constexpr std::uint64_t kPiece = ChangeStore::kPieceBytes / sizeof(float);
  const Matrix& matrix = weights_.matrices()[number];
  const MatrixBlocks& blocks = blocks_[number];
  std::map<std::uint64_t, PieceChanges> found;
  for (std::uint64_t at = 0; at < matrix.scale_count(); ++at) {
    const std::uint64_t block =
        (matrix.scale_row + at / matrix.scale_columns) * matrix.part.blocks_wide() +
        matrix.scale_column + at % matrix.scale_columns;
    const float before = fp8_scale(weights_.rule(), blocks.largest[block]);
    const float now = fp8_scale(weights_.rule(), blocks.largest_now[block]);
    if (std::memcmp(&before, &now, sizeof(now)) == 0) continue;
    PieceChanges& piece = found[at / kPiece];
    const auto put = [](std::vector<std::byte>& to, float value) {
      const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
      to.insert(to.end(), bytes, bytes + sizeof(value));
    };
    piece.offsets.push_back(static_cast<std::uint32_t>(at % kPiece));
    put(piece.values, now);
    put(piece.old_values, before);
  }
  for (auto& [piece, changes] : found) {
    sent_.add(numbers_[*matrix.scales], piece, std::move(changes));
  }
}

Status QuantizedStore::each_batch(const std::function<Status(std::span<const PairedTensor>)>& use) {
  std::vector<PairedTensor> batch;
  std::uint64_t bytes = 0;
  std::size_t turn = 0;
  const auto pass_on = [&]() -> Status {
    const Status used = batch.empty() ? Status() : use(batch);
    batch.clear();
    bytes = 0;
    batches_[++turn % 2].clear();
    return used;
  };
  for (const std::uint32_t number : kept_) {
    if (number == kNotHere) continue;
    Quantized& held = batches_[0].emplace_back();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const units, kept_units(number, held.codes));
    place(number, const_cast<std::byte*>(units));  // only read
    batch.push_back({number, units});
    bytes += held.codes.size();
  }
  for (std::size_t m = 0; m < blocks_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    const std::uint64_t size =
        matrix.part.rows * matrix.part.columns + matrix.scale_count() * sizeof(float);
    if (bytes + size > QuantizingSource::kBatchBytes) DRIFTLESS_RETURN_IF_ERROR(pass_on());
    bytes += size;
    Quantized& made = batches_[turn % 2].emplace_back();
    DRIFTLESS_RETURN_IF_ERROR(quantize(m, made));
    place(codes_of(matrix), made.codes.data());
    batch.push_back({codes_of(matrix), made.codes.data()});
    if (!matrix.scales) continue;
    place(numbers_[*matrix.scales], made.scales.data());
    batch.push_back({numbers_[*matrix.scales], made.scales.data()});
  }
  return pass_on();
}

Status QuantizedStore::each_unit(std::uint32_t number, const UseChange& use) const {
  const unsigned width = unit_bytes(spec(number).dtype);
  const std::uint64_t units = owned(number).place().units;
  const std::span<const std::uint32_t> offsets = all_offsets();
  Quantized made;
  const std::byte* values = nullptr;
  if (!made_[number]) {
    DRIFTLESS_ASSIGN_OR_RETURN(values, kept_units(number, made.codes));
  } else {
    DRIFTLESS_RETURN_IF_ERROR(quantize(*made_[number], made));
    const bool codes = number == codes_of(weights_.matrices()[*made_[number]]);
    values = codes ? made.codes.data() : made.scales.data();
  }
  for (std::uint64_t first = 0; first < units; first += offsets.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(units - first, offsets.size());
    DRIFTLESS_RETURN_IF_ERROR(
        use({nullptr,
             first,
             0,
             {number, width, first, offsets.first(count), values + first * width},
             nullptr}));
  }
  return {};
}

Status QuantizedStore::each_change(std::span<const PairedTensor> batch,
                                   std::uint64_t dense_above_units, FoundChanges& found,
                                   const UseChange& use) {
  for (const PairedTensor& offered : batch) {
    if (found.dense) return {};
    const std::uint32_t tensor = owned(offered.number).tensor();
    const auto change = changes_.find(tensor);
    if (change == changes_.end()) continue;
    found.digests[tensor] = change->second;
    const auto pass = [&](const DiffPiece& piece) -> Status {
      found.changed_units += piece.delta.count();
      found.units[tensor] += piece.delta.count();
      found.dense = found.changed_units > dense_above_units;
      return found.dense ? Status() : use(piece);
    };
    if (sent_.whole(offered.number)) {
      DRIFTLESS_RETURN_IF_ERROR(each_unit(offered.number, pass));
      continue;
    }
    for (std::uint64_t piece = 0; piece < sent_.pieces(offered.number); ++piece) {
      const DeltaView delta = sent_.delta(offered.number, piece);
      if (delta.count() == 0) continue;
      DRIFTLESS_RETURN_IF_ERROR(
          pass({nullptr, delta.origin, 0, delta, sent_.old_values(offered.number, piece)}));
    }
  }
  return {};
}

void QuantizedStore::commit() {
  live_.commit();
  if (!full_) since_sweep_ = sweeps_ ? 0 : since_sweep_ + 1;  // its findings are published
  trainer_digests_ = trainer_digests_now_;
  from_base_.clear();
  sent_.clear();
  changes_.clear();
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
