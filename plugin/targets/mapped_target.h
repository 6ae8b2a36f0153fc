// SPDX-License-Identifier: Apache-2.0
// Weights in memory, as a receiver's target: the tensors of a checkpoint as they lie there,
// contiguous, or sliced, fused, transposed, stacked or converted as an engine keeps them, described
// by maps; and tensors that only an engine's own loader can write.
//
// stage() decodes and folds the versions, and reads the old values through the maps: O(changed),
// nothing dense. A GPU decodes the buckets of one version by itself, and measures there what every
// change adds to the digest. Of `xor` and `overwrite` the tensors that change are read once.
// commit() lets the loader go first, since it can fail; then it compares every unit that it is
// about to change with what it was, and writes. If somebody else wrote into the weights meanwhile,
// all is taken back. Of a full version only what differs is written, if that is at most one unit in
// eight; else, and if no version is held, all of it. Only from a full version onto no version there
// is no way back.
//
// A GPU that holds contiguous tensors decodes buckets by itself, where they lie, and proves them by
// their digest; of several versions the first is proven when staged, the others when committed, one
// after the other. A full version is copied there, and what it replaces is kept on the host.
//
// The digest. If the maps hold every unit of every tensor, as it is, it is proven from the weights'
// own bits. If they do not (a slice, a conversion, an external writer), it is the version's name:
// the one that the manifest says, on top of the base's that the caller vouches for; without that
// the state is partial. Or, if the caller asks for it, that of the tensors that are held
// (digest_of_held).
//
// The shares. Of every map that can be read back (the same bits, or widened ones) the digest of
// what it holds is known: read once when the target is opened, then kept up to date by every commit
// and undo. Replicas have digests of their own; each unit counts once in its tensor's share. A
// sweep reads everything and compares (ProofRule); a map that differs is named, and the state is
// not valid any more: only a full version is taken.
#pragma once

#include "plugin/targets/weight_memory.h"

namespace driftless {

class TensorChanges;  // tensor_changes.h

// An engine's loader: it writes the tensors that no map can. Called by the thread that stages or
// commits; nothing may throw.
class ExternalWriter {
 public:
  virtual ~ExternalWriter() = default;
  // Whether the parameters are still where the maps say. Asked before each staging, each commit
  // and each undo. `paused`: the engine waits for the answer.
  [[nodiscard]] virtual Status check(bool paused) = 0;
  // Gets ready; the parameters are not touched.
  [[nodiscard]] virtual Status stage(std::shared_ptr<const TensorChanges> changes) = 0;
  // If it fails, undo() is called next.
  [[nodiscard]] virtual Status commit() = 0;
  // Takes the commit back, or what a commit that failed has written. If it fails, the target holds
  // no version any more.
  [[nodiscard]] virtual Status undo() = 0;
  // After each commit of the target, also one without changes for the writer, and after each that
  // was taken back, before the engine goes on: computes what the engine derives from its weights.
  // If it fails, the commit is taken back.
  [[nodiscard]] virtual Status written() { return {}; }
  // Forgets what is staged, or what undo() would need.
  virtual void drop() = 0;
};

struct MappedOptions {
  // The weights are this version; without it no version is held, until a full one comes.
  std::optional<VersionId> initial;
  // Of the whole version that the weights are (part of), if the caller knows it.
  std::optional<Digest> initial_digest;
  unsigned threads = 0;                              // 0: default_threads()
  std::optional<std::uint32_t> rank = std::nullopt;  // of its engine, for messages
  // The state's digest is of the tensors that are held, and the state is partial if that is not
  // all. kInvalidArgument if one is held in part, converted or by a writer.
  bool digest_of_held = false;
  // Of each tensor of the version, as the layout: needed if the run may publish fewer of them.
  std::vector<Digest> initial_tensors = {};
};

struct MappedParts {
  WeightLayout layout;
  std::vector<WeightMap> maps;  // any order
  // Tensors that the writer writes. A tensor with neither a map nor a writer is not held here
  // (another rank's expert), and its changes are skipped.
  std::vector<std::uint32_t> external;
  // Tensors that cannot be followed, and why: a version that changes one is refused (kUnsupported).
  std::vector<std::pair<std::uint32_t, std::string>> refused;
  std::shared_ptr<ExternalWriter> writer;  // may be null if nothing is external
  std::shared_ptr<WeightMemory> memory;    // that all maps lead to; null: the host's
  // The engine keeps codes and scales of this rule as they are, and no others: a version by another
  // rule, or by none, is refused (kUnsupported). Empty: every version is taken.
  std::string only_rule = {};
};

// kInvalidArgument, naming the parameters, if two maps write the same units.
[[nodiscard]] Result<std::unique_ptr<MappedTarget>> make_mapped_target(
    MappedParts parts, const MappedOptions& options);

}  // namespace driftless
