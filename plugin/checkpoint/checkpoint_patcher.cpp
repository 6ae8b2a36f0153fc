// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/checkpoint_patcher.h"

#include <algorithm>

#include "core/stopwatch.h"
#include "formats/run_info.h"
#include "plugin/checkpoint/verify.h"

namespace driftless {
namespace {

constexpr std::string_view kLockName = "lock";

constexpr std::string_view kResync =
    "restore the base checkpoint of this run (and remove its .weight_sync directory), then apply "
    "again";

Status damaged(const std::string& journal_path, const Status& why) {
  return error(StatusCode::kCorrupt, journal_path, ": the journal is damaged (", why.message(),
               "), so the checkpoint may be between two versions; ", kResync);
}

Result<std::uint64_t> choose_target(FileSystem& fs, const std::string& directory,
                                    std::optional<std::uint64_t> wanted) {
  if (wanted) return *wanted;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> versions,
                             list_versions(fs, directory));
  if (versions.empty()) {
    return error(StatusCode::kNotFound, directory, ": no version is published there (weight_v*)");
  }
  return versions.back();
}

// The versions from the target back, base by base, to the checkpoint's version or to a full
// version.
Result<std::vector<VersionDirectory>> plan(FileSystem& fs, const std::string& directory,
                                           std::uint64_t from, std::uint64_t target) {
  std::vector<VersionDirectory> chain;
  std::uint64_t next = target;
  while (next > from) {
    Result<VersionDirectory> version = open_version(fs, directory, next);
    if (!version.ok() && version.status().code() == StatusCode::kNotFound && next != target) {
      return error(StatusCode::kWrongBase, directory, ": version ", chain.back().version,
                   " builds on version ", next,
                   ", which is not there; publish it, or a full version "
                   "from ",
                   next, " on");
    }
    if (!version.ok()) return version.status();
    next = version->base_version;
    chain.push_back(std::move(*version));
    if (chain.back().full()) {
      std::reverse(chain.begin(), chain.end());
      return chain;
    }
  }
  if (next != from) {
    return error(StatusCode::kWrongBase, directory, ": version ", chain.back().version,
                 " builds on version ", next, ", but the checkpoint is at version ", from,
                 "; restore version ", next, ", or supply a full version");
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

// Adopts the layout that the run publishes, if its announcement lies beside its versions.
Status adopt_announcement(FileSystem& fs, const std::string& directory,
                          const std::vector<VersionDirectory>& chain, CheckpointPatcher& patcher) {
  const std::string path = join_path(directory, kRunInfoName);
  if (!chain.front().manifest) return {};
  if (!exists(fs, path)) return patcher.adopt_signature(chain.front().manifest->layout);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, read_text(fs, path, kMaxRunInfoBytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const RunInfo run, parse_run_info(text, path));
  if (run.run != chain.front().manifest->id.run) return {};  // refused later, with the reason
  DRIFTLESS_RETURN_IF_ERROR(patcher.adopt_layout(run.layout));
  return run.unpublished.empty() ? Status() : check_left_alone(patcher.left_tensors(), run);
}

}  // namespace

Result<std::unique_ptr<CheckpointPatcher>> CheckpointPatcher::open(FileSystem& fs,
                                                                   const std::string& path,
                                                                   const ApplyOptions& options) {
  std::unique_ptr<CheckpointPatcher> patcher(new CheckpointPatcher(fs, path, options));
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs.info(path));
  if (info.kind == FileKind::kFile) {
    return error(StatusCode::kInvalidArgument, path,
                 ": a checkpoint to patch is a directory, not a file");
  }
  // Opens the checkpoint before anything is created in it: a directory that is no checkpoint stays
  // unchanged.
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint probe, Checkpoint::open(fs, path));
  if (probe.linked()) {
    return error(StatusCode::kInvalidArgument, path,
                 ": its files are symbolic links, as in the cache of a model hub, and are not "
                 "written to, since others may load them; patch a copy of your own: cp -rL ",
                 path, " DIR");
  }
  const std::string sync_directory = join_path(path, kSyncDirectory);
  if (Status made = fs.make_directory(sync_directory);
      !made.ok() && made.code() != StatusCode::kAlreadyExists) {
    return made;
  }
  DRIFTLESS_RETURN_IF_ERROR(check_inside(fs, path, std::string(kSyncDirectory)));
  // Sync even if the directory existed: its creator may have died before its name was durable, and
  // a journal must not vanish with it.
  DRIFTLESS_RETURN_IF_ERROR(fs.sync_directory(path));
  DRIFTLESS_ASSIGN_OR_RETURN(patcher->lock_,
                             fs.lock(sync_path(path, kLockName), options.lock_wait));
  // On an overlay file system, as in a container, the first open for writing copies the file, and
  // writes go to the copy. So open each file for writing before it is mapped. A file that cannot be
  // written is refused later.
  for (const SafetensorsFile& file : probe.files()) {
    const Status ignored = fs.open(file.file().path()).status();
  }
  DRIFTLESS_ASSIGN_OR_RETURN(patcher->checkpoint_, Checkpoint::open(fs, path));
  DRIFTLESS_RETURN_IF_ERROR(patcher->remove_leftovers());
  patcher->recovered_ = patcher->interrupted();
  DRIFTLESS_RETURN_IF_ERROR(patcher->recover());
  DRIFTLESS_ASSIGN_OR_RETURN(patcher->state_, load_state(fs, path));
  DRIFTLESS_RETURN_IF_ERROR(leave_others(patcher->state_, *patcher->checkpoint_));
  DRIFTLESS_RETURN_IF_ERROR(patcher->check_layout());
  return patcher;
}

