// SPDX-License-Identifier: Apache-2.0
// CheckpointPatcher: brings a local HF checkpoint directory from one version to the next, in place,
// all or nothing.
//
//   lock -> recover -> [ check run, base, layout -> stage (proves everything) -> journal -> write
//   -> state ]
//
// A crash at any byte leaves the checkpoint at the old version, or with a journal from which the
// next open() ends at the new one. docs/formats/apply.md tells why. One object per checkpoint, one
// thread.
#pragma once

#include <set>

#include "plugin/checkpoint/journal.h"
#include "plugin/targets/version_stager.h"

namespace driftless {

enum class VerifyMode : unsigned char {
  kTouched,  // the checksum of every tensor that a version changes
  kFull,     // and the digest of all weights, read from the files before and after
};

struct ApplyOptions {
  unsigned threads = 1;
  VerifyMode verify = VerifyMode::kTouched;
  std::chrono::milliseconds lock_wait{10'000};
  Progress progress;  // may be empty
};

struct AppliedVersion : StagedVersion {
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  std::string encoding;
  std::uint64_t payload_bytes = 0;
  double stage_ms = 0;   // reading, checking, journal
  double commit_ms = 0;  // writing into the checkpoint
};

// What the checkpoint's weights are taken for.
enum class BaseTrust : unsigned char {
  kProven,   // for what its state says
  kDamaged,  // for nothing: a full version may replace them, whatever its number
  kForeign,  // for another run's: likewise
};

// A change whose journal is whole but not decided.
struct StagedApply {
  std::unique_ptr<JournalWriter> journal;
  CheckpointState before, after;
  AppliedVersion applied;
};

class CheckpointPatcher {
 public:
  // Locks the checkpoint (kBusy after options.lock_wait) and finishes what a crash interrupted.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointPatcher>> open(
      FileSystem& fs, const std::string& checkpoint, const ApplyOptions& options);

  // The run publishes these tensors. What is stored beside them is left alone; a tied tensor's
  // stored copy is written with it. kWrongLayout, naming a tensor, if the checkpoint does not have
  // one, or was brought to a version of other tensors.
  [[nodiscard]] Status adopt_layout(const WeightLayout& published);
  // The same if only the signature of what the run publishes is known: it is that of all that is
  // stored here, or of that without the copy of a tied tensor. If it is neither, nothing happens,
  // and versions of it are refused.
  [[nodiscard]] Status adopt_signature(const Hash128& published);
  // What is left alone, read from the files.
  [[nodiscard]] std::vector<LeftTensor> left_tensors() const;

  // Applies one version on top of the present one. On failure the checkpoint is as it was, or,
  // if writing into it failed, keeps its journal and is finished by the next open() or recover().
  [[nodiscard]] Result<AppliedVersion> apply(const VersionDirectory& version);

  // The two halves of apply(), for who wants to do something between them. `chain` is one version,
  // or deltas that adjoin (check_chain()), which go through one journal: the checkpoint is never
  // seen between them. stage() proves everything and leaves a whole journal that nobody acts on
  // yet; the weights are only read. Dropping the result drops the journal. There is one at a time.
  // commit() refuses (kMismatch, and nothing was written) if a file was replaced, or a place that
  // the version changes was written into by somebody else, since stage().
  [[nodiscard]] Result<StagedApply> stage(std::span<const VersionSource> chain,
                                          BaseTrust trust = BaseTrust::kProven);
  [[nodiscard]] Result<AppliedVersion> commit(StagedApply staged);
  // Whether a decided version is not written out: the weights may be between two versions.
  [[nodiscard]] bool interrupted() const;
  // Writes out what is decided; ok if nothing is. As in open(), only once the weights as they
  // are, with the journal's values at their places, have the digest that the journal says: files
  // that were restored or replaced meanwhile are refused (kMismatch), and not written into.
  [[nodiscard]] Status recover();
  // Ok if the files are those that were opened; kMismatch, naming one that was replaced, or whose
  // header somebody else wrote into. Then nothing can be staged or committed until reopen() has
  // read them anew.
  [[nodiscard]] Status check_files() const;
  [[nodiscard]] Status reopen();
  // Ok if the checkpoint, whose state says that it is at `version`, is not contradicted by what
  // that version says of itself: run, layout, digest, checksums of the tensors it changed.
  [[nodiscard]] Status check_at(const VersionDirectory& version);
  // Reads all weights and compares their digest with the state's, or learns it if the state has
  // none; and stored copies with what they are copies of.
  // `again`: also if that was done already.
  [[nodiscard]] Status check_full(bool again = false);

  [[nodiscard]] const CheckpointState& state() const { return state_; }
  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }
  [[nodiscard]] bool recovered() const { return recovered_; }

 private:
  CheckpointPatcher(FileSystem& fs, std::string path, ApplyOptions options)
      : fs_(&fs), path_(std::move(path)), options_(std::move(options)) {}
  Status remove_leftovers();
  [[nodiscard]] Status check_copies() const;
  [[nodiscard]] Digest digest_of(const OtherTensor& other) const;
  Status write_copies();
  Status check_run_and_layout(const VersionDirectory& version,
                              BaseTrust trust = BaseTrust::kProven) const;
  Status check_base(const VersionDirectory& version, BaseTrust trust);
  // Of a delta without a manifest: whether it builds on what was applied here.
  [[nodiscard]] Status check_follows(const VersionDirectory& version) const;
  [[nodiscard]] Status check_checksums(const std::string& directory) const;
  // The tensors that the version changes, but those in `seen`, which gets them.
  [[nodiscard]] Status check_changes(const VersionDirectory& version,
                                     std::set<std::uint32_t>* seen) const;
  [[nodiscard]] Digest sweep() const;
  [[nodiscard]] Result<CheckpointState> state_after(std::span<const VersionSource> chain,
                                                    const StagedVersion& staged) const;
  Status check_layout() const;
  Status prove_journal(const Journal& journal, std::span<const Frame> frames,
                       const std::string& journal_path) const;
  Status write_out(const Journal& journal, std::span<const Frame> frames,
                   const std::string& journal_path);

  FileSystem* fs_;
  std::string path_;
  ApplyOptions options_;
  std::unique_ptr<FileLock> lock_;
  std::optional<Checkpoint> checkpoint_;
  CheckpointState state_;
  bool recovered_ = false;
  bool copies_differ_ = false;  // a stored copy is not what it is a copy of
  bool digest_proven_ = false;  // state_.digest was read from the files, under this lock
};

struct ApplyReport {
  std::uint64_t from_version = 0;
  std::uint64_t to_version = 0;
  bool recovered = false;     // an interrupted apply was finished first
  bool digest_known = false;  // the weights' digest is known after this
  // Of the newest full version applied: files beside its weights that the checkpoint has otherwise,
  // or not at all. They are left as they are.
  std::vector<std::string> other_files;
  std::vector<AppliedVersion> applied;
};

// Brings `checkpoint` to `to_version` of `directory` (absent: the newest there), version by
// version, from the newest full version if the chain of deltas does not reach back. Refuses to
// go below the version that is there.
[[nodiscard]] Result<ApplyReport> apply_versions(FileSystem& fs, const std::string& directory,
                                                 const std::string& checkpoint,
                                                 std::optional<std::uint64_t> to_version,
                                                 const ApplyOptions& options);

}  // namespace driftless
