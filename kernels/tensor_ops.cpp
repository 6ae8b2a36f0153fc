// SPDX-License-Identifier: Apache-2.0
#include "kernels/tensor_ops.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "core/parallel.h"

namespace driftless {
namespace {

// A task compares one piece of a large pair, or several whole small pairs.
struct DiffTask {
  std::size_t first_pair = 0, pairs = 1;
  std::uint64_t origin = 0, units = 0;  // of the piece; unused if pairs > 1
};

std::uint64_t bytes_of(const TensorPair& pair) { return pair.units * pair.unit_bytes; }

std::uint64_t piece_units(const TensorPair& pair, const DiffOptions& options) {
  return std::clamp<std::uint64_t>(options.piece_bytes / pair.unit_bytes, 1, kMaxDiffUnits);
}

std::vector<DiffTask> plan(std::span<const TensorPair> pairs, const DiffOptions& options) {
  std::vector<DiffTask> tasks;
  bool open = false;  // whether the last task may take more pairs
  std::uint64_t open_bytes = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const TensorPair& pair = pairs[i];
    const std::uint64_t step = piece_units(pair, options);
    if (pair.units > step) {
      for (std::uint64_t origin = 0; origin < pair.units; origin += step) {
        tasks.push_back({i, 1, origin, std::min(step, pair.units - origin)});
      }
      open = false;
    } else if (open && open_bytes + bytes_of(pair) <= options.piece_bytes) {
      ++tasks.back().pairs;
      open_bytes += bytes_of(pair);
    } else {
      tasks.push_back({i, 1, 0, pair.units});
      open = true;
      open_bytes = bytes_of(pair);
    }
  }
  return tasks;
}

// The results of one task: those of its pieces, one after the other. Memory is allocated once and
// not cleared; the system provides pages only as far as changes are found.
class DiffSlot {
 public:
  void reserve(std::uint64_t units, std::uint64_t value_bytes, bool old_values) {
    offsets_ = std::make_unique_for_overwrite<std::uint32_t[]>(units + kDiffSlackUnits);
    const std::uint64_t room = value_bytes + kDiffSlackUnits * 8;
    values_ = std::make_unique_for_overwrite<std::byte[]>(room);
    if (old_values) old_values_ = std::make_unique_for_overwrite<std::byte[]>(room);
  }
  void clear() {
    pieces_.clear();
    count_ = value_bytes_ = 0;
  }
  DiffPiece compare(const HostKernels& kernels, const TensorPair& pair, std::uint64_t origin,
                    std::uint64_t units) {
    std::uint32_t* const offsets = offsets_.get() + count_;
    std::byte* const values = values_.get() + value_bytes_;
    std::byte* const old_values = old_values_ ? old_values_.get() + value_bytes_ : nullptr;
    const std::byte* const before = pair.old_data + origin * pair.unit_bytes;
    const std::byte* const after =
        pair.new_data + origin * source_bytes(pair.cast, pair.unit_bytes);
    const auto count = static_cast<std::uint32_t>(units);
    const std::uint32_t found =
        pair.cast == ValueCast::kNone
            ? kernels.diff(before, after, count, pair.unit_bytes, offsets, values, old_values)
            : kernels.diff_cast(before, after, count, pair.cast, offsets, values, old_values);
    count_ += found;
    value_bytes_ += std::uint64_t{found} * pair.unit_bytes;
    return {&pair, origin, units,
            DeltaView{pair.tensor, pair.unit_bytes, origin, std::span(offsets, found), values},
            old_values};
  }
  void keep(const DiffPiece& piece) { pieces_.push_back(piece); }
  [[nodiscard]] std::span<const DiffPiece> pieces() const { return pieces_; }