Status CheckpointPatcher::check_layout() const {
  const Hash128& signature = checkpoint_->layout().signature();
  if (state_.layout.is_zero() || state_.layout == signature) return {};
  return error(StatusCode::kWrongLayout, path_, ": the state was written for weight layout ",
               to_hex(state_.layout), ", but the files have ", to_hex(signature),
               ": the checkpoint was replaced; ", kResync);
}

Status CheckpointPatcher::check_files() const { return check_same_files(*fs_, *checkpoint_); }

Status CheckpointPatcher::reopen() {
  Result<Checkpoint> opened = Checkpoint::open(*fs_, path_);
  if (!opened.ok()) {
    return opened.status().with_context(concat(
        path_, ": another process changed its files, and they can no longer be read; ", kResync));
  }
  Checkpoint now = std::move(*opened);
  const WeightLayout kept = checkpoint_->layout();
  DRIFTLESS_RETURN_IF_ERROR(now.layout().check_has(kept, "the new files", path_));
  checkpoint_ = std::move(now);
  digest_proven_ = false;
  return leave_others(state_, *checkpoint_);
}

Status CheckpointPatcher::remove_leftovers() {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                             fs_->list(join_path(path_, kSyncDirectory)));
  for (const std::string& name : names) {  // removes undecided files of an apply that died
    if (name.ends_with(".tmp") || name.starts_with(kSpoolPrefix)) {
      DRIFTLESS_RETURN_IF_ERROR(fs_->remove_file(sync_path(path_, name)));
    }
  }
  return {};
}

// Whether the files are those for which the journal was made. The interrupted apply may have
// written any part of it. The digest of the present weights plus the journal's change to them
// equals the new version's digest if and only if writing out the journal gives the new version.
Status CheckpointPatcher::prove_journal(const Journal& journal, std::span<const Frame> frames,
                                        const std::string& journal_path) const {
  if (!journal.after().digest) {
    return error(StatusCode::kMismatch, journal_path,
                 ": does not record the digests that it expects in ", path_,
                 " (an earlier release wrote it); ", kResync);
  }
  const Result<Digest> change = journal_change(frames, *checkpoint_, options_.threads);
  if (!change.ok()) return damaged(journal_path, change.status());
  const Digest now = sweep();
  if (now + *change == *journal.after().digest) return {};
  return error(StatusCode::kMismatch, path_, ": its files have digest ", to_hex(now),
               " and are neither version ", journal.before().version, " nor version ",
               journal.after().version, " nor between them. ", journal_path,
               ", the journal of an interrupted apply, expects one of these: the files were "
               "restored, replaced or damaged since. Nothing was written; ",
               kResync);
}

