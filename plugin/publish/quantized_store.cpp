// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/quantized_store.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "plugin/publish/scale_jumps.h"

namespace driftless {
namespace {

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

// `width`: bytes of a unit.
void add_units(std::uint32_t number, unsigned width, const BoxChanges& changes,
               ChangeStore& store) {
  const std::uint64_t units = ChangeStore::kPieceBytes / width;
  for (std::size_t i = 0; i < changes.at.size();) {
    const std::uint64_t piece = changes.at[i] / units;
    const std::size_t first = i;
    PieceChanges found;
    for (; i < changes.at.size() && changes.at[i] / units == piece; ++i) {
      found.offsets.push_back(static_cast<std::uint32_t>(changes.at[i] % units));
    }
    const std::size_t bytes = (i - first) * width;
    const auto copy = [&](const std::vector<std::byte>& from, std::vector<std::byte>& to) {
      to.assign(from.data() + first * width, from.data() + first * width + bytes);
    };
    copy(changes.now, found.values);
    copy(changes.before, found.old_values);
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

}  // namespace

QuantizedStore::QuantizedStore(const WeightLayout& layout, QuantizedWeights& weights, Parts parts,
                               const Options& options)
    : WeightStore(layout, std::move(parts.owned), nullptr, make_host_memory(),
                  options.live.threads),
      weights_(weights),
      options_(options),
      numbers_(std::move(parts.numbers)),
      live_(*parts.trainer_layout, std::move(parts.local), parts.device,
            without_sweep(options.live)),
      matrices_(weights, live_, parts.trainer_numbers, options.live.threads),
      kept_(live_.owned().size(), kNotHere),
      live_of_(owned().size(), kNotHere),
      made_(owned().size()),
      from_base_(blocks_of(*this), options.live.capture_bytes),
      sent_(blocks_of(*this), ~std::uint64_t{0}) {
  for (std::size_t from = 0; from < weights_.offered(); ++from) {
    const QuantizedWeights::Place& at = weights_.place(from);
    if (!at.matrix) {
      kept_[parts.trainer_numbers[from]] = numbers_[at.kept];
      live_of_[numbers_[at.kept]] = parts.trainer_numbers[from];
      continue;
    }
    const Matrix& matrix = weights_.matrices()[*at.matrix];
    made_[codes_of(matrix)] = *at.matrix;
    if (matrix.scales) made_[numbers_[*matrix.scales]] = *at.matrix;
    if (matrix.shape) made_[numbers_[*matrix.shape]] = *at.matrix;
  }
}

Status QuantizedStore::open(std::vector<LivePlace> places) {
  DRIFTLESS_RETURN_IF_ERROR(live_.open(std::move(places)));
  for (std::uint32_t i = 0; i < kept_.size() && !on_gpu(); ++i) {
    if (kept_[i] != kNotHere) place(kept_[i], live_.data(i));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(trainer_digests_, live_.digests());
  trainer_digests_now_ = trainer_digests_;
  return matrices_.open();
}

Result<const std::byte*> QuantizedStore::kept_units(std::uint32_t number,
                                                    std::vector<std::byte>& held) const {
  const std::uint32_t local = live_of_[number];
  if (!on_gpu()) return live_.data(local);
  held.resize(live_.size_bytes(local));
  DRIFTLESS_RETURN_IF_ERROR(live_.memory()->fetch(held, live_.data(local)));
  return held.data();
}

const std::byte* QuantizedStore::made_units(std::uint32_t number,
                                            const LiveMatrices::Quantized& made) const {
  const Matrix& matrix = weights_.matrices()[*made_[number]];
  if (number == codes_of(matrix)) return made.codes.data();
  const bool shape = matrix.shape && number == numbers_[*matrix.shape];
  return shape ? matrix.shape_bytes.data() : made.scales.data();
}

Status QuantizedStore::compare(WeightSource& base) {
  LiveMatrices::Quantized made;
  std::size_t held = matrices_.size();  // of the matrix in `made`
  const auto compare_one = [&](const OfferedTensor& offered) -> Status {
    const std::uint32_t number = numbers_[offered.tensor];
    const std::optional<std::size_t> of = made_[number];
    if (!of) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const units, kept_units(number, made.codes));
      held = matrices_.size();
      return add_diff(*this, number, offered.data, units, threads(), from_base_);
    }
    if (std::exchange(held, *of) != *of) {
      DRIFTLESS_RETURN_IF_ERROR(matrices_.quantize(*of, made));
      matrices_.set_largest(*of, made.largest);
    }
    return add_diff(*this, number, offered.data, made_units(number, made), threads(), from_base_);
  };
  DRIFTLESS_RETURN_IF_ERROR(base.visit([&](std::span<const OfferedTensor> batch) -> Status {
    for (const OfferedTensor& each : batch) DRIFTLESS_RETURN_IF_ERROR(compare_one(each));
    return {};
  }));
  from_base_.release_whole();
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
  matrices_.clear();
  if (full_) {
    DRIFTLESS_ASSIGN_OR_RETURN(trainer_digests_now_, live_.digests());
  } else {
    copy_changes(from_base_, sent_);
    FoundChanges found;
    std::map<std::uint32_t, std::size_t> matrix_of;
    for (std::size_t m = 0; m < matrices_.size(); ++m) {
      matrix_of[matrices_.number(m)] = m;
    }
    const auto take = [&](const DiffPiece& piece) -> Status {
      const std::uint32_t number = piece.delta.tensor;
      if (const auto matrix = matrix_of.find(number); matrix != matrix_of.end()) {
        if (!live_.sent_whole(number)) matrices_.add(matrix->second, piece);
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
  return matrices_.measure(full_, sweeps_ || in_doubt);
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

// Chooses tensors to be sent whole: those whose changes LiveStore did not keep, and those in which
// many scales changed.
void QuantizedStore::choose_whole(std::vector<std::string>& notes) {
  ScaleJumps jumps(options_.whole_above);
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    const MatrixBlocks& blocks = matrices_.blocks(m);
    std::uint64_t anew = 0;
    for (std::uint32_t block = 0; block < blocks.largest.size(); ++block) {
      const bool same =
          same_fp8_rule(weights_.rule(), blocks.largest[block], blocks.largest_now[block]);
      anew += same ? 0 : 1;
    }
    const std::uint32_t tensor = owned(codes_of(matrix)).tensor();
    const bool unknown = live_.sent_whole(matrices_.number(m));
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
  matrices_.settle();
  if (full_) {
    for (std::size_t m = 0; m < matrices_.size(); ++m) DRIFTLESS_RETURN_IF_ERROR(matrices_.scan(m));
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

// Computes the changes of codes and scales for all matrices that are not sent whole. Sets
// coded_anew_ if unchanged weights were read for this, so that prove_read() proves all weights. (In
// INT4 only without a sweep, which proves them, too.)
Status QuantizedStore::translate() {
  std::vector<std::set<std::uint32_t>> anew(matrices_.size());
  std::vector<LiveMatrices::Rows> rows(matrices_.size());
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    if (is_whole(m)) continue;
    anew[m] = matrices_.blocks_anew(m);
    const bool groups = weights_.matrices()[m].group > 0 && !matrices_.blocks(m).changes.empty();
    coded_anew_ = coded_anew_ || !anew[m].empty() || (groups && !sweeps_);
    DRIFTLESS_ASSIGN_OR_RETURN(rows[m], matrices_.rows_of(m, anew[m]));
  }
  const unsigned at_once = on_gpu() && weights_.as().int4_group > 0 ? 1 : threads();
  return parallel_for(matrices_.size(), at_once, [&](std::size_t m, unsigned) {
    if (is_whole(m)) return Status();
    const Matrix& matrix = weights_.matrices()[m];
    if (matrix.group > 0) {
      BoxChanges packed, scales;
      DRIFTLESS_RETURN_IF_ERROR(matrices_.group_changes(m, packed, scales));
      add_units(codes_of(matrix), sizeof(std::uint32_t), packed, sent_);
      add_units(numbers_[*matrix.scales], sizeof(std::uint16_t), scales, sent_);
      return Status();
    }
    add_codes(codes_of(matrix), matrices_.code_changes(m, anew[m], rows[m]), sent_);
    if (matrix.scales && !anew[m].empty()) add_scales(m);
    return Status();
  });
}

void QuantizedStore::add_scales(std::size_t number) {
  constexpr std::uint64_t kPiece = ChangeStore::kPieceBytes / sizeof(float);
  const Matrix& matrix = weights_.matrices()[number];
  const MatrixBlocks& blocks = matrices_.blocks(number);
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
    LiveMatrices::Quantized& held = batches_[0].emplace_back();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::byte* const units, kept_units(number, held.codes));
    place(number, const_cast<std::byte*>(units));  // only read
    batch.push_back({number, units});
    bytes += held.codes.size();
  }
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    const std::uint64_t size = matrix.code_bytes() + matrix.scale_bytes();
    if (bytes + size > QuantizingSource::kBatchBytes) DRIFTLESS_RETURN_IF_ERROR(pass_on());
    bytes += size;
    LiveMatrices::Quantized& made = batches_[turn % 2].emplace_back();
    DRIFTLESS_RETURN_IF_ERROR(matrices_.quantize(m, made));
    place(codes_of(matrix), made.codes.data());
    batch.push_back({codes_of(matrix), made.codes.data()});
    if (!matrix.scales) continue;
    place(numbers_[*matrix.scales], made.scales.data());
    batch.push_back({numbers_[*matrix.scales], made.scales.data()});
    if (!matrix.shape) continue;
    place(numbers_[*matrix.shape], const_cast<std::byte*>(matrix.shape_bytes.data()));  // only read
    batch.push_back({numbers_[*matrix.shape], matrix.shape_bytes.data()});
  }
  return pass_on();
}

Status QuantizedStore::each_unit(std::uint32_t number, const UseChange& use) const {
  const unsigned width = unit_bytes(spec(number).dtype);
  const std::uint64_t units = owned(number).place().units;
  const std::span<const std::uint32_t> offsets = all_offsets();
  LiveMatrices::Quantized made;
  const std::byte* values = nullptr;
  if (!made_[number]) {
    DRIFTLESS_ASSIGN_OR_RETURN(values, kept_units(number, made.codes));
  } else {
    DRIFTLESS_RETURN_IF_ERROR(matrices_.quantize(*made_[number], made));
    values = made_units(number, made);
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
  if (!full_) since_sweep_ = sweeps_ ? 0 : since_sweep_ + 1;  // the sweep's findings are published
  trainer_digests_ = trainer_digests_now_;
  from_base_.clear();
  sent_.clear();
  changes_.clear();
  matrices_.commit();
}

}  // namespace driftless
