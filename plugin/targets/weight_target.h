// SPDX-License-Identifier: Apache-2.0
// WeightTarget: where a receiver keeps weights. Host memory, or a local checkpoint directory.
#pragma once

#include <set>

#include "core/file_system.h"
#include "core/layout.h"
#include "formats/frame.h"
#include "formats/manifest.h"
#include "formats/run_info.h"

namespace driftless {

class StageAhead;  // stage_ahead.h

// A publication, fetched; every part has the hash that the manifest says.
struct FetchedVersion {
  Manifest manifest;
  std::string source;             // for messages: "version 7"
  std::vector<MappedFile> parts;  // as manifest.files; path() is the part's name
  // Likewise, of parts that are frames of which only some blocks were fetched, each with its hash;
  // null, or missing, if the part is there.
  std::vector<std::shared_ptr<Frame>> frames = {};
  std::shared_ptr<StageAhead> ahead = nullptr;  // of a chain's first one: WeightTarget::begin_stage
  std::shared_ptr<KeptMemory> memory = nullptr;  // for what is inflated; null: no such memory
};

// What a target holds of a tensor, as it adds up: its units that are held here (each once, however
// often it is held), and their digest. Over the ranks of an engine the digests of different
// regions that make up a tensor add up to the tensor's.
struct TensorShare {
  std::uint32_t tensor = 0;  // in the layout
  std::uint64_t units = 0;
  Hash128 region;  // of which units they are: the same units give the same, however maps cut them
  Digest digest;

  friend bool operator==(const TensorShare&, const TensorShare&) = default;
};
struct TargetState {
  VersionId id;          // run zero: not known yet
  Digest digest;         // of the weights
  bool valid = false;    // false: holds no version (nothing yet, or a change that could not be
                         // undone); takes a full version only
  bool partial = false;  // holds some of the tensors: the digest is theirs
  // Of a partial state: the digest of all weights of the version, once one was applied.
  std::optional<Digest> version_digest = std::nullopt;
  // Of a partial state: each tensor that is held, whole, ascending. Null: not known.
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

// A tensor that is held, all of it or at one of its places, so that it cannot be read back.
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

// What lies at one place of a target, of some units of a tensor, in the tensor's own type.
struct HeldRun {
  std::uint64_t first = 0, count = 0;
};
struct HeldCopy {
  std::string parameter;               // empty: it is the tensor itself
  std::vector<HeldRun> runs;           // the units that are there, ascending
  std::vector<std::byte> values;       // of all runs
  std::vector<std::uint64_t> foreign;  // units whose bits nothing of the tensor's type converts to
};
// Of a tensor, block by block.
struct BlockSums {
  std::vector<Digest> sums;             // of the units that count in the share
  std::vector<std::uint64_t> disagree;  // blocks that are not the same at two places
};

// What lies there now.
struct LookedShares {
  Shares shares;
  // Tensors that are not what they were, at any of their places, as far as this target knows; or
  // that have values which nothing of their type converts to. Ascending.
  std::vector<std::uint32_t> suspects;
};

// When a target reads all of its weights, to compare them with what they should be. Besides, what a
// commit writes is compared before, and read back after.
struct ProofRule {
  bool always = false;  // in every commit, once it has written; and not while staging
  // While a delta is staged that is so many versions after the last time; 0: never.
  std::uint64_t every = 1;