// Completes a proven journal: the new version is in the checkpoint afterwards. The order of the
// syncs makes this safe: first the weights, then the state, and only then the journal is removed.
Status CheckpointPatcher::write_out(const Journal& journal, std::span<const Frame> frames,
                                    const std::string& journal_path) {
  if (const Status replayed = replay_journal(*fs_, frames, *checkpoint_, options_.threads);
      !replayed.ok()) {
    return replayed.code() == StatusCode::kCorrupt ? damaged(journal_path, replayed) : replayed;
  }
  if (copies_differ_) DRIFTLESS_RETURN_IF_ERROR(write_copies());
  // Checked again: the state must describe what a reader of the directory finds.
  DRIFTLESS_RETURN_IF_ERROR(check_files());
  const bool full = options_.verify == VerifyMode::kFull && journal.after().digest.has_value();
  if (full && sweep() != *journal.after().digest) {
    return error(StatusCode::kMismatch, path_, ": after writing version ", journal.after().version,
                 " the weights do not have its digest ", to_hex(*journal.after().digest),
                 ": the storage returned other bytes than were written, or a tensor that no delta "
                 "touches was damaged; ",
                 kResync);
  }
  DRIFTLESS_RETURN_IF_ERROR(save_state(*fs_, path_, journal.after()));
  state_ = journal.after();
  digest_proven_ = full;
  DRIFTLESS_RETURN_IF_ERROR(fs_->remove_file(journal_path));
  return fs_->sync_directory(join_path(path_, kSyncDirectory));
}

Status CheckpointPatcher::check_run_and_layout(const VersionDirectory& version,
                                               BaseTrust trust) const {
  if (!version.manifest) return {};
  const Manifest& manifest = *version.manifest;
  const bool trusted = trust != BaseTrust::kForeign;
  if (trusted && !state_.run.is_zero() && state_.run != manifest.id.run) {
    return error(StatusCode::kWrongRun, version.path, ": belongs to run ", to_hex(manifest.id.run),
                 ", but ", path_, " is at version ", state_.version, " of run ", to_hex(state_.run),
                 "; ", kResync);
  }
  if (manifest.layout != checkpoint_->layout().signature()) {
    return error(StatusCode::kWrongLayout, version.path, ": made for weight layout ",
                 to_hex(manifest.layout), ", but ", path_, " has ",
                 to_hex(checkpoint_->layout().signature()),
                 "; use the checkpoint that this run started from");
  }
  return {};
}

// Identifies a version without a manifest: its number alone could be another run's.
static Result<Hash128> hash_files(FileSystem& fs, const VersionDirectory& version) {
  std::string all;
  for (const std::string& name : version.payload_files) {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile file, fs.map(join_path(version.path, name)));
    all += concat(name, " ", to_hex(xxh3_128(file.bytes())), "\n");
  }
  return xxh3_128(all);
}

// Checks each tensor against the newest checksum that the versions up to now give for it.
Status CheckpointPatcher::check_checksums(const std::string& directory) const {
  std::set<std::uint32_t> seen;
  for (std::uint64_t number = state_.version; number > 0; --number) {
    const Result<VersionDirectory> version = open_version(*fs_, directory, number);
    if (!version.ok()) {
      return error(StatusCode::kWrongBase, path_, " is at version ", state_.version,
                   ", which another tool applied, and its run is unknown (",
                   version.status().message(), "): keep the versions that were applied, or ",
                   kResync);
    }
    DRIFTLESS_RETURN_IF_ERROR(check_changes(*version, &seen));
    if (version->full()) break;
  }
  return {};
}

