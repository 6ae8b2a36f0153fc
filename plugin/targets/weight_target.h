// SPDX-License-Identifier: Apache-2.0
// WeightTarget: the weights that a receiver keeps up to date, in memory or in a local checkpoint
// directory.
#pragma once

#include <set>

#include "core/file_system.h"
#include "core/layout.h"
#include "formats/frame.h"
#include "formats/manifest.h"
#include "formats/run_info.h"

namespace driftless {

class ArrivalMemory;  // weight_memory.h
class StageAhead;     // stage_ahead.h

// A fetched publication; the hash of every part was compared with the manifest's.
struct FetchedVersion {
  Manifest manifest;
  std::string source;             // for messages: "version 7"
  std::vector<MappedFile> parts;  // in the order of manifest.files; path() is the part's name
  // In the same order: parts that are frames of which only some blocks were fetched, each compared
  // with its hash; null, or missing, if the whole part is there.
  std::vector<std::shared_ptr<Frame>> frames = {};
  std::shared_ptr<StageAhead> ahead = nullptr;   // the first version's: WeightTarget::begin_stage()
  std::shared_ptr<KeptMemory> memory = nullptr;  // for inflated bytes; null: allocate them
};

// A target's share of a tensor: its units that are held here (each counted once, however often it
// is held), and their digest. If the regions of an engine's ranks are disjoint and together have
// every unit of a tensor, their digests add up to the tensor's digest.
struct TensorShare {
  std::uint32_t tensor = 0;  // in the layout
  std::uint64_t units = 0;
  Hash128 region;  // hash of the set of units, however maps cut them
  Digest digest;

  friend bool operator==(const TensorShare&, const TensorShare&) = default;
};
struct TargetState {
  VersionId id;          // run zero: not known yet
  Digest digest;         // of the weights
  bool valid = false;    // false: holds no version (none came yet, or a change that could not be
                         // undone); takes a full version only
  bool partial = false;  // not all weights lie here unconverted; `digest` covers `tensors`, if set
  // For a partial state: the digest of all weights of the version, once one was applied.
  std::optional<Digest> version_digest = std::nullopt;
  // For a partial state: each tensor that is held whole, ascending. Null: not known.
  std::shared_ptr<const std::vector<TensorShare>> tensors = nullptr;

  friend bool operator==(const TargetState& a, const TargetState& b) {
    return a.id == b.id && a.digest == b.digest && a.valid == b.valid && a.partial == b.partial &&
           a.version_digest == b.version_digest;
  }
};

struct CommitReport {
  std::uint64_t version = 0;
  Digest digest;
  std::uint64_t changed_units = 0;
  double apply_ms = 0;
  std::set<std::uint32_t> tensors;  // that the versions change
};

// A place of a held tensor that cannot be read back. A tensor has one entry for each such place.
struct UnprovenTensor {
  std::uint32_t tensor = 0;
  std::string why;

  friend bool operator==(const UnprovenTensor&, const UnprovenTensor&) = default;
};
struct Shares {
  std::vector<TensorShare> tensors;  // ascending
  std::vector<UnprovenTensor> unproven;

  friend bool operator==(const Shares&, const Shares&) = default;
};

// Adjoining units. A HeldCopy has the values of some units of a tensor at one place of a target.
struct HeldRun {
  std::uint64_t first = 0, count = 0;
};
struct HeldCopy {
  std::string parameter;               // empty: the tensor itself
  std::vector<HeldRun> runs;           // the units at this place, ascending
  std::vector<std::byte> values;       // of all runs, in the tensor's own type
  std::vector<std::uint64_t> foreign;  // units whose bits no value of the tensor's type converts to
};
// Digests of a tensor, block by block.
struct BlockSums {
  std::vector<Digest> sums;             // of the units that count in the share
  std::vector<std::uint64_t> disagree;  // blocks that differ between places, or have foreign bits
};

// The weights as they are now.
struct LookedShares {
  Shares shares;
  // Tensors of which a place differs from the digest that this target tracks, or holds foreign bits
  // (which no value of the tensor's type converts to). Ascending.
  std::vector<std::uint32_t> suspects;
};

// When a target reads all of its weights to compare them with their digests. Whatever this says, a
// commit of changed units compares them before it writes, and reads them back after.
struct ProofRule {
  bool always = false;  // in every commit, after writing, and not while staging
  // While staging a delta that is this many versions after the last sweep; 0: never.
  std::uint64_t every = 1;

