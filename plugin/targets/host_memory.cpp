// SPDX-License-Identifier: Apache-2.0
// make_host_memory(): weights in the memory of the host.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {
namespace {

// A thread for fewer changed units takes longer to start than it saves.
constexpr std::uint64_t kUnitsPerThread = 32768;
// Units are compared, then written, in batches. A batch fits the TLB even if each unit lies on a
// small page of its own; in a larger one the writes would miss the TLB again.
constexpr std::uint32_t kBatchUnits = 256;
constexpr std::uint64_t kDigestBytes = std::uint64_t{4} << 20;  // per task
constexpr std::size_t kNoPart = ~std::size_t{0};

// Whether the units of the part lie in memory as in the tensor, counted from the piece's origin:
// then offsets need no map.
bool at_offsets(const ChangePart& part) {
  return part.map->plain() && part.piece->origin >= part.map->map.source_offset;
}

void gather_part(const ChangePart& part, std::uint32_t at, std::uint32_t count, std::byte* out) {
  const WeightMap& map = *part.map;
  if (at_offsets(part)) {
    host_kernels().gather(map.at(part.piece->origin), map.unit_bytes, part.offsets() + at, count,
                          out);
  } else {
    host_kernels().gather_strided(map.map, map.data, map.unit_bytes, part.piece->origin,
                                  part.offsets() + at, count, out);
  }
}

void scatter_part(const ChangePart& part, std::uint32_t at, std::uint32_t count,
                  const std::byte* values, ValueCast cast) {
  const WeightMap& map = *part.map;
  if (at_offsets(part)) {
    host_kernels().scatter(map.at(part.piece->origin), map.unit_bytes, part.offsets() + at, count,
                           values);
  } else {
    host_kernels().scatter_strided(map.map, map.data, map.unit_bytes, part.piece->origin,
                                   part.offsets() + at, count, values, cast);
  }
}

class HostChanges final : public PlacedChanges {
 public:
  HostChanges(std::span<const ChangePart> parts, unsigned threads)
      : parts_(parts.begin(), parts.end()), written_(parts.size()) {
    std::uint64_t units = 0;
    for (const ChangePart& part : parts) units += part.count;
    threads_ = static_cast<unsigned>(
        std::clamp<std::uint64_t>(units / kUnitsPerThread, 1, std::max(1U, threads)));
    scratch_.resize(threads_);
  }

  Status read_old() {
    return parallel_for(parts_.size(), threads_, [&](std::size_t i, unsigned) -> Status {
      gather_part(parts_[i], 0, parts_[i].count, parts_[i].old_values);
      return {};
    });
  }

  Result<std::optional<PartFault>> write() override {
    std::atomic<std::size_t> differs = kNoPart;
    std::atomic<bool> lost = false;
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(parts_.size(), threads_, [&](std::size_t i, unsigned worker) -> Status {
          std::uint32_t& written = written_[i];
          while (written < parts_[i].count && differs == kNoPart) {
            const std::uint32_t count = std::min(kBatchUnits, parts_[i].count - written);
            if (!is_old(parts_[i], written, count, scratch_[worker])) {
              differs = i;
              return {};
            }
            const std::uint32_t at = std::exchange(written, written + count);
            if (!write_batch(parts_[i], at, count, scratch_[worker])) {
              lost = true;
              differs = i;
            }
          }
          return {};
        }));
    if (differs == kNoPart) return std::optional<PartFault>();
    return std::optional(PartFault{differs, lost});
  }

  // Uses this thread only, because starting others could fail.
  Status take_back() override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      scatter_part(parts_[i], 0, written_[i], parts_[i].old_values, ValueCast::kNone);
      written_[i] = 0;
    }
    return {};
  }

 private:
  struct Scratch {
    std::array<std::byte, std::size_t{kBatchUnits} * 8> there, expected;
  };

  // Whether the weights hold `expected` at changes [at, at + count). Units that the map does not
  // have count as equal.
  static bool holds(const ChangePart& part, std::uint32_t at, std::uint32_t count,
                    const std::byte* expected, Scratch& scratch) {
    const std::size_t size = std::size_t{count} * part.map->unit_bytes;
    if (!part.map->map.solid()) std::memcpy(scratch.there.data(), expected, size);
    gather_part(part, at, count, scratch.there.data());
    return std::memcmp(scratch.there.data(), expected, size) == 0;
  }
  static bool is_old(const ChangePart& part, std::uint32_t at, std::uint32_t count,
                     Scratch& scratch) {
    return holds(part, at, count, part.old_values + std::size_t{at} * part.map->unit_bytes,
                 scratch);
  }
  // False if the written values are not there afterwards.
  static bool write_batch(const ChangePart& part, std::uint32_t at, std::uint32_t count,
                          Scratch& scratch) {
    const ValueCast cast = part.map->cast;
    const unsigned width = part.map->unit_bytes;
    const std::byte* const values = part.values() + std::size_t{at} * source_bytes(cast, width);
    scatter_part(part, at, count, values, cast);
    if (cast == ValueCast::kNone) return holds(part, at, count, values, scratch);
    convert_values(cast, width, values, count, scratch.expected.data());
    return holds(part, at, count, scratch.expected.data(), scratch);
  }

  std::vector<ChangePart> parts_;
  std::vector<std::uint32_t> written_;  // per part: how many are written
  unsigned threads_ = 1;
  std::vector<Scratch> scratch_;  // per thread
};

