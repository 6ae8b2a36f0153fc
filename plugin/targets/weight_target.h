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

// A fetched publication whose hashes were compared: each part's with the manifest. If a frame was
// fetched in part, its table's with the manifest, and each block's with the table.
struct FetchedVersion {
  Manifest manifest;
  std::string source;             // for messages: "version 7"
  std::vector<MappedFile> parts;  // in the order of manifest.files; path() is the part's name
  // frames[i] replaces parts[i] if only some blocks of that frame were fetched. Otherwise it is
  // null or missing.
  std::vector<std::shared_ptr<Frame>> frames = {};
  std::shared_ptr<StageAhead> ahead = nullptr;   // in a chain's first version: begin_stage()
  std::shared_ptr<KeptMemory> memory = nullptr;  // for inflated bytes; null: allocate them
};

// The units of one tensor that a target holds and can read back, and their digest. A unit that lies
// in several places counts once. If each unit of a tensor is in the share of exactly one rank of an
// engine, the ranks' digests add up to the tensor's digest.
struct TensorShare {
  std::uint32_t tensor = 0;  // in the layout
  std::uint64_t units = 0;
  Hash128 region;  // hash of the unit numbers; does not depend on how maps divide them
  Digest digest;

  friend bool operator==(const TensorShare&, const TensorShare&) = default;
};
struct TargetState {
  VersionId id;   // run zero: not known yet
  Digest digest;  // of the weights
  // false: the target holds no version (none was committed yet, an undo failed, or a sweep found
  // other values). It then accepts only a full version.
  bool valid = false;
  // true: some weights are not held here, or only converted. `digest` is that of `tensors`; if
  // these are null, it proves nothing.
  bool partial = false;
  // For a partial state: the digest of the whole version in the manifest. Empty until a version is
  // committed.
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
  std::set<std::uint32_t> tensors;  // all that the versions change, held here or not
};

// A place of a tensor that cannot be compared with a digest, and the reason. A tensor may have
// several.
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

// Adjoining units.
struct HeldRun {
  std::uint64_t first = 0, count = 0;
};
// The values of some units of a tensor at one place of a target.
struct HeldCopy {
  std::string parameter;               // empty: the tensor itself
  std::vector<HeldRun> runs;           // the units at this place, ascending
  std::vector<std::byte> values;       // of all runs, in the tensor's own type
  std::vector<std::uint64_t> foreign;  // units whose bits no value of the tensor's type converts to
};
// Digests of a tensor, block by block.
struct BlockSums {
  std::vector<Digest> sums;  // of the units that count in the share
  // Indices of blocks whose places have different values, or that have foreign bits.
  std::vector<std::uint64_t> disagree;
};

// The result of MappedTarget::look(): the weights as they are now.
struct LookedShares {
  Shares shares;
  // Tensors with a place that does not have its tracked digest, or that has foreign bits (to which
  // no value of the tensor's type converts). Ascending.
  std::vector<std::uint32_t> suspects;
};

// When a target sweeps: reads all of its weights and compares them with their digests. Commits
// check the units that they write in any case (PlacedChanges::write()).
struct ProofRule {
  bool always = false;  // after every commit has written, and never while staging
  // Without `always`: while staging deltas, if the version that they lead to is at least `every`
  // versions after the last one that was swept. 0: never.
  std::uint64_t every = 1;

  friend bool operator==(const ProofRule&, const ProofRule&) = default;
};

