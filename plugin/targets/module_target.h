// A model as an engine keeps it, as a receiver's target: parameters that hold the checkpoint's
// tensors sliced, fused, transposed, stacked or converted, described by strided maps; and tensors
// that somebody else writes (an engine's own loader).
//
// stage() decodes and folds as a memory target does, and reads the old values through the maps:
// O(changed), nothing dense. commit() lets the external writer go first, since it can fail; then it
// compares every unit that it is about to change with what it was, and writes. Where somebody else
// wrote into the parameters meanwhile, all is taken back. Of a full version only what differs is
// written, where that is at most one unit in eight; else, and where the module holds no version,
// all of it, through the maps. Only what was no version before cannot be gone back to.
//
// The digest. Where the maps hold every unit of every tensor, as it is, it is proven as for a
// memory target: from the parameters' own bits. Where they do not (a slice of a tensor-parallel
// group, a conversion, an external writer), it is the one that the version's manifest says, on top
// of the base's that the caller vouches for; without that the state is partial. Or, where the
// caller asks for it, that of the tensors that are held (digest_of_held).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/targets/module_map.h"
#include "plugin/targets/module_memory.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// New values of the tensors that an external writer holds. Valid as long as somebody has it; may be
// used from any thread.
class TensorNews {
 public:
  virtual ~TensorNews() = default;
  // Those that change, ascending; in a full version all that the writer holds.
  [[nodiscard]] virtual std::span<const std::uint32_t> tensors() const = 0;
  [[nodiscard]] virtual std::uint64_t changed_units(std::uint32_t tensor) const = 0;
  // Whether every unit of it is new: a full version.
  [[nodiscard]] virtual bool whole() const = 0;
  // Bits that none of the tensor's new values has; nothing where each has been taken.
  [[nodiscard]] virtual std::optional<std::uint64_t> absent_bits(std::uint32_t tensor) const = 0;
  // The changes, as they are folded; none where it is whole().
  [[nodiscard]] virtual std::span<const DeltaPiece> pieces(std::uint32_t tensor) const = 0;
  // Writes the new values into `data`, which has room for all of the tensor. With `only`, those
  // values that have these bits.
  virtual void write(std::uint32_t tensor, std::byte* data,
                     std::optional<std::uint64_t> only) const = 0;
};

// Who writes the other tensors. Called by the thread that stages or commits; nothing may throw.
class ExternalWriter {
 public:
  virtual ~ExternalWriter() = default;
  // Whether the parameters are still where the maps say. Asked before each staging and each commit.
  [[nodiscard]] virtual Status check() = 0;
  // Gets ready; the parameters are not touched.
  [[nodiscard]] virtual Status stage(std::shared_ptr<const TensorNews> news) = 0;
  // All or nothing.
  [[nodiscard]] virtual Status commit() = 0;
  // Takes the commit back.
  [[nodiscard]] virtual Status undo() = 0;
  // Forgets what is staged, or what undo() would need.
  virtual void drop() = 0;
};

struct ModuleOptions {
  // The module holds this version; without it nothing, until a full version comes.
  std::optional<VersionId> initial;
  // Of the whole version that the module holds (its part of), where the caller knows it.
  std::optional<Digest> initial_digest;
  unsigned threads = 0;  // 0: default_threads()
  // The state's digest is of the tensors that are held, as a memory target's, and the state partial
  // where that is not all. kInvalidArgument where one is held in part, converted or by a writer.
  bool digest_of_held = false;
};

struct ModuleParts {
  WeightLayout layout;
  std::vector<ModuleMap> maps;  // any order
  // Tensors that the writer writes; the others' maps are all that is known of them. A tensor with
  // neither is not held here (another rank's expert), and its changes are skipped.
  std::vector<std::uint32_t> external;
  // Tensors that cannot be followed, and why: a version that changes one is refused (kUnsupported).
  std::vector<std::pair<std::uint32_t, std::string>> refused;
  std::shared_ptr<ExternalWriter> writer;  // may be null where nothing is external
  std::shared_ptr<ModuleMemory> memory;    // that all maps lead to; null: the host's
};

class ModuleTarget : public WeightTarget {
 public:
  // Whether the state's digest is proven from the parameters' own bits.
  [[nodiscard]] virtual bool proven() const = 0;
};

// kInvalidArgument, naming the parameters, where two maps write the same units.
[[nodiscard]] Result<std::unique_ptr<ModuleTarget>> make_module_target(
    ModuleParts parts, const ModuleOptions& options);

}  // namespace driftless