Status CheckpointPatcher::check_follows(const VersionDirectory& version) const {
  if (state_.version == 0) return {};
  const std::string held = concat(path_, " is at version ", state_.version);
  if (!state_.run.is_zero()) {
    return error(StatusCode::kWrongRun, version.path, ": has no manifest, and ", held, " of run ",
                 to_hex(state_.run), ": it may not build on that version; ", kResync);
  }
  const std::string directory = version.path.substr(0, version.path.rfind('/'));
  if (state_.files.is_zero()) {  // written by another tool, which keeps only the number
    if (version.directory_layout == DirectoryLayout::kHfDelta) return check_checksums(directory);
    return error(
        StatusCode::kWrongBase, held,
        ", and its state does not name the files that brought it there: it is unknown whether ",
        version.path, " builds on that; ", kResync);
  }
  const Result<VersionDirectory> before = open_version(*fs_, directory, state_.version);
  const Result<Hash128> files =
      before.ok() ? hash_files(*fs_, *before) : Result<Hash128>(before.status());
  if (!files.ok()) {
    return error(StatusCode::kWrongBase, held, ", and it is unknown whether ", version.path,
                 " builds on that, because the version itself is gone (", files.status().message(),
                 "): keep the version that was applied last, or ", kResync);
  }
  if (*files == state_.files) return {};
  return error(StatusCode::kWrongBase, held, ", and ", before->path,
               " has other files now: the trainer has begun anew; ", kResync);
}

// Whether the checkpoint holds the version's base, as far as this can be checked before staging.
Status CheckpointPatcher::check_base(const VersionDirectory& version, BaseTrust trust) {
  DRIFTLESS_RETURN_IF_ERROR(check_run_and_layout(version, trust));
  if (trust != BaseTrust::kProven) {
    if (version.full() && version.manifest) return {};
    return error(StatusCode::kWrongBase, version.path, ": is a delta, but ", path_,
                 " does not hold a proven version; send a full version");
  }
  if (version.version <= state_.version) {
    return error(StatusCode::kWrongBase, path_, " is at version ", state_.version,
                 " already, which is not below ", version.version);
  }
  if (!version.full() && version.base_version != state_.version) {
    return error(StatusCode::kWrongBase, version.path, ": builds on version ", version.base_version,
                 ", but ", path_, " is at version ", state_.version);
  }
  if (options_.verify == VerifyMode::kFull) DRIFTLESS_RETURN_IF_ERROR(check_full());
  if (version.full()) return {};
  if (!version.manifest) return check_follows(version);
  // A state written by another tool does not name its run: then the weights must prove it.
  const bool unknown_run = state_.run.is_zero() && state_.version > 0;
  if (!state_.digest && unknown_run) state_.digest = sweep();
  const Digest& expected = version.manifest->base_digest;
  if (!state_.digest || *state_.digest == expected) return {};
  return error(StatusCode::kMismatch, path_, ": the weights have digest ", to_hex(*state_.digest),
               ", but version ", version.version, " builds on ", to_hex(expected),
               ": they are not version ", version.base_version, " of run ",
               to_hex(version.manifest->id.run), ", or a tensor was damaged. Nothing was changed; ",
               kResync);
}

Digest CheckpointPatcher::sweep() const {
  return digest_checkpoint(*checkpoint_, options_.threads);
}

