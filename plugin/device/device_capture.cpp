// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_capture.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/parallel.h"

namespace driftless {
namespace {

constexpr std::uint64_t kLeastRoom = std::uint64_t{64} << 10;
// The first comparison of blocks has room for a change in one of kFirstShare units.
constexpr std::uint64_t kFirstShare = 64;
constexpr std::uint64_t kPieceTiles = ChangeStore::kPieceBytes / cuda::CaptureBatch::kTileBytes;
static_assert(ChangeStore::kPieceBytes % cuda::CaptureBatch::kTileBytes == 0);

std::uint64_t tiles_of(std::uint64_t units, unsigned unit_bytes) {
  const std::uint64_t tile = cuda::CaptureBatch::kTileBytes / unit_bytes;
  return (units + tile - 1) / tile;
}

}  // namespace

// Where the changes of a tile of a block are.
struct DeviceCapture::FoundTile {
  std::uint32_t number = 0;
  std::uint64_t tile = 0;  // in the block
  std::uint64_t base = 0;
  std::uint32_t count = 0;

  [[nodiscard]] std::uint64_t piece() const { return tile / kPieceTiles; }
};

bool DeviceCapture::Run::same(std::span<const TensorPair> pairs) const {
  return batch && std::ranges::equal(pairs, numbers, {}, &TensorPair::tensor) &&
         std::ranges::equal(pairs, units, {}, &TensorPair::units) &&
         pairs.front().unit_bytes == unit_bytes && pairs.front().cast == cast;
}

cuda::CaptureBatch::Slots DeviceCapture::Run::places() const {
  std::byte* const values = slots.data() + device_aligned(room * sizeof(std::uint16_t));
  return {reinterpret_cast<std::uint16_t*>(slots.data()), values,
          values + device_aligned(room * unit_bytes), room};
}

Status DeviceCapture::Run::reserve(std::uint64_t changes) {
  if (changes <= room) return {};
  DRIFTLESS_RETURN_IF_ERROR(slots.reserve(
      device_aligned(changes * sizeof(std::uint16_t)) + 2 * device_aligned(changes * unit_bytes),
      MemoryKind::kDevice));
  room = changes;
  return {};
}

Status DeviceCapture::capture(std::span<const TensorPair> pairs, std::uint64_t limit_bytes,
                              const DeviceStream& trainer) {
  std::vector<TensorPair> sorted(pairs.begin(), pairs.end());
  std::erase_if(sorted, [](const TensorPair& pair) { return pair.units == 0; });
  const auto kind = [](const TensorPair& pair) { return std::pair(pair.unit_bytes, pair.cast); };
  std::ranges::stable_sort(sorted, {}, kind);
  for (std::span<const TensorPair> rest = sorted; !rest.empty();) {
    const auto end = std::ranges::find_if(
        rest, [&](const TensorPair& pair) { return kind(pair) != kind(rest.front()); });
    const auto same = static_cast<std::size_t>(end - rest.begin());
    DRIFTLESS_RETURN_IF_ERROR(start(rest.first(same), limit_bytes, trainer));
    rest = rest.subspan(same);
  }
  return {};
}

Status DeviceCapture::prepare(Run& run, std::span<const TensorPair> pairs,
                              const DeviceStream& trainer) const {
  run.batch.reset();
  run.numbers.clear();
  run.units.clear();
  for (const TensorPair& pair : pairs) {
    run.numbers.push_back(pair.tensor);
    run.units.push_back(pair.units);
  }
  run.unit_bytes = pairs.front().unit_bytes;
  run.cast = pairs.front().cast;
  run.room = run.most = 0;
  const cuda::WorkspaceSize size = cuda::CaptureBatch::workspace_size(run.units, run.unit_bytes);
  DRIFTLESS_RETURN_IF_ERROR(run.work.dev.reserve(size.dev_bytes, MemoryKind::kDevice));
  DRIFTLESS_RETURN_IF_ERROR(run.work.host.reserve(size.host_bytes, MemoryKind::kHost));
  DRIFTLESS_ASSIGN_OR_RETURN(run.done, DeviceEvent::make());
  DRIFTLESS_ASSIGN_OR_RETURN(
      run.batch,
      cuda::CaptureBatch::make(run.units, run.unit_bytes, run.cast, run.work.get(), trainer.get()));
  return {};
}

Status DeviceCapture::start(std::span<const TensorPair> pairs, std::uint64_t limit_bytes,
                            const DeviceStream& trainer) {
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < used_; ++i) held += runs_[i].room * runs_[i].limit_share();
  if (used_ == runs_.size()) runs_.emplace_back();
  Run& run = runs_[used_];
  if (!run.same(pairs)) DRIFTLESS_RETURN_IF_ERROR(prepare(run, pairs, trainer));
  const std::uint64_t limit = (limit_bytes - std::min(held, limit_bytes)) / run.limit_share();
  const std::uint64_t units = std::accumulate(run.units.begin(), run.units.end(), std::uint64_t{0});
  const auto roomy = [](std::uint64_t changes) { return changes + changes / 4 + kLeastRoom; };
  const bool known = run.most > 0;
  DRIFTLESS_RETURN_IF_ERROR(
      run.reserve(std::min({known ? roomy(run.most) : roomy(units / kFirstShare), units, limit})));
  std::vector<cuda::CaptureBatch::Tensor> tensors;
  for (const TensorPair& pair : pairs) tensors.push_back({pair.old_data, pair.new_data});
  DRIFTLESS_RETURN_IF_ERROR(run.batch->run(tensors, run.places(), trainer.get()));
  if (!known) {
    DRIFTLESS_ASSIGN_OR_RETURN(run.most, count(run, trainer));
    if (run.most > run.room && run.most <= limit) {
      DRIFTLESS_RETURN_IF_ERROR(run.reserve(std::min({roomy(run.most), units, limit})));
      DRIFTLESS_RETURN_IF_ERROR(run.batch->run(tensors, run.places(), trainer.get()));
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(run.done.record(trainer));
  ++used_;
  return {};
}

Result<std::uint64_t> DeviceCapture::count(const Run& run, const DeviceStream& stream) {
  DRIFTLESS_RETURN_IF_ERROR(fetched_.reserve(kFetchBytes, MemoryKind::kHost));
  std::uint64_t changed = 0;
  DRIFTLESS_RETURN_IF_ERROR(
      stream.copy(fetched_.data(), run.batch->changed_dev(), sizeof(changed)));
  DRIFTLESS_RETURN_IF_ERROR(stream.wait());
  std::memcpy(&changed, fetched_.data(), sizeof(changed));
  return changed;
}

Status DeviceCapture::wait() const {
  for (std::size_t i = 0; i < used_; ++i) DRIFTLESS_RETURN_IF_ERROR(runs_[i].done.wait());
  return {};
}

std::uint64_t DeviceCapture::device_bytes() const {
  std::uint64_t bytes = 0;
  for (const Run& run : runs_) bytes += run.work.dev.size() + run.slots.size();
  return bytes;
}

Result<std::vector<std::uint32_t>> DeviceCapture::fetch(const DeviceStream& stream,
                                                        unsigned threads, const UseChanges& use) {
  std::vector<std::uint32_t> missing;
  for (std::size_t i = 0; i < used_; ++i) {
    Run& run = runs_[i];
    DRIFTLESS_RETURN_IF_ERROR(run.done.hold(stream));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<FoundTile> tiles,
                               found_tiles(run, stream, missing));
    // Fetches tiles in groups that fit kFetchBytes. A group is the tiles that begin in the same
    // `step` slots; its last tile may end after them.
    const std::uint64_t most =
        kFetchBytes / (sizeof(std::uint16_t) + 2 * std::uint64_t{run.unit_bytes}) - 1024;
    const std::uint64_t step = most - cuda::CaptureBatch::kTileBytes / run.unit_bytes;
    std::vector<std::vector<FoundTile>> together(run.room / step + 1);
    for (const FoundTile& tile : tiles) together[tile.base / step].push_back(tile);
    for (const std::vector<FoundTile>& some : together) {
      if (some.empty()) continue;
      DRIFTLESS_RETURN_IF_ERROR(fetch_some(run, some, stream, threads, use));
    }
  }
  used_ = 0;
  return missing;
}

// The tiles that have changes, block by block, ascending. If the changes of a tile did not fit, its
// block is added to `missing`.
Result<std::vector<DeviceCapture::FoundTile>> DeviceCapture::found_tiles(
    Run& run, const DeviceStream& stream, std::vector<std::uint32_t>& missing) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t changed, count(run, stream));
  run.most = std::max({run.most, changed, std::uint64_t{1}});
  std::vector<FoundTile> found;
  if (changed == 0) return found;
  std::vector<cuda::CaptureBatch::Tile> tiles(run.batch->tiles());
  constexpr std::size_t kTogether = kFetchBytes / sizeof(cuda::CaptureBatch::Tile);
  for (std::size_t first = 0; first < tiles.size(); first += kTogether) {
    const std::span some =
        std::span(tiles).subspan(first, std::min(kTogether, tiles.size() - first));
    DRIFTLESS_RETURN_IF_ERROR(
        stream.copy(fetched_.data(), run.batch->tiles_dev() + first, some.size_bytes()));
    DRIFTLESS_RETURN_IF_ERROR(stream.wait());
    std::memcpy(some.data(), fetched_.data(), some.size_bytes());
  }
  auto tile = tiles.begin();
  for (std::size_t i = 0; i < run.numbers.size(); ++i) {
    bool whole = true;
    const std::uint64_t tile_count = tiles_of(run.units[i], run.unit_bytes);
    for (std::uint64_t k = 0; k < tile_count; ++k, ++tile) {
      const bool kept = tile->base + tile->count <= run.room;
      whole = whole && (kept || tile->count == 0);
      if (kept && tile->count > 0) found.push_back({run.numbers[i], k, tile->base, tile->count});
    }
    if (!whole) missing.push_back(run.numbers[i]);
  }
  return found;
}