class HostMemory final : public WeightMemory {
 public:
  [[nodiscard]] MemoryKind kind() const override { return MemoryKind::kHost; }

  Result<std::unique_ptr<PlacedChanges>> place(std::span<const ChangePart> parts,
                                               unsigned threads) override {
    auto placed = std::make_unique<HostChanges>(parts, threads);
    DRIFTLESS_RETURN_IF_ERROR(placed->read_old());
    return std::unique_ptr<PlacedChanges>(std::move(placed));
  }

  Status read(std::span<const WeightMap* const> maps, std::uint64_t origin, std::uint64_t count,
              std::byte* values) override {
    for (const WeightMap* map : maps) {
      const unsigned width = map->unit_bytes;
      if (map->plain()) {
        const auto [begin, end] = map->range(origin, count);
        if (begin == end) continue;
        std::memcpy(values + (begin - origin) * width, map->at(begin), (end - begin) * width);
        continue;
      }
      each_block(count, [&](std::uint64_t at, std::uint64_t units) {
        host_kernels().gather_strided(map->map, map->data, width, origin + at, all_offsets().data(),
                                      units, values + at * width);
      });
    }
    return {};
  }

  Status write(std::span<const WeightMap* const> maps, std::uint64_t origin, std::uint64_t count,
               const std::byte* values, MemoryKind /*from*/) override {
    for (const WeightMap* map : maps) {
      const unsigned width = source_bytes(map->cast, map->unit_bytes);
      if (map->plain()) {
        const auto [begin, end] = map->range(origin, count);
        if (begin == end) continue;
        std::memcpy(map->at(begin), values + (begin - origin) * width, (end - begin) * width);
        continue;
      }
      each_block(count, [&](std::uint64_t at, std::uint64_t units) {
        host_kernels().scatter_strided(map->map, map->data, map->unit_bytes, origin + at,
                                       all_offsets().data(), units, values + at * width, map->cast);
      });
    }
    return {};
  }

  Status finish() override { return {}; }
  [[nodiscard]] unsigned threads(unsigned wanted) const override { return wanted; }
  Status fetch(std::span<std::byte> to, const std::byte* from) override {
    std::copy_n(from, to.size(), to.data());
    return {};
  }
  Result<Digest> digest(std::span<const TensorBytes> bytes, unsigned threads) override {
    return digest_on_host(bytes, threads);
  }

  Result<std::vector<StridedSum>> sum_maps(std::span<const MapToSum> maps,
                                           unsigned threads) override {
    struct Task {
      std::size_t map;
      std::uint64_t begin, end;
      StridedSum sum;
    };
    std::vector<Task> tasks;
    for (std::size_t m = 0; m < maps.size(); ++m) {
      const StridedMap& map = maps[m].map->map;
      const std::uint64_t held = map.units() * maps[m].map->unit_bytes;
      // A transpose is one task: the target's lines cross all rows of the source.
      const bool transposed = map.crossing() < map.dims;
      const std::uint64_t count = transposed ? 1 : (held + kDigestBytes - 1) / kDigestBytes;
      const std::uint64_t span = map.source_end - map.source_offset;
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::uint64_t step = (span + count - 1) / count;
        const std::uint64_t begin = map.source_offset + std::min(span, i * step);
        tasks.push_back({m, begin, std::min(map.source_end, begin + step), {}});
      }
    }
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(tasks.size(), threads, [&](std::size_t i, unsigned) -> Status {
          Task& task = tasks[i];
          const WeightMap& map = *maps[task.map].map;
          task.sum = host_kernels().digest_strided(map.map, map.data, map.unit_bytes, map.cast,
                                                   *maps[task.map].key, task.begin, task.end);
          return {};
        }));
    std::vector<StridedSum> sums(maps.size());
    for (const Task& task : tasks) {
      sums[task.map].digest += task.sum.digest;
      sums[task.map].foreign += task.sum.foreign;
    }
    return sums;
  }

  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) override {
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return error(StatusCode::kNoSpace, "no memory for ", bytes,
                   " bytes of weights: ", std::strerror(errno));
    }
    ::madvise(memory, bytes, MADV_HUGEPAGE);  // changes lie far apart; a failure is harmless
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory),
                                      [bytes](std::byte* held) { ::munmap(held, bytes); });
  }
  [[nodiscard]] StagingMemory staging_memory() const override { return {}; }
  [[nodiscard]] BucketMemory* buckets() override { return nullptr; }

 private:
  template <typename Use>
  static void each_block(std::uint64_t count, const Use& use) {
    for (std::uint64_t at = 0; at < count; at += kMaxPieceUnits) {
      use(at, std::min<std::uint64_t>(kMaxPieceUnits, count - at));
    }
  }
};

}  // namespace