 private:
  std::unique_ptr<std::uint32_t[]> offsets_;
  std::unique_ptr<std::byte[]> values_, old_values_;
  std::uint64_t count_ = 0, value_bytes_ = 0;
  std::vector<DiffPiece> pieces_;
};

std::vector<DiffSlot> make_slots(std::span<const TensorPair> pairs, std::span<const DiffTask> tasks,
                                 std::size_t count, bool old_values) {
  std::uint64_t units = 0, value_bytes = 0;
  for (const DiffTask& task : tasks) {
    std::uint64_t task_units = 0, task_bytes = 0;
    for (const TensorPair& pair : pairs.subspan(task.first_pair, task.pairs)) {
      const std::uint64_t piece = task.pairs > 1 ? pair.units : task.units;
      task_units += piece;
      task_bytes += piece * pair.unit_bytes;
    }
    units = std::max(units, task_units);
    value_bytes = std::max(value_bytes, task_bytes);
  }
  std::vector<DiffSlot> slots(std::min(count, tasks.size()));
  for (DiffSlot& slot : slots) slot.reserve(units, value_bytes, old_values);
  return slots;
}

Status check(std::span<const TensorPair> pairs) {
  for (const TensorPair& pair : pairs) {
    const unsigned width = pair.unit_bytes;
    if (width != 1 && width != 2 && width != 4 && width != 8) {
      return error(StatusCode::kInternal, "tensor ", pair.tensor, " has units of ", width,
                   " bytes: expected 1, 2, 4 or 8");
    }
  }
  return {};
}

Status diff_in_tasks(const HostKernels& kernels, std::span<const TensorPair> pairs,
                     const DiffOptions& options,
                     const std::function<Status(const DiffPiece&)>& in_parallel,
                     const std::function<Status(const DiffPiece&)>& in_order) {
  const std::vector<DiffTask> tasks = plan(pairs, options);
  if (tasks.empty()) return {};
  std::vector<DiffSlot> slots = make_slots(
      pairs, tasks, 2 * std::size_t{std::max(1U, options.threads)} + 2, options.old_values);
  const auto produce = [&](std::size_t index, std::size_t slot_index) -> Status {
    const DiffTask& task = tasks[index];
    DiffSlot& slot = slots[slot_index];
    slot.clear();
    for (const TensorPair& pair : pairs.subspan(task.first_pair, task.pairs)) {
      const DiffPiece piece =
          slot.compare(kernels, pair, task.origin, task.pairs > 1 ? pair.units : task.units);
      if (in_parallel) DRIFTLESS_RETURN_IF_ERROR(in_parallel(piece));
      if (piece.delta.count() > 0) slot.keep(piece);
    }
    return {};
  };
  const auto consume = [&](std::size_t, std::size_t slot_index) -> Status {
    for (const DiffPiece& piece : slots[slot_index].pieces()) {
      DRIFTLESS_RETURN_IF_ERROR(in_order(piece));
    }
    return {};
  };
  return ordered_pipeline(tasks.size(), options.threads, slots.size(), produce, consume);
}

}  // namespace

Status diff_tensors(const HostKernels& kernels, std::span<const TensorPair> pairs,
                    const DiffOptions& options,
                    const std::function<Status(const DiffPiece&)>& in_parallel,
                    const std::function<Status(const DiffPiece&)>& in_order) {
  DRIFTLESS_RETURN_IF_ERROR(check(pairs));
  try {
    return diff_in_tasks(kernels, pairs, options, in_parallel, in_order);
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kNoSpace, "no memory to compare pieces of ", options.piece_bytes,
                 " bytes on ", options.threads, " threads");
  }
}

Digest digest_block_change(const HostKernels& kernels, const DigestTensorKey& key,
                           const BlockPlace& place, const DeltaView& delta,
                           const std::byte* old_values) {
  const unsigned width = delta.unit_bytes;
  if (place.contiguous()) {
    return kernels.digest_change(key, width, place.first + delta.origin, delta.offsets.data(),
                                 delta.count(), old_values, delta.values);
  }
  std::vector<std::uint32_t> offsets;
  Digest sum;
  for (std::size_t begin = 0; begin < delta.offsets.size();) {
    const std::uint64_t origin = place.at(delta.origin + delta.offsets[begin]);
    offsets.clear();
    for (std::size_t k = begin; k < delta.offsets.size(); ++k) {
      const std::uint64_t offset = place.at(delta.origin + delta.offsets[k]) - origin;
      if (offset >= std::numeric_limits<std::uint32_t>::max()) break;
      offsets.push_back(static_cast<std::uint32_t>(offset));
    }
    sum += kernels.digest_change(key, width, origin, offsets.data(), offsets.size(),
                                 old_values + begin * width, delta.values + begin * width);
    begin += offsets.size();
  }
  return sum;
}

Digest digest_tensor(const HostKernels& kernels, const DigestTensorKey& key,
                     std::span<const std::byte> bytes, unsigned threads) {
  constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
  struct alignas(64) Sum {  // a cache line each, so that threads do not share one
    Digest digest;
  };
  std::vector<Sum> sums(std::max(1U, threads));
  const std::uint64_t parts = (bytes.size() + kPart - 1) / kPart;
  const Status done = parallel_for(parts, threads, [&](std::size_t part, unsigned worker) {
    const std::uint64_t from = part * kPart;
    const std::uint64_t size = std::min(kPart, bytes.size() - from);
    sums[worker].digest += kernels.digest(key, from, bytes.subspan(from, size));
    return Status{};
  });
  static_cast<void>(done);  // the tasks cannot fail
  Digest total;
  for (const Sum& sum : sums) total += sum.digest;
  return total;
}

}  // namespace driftless