  friend bool operator==(const ProofRule&, const ProofRule&) = default;
};

// Which of a version's blocks a target has a use for. Immutable; may be asked from any thread.
class TargetNeeds {
 public:
  virtual ~TargetNeeds() = default;
  // Whether any unit of the tensor's block (null: of the tensor) is held, or must be known.
  [[nodiscard]] virtual bool has(std::uint32_t tensor, const TensorBlock* block) const = 0;
};

// A change worked out and proven as far as it can be without touching the weights. Dropped by the
// destructor. The target outlives it.
class StagedChange {
 public:
  virtual ~StagedChange() = default;
  // All or nothing: ok, and the target is at the new version with its digest; or not, and it is as
  // it was (if that could not be restored, its state is not valid any more). Once.
  [[nodiscard]] virtual Result<CommitReport> commit() = 0;
  // Takes a committed change back; before the next stage(). kUnsupported if the target cannot.
  [[nodiscard]] virtual Status undo() = 0;
};

// A tensor that lies where the weights do and that the run does not publish.
struct LeftTensor {
  std::string name;
  std::optional<Digest> digest;  // of its bits; none: nobody can say here
};

class WeightTarget {
 public:
  virtual ~WeightTarget() = default;
  // Null until it has one: a target may learn its layout from the run.
  [[nodiscard]] virtual const WeightLayout* layout() const = 0;
  [[nodiscard]] virtual Status adopt_layout(const WeightLayout& layout) = 0;
  // In the place of adopt_layout(), if the weights are another run's: from now on a full version of
  // `run`, whose tensors these are, replaces them, whatever its number. Until then they stay what
  // they are, unless the layout differs: then they are no version. kWrongLayout, naming a tensor
  // that was taken from the other run and that this one does not publish. kWrongRun if `run` was
  // left in this way before.
  [[nodiscard]] virtual Status admit(const Hash128& run, const WeightLayout& layout) {
    return error(StatusCode::kWrongRun, "weights of ", layout.size(),
                 " tensors that keep to their run cannot be taken over by run ", to_hex(run));
  }
  [[nodiscard]] virtual TargetState state() const = 0;
  // Tensors that lie where the weights do and that the run does not publish: never written.
  [[nodiscard]] virtual std::vector<std::string> left_alone() const { return {}; }
  // The same with their digests, of their bits when the layout was adopted or as they are now.
  [[nodiscard]] virtual std::vector<LeftTensor> left_tensors() const { return {}; }
  // Tensors that it holds and cannot read back, so that the state's digest is not proven of them.
  [[nodiscard]] virtual std::size_t unproven_tensors() const { return 0; }
  // Ends what an interrupted commit left half done, if the target can, so that its state may be
  // valid again. Ok if there is nothing to do.
  [[nodiscard]] virtual Status recover() = 0;
  // What it needs of a version. Null: everything.
  [[nodiscard]] virtual std::shared_ptr<const TargetNeeds> needs() const { return nullptr; }
  // The checkpoint directory that it patches, absolute; empty: it holds weights elsewhere.
  [[nodiscard]] virtual std::string checkpoint_dir() const { return {}; }
  // How many units of the tensor lie here with their own bits, each once, so that what is coded
  // given them can be decoded. The layout is known.
  [[nodiscard]] virtual std::uint64_t readable_units(std::uint32_t tensor) const {
    return (*layout())[tensor].units();
  }
  // What lies here of units [first, first + count) of a tensor, at each place that can be read
  // back. kUnsupported: nothing can.
  [[nodiscard]] virtual Result<std::vector<HeldCopy>> copies(std::uint32_t /*tensor*/,
                                                             std::uint64_t /*first*/,
                                                             std::uint64_t /*count*/) const {
    return error(StatusCode::kUnsupported, "these weights are not read back");
  }
  // From the next stage() on. A target that proves its weights in another way takes no notice.
  virtual void set_proof(const ProofRule& /*rule*/) {}
  // Before a chain whose manifests begin and end with these is fetched: what can be done of its
  // stage() meanwhile, if it is given to it with the first version. Null: nothing.
  [[nodiscard]] virtual std::shared_ptr<StageAhead> begin_stage(const Manifest& /*first*/,
                                                                const Manifest& /*last*/) {
    return nullptr;
  }
  // `chain`: adjoining deltas from the target's version on, to be committed as one; or one full
  // version. The target's weights are read, not written; the engine may go on reading them. What
  // was staged before must be dropped first.
  [[nodiscard]] virtual Result<std::unique_ptr<StagedChange>> stage(
      std::vector<FetchedVersion> chain) = 0;
};

// What lies beside the weights is what the run's base has there, as far as the announcement and the
// target say: else kWrongBase, naming the tensor.
[[nodiscard]] Status check_left_alone(std::span<const LeftTensor> left, const RunInfo& run);

// Memory held for staging beside the weights: it grows to what the largest version so far needed.
struct StagingMemory {
  std::uint64_t device_bytes = 0;
  std::uint64_t pinned_bytes = 0;
};

struct MappedParts;  // mapped_target.h
struct MappedOptions;

// Weights in memory, the host's or a GPU's (mapped_target.h).
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
  [[nodiscard]] Result<std::unique_ptr<StagedChange>> stage(
      std::vector<FetchedVersion> chain) override;