// The state after the chain, if the staged changes agree with the manifests.
Result<CheckpointState> CheckpointPatcher::state_after(std::span<const VersionSource> chain,
                                                       const StagedVersion& staged) const {
  const VersionDirectory& first = chain.front().version();
  const VersionDirectory& last = chain.back().version();
  CheckpointState after;
  after.version = last.version;
  after.layout = checkpoint_->layout().signature();
  after.left_alone = state_.left_alone;
  after.copies = state_.copies;
  if (state_.digest) after.digest = *state_.digest + staged.digest_change;
  if (!last.manifest) {
    DRIFTLESS_ASSIGN_OR_RETURN(after.files, hash_files(*fs_, last));
    return after;
  }
  const Manifest& manifest = *last.manifest;
  // After a full version the earlier weights do not matter.
  const Digest reached =
      last.full() ? staged.new_digest : first.manifest->base_digest + staged.digest_change;
  // The manifest may count more: all units of a tensor that was sent whole, changed or not.
  const bool counted =
      last.full() || chain.size() > 1 || staged.changed_units <= manifest.changed_units;
  if (reached != manifest.digest || !counted) {
    return error(StatusCode::kMismatch, last.path, ": applying it changes ", staged.changed_units,
                 " units and gives digest ", to_hex(reached), ", the manifest says ",
                 manifest.changed_units, " and ", to_hex(manifest.digest), ": ", path_,
                 " does not hold version ", first.base_version,
                 ", or the delta is damaged. Nothing was changed; ", kResync);
  }
  after.run = manifest.id.run;
  after.digest = manifest.digest;
  return after;
}

Result<StagedApply> CheckpointPatcher::stage(std::span<const VersionSource> chain,
                                             BaseTrust trust) {
  if (chain.empty()) return error(StatusCode::kInvalidArgument, "a chain without versions");
  DRIFTLESS_RETURN_IF_ERROR(recover());  // then the state describes the weights again
  DRIFTLESS_RETURN_IF_ERROR(check_base(chain.front().version(), trust));
  DRIFTLESS_RETURN_IF_ERROR(check_patchable(*fs_, *checkpoint_));
  Stopwatch watch;
  // The journal names the digest of its result. If neither the state nor the version has a digest,
  // read all weights once; from then on the state has it.
  if (!state_.digest && !chain.back().version().manifest) state_.digest = sweep();
  StagedApply staged;
  DRIFTLESS_ASSIGN_OR_RETURN(staged.journal,
                             JournalWriter::create(*fs_, sync_path(path_, kJournalName)));
  JournalWriter& journal = *staged.journal;
  DRIFTLESS_ASSIGN_OR_RETURN(
      static_cast<StagedVersion&>(staged.applied),
      stage_version(view_of(*checkpoint_), chain, {options_.threads, options_.progress},
                    [&](std::span<const std::byte> frame) { return journal.append(frame); }));
  staged.before = state_;
  DRIFTLESS_ASSIGN_OR_RETURN(staged.after, state_after(chain, staged.applied));
  DRIFTLESS_RETURN_IF_ERROR(journal.seal(staged.before, staged.after));
  staged.applied.version = chain.back().version().version;
  staged.applied.base_version = chain.front().version().base_version;
  staged.applied.encoding = info(chain.back().version().encoding).name;
  for (const VersionSource& source : chain) staged.applied.payload_bytes += source.payload_bytes();
  staged.applied.stage_ms = watch.lap_ms();
  return staged;
}