  friend bool operator==(const ProofRule&, const ProofRule&) = default;
};

// Decides which of a version's blocks a target needs. Immutable; any thread.
class TargetNeeds {
 public:
  virtual ~TargetNeeds() = default;
  // Whether any unit of the tensor's block (null: of the tensor) is held, or needed for another
  // reason.
  [[nodiscard]] virtual bool has(std::uint32_t tensor, const TensorBlock* block) const = 0;
};

// A change that is computed and proven as far as possible without touching the weights. The
// destructor drops it. The target outlives it.
class StagedChange {
 public:
  virtual ~StagedChange() = default;
  // All or nothing. Ok: the target is at the new version, with its digest. Otherwise the target is
  // unchanged; if it could not be restored, its state is not valid any more. Call it once.
  [[nodiscard]] virtual Result<CommitReport> commit() = 0;
  // Takes a committed change back; only before the next stage(). kUnsupported if the target cannot.
  [[nodiscard]] virtual Status undo() = 0;
};

// A tensor that lies beside the weights and that the run does not publish.
struct LeftTensor {
  std::string name;
  std::optional<Digest> digest;  // of its bits; none: unknown here
};

class WeightTarget {
 public:
  virtual ~WeightTarget() = default;
  // Null until the target has one: it may take its layout from the run.
  [[nodiscard]] virtual const WeightLayout* layout() const = 0;
  [[nodiscard]] virtual Status adopt_layout(const WeightLayout& layout) = 0;
  // Called instead of adopt_layout() if the weights belong to another run. From now on the first
  // full version of `run` replaces them, whatever its number; `layout` is that run's. Until then
  // the weights keep their version, unless the layout differs: then they are no version.
  // kWrongLayout, naming a tensor that was followed in the old run and is not published by this
  // one. kWrongRun if `run` was replaced in this way before.
  [[nodiscard]] virtual Status admit(const Hash128& run, const WeightLayout& layout) {
    return error(StatusCode::kWrongRun, "this target cannot change from its run to run ",
                 to_hex(run), " with ", layout.size(), " tensors");
  }
  [[nodiscard]] virtual TargetState state() const = 0;
  // Tensors that lie beside the weights and that the run does not publish: never written.
  [[nodiscard]] virtual std::vector<std::string> left_alone() const { return {}; }
  // The same with digests of their bits, taken when the layout was adopted or now.
  [[nodiscard]] virtual std::vector<LeftTensor> left_tensors() const { return {}; }
  // How many places of held tensors cannot be read back, so that the digest does not prove them.
  [[nodiscard]] virtual std::size_t unproven_tensors() const { return 0; }
  // Completes or undoes an interrupted commit, if the target can, so that its state may become
  // valid again. Ok if there is nothing to do.
  [[nodiscard]] virtual Status recover() = 0;
  // The blocks that it needs of a version. Null: all.
  [[nodiscard]] virtual std::shared_ptr<const TargetNeeds> needs() const { return nullptr; }
  // The absolute path of the checkpoint directory that it patches; empty: the weights lie
  // elsewhere.
  [[nodiscard]] virtual std::string checkpoint_dir() const { return {}; }
  // How many units of the tensor are held unconverted, each counted once: blocks that are coded
  // relative to their old units can only be decoded if those are here. The layout must be known.
  [[nodiscard]] virtual std::uint64_t readable_units(std::uint32_t tensor) const {
    return (*layout())[tensor].units();
  }
  // The present values of units [first, first + count) of a tensor, at each place that can be read
  // back. kUnsupported if this kind of target is never read back.
  [[nodiscard]] virtual Result<std::vector<HeldCopy>> copies(std::uint32_t /*tensor*/,
                                                             std::uint64_t /*first*/,
                                                             std::uint64_t /*count*/) const {
    return error(StatusCode::kUnsupported, "these weights are not read back");
  }
  // Applies from the next stage() on. A target that proves its weights in another way ignores it.
  virtual void set_proof(const ProofRule& /*rule*/) {}
  // Call it before fetching a chain whose first and last manifests are these. The result does work
  // of the coming stage() while the parts arrive; pass it to stage() in the first version. Null:
  // nothing can be done ahead.
  [[nodiscard]] virtual std::shared_ptr<StageAhead> begin_stage(const Manifest& /*first*/,
                                                                const Manifest& /*last*/) {
    return nullptr;
  }
  // The memory in which this target can use blocks of this version, if it is staged alone. Null:
  // fetch them to the host. The target outlives what is taken from the memory.
  [[nodiscard]] virtual ArrivalMemory* arrivals(const Manifest& /*version*/) { return nullptr; }
  // `chain`: adjoining deltas that start at the target's version and are committed as one; or one
  // full version. Reads the target's weights without writing them; the engine may go on reading
  // them. A previous staged change must have been dropped.
  [[nodiscard]] virtual Result<std::unique_ptr<StagedChange>> stage(
      std::vector<FetchedVersion> chain) = 0;
};

// Ok if the tensors beside the weights are those of the run's base, as far as the announcement and
// the target have their digests. Otherwise kWrongBase, naming the tensor.
[[nodiscard]] Status check_left_alone(std::span<const LeftTensor> left, const RunInfo& run);

// Memory for staging beside the weights. It grows to what the largest version so far needed.
struct StagingMemory {
  std::uint64_t device_bytes = 0;
  std::uint64_t pinned_bytes = 0;
};

struct MappedParts;  // mapped_target.h
struct MappedOptions;

// Weights in host or GPU memory (mapped_target.h).
class MappedTarget final : public WeightTarget {
 public:
  class Held;
  explicit MappedTarget(std::unique_ptr<Held> held);  // make_mapped_target() and others, below
  MappedTarget(const MappedTarget&) = delete;
  MappedTarget& operator=(const MappedTarget&) = delete;
  ~MappedTarget() override;

