#include "plugin/targets/module_memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>

#include "core/parallel.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

// Below this many changed units starting threads takes longer than the work.
constexpr std::uint64_t kMappedPerThread = 32768;
// As in a memory target: units are compared and then written in steps whose pages are still known.
constexpr std::uint32_t kMapStepUnits = 256;
constexpr std::uint32_t kMapBlockUnits = kMaxPieceUnits;  // that go through a map at a time
constexpr std::size_t kNone = ~std::size_t{0};

class HostParts final : public PlacedParts {
 public:
  HostParts(std::span<const ModulePart> parts, unsigned threads)
      : parts_(parts.begin(), parts.end()), written_(parts.size()) {
    std::uint64_t units = 0;
    for (const ModulePart& part : parts) units += part.count;
    threads_ = static_cast<unsigned>(
        std::clamp<std::uint64_t>(units / kMappedPerThread, 1, std::max(1U, threads)));
    scratch_.resize(threads_);
  }

  Status read_old() {
    return parallel_for(parts_.size(), threads_, [&](std::size_t i, unsigned) -> Status {
      const ModulePart& part = parts_[i];
      host_kernels().gather_strided(part.map->map, part.map->data, part.map->unit_bytes,
                                    part.piece->origin, part.offsets(), part.count,
                                    part.old_values);
      return {};
    });
  }

  Result<std::optional<std::size_t>> write() override {
    std::atomic<std::size_t> differs = kNone;
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(parts_.size(), threads_, [&](std::size_t i, unsigned worker) -> Status {
          std::uint32_t& written = written_[i];
          while (written < parts_[i].count && differs == kNone) {
            const std::uint32_t count = std::min(kMapStepUnits, parts_[i].count - written);
            if (!write_step(parts_[i], written, count, scratch_[worker])) {
              differs = i;
              return {};
            }
            written += count;
          }
          return {};
        }));
    if (differs == kNone) return std::optional<std::size_t>();
    DRIFTLESS_RETURN_IF_ERROR(take_back());
    return std::optional<std::size_t>(differs.load());
  }

  // On this thread alone: it must not be able to fail.
  Status take_back() override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const ModuleMap& map = *parts_[i].map;
      host_kernels().scatter_strided(map.map, map.data, map.unit_bytes, parts_[i].piece->origin,
                                     parts_[i].offsets(), written_[i], parts_[i].old_values,
                                     ValueCast::kNone);
      written_[i] = 0;
    }
    return {};
  }

 private:
  using Scratch = std::array<std::byte, std::size_t{kMapStepUnits} * 8>;

  // Changes [at, at + count); false, and nothing written, where the units are not the old ones.
  static bool write_step(const ModulePart& part, std::uint32_t at, std::uint32_t count,
                         Scratch& scratch) {
    const HostKernels& kernels = host_kernels();
    const ModuleMap& map = *part.map;
    const std::byte* const old_values = part.old_values + std::size_t{at} * map.unit_bytes;
    const std::size_t size = std::size_t{count} * map.unit_bytes;
    std::memcpy(scratch.data(), old_values, size);  // those that are in no map count as the same
    kernels.gather_strided(map.map, map.data, map.unit_bytes, part.piece->origin,
                           part.offsets() + at, count, scratch.data());
    if (std::memcmp(scratch.data(), old_values, size) != 0) return false;
    kernels.scatter_strided(
        map.map, map.data, map.unit_bytes, part.piece->origin, part.offsets() + at, count,
        part.values() + std::size_t{at} * source_bytes(map.cast, map.unit_bytes), map.cast);
    return true;
  }

  std::vector<ModulePart> parts_;
  std::vector<std::uint32_t> written_;  // per part: its first changes that are
  unsigned threads_ = 1;
  std::vector<Scratch> scratch_;  // per thread
};

class HostMemory final : public ModuleMemory {
 public:
  [[nodiscard]] MemoryKind kind() const override { return MemoryKind::kHost; }

  Result<std::unique_ptr<PlacedParts>> place(std::span<const ModulePart> parts,
                                             unsigned threads) override {
    auto placed = std::make_unique<HostParts>(parts, threads);
    DRIFTLESS_RETURN_IF_ERROR(placed->read_old());
    return std::unique_ptr<PlacedParts>(std::move(placed));
  }

  Status read(std::span<const ModuleMap* const> maps, std::uint64_t origin, std::uint64_t count,
              std::byte* values) override {
    for (const ModuleMap* map : maps) {
      for (std::uint64_t done = 0; done < count; done += kMapBlockUnits) {
        host_kernels().gather_strided(
            map->map, map->data, map->unit_bytes, origin + done, all_offsets().data(),
            std::min<std::uint64_t>(kMapBlockUnits, count - done), values + done * map->unit_bytes);
      }
    }
    return {};
  }

  Status write(std::span<const ModuleMap* const> maps, std::uint64_t origin, std::uint64_t count,
               const std::byte* values) override {
    for (const ModuleMap* map : maps) write_one(*map, origin, count, values);
    return {};
  }

  Status settle() override { return {}; }
  [[nodiscard]] unsigned threads(unsigned wanted) const override { return wanted; }

 private:
  static void write_one(const ModuleMap& map, std::uint64_t origin, std::uint64_t count,
                        const std::byte* values) {
    const unsigned from = source_bytes(map.cast, map.unit_bytes);
    if (map.map.plain() && map.cast == ValueCast::kNone) {
      const std::uint64_t begin = std::max(origin, map.map.source_offset);
      const std::uint64_t end = std::min(origin + count, map.map.source_end);
      if (begin >= end) return;
      std::memcpy(map.data + map.map.target_of(begin) * from, values + (begin - origin) * from,
                  (end - begin) * from);
      return;
    }
    for (std::uint64_t done = 0; done < count; done += kMapBlockUnits) {
      host_kernels().scatter_strided(
          map.map, map.data, map.unit_bytes, origin + done, all_offsets().data(),
          std::min<std::uint64_t>(kMapBlockUnits, count - done), values + done * from, map.cast);
    }
  }
};

}  // namespace

std::span<const std::uint32_t> all_offsets() {
  static const std::vector<std::uint32_t> offsets = [] {
    std::vector<std::uint32_t> made(kMaxPieceUnits);
    std::iota(made.begin(), made.end(), 0U);
    return made;
  }();
  return offsets;
}

std::shared_ptr<ModuleMemory> make_host_module_memory() { return std::make_shared<HostMemory>(); }

}  // namespace driftless