// Changes of consecutive slots, from `first` on.
struct DeviceCapture::Fetched {
  std::uint64_t first = 0, width = 1;
  const std::uint16_t* offsets = nullptr;
  const std::byte *values = nullptr, *old_values = nullptr;
};

// Fetches tiles, and hands over their changes piece by piece.
Status DeviceCapture::fetch_some(const Run& run, std::span<const FoundTile> tiles,
                                 const DeviceStream& stream, unsigned threads,
                                 const UseChanges& use) {
  const std::uint64_t width = run.unit_bytes;
  std::uint64_t first = tiles.front().base, end = 0;
  for (const FoundTile& tile : tiles) {
    first = std::min(first, tile.base);
    end = std::max(end, tile.base + tile.count);
  }
  const std::uint64_t count = end - first;
  const cuda::CaptureBatch::Slots slots = run.places();
  std::byte* const offsets = fetched_.data();
  std::byte* const values = offsets + device_aligned(count * sizeof(std::uint16_t));
  std::byte* const old_values = values + device_aligned(count * width);
  DRIFTLESS_RETURN_IF_ERROR(
      stream.copy(offsets, slots.offsets_dev + first, count * sizeof(std::uint16_t)));
  DRIFTLESS_RETURN_IF_ERROR(stream.copy(values, slots.values_dev + first * width, count * width));
  DRIFTLESS_RETURN_IF_ERROR(
      stream.copy(old_values, slots.old_values_dev + first * width, count * width));
  DRIFTLESS_RETURN_IF_ERROR(stream.wait());
  std::vector<std::span<const FoundTile>> pieces;
  for (std::span<const FoundTile> rest = tiles; !rest.empty();) {
    const auto next = std::ranges::find_if(rest, [&](const FoundTile& tile) {
      return tile.number != rest.front().number || tile.piece() != rest.front().piece();
    });
    pieces.push_back(rest.first(static_cast<std::size_t>(next - rest.begin())));
    rest = rest.subspan(pieces.back().size());
  }
  const Fetched fetched{first, width, reinterpret_cast<const std::uint16_t*>(offsets), values,
                        old_values};
  exchanged_.resize(std::max<std::size_t>({exchanged_.size(), threads, 1}));
  return parallel_for(pieces.size(), threads, [&](std::size_t task, unsigned worker) -> Status {
    use_piece(fetched, pieces[task], exchanged_[worker], use);
    return {};
  });
}