  [[nodiscard]] const WeightLayout* layout() const override;
  [[nodiscard]] Status adopt_layout(const WeightLayout& layout) override;
  [[nodiscard]] Status admit(const Hash128& run, const WeightLayout& layout) override;
  [[nodiscard]] TargetState state() const override;
  [[nodiscard]] std::vector<std::string> left_alone() const override;
  [[nodiscard]] std::vector<LeftTensor> left_tensors() const override;
  [[nodiscard]] Status recover() override;
  [[nodiscard]] std::shared_ptr<const TargetNeeds> needs() const override;
  [[nodiscard]] std::uint64_t readable_units(std::uint32_t tensor) const override;
  void set_proof(const ProofRule& rule) override;
  [[nodiscard]] std::shared_ptr<StageAhead> begin_stage(const Manifest& first,
                                                        const Manifest& last) override;
  [[nodiscard]] ArrivalMemory* arrivals(const Manifest& version) override;
  [[nodiscard]] Result<std::unique_ptr<StagedChange>> stage(
      std::vector<FetchedVersion> chain) override;

  // Whether the state's digest was computed from the weights' own bits, of all tensors.
  [[nodiscard]] bool proven() const;
  // Whether a version is held, and the digests in tracked() are known: read from the weights when
  // this target was opened, or taken from a full version. Every commit and undo updates them.
  [[nodiscard]] bool proven_in_share() const;
  // Reads the weights, at every place where they can be read back: O(weights). kMismatch, naming
  // tensor, parameter and rank, if they differ from tracked(); the state is then not valid any
  // more. kWrongBase if the state was not valid before.
  [[nodiscard]] Result<Shares> sweep();
  // The weights' shares, without reading the weights: commits and undos keep them up to date. The
  // reference is valid until the next one. Digests are zero until a version is held.
  [[nodiscard]] const Shares& tracked() const;
  [[nodiscard]] std::size_t unproven_tensors() const override { return tracked().unproven.size(); }
  // The three calls below read the weights as they are, whatever the state: to find damaged places.
  // look() reads all weights, blocks() one tensor, copies() some units of it (held_copies.h).
  [[nodiscard]] Result<LookedShares> look() const;
  [[nodiscard]] Result<BlockSums> blocks(std::uint32_t tensor, std::uint64_t block_units) const;
  [[nodiscard]] Result<std::vector<HeldCopy>> copies(std::uint32_t tensor, std::uint64_t first,
                                                     std::uint64_t count) const override;
  [[nodiscard]] StagingMemory staging_memory() const;
  // Copies bytes of a tensor that lies contiguous here.
  [[nodiscard]] Status read(std::size_t tensor, std::uint64_t byte_offset,
                            std::span<std::byte> out) const;
  // The bytes of a tensor that lies contiguous in host memory; empty for others.
  [[nodiscard]] std::span<const std::byte> tensor(std::size_t index) const;
  // Replaces the weights with others, as make_mapped_target() takes them: an engine has moved its
  // tensors. Updates that were staged or committed before can then neither be committed nor taken
  // back (kBusy). Any thread, but not during a commit, nor while the engine uses the tensors.
  [[nodiscard]] Status replace(MappedParts parts, const MappedOptions& options);

 private:
  std::unique_ptr<Held> held_;
};

class WeightMemory;  // weight_memory.h

// Contiguous tensors in `memory` (null: the host's). `data[i]` is tensor i of the layout, aligned
// to its unit, writable and owned by the caller; null if this process does not hold it (the state's
// digest then covers the held tensors). With `initial` the bytes are that version.
[[nodiscard]] Result<std::unique_ptr<MappedTarget>> make_memory_target(
    const WeightLayout& layout, const std::vector<std::byte*>& data,
    std::optional<VersionId> initial, unsigned threads,
    std::shared_ptr<WeightMemory> memory = nullptr);
// The same in memory of its own, zeroed, allocated when the layout is known; or, with `base`, a
// copy of that checkpoint, as version 0 of a run that is not known yet.
[[nodiscard]] Result<std::unique_ptr<MappedTarget>> make_owned_target(
    FileSystem& fs, const std::optional<std::string>& base, unsigned threads,
    std::shared_ptr<WeightMemory> memory = nullptr);
// A local checkpoint directory, patched in place with a journal (checkpoint_patcher.h). It must
// exist and hold its base, or a version of the run. All weights are read once to compute or prove
// their digest; a checkpoint that differs from its state is not valid, and a full version replaces
// it. The directory is locked while the target lives (kBusy if another process holds the lock).
[[nodiscard]] Result<std::unique_ptr<WeightTarget>> make_checkpoint_target(
    FileSystem& fs, const std::string& checkpoint, unsigned threads);

}  // namespace driftless