// Decides which of a version's blocks a target needs. Immutable; any thread.
class TargetNeeds {
 public:
  virtual ~TargetNeeds() = default;
  // Whether the target needs any unit of this block of the tensor; null: of the whole tensor.
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
  // Call it instead of adopt_layout() if the weights belong to another run than `run`. The next
  // full version of `run` then replaces them, whatever its number. Until that is committed the
  // weights keep their version; if `layout`, the layout of `run`, differs from theirs, they hold
  // none. kWrongLayout, naming tensors, if the old run changed some that `run` does not publish, or
  // if this target cannot change its layout. kWrongRun if it cannot change its run, or another run
  // replaced `run` here before.
  [[nodiscard]] virtual Status admit(const Hash128& run, const WeightLayout& layout) {
    return error(StatusCode::kWrongRun, "this target cannot change from its run to run ",
                 to_hex(run), " with ", layout.size(), " tensors");
  }
  [[nodiscard]] virtual TargetState state() const = 0;
  // Tensors that lie beside the weights and that the run does not publish: never written.
  [[nodiscard]] virtual std::vector<std::string> left_alone() const { return {}; }
  // The same tensors with the digests of their bits, computed when the layout was adopted or by
  // this call.
  [[nodiscard]] virtual std::vector<LeftTensor> left_tensors() const { return {}; }
  // How many places of tensors the digest does not prove, because they cannot be read back.
  [[nodiscard]] virtual std::size_t unproven_tensors() const { return 0; }
  // Completes or undoes an interrupted commit, if the target can, so that its state may become
  // valid again. Ok if there is nothing to do.
  [[nodiscard]] virtual Status recover() = 0;
  // The blocks that this target needs of a version. Null: all.
  [[nodiscard]] virtual std::shared_ptr<const TargetNeeds> needs() const { return nullptr; }
  // The absolute path of the checkpoint directory that this target patches; empty: the weights lie
  // elsewhere.
  [[nodiscard]] virtual std::string checkpoint_dir() const { return {}; }
  // The number of units of the tensor whose old values can be read here, unconverted: `compact` can
  // be decoded for these only. The layout must be known.
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
  // of the coming stage() while the parts arrive: pass it to stage() as `ahead` of the first
  // version. Null: nothing can be done ahead.
  [[nodiscard]] virtual std::shared_ptr<StageAhead> begin_stage(const Manifest& /*first*/,
                                                                const Manifest& /*last*/) {
    return nullptr;
  }
  // If this version is staged alone: the memory into which its blocks can be fetched. Null: fetch
  // them to the host. Release what was taken from the memory before the target is destroyed.
  [[nodiscard]] virtual ArrivalMemory* arrivals(const Manifest& /*version*/) { return nullptr; }
  // `chain`: adjoining deltas that start at the target's version and are committed as one; or one
  // full version. Reads the target's weights without writing them; the engine may go on reading
  // them. A previous staged change must have been dropped.
  [[nodiscard]] virtual Result<std::unique_ptr<StagedChange>> stage(
      std::vector<FetchedVersion> chain) = 0;
};

// Compares the tensors beside the weights with the digests of the run's base in its announcement.
// kWrongBase, naming the tensor, if one differs. A tensor without a digest on either side passes.
[[nodiscard]] Status check_left_alone(std::span<const LeftTensor> left, const RunInfo& run);

// The memory that staging uses beside the weights: as much as the largest version so far needed.
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

  // Whether all weights lie here unconverted, so that the state's digest is computed from their
  // bits.
  [[nodiscard]] bool proven() const;
  // Whether the target holds a version and knows the digests that tracked() returns: it has read
  // them from the weights when it was opened, or computed them from a full version.
  [[nodiscard]] bool proven_in_share() const;
  // Reads all weights that can be read back, and compares them with tracked(): O(weights).
  // kMismatch, naming tensor, parameter and rank, if they differ; the state is then not valid any
  // more. kWrongBase if the state was not valid before.
  [[nodiscard]] Result<Shares> sweep();
  // The shares, without reading the weights: commits and undos keep the digests up to date. These
  // are zero until proven_in_share(). The reference is valid until the next commit, undo or
  // replace().
  [[nodiscard]] const Shares& tracked() const;
  [[nodiscard]] std::size_t unproven_tensors() const override { return tracked().unproven.size(); }
  // The next three calls read the weights as they are, to find damaged places; the state may be
  // invalid. look() reads all weights, blocks() one tensor, copies() some units of one
  // (held_copies.h).
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
  // Takes other memory for the weights, after an engine has moved its tensors; the arguments are
  // those of make_mapped_target(). Updates that were staged before can then not be committed, and
  // updates that were committed before not be undone (kBusy). Any thread may call it, but not
  // during a commit, nor while the engine uses the tensors.
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
// Contiguous tensors that the target allocates itself in `memory`. Without `base` they are zero,
// and allocated when the layout is adopted. With `base` they are a copy of that checkpoint, as
// version 0 of a run that is not known yet.
[[nodiscard]] Result<std::unique_ptr<MappedTarget>> make_owned_target(
    FileSystem& fs, const std::optional<std::string>& base, unsigned threads,
    std::shared_ptr<WeightMemory> memory = nullptr);
// A local checkpoint directory, patched in place with a journal (checkpoint_patcher.h). It must
// exist and hold its base, or a version of the run. All weights are read once to compute their
// digest; if that is not the recorded one, the state is not valid, and only a full version is
// accepted. The directory is locked while the target lives (kBusy if another process holds the
// lock).
[[nodiscard]] Result<std::unique_ptr<WeightTarget>> make_checkpoint_target(
    FileSystem& fs, const std::string& checkpoint, unsigned threads);

}  // namespace driftless
