// SPDX-License-Identifier: Apache-2.0
// CheckpointPatcher: moves a local HF checkpoint directory from one version to the next, in place,
// all or nothing.
//
//   lock -> recover -> [ check run, base, layout -> stage (proves everything) -> journal -> write
//   -> state ]
//
// A crash at any byte leaves the checkpoint at the old version, or with a journal from which the
// next open() completes the new one. docs/formats/apply.md gives the reasons. One object per
// checkpoint, one thread.
#pragma once

#include <set>

#include "plugin/checkpoint/journal.h"
#include "plugin/targets/version_stager.h"

namespace driftless {

enum class VerifyMode : unsigned char {
  kTouched,  // the checksums of changed tensors and the digest, as far as a version has them
  kFull,     // also the digest of all weights, read from the files before and after
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
  double stage_ms = 0;   // read, check and write the journal
  double commit_ms = 0;  // write into the checkpoint
};

// How far the checkpoint's state file is trusted to describe its weights.
enum class BaseTrust : unsigned char {
  kProven,   // the weights are what the state says
  kDamaged,  // the weights are unknown: a full version may replace them, whatever its number
  kForeign,  // the weights belong to another run: likewise
};

// A change whose journal is complete but not yet decided.
struct StagedApply {
  std::unique_ptr<JournalWriter> journal;
  CheckpointState before, after;
  AppliedVersion applied;
};

class CheckpointPatcher {
 public:
  // Locks the checkpoint (kBusy after options.lock_wait) and completes an apply that a crash
  // interrupted.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointPatcher>> open(
      FileSystem& fs, const std::string& checkpoint, const ApplyOptions& options);

  // Takes `published` as the tensors that the run publishes. Other stored tensors stay as they are,
  // except that a stored copy of a tied tensor is written together with that tensor. kWrongLayout,
  // naming a tensor, if the checkpoint does not have it, or if a version with other tensors was
  // applied before.
  [[nodiscard]] Status adopt_layout(const WeightLayout& published);
  // As adopt_layout(), if only the signature of the published tensors is known: it must match all
  // stored tensors, or all without the copy of a tied tensor. If it matches neither, nothing is
  // adopted, and versions of that run are refused.
  [[nodiscard]] Status adopt_signature(const Hash128& published);
  // The stored tensors that the run does not publish, read from the files.
  [[nodiscard]] std::vector<LeftTensor> left_tensors() const;

  // Applies one version on top of the present one. If it fails before it writes into the
  // checkpoint, the checkpoint is unchanged. If a write into it fails, the journal stays, and the
  // next open() or recover() completes the version.
  [[nodiscard]] Result<AppliedVersion> apply(const VersionDirectory& version);

  // The two halves of apply(), for callers that do something in between. `chain` is one version, or
  // deltas of which each builds on the one before (check_chain()). A chain goes through one
  // journal: no reader finds the checkpoint between its versions. stage() recovers first; then it
  // only reads the weights, proves everything, and leaves a complete journal that is not yet
  // decided. Destroying the result removes the journal. At most one result exists at a time.
  // commit() refuses (kMismatch, nothing written) if a file was replaced after stage(), or another
  // process wrote into a place that the version changes.
  [[nodiscard]] Result<StagedApply> stage(std::span<const VersionSource> chain,
                                          BaseTrust trust = BaseTrust::kProven);
  [[nodiscard]] Result<AppliedVersion> commit(StagedApply staged);
  // Whether a decided version is not completely written: the weights may be between two versions.
  [[nodiscard]] bool interrupted() const;
  // Completes a decided version; ok if there is none. Like open(), it first checks that the present
  // weights, with the journal's values at their places, have the digest that the journal names.
  // Files that were restored or replaced meanwhile are refused (kMismatch) and not written.
  [[nodiscard]] Status recover();
  // Ok if the files are still those that were opened. kMismatch, naming the file, if one was
  // replaced or its header was overwritten. Then nothing can be staged or committed until reopen()
  // has read the files again.
  [[nodiscard]] Status check_files() const;
  [[nodiscard]] Status reopen();
  // Checks a checkpoint whose state names `version`: ok if nothing in that version contradicts the
  // state and the weights (run, layout, digest, checksums of the tensors that it changed).
  [[nodiscard]] Status check_at(const VersionDirectory& version);
  // Reads all weights and compares their digest with the state's; a state without a digest gets it.
  // Also compares stored copies with the tensors of which they are copies. `again`: even if this
  // was done before.
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
  // Whether a delta without a manifest builds on the version that was applied here.
  [[nodiscard]] Status check_follows(const VersionDirectory& version) const;
  [[nodiscard]] Status check_checksums(const std::string& directory) const;
  // Checks the tensors that the version changes, except those in `seen`, and adds them to `seen`.
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
  bool copies_differ_ = false;  // a stored copy differs from its tensor
  bool digest_proven_ = false;  // state_.digest was read from the files, under this lock
};

struct ApplyReport {
  std::uint64_t from_version = 0;
  std::uint64_t to_version = 0;
  bool recovered = false;     // completed an interrupted apply first
  bool digest_known = false;  // the weights' digest is known afterwards
  // Files (configuration, tokenizer) of the newest full version that was applied, if they differ
  // from the checkpoint's or are missing there. The checkpoint's files are left as they are.
  std::vector<std::string> other_files;
  std::vector<AppliedVersion> applied;
};

// Moves `checkpoint` to `to_version` of `directory` (absent: its newest), version by version. It
// starts with the newest full version after the checkpoint's version; if there is none, the deltas
// must reach back to the checkpoint's version. Refuses to go back to an older version.
[[nodiscard]] Result<ApplyReport> apply_versions(FileSystem& fs, const std::string& directory,
                                                 const std::string& checkpoint,
                                                 std::optional<std::uint64_t> to_version,
                                                 const ApplyOptions& options);

}  // namespace driftless