void DeviceCapture::use_piece(const Fetched& fetched, std::span<const FoundTile> tiles,
                              PieceChanges& changes, const UseChanges& use) {
  const std::uint64_t width = fetched.width;
  const std::uint64_t tile_units = cuda::CaptureBatch::kTileBytes / width;
  std::size_t count = 0;
  for (const FoundTile& tile : tiles) count += tile.count;
  changes.offsets.clear();  // left by a failure
  changes.values.clear();
  changes.old_values.clear();
  // A little more, because the memory is used again for pieces of other sizes.
  const std::size_t room = count + count / 8;
  changes.offsets.reserve(room);
  changes.values.reserve(room * width);
  changes.old_values.reserve(room * width);
  for (const FoundTile& tile : tiles) {
    const std::uint64_t at = tile.base - fetched.first;
    const auto begin = static_cast<std::uint32_t>(tile.tile % kPieceTiles * tile_units);
    const std::size_t before = changes.offsets.size();
    changes.offsets.resize(before + tile.count);
    std::transform(fetched.offsets + at, fetched.offsets + at + tile.count,
                   changes.offsets.begin() + static_cast<std::ptrdiff_t>(before),
                   [begin](std::uint16_t offset) { return begin + offset; });
    const auto add = [&](std::vector<std::byte>& to, const std::byte* from) {
      to.insert(to.end(), from + at * width, from + (at + tile.count) * width);
    };
    add(changes.values, fetched.values);
    add(changes.old_values, fetched.old_values);
  }
  use(tiles.front().number, tiles.front().piece(), changes);
}

}  // namespace driftless