Result<AppliedVersion> CheckpointPatcher::commit(StagedApply staged) {
  if (staged.before != state_) {
    return error(StatusCode::kWrongBase, path_, ": is at version ", state_.version,
                 " now, the change was staged for version ", staged.before.version);
  }
  Stopwatch watch;
  DRIFTLESS_ASSIGN_OR_RETURN(const Journal journal,
                             Journal::open(*fs_, staged.journal->temporary_path()));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Frame> frames,
                             decode_journal(journal, checkpoint_->layout(), options_.threads));
  // Checks that the files are those that were read, and that the places to be written still hold
  // the values that were read.
  DRIFTLESS_RETURN_IF_ERROR(check_patchable(*fs_, *checkpoint_));
  DRIFTLESS_ASSIGN_OR_RETURN(const Digest change,
                             journal_change(frames, *checkpoint_, options_.threads));
  if (change != staged.applied.digest_change) {
    return error(StatusCode::kMismatch, path_, ": another process wrote into tensors that version ",
                 staged.after.version, " changes, since it was staged. Nothing was changed; ",
                 kResync);
  }
  DRIFTLESS_RETURN_IF_ERROR(staged.journal->decide());
  const Status written = write_out(journal, frames, sync_path(path_, kJournalName));
  if (!written.ok()) {
    return written.with_context(concat("version ", staged.applied.version,
                                       " is decided but not written out; repeat the command to "
                                       "finish it"));
  }
  staged.applied.commit_ms = watch.lap_ms();
  return staged.applied;
}

bool CheckpointPatcher::interrupted() const { return exists(*fs_, sync_path(path_, kJournalName)); }

Status CheckpointPatcher::recover() {
  if (!interrupted()) return {};
  const std::string journal_path = sync_path(path_, kJournalName);
  DRIFTLESS_ASSIGN_OR_RETURN(const Journal journal, Journal::open(*fs_, journal_path));
  DRIFTLESS_RETURN_IF_ERROR(leave_others(journal.after(), *checkpoint_));
  if (journal.after().layout != checkpoint_->layout().signature()) {
    return error(StatusCode::kWrongLayout, journal_path,
                 ": belongs to a checkpoint with other tensors; ", kResync);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_patchable(*fs_, *checkpoint_));
  const Result<std::vector<Frame>> frames =
      decode_journal(journal, checkpoint_->layout(), options_.threads);
  if (!frames.ok()) return damaged(journal_path, frames.status());
  DRIFTLESS_RETURN_IF_ERROR(prove_journal(journal, *frames, journal_path));
  return write_out(journal, *frames, journal_path);
}

Result<AppliedVersion> CheckpointPatcher::apply(const VersionDirectory& version) {
  // Checked before any file is read, because it is the cheapest refusal.
  DRIFTLESS_RETURN_IF_ERROR(check_base(version, BaseTrust::kProven));
  DRIFTLESS_RETURN_IF_ERROR(check_patchable(*fs_, *checkpoint_));
  if (version.manifest) {
    DRIFTLESS_RETURN_IF_ERROR(check_sizes(*version.manifest, checkpoint_->layout(), version.path));
  }
  Stopwatch watch;
  Hash128 files;
  if (!version.manifest) {
    DRIFTLESS_ASSIGN_OR_RETURN(files, hash_files(*fs_, version));
  }
  DRIFTLESS_RETURN_IF_ERROR(check_file_hashes(*fs_, version, options_.threads));
  DRIFTLESS_ASSIGN_OR_RETURN(
      const VersionSource source,
      VersionSource::open(*fs_, version, checkpoint_->layout(), join_path(path_, kSyncDirectory)));
  const double open_ms = watch.lap_ms();
  DRIFTLESS_ASSIGN_OR_RETURN(StagedApply staged, stage(std::span(&source, 1)));
  staged.applied.stage_ms += open_ms;
  if (staged.after.files != files) {
    return error(StatusCode::kIncomplete, version.path, ": was replaced while it was read");
  }
  return commit(std::move(staged));
}

Status CheckpointPatcher::check_at(const VersionDirectory& version) {
  DRIFTLESS_RETURN_IF_ERROR(check_run_and_layout(version));
  if (version.manifest && state_.digest && *state_.digest != version.manifest->digest) {
    return error(StatusCode::kMismatch, path_, ": the state says digest ", to_hex(*state_.digest),
                 ", version ", version.version, " has ", to_hex(version.manifest->digest), "; ",
                 kResync);
  }
  if (version.manifest && !state_.run.is_zero()) return {};
  if (!state_.files.is_zero() && !version.manifest) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Hash128 files, hash_files(*fs_, version));
    if (files != state_.files) {
      return error(StatusCode::kWrongBase, path_, " is at version ", state_.version, ", but ",
                   version.path, " has other files: the trainer has begun anew; ", kResync);
    }
  }
  // States written by other tools prove nothing: compare the weights with the version's checksums.
  return check_changes(version, nullptr);
}