  // Whether the state's digest is proven from the weights' own bits, of all tensors.
  [[nodiscard]] bool proven() const;
  // Whether the weights were read, of every tensor that tracked() has, and are the version that the
  // state says as far as this target can tell: what it was opened with, and every change since.
  [[nodiscard]] bool proven_in_share() const;
  // Reads the weights, at every place where they can be read back: O(weights). kMismatch, naming
  // tensor, parameter and rank, if they are not what tracked() says: then the state is not valid
  // any more. kWrongBase if it is not valid before.
  [[nodiscard]] Result<Shares> sweep();
  // What the weights add up to, without reading them: kept up to date by commits and undos. Valid
  // until the next one. Digests are zero while no version is held.
  [[nodiscard]] const Shares& tracked() const;
  [[nodiscard]] std::size_t unproven_tensors() const override { return tracked().unproven.size(); }
  // What lies there now, whatever the state is: to find out where weights are not what they should
  // be. Reads the weights; blocks() the tensor, copies() some of it (held_copies.h).
  [[nodiscard]] Result<LookedShares> look() const;
  [[nodiscard]] Result<BlockSums> blocks(std::uint32_t tensor, std::uint64_t block_units) const;
  [[nodiscard]] Result<std::vector<HeldCopy>> copies(std::uint32_t tensor, std::uint64_t first,
                                                     std::uint64_t count) const override;
  [[nodiscard]] StagingMemory staging_memory() const;
  // Copies bytes of a tensor that lies contiguous here.
  [[nodiscard]] Status read(std::size_t tensor, std::uint64_t byte_offset,
                            std::span<std::byte> out) const;
  // A tensor that lies contiguous in host memory; else nothing.
  [[nodiscard]] std::span<const std::byte> tensor(std::size_t index) const;
  // Other weights in the place of these, as make_mapped_target() takes them: an engine has put its
  // tensors elsewhere. What was staged or committed before can neither be committed nor be taken
  // back then (kBusy). Any thread, but not during a commit: the engine must not use the tensors.
  [[nodiscard]] Status replace(MappedParts parts, const MappedOptions& options);

 private:
  std::unique_ptr<Held> held_;
};

class WeightMemory;  // weight_memory.h

// Contiguous tensors in `memory` (null: the host's). `data[i]` is tensor i of the layout, at a
// multiple of its unit, writable and owned by the caller; null if this process does not hold it
// (then the state's digest is of the held ones). With `initial` the bytes there are that version.
[[nodiscard]] Result<std::unique_ptr<MappedTarget>> make_memory_target(
    const WeightLayout& layout, const std::vector<std::byte*>& data,
    std::optional<VersionId> initial, unsigned threads,
    std::shared_ptr<WeightMemory> memory = nullptr);
// The same in memory of its own, zeroed, once it knows a layout; or holding a copy of the
// checkpoint at `base`, as version 0 of a run not known yet.
[[nodiscard]] Result<std::unique_ptr<MappedTarget>> make_owned_target(
    FileSystem& fs, const std::optional<std::string>& base, unsigned threads,
    std::shared_ptr<WeightMemory> memory = nullptr);
// A local checkpoint directory, patched in place behind its journal (checkpoint_patcher.h). It
// exists and holds its base, or a version of the run. All weights are read once, to know or to
// prove their digest; a checkpoint that is not what its state says is not valid, and is replaced by
// a full version. The directory is locked as long as the target lives (kBusy if another holds
// it).
[[nodiscard]] Result<std::unique_ptr<WeightTarget>> make_checkpoint_target(
    FileSystem& fs, const std::string& checkpoint, unsigned threads);

}  // namespace driftless
