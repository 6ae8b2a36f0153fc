// SPDX-License-Identifier: Apache-2.0
// A receiver's target for weights in memory. Maps describe where the tensors of a checkpoint lie:
// contiguous, or sliced, fused, transposed, stacked or converted as an engine keeps them. Tensors
// that only an engine's own loader can write have a writer instead of maps.
//
// Staging. stage() decodes and folds the versions, and reads the old values through the maps. For
// `indices`, `deltas` and `deltas_zstd` its time and memory are O(changed), beside the sweep
// (ProofRule). For the other encodings it also reads the tensors that change. If a single
// positional version is staged, a GPU decodes its buckets through the maps, and measures what the
// changes add to the digest of each map.
//
// Committing. commit() first calls the loader, since it can fail. Then it compares every unit that
// it is about to change with the old value, and writes. If other code wrote into the weights
// meanwhile, it restores everything. If a full version differs in at most one unit in eight, only
// these units are written; otherwise, and if no version is held, all units are. Every commit can be
// undone, except for a full version that was written while no version was held.
//
// A GPU that holds contiguous tensors decodes the buckets of a chain in place. It proves the digest
// after the first version when the chain is staged, and after every version when it is committed. A
// full version is copied there, and the weights that it replaces are kept on the host.
//
// Where the digest of the state comes from, if
//   all weights lie here unconverted: from their bits;
//   digest_of_held is set: from the bits of the tensors that are held;
//   neither: from initial_digest, and after a commit from the manifest. Then it proves nothing
//     about the bits here. If the weights are opened as a version without initial_digest, the state
//     is partial.
//
// The shares. Each map that can be read back (it keeps the bits, or widens them) has a digest of
// the units that it holds: computed when weights are opened as a version, or from the first full
// version, then updated by every commit and undo. A tensor's share adds up the digests of maps that
// have no unit in common; replicas are left out. A sweep reads everything and compares each map
// with its digest. If one differs, the sweep names it, and the state becomes invalid: the target
// then takes only a full version.
#pragma once

#include "plugin/targets/weight_memory.h"

namespace driftless {

class TensorChanges;  // tensor_changes.h

// An engine's loader: writes the tensors that no map describes. The thread that stages or commits
// calls it. No method may throw.
class ExternalWriter {
 public:
  virtual ~ExternalWriter() = default;
  // Ok if the parameters still lie where the maps point. Called before each staging, commit and
  // undo, and after a sweep that found a mismatch. `paused`: the engine waits during the call.
  [[nodiscard]] virtual Status check(bool paused) = 0;
  // Prepares the changes without touching the parameters.
  [[nodiscard]] virtual Status stage(std::shared_ptr<const TensorChanges> changes) = 0;
  // If it fails, undo() is called next.
  [[nodiscard]] virtual Status commit() = 0;
  // Takes back the commit, or what a failed commit has written. If it fails, the target holds no
  // version any more.
  [[nodiscard]] virtual Status undo() = 0;
  // Computes what the engine derives from its weights, before the engine goes on. Called after each
  // commit of the target, even one without changes for the writer, and after each undo. If it fails
  // after a commit, the commit is undone.
  [[nodiscard]] virtual Status written() { return {}; }
  // Drops what is staged, or what undo() would need.
  virtual void drop() = 0;
};

struct MappedOptions {
  // The version of the weights. Without it, the target holds no version until a full one arrives.
  std::optional<VersionId> initial;
  // The digest of all weights of that version, if the caller knows it. The weights here may be a
  // part of them.
  std::optional<Digest> initial_digest;
  unsigned threads = 0;                              // 0: default_threads()
  std::optional<std::uint32_t> rank = std::nullopt;  // in its engine, for messages
  // The state's digest is that of the tensors that are held; if these are not all, the state is
  // partial. kInvalidArgument if a tensor is held in part, converted, refused, or written by the
  // writer.
  bool digest_of_held = false;
  // The digest of each tensor of that version, in the order of the layout. Needed only if the run
  // does not publish all of the tensors, and either `initial_digest` is set or the weights' own
  // bits give no digest.
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
  // The quantization rule that the engine's codes and scales follow: versions by another rule, or
  // by none, are refused (kUnsupported). Empty: every version is accepted.
  std::string only_rule = {};
};

// kInvalidArgument, naming both tensors and the parameter, if two maps write the same units.
[[nodiscard]] Result<std::unique_ptr<MappedTarget>> make_mapped_target(
    MappedParts parts, const MappedOptions& options);

}  // namespace driftless