Status CheckpointPatcher::check_changes(const VersionDirectory& version,
                                        std::set<std::uint32_t>* seen) const {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const VersionSource source,
      VersionSource::open(*fs_, version, checkpoint_->layout(), join_path(path_, kSyncDirectory)));
  for (const TensorChange& change : source.changes()) {
    if (seen != nullptr && !seen->insert(change.tensor).second) continue;
    const TensorView tensor = checkpoint_->tensor(change.tensor);
    const std::string found = checksum_hex(version.checksum, tensor.bytes());
    if (change.checksum.empty() || found == change.checksum) continue;
    return error(StatusCode::kMismatch, path_, ": the state says version ", state_.version,
                 ", but tensor '", tensor.spec->name, "' has ", to_string(version.checksum), " ",
                 found, ", and ", version.path, " says ", change.checksum, "; ", kResync);
  }
  return {};
}

Status CheckpointPatcher::check_full(bool again) {
  if (digest_proven_ && !again) return {};
  digest_proven_ = false;
  const Digest found = sweep();
  if (state_.digest && found != *state_.digest) {
    return error(StatusCode::kMismatch, path_, ": the weights have digest ", to_hex(found),
                 ", but version ", state_.version, " has ", to_hex(*state_.digest),
                 ": a tensor was damaged since it was applied. Nothing was changed; ", kResync);
  }
  state_.digest = found;
  const Status copied = check_copies();
  copies_differ_ = !copied.ok();
  DRIFTLESS_RETURN_IF_ERROR(copied);
  digest_proven_ = true;
  return {};
}

Result<ApplyReport> apply_versions(FileSystem& fs, const std::string& directory,
                                   const std::string& checkpoint,
                                   std::optional<std::uint64_t> to_version,
                                   const ApplyOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t target, choose_target(fs, directory, to_version));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointPatcher> patcher,
                             CheckpointPatcher::open(fs, checkpoint, options));
  ApplyReport report;
  report.recovered = patcher->recovered();
  report.from_version = patcher->state().version;
  report.to_version = target;
  if (target < patcher->state().version) {
    return error(
        StatusCode::kWrongBase, checkpoint, " is at version ", patcher->state().version,
        " and cannot go back to ", target,
        "; restore the base checkpoint (and remove its .weight_sync directory), then apply "
        "with --to-version ",
        target);
  }
  if (target == patcher->state().version) {
    if (target > 0) {
      DRIFTLESS_ASSIGN_OR_RETURN(const VersionDirectory version,
                                 open_version(fs, directory, target));
      DRIFTLESS_RETURN_IF_ERROR(patcher->check_at(version));
    }
    if (options.verify == VerifyMode::kFull) DRIFTLESS_RETURN_IF_ERROR(patcher->check_full());
    report.digest_known = patcher->state().digest.has_value();
    return report;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<VersionDirectory> chain,
                             plan(fs, directory, report.from_version, target));
  DRIFTLESS_RETURN_IF_ERROR(adopt_announcement(fs, directory, chain, *patcher));
  for (const VersionDirectory& version : chain) {
    DRIFTLESS_ASSIGN_OR_RETURN(AppliedVersion applied, patcher->apply(version));
    report.applied.push_back(std::move(applied));
    if (!version.full()) continue;
    CompanionDifferences found = compare_companions(fs, version.path, checkpoint);
    report.other_files = std::move(found.others);
    std::ranges::move(found.here_alone, std::back_inserter(report.other_files));
  }
  report.digest_known = patcher->state().digest.has_value();
  return report;
}

}  // namespace driftless
