// SPDX-License-Identifier: Apache-2.0
// A receiver's target for weights in memory. Maps describe where the tensors of a checkpoint lie:
// contiguous, or sliced, fused, transposed, stacked or converted as an engine keeps them. Tensors
// that only an engine's own loader can write have a writer instead of maps.
//
// stage() decodes and folds the versions, and reads the old values through the maps. Time and
// memory are O(changed). A GPU decodes the buckets of a single version itself, and measures there
// what every change adds to the digest. For `xor` and `overwrite` the tensors that change are read
// once. commit() calls the loader first, since it can fail; then it compares every unit that it is
// about to change with the old value, and writes. If anybody else wrote into the weights meanwhile,
// it takes everything back. If a full version differs in at most one unit in eight, only these
// units are written; otherwise, and if no version is held, all of it is. A commit can be taken
// back, unless it wrote a full version while no version was held.
//
// A GPU that holds contiguous tensors decodes buckets in place and proves them by their digest. Of
// several versions the first is proven when staged, the others when committed, one after the other.
// A full version is copied there, and the weights that it replaces are kept on the host.
//
// The digest. If the maps hold every unit of every tensor unconverted, the digest is computed from
// the weights' own bits. Otherwise (a slice, a conversion, an external writer) it is the manifest's
// and proves nothing by itself: it builds on a base digest that the caller vouches for, and without
// one the state is partial. On request (digest_of_held) it is instead the digest of the tensors
// that are held.
//
// The shares. If a map can be read back (the same bits, or widened ones), the digest of its target
// is known: computed when weights are opened as a version, or from the first full one, then updated
// by every commit and undo. Replicas have digests of their own; each unit counts once in its
// tensor's share. A sweep reads everything and compares (ProofRule). If a map differs, the sweep
// names it, and the state becomes invalid: the target then takes only a full version.
#pragma once

#include "plugin/targets/weight_memory.h"

namespace driftless {

class TensorChanges;  // tensor_changes.h

// An engine's loader: writes the tensors that no map describes. The thread that stages or commits
// calls it. No method may throw.
class ExternalWriter {
 public:
  virtual ~ExternalWriter() = default;
  // Whether the parameters still lie where the maps point. Called before each staging, each commit
  // and each undo. `paused`: the engine waits during the call.
  [[nodiscard]] virtual Status check(bool paused) = 0;
  // Prepares the changes without touching the parameters.
  [[nodiscard]] virtual Status stage(std::shared_ptr<const TensorChanges> changes) = 0;
  // If it fails, undo() is called next.
  [[nodiscard]] virtual Status commit() = 0;
  // Takes back the commit, or what a failed commit has written. If it fails, the target holds no
  // version any more.
  [[nodiscard]] virtual Status undo() = 0;
  // Called after each commit of the target, even without changes for the writer, and after each
  // commit that was taken back, before the engine goes on: computes what the engine derives from
  // its weights. If it fails, the commit is taken back.
  [[nodiscard]] virtual Status written() { return {}; }
  // Drops what is staged, or what undo() would need.
  virtual void drop() = 0;
};

struct MappedOptions {
  // The version of the weights. Without it, the target holds no version until a full one arrives.
  std::optional<VersionId> initial;
  // The digest of that whole version, of which the weights may be a part, if the caller knows it.
  std::optional<Digest> initial_digest;
  unsigned threads = 0;                              // 0: default_threads()
  std::optional<std::uint32_t> rank = std::nullopt;  // of its engine, for messages
  // The state's digest covers the tensors that are held; the state is partial if they are not all.
  // kInvalidArgument if one is held in part, converted or by a writer.
  bool digest_of_held = false;
  // The digest of each tensor of the version, ordered as the layout. If the run publishes only some
  // of the tensors: needed with `initial_digest`, or if the weights' own bits give no digest.
  std::vector<Digest> initial_tensors = {};
};

struct MappedParts {
  WeightLayout layout;
  std::vector<WeightMap> maps;  // any order
  // Tensors that the writer writes. A tensor with neither a map nor a writer is not held here (for
  // example another rank's expert), and its changes are skipped.
  std::vector<std::uint32_t> external;
  // Tensors that cannot be followed, and why. A version that changes one is refused (kUnsupported).
  std::vector<std::pair<std::uint32_t, std::string>> refused;
  std::shared_ptr<ExternalWriter> writer;  // may be null if nothing is external
  std::shared_ptr<WeightMemory> memory;    // that all maps point into; null: the host's
  // The engine keeps codes and scales as this rule makes them: a version with another rule, or with
  // none, is refused (kUnsupported). Empty: every version is accepted.
  std::string only_rule = {};
};

// kInvalidArgument, naming both tensors and the parameter, if two maps write the same units.
[[nodiscard]] Result<std::unique_ptr<MappedTarget>> make_mapped_target(
    MappedParts parts, const MappedOptions& options);

}  // namespace driftless
