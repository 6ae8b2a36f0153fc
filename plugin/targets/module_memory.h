// ModuleMemory: where a module's parameters lie, and how changes get there. Part of the module
// target. Host memory here; a GPU's in plugin/device/device_module_memory.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/memory_kind.h"
#include "core/status.h"
#include "plugin/targets/delta_pieces.h"
#include "plugin/targets/module_map.h"

namespace driftless {

// The changes of one piece that may lie in one map.
struct ModulePart {
  const DeltaPiece* piece = nullptr;
  const ModuleMap* map = nullptr;
  std::uint32_t begin = 0, count = 0;  // of the piece's changes
  std::byte* old_values = nullptr;     // room for `count`, in the target's width

  [[nodiscard]] const std::uint32_t* offsets() const { return piece->offsets + begin; }
  [[nodiscard]] const std::byte* values() const {
    return piece->values + std::size_t{begin} * source_bytes(map->cast, map->unit_bytes);
  }
};

// Parts made ready: everything that commit and undo need is in place. No two write the same unit.
class PlacedParts {
 public:
  virtual ~PlacedParts() = default;
  // Compares what is there with the old values and writes the new ones. All or nothing: the number
  // of a part that is not what it was, or of none; in the first case nothing is changed.
  [[nodiscard]] virtual Result<std::optional<std::size_t>> write() = 0;
  // After write() wrote: puts back what was there.
  [[nodiscard]] virtual Status take_back() = 0;
};

// One thread at a time.
class ModuleMemory {
 public:
  virtual ~ModuleMemory() = default;
  [[nodiscard]] virtual MemoryKind kind() const = 0;
  // Reads the parts' old values. What they point to outlives the result.
  [[nodiscard]] virtual Result<std::unique_ptr<PlacedParts>> place(
      std::span<const ModulePart> parts, unsigned threads) = 0;
  // Every unit from `origin` on, `count` of them; values are in the tensor's width. read() is for
  // maps that convert nothing and together have all of them, write() writes what each has.
  [[nodiscard]] virtual Status read(std::span<const ModuleMap* const> maps, std::uint64_t origin,
                                    std::uint64_t count, std::byte* values) = 0;
  [[nodiscard]] virtual Status write(std::span<const ModuleMap* const> maps, std::uint64_t origin,
                                     std::uint64_t count, const std::byte* values) = 0;
  // Until everything that was written is there.
  [[nodiscard]] virtual Status settle() = 0;
  // Threads that may call read() and write() at the same time, for different units.
  [[nodiscard]] virtual unsigned threads(unsigned wanted) const = 0;
};

[[nodiscard]] std::shared_ptr<ModuleMemory> make_host_module_memory();

// 0, 1, 2, ... below kMaxPieceUnits: the offsets of a piece that has every unit.
[[nodiscard]] std::span<const std::uint32_t> all_offsets();

}  // namespace driftless