ChangePart part_of(const DeltaPiece& piece, const WeightMap& map) {
  const auto index_of = [&](std::uint64_t position) {
    if (position <= piece.origin) return std::uint32_t{0};
    const std::uint64_t offset = position - piece.origin;
    if (piece.count > 0 && piece.offsets[piece.count - 1] < offset) return piece.count;
    return static_cast<std::uint32_t>(
        std::lower_bound(piece.offsets, piece.offsets + piece.count, offset) - piece.offsets);
  };
  ChangePart part;
  part.piece = &piece;
  part.map = &map;
  part.begin = index_of(map.map.source_offset);
  part.count = std::max(part.begin, index_of(map.map.source_end)) - part.begin;
  return part;
}

void convert_values(ValueCast cast, unsigned unit_bytes, const std::byte* values,
                    std::uint64_t count, std::byte* out) {
  with_cast(cast, unit_bytes, [&](auto conversion) {
    using Cast = decltype(conversion);
    for (std::uint64_t k = 0; k < count; ++k) {
      typename Cast::From value;
      std::memcpy(&value, values + k * sizeof(value), sizeof(value));
      const typename Cast::To converted = Cast::apply(value);
      std::memcpy(out + k * sizeof(converted), &converted, sizeof(converted));
    }
  });
}

Result<StridedMap> map_of(const BlockPlace& block, std::uint64_t tensor_units) {
  StridedView there{block.first, {}, {}}, here{0, {}, {}};
  std::uint64_t inside = block.units;
  for (std::uint32_t d = 0; d < block.dims; ++d) {
    inside /= block.dim[d].size;
    there.shape.push_back(block.dim[d].size);
    there.strides.push_back(block.dim[d].stride);
    here.strides.push_back(inside);
  }
  there.shape.push_back(block.run);
  there.strides.push_back(1);
  here.strides.push_back(1);
  here.shape = there.shape;
  return StridedMap::make(there, tensor_units, here, block.units);
}

Digest digest_on_host(std::span<const TensorBytes> bytes, unsigned threads,
                      const std::function<void(const TensorBytes&)>& done) {
  std::vector<TensorBytes> tasks;
  for (TensorBytes each : bytes) {
    while (!each.piece.bytes.empty()) {
      TensorBytes task = each;
      const std::uint64_t size = std::min<std::uint64_t>(kDigestBytes, each.piece.bytes.size());
      task.piece.bytes = each.piece.bytes.first(size);
      tasks.push_back(task);
      each.piece.bytes = each.piece.bytes.subspan(size);
      each.piece.byte_offset += size;
    }
  }
  std::vector<Digest> sums(std::max(1U, threads));
  // Cannot fail: the callback returns no error and does not throw.
  static_cast<void>(
      parallel_for(tasks.size(), threads, [&](std::size_t i, unsigned worker) -> Status {
        const DensePiece& piece = tasks[i].piece;
        sums[worker] += host_kernels().digest(*tasks[i].key, piece.byte_offset, piece.bytes);
        if (done) done(tasks[i]);
        return {};
      }));
  return std::accumulate(sums.begin() + 1, sums.end(), sums.front());
}

std::span<const std::uint32_t> all_offsets() {
  static const std::vector<std::uint32_t> offsets = [] {
    std::vector<std::uint32_t> made(kMaxPieceUnits);
    std::iota(made.begin(), made.end(), 0U);
    return made;
  }();
  return offsets;
}

std::shared_ptr<WeightMemory> make_host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace driftless
