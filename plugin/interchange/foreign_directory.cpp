// SPDX-License-Identifier: Apache-2.0
#include "plugin/interchange/foreign_directory.h"

#include <deque>
#include <set>

#include "collectives/part_ranges.h"
#include "collectives/shared_fs/visibility_hook.h"
#include "core/parallel.h"
#include "formats/run_info.h"
#include "plugin/interchange/trl_directory.h"
#include "plugin/targets/version_stager.h"

namespace driftless {
namespace {

constexpr std::size_t kHeldVersions = 4;
constexpr std::uint64_t kRemembered = 64;  // versions whose files are gone
// A file may be seen half written. An error that persists for this long, with no file changed, is
// final.
constexpr std::chrono::seconds kRestWait{10};
// The deadline for reading a version. It is separate from the caller's, so that a version is not
// read again from its start when the caller's time is over.
constexpr std::chrono::minutes kReadWait{30};

// A version of the directory in the form that receivers take.
struct HeldVersion {
  PublicationId id;
  std::string manifest;
  std::vector<MappedFile> parts;  // path() is the part's name
};

// The identity of a file: as long as it is equal, the file is the same one. Hard links do not
// count.
struct FileState {
  std::string path;
  FileInfo info = {};

  [[nodiscard]] static Result<FileState> of(FileSystem& fs, std::string path) {
    DRIFTLESS_ASSIGN_OR_RETURN(FileInfo info, fs.info(path));
    info.hard_links = 0;
    return FileState{std::move(path), info};
  }
  friend bool operator==(const FileState&, const FileState&) = default;
};

class ForeignDirectory final : public ReceiveRoad {
 public:
  ForeignDirectory(FileSystem& fs, const SharedFsOptions& options, unsigned threads)
      : fs_(&fs),
        options_(options),
        threads_(threads == 0 ? default_threads() : threads),
        reader_(make_part_files_reader(fs)),
        before_read_(shared_fs::before_read_hook(options)) {}

  [[nodiscard]] Status open();

  // The directory is made by others, so this waits for it.
  Result<std::string> run_info(const Deadline& deadline) override {
    Backoff backoff(options_.poll_first, options_.poll_longest);
    Waiting waiting;
    const auto whom = [&] {
      return concat("waiting for the directory ", options_.dir,
                    ", which is not there: mistyped, or not mounted?");
    };
    while (!exists(*fs_, options_.dir)) {
      if (!waiting.sleep(backoff, deadline, whom)) return deadline.check(whom());
    }
    return run_info_;
  }
  Status check_held(std::uint64_t version, std::string_view digest,
                    const Deadline& deadline) override;
  Result<std::vector<PublicationId>> list(const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(fenced_);
    std::vector<PublicationId> ids;
    for (const HeldVersion& version : held_) ids.push_back(version.id);
    return ids;
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override;
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline&) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const HeldVersion* const version, find(id));
    return version->manifest;
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline&) override;
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("shared_fs", id, part, ranges));
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile whole, fetch_part(id, part, deadline));
    return slices(whole, ranges);
  }
  [[nodiscard]] bool fetches_at_once() const override { return true; }
  // Nobody reads reports in that directory.
  Status report(const ReceiverReport& report, const Deadline&) override {
    return check_report(report);
  }
  Status leave(const Deadline&) override { return {}; }

 private:
  [[nodiscard]] Result<const HeldVersion*> find(const PublicationId& id) const;
  // Takes the next version, if it is there, and holds it.
  [[nodiscard]] Result<bool> take_next();
  [[nodiscard]] Result<std::vector<std::uint64_t>> look();
  [[nodiscard]] Status check_same_run(const std::vector<std::uint64_t>& there);
  enum class There : unsigned char { kAll, kSome, kOther };
  [[nodiscard]] There look_at(std::uint64_t version);
  [[nodiscard]] Status check_anchor();
  // Whether the files of the version taken last are unchanged. Only then the next delta applies.
  [[nodiscard]] bool newest_stands();
  [[nodiscard]] Result<VersionDirectory> open_number(std::uint64_t version);
  [[nodiscard]] Result<std::optional<VersionDirectory>> choose(
      const std::vector<std::uint64_t>& there);
  // The states of the version's files; first the file that identifies it.
  [[nodiscard]] Result<std::vector<FileState>> states_of(const VersionDirectory& version);
  // The states of all files from which the next version may be made: they change while it is
  // written.
  [[nodiscard]] std::vector<FileState> pending_states();
  [[nodiscard]] bool is_at_rest(const Status& failed);
  [[nodiscard]] Result<MappedFile> read_file(const VersionDirectory& version,
                                             const std::string& name);
  // Reads the parts and makes `version` name them.
  [[nodiscard]] Result<std::vector<MappedFile>> read_parts(VersionDirectory& version,
                                                           Manifest& manifest);
  [[nodiscard]] Status prove(const VersionDirectory& version, const std::vector<MappedFile>& parts,
                             Manifest& manifest);
  [[nodiscard]] Status follow(const Manifest& manifest, const std::vector<MappedFile>& parts);
  [[nodiscard]] Status take(VersionDirectory version);
  [[nodiscard]] Status cut_off_error() const {
    return error(StatusCode::kWrongBase, options_.dir, ": version ", newest_,
                 " was applied here and is gone, or was replaced: it is unknown whether version ",
                 newest_ + 1, " builds on it. Keep the newest two versions at least, let the ",
                 "trainer write a full one, or start again from ", options_.foreign_base);
  }
  void drop_old();
  [[nodiscard]] std::vector<Digest> tensor_digests() const;
  [[nodiscard]] const WeightLayout& layout() const { return *weights_->layout(); }

  FileSystem* const fs_;
  const SharedFsOptions options_;
  const unsigned threads_;
  const PartReader reader_;
  shared_fs::RepeatedHook before_read_;
  std::unique_ptr<MappedTarget> weights_;  // at version `newest_`
  Hash128 run_;
  std::string run_info_;
  std::uint64_t newest_ = 0;
  std::deque<HeldVersion> held_;
  std::map<std::uint64_t, Digest> digests_;  // of all versions followed
  bool trl_ = false;                         // TRL's layout
  TrlStep step_;                             // the TRL step read last
  bool looked_ = false;                      // look() succeeded at least once
  std::set<std::uint64_t> seen_;             // the versions seen last time
  struct Taken {
    bool trl = false;
    std::vector<FileState> files;
  };
  std::map<std::uint64_t, Taken> taken_;
  FileState compared_;                  // the anchor that was compared last, and was equal
  bool cut_off_ = false;                // no delta can be applied to newest_ any more
  std::optional<Deadline> rest_until_;  // starts with the first failure of a version
  std::vector<FileState> last_states_;  // the files at that failure
  Status fenced_;
};

Status ForeignDirectory::open() {
  DRIFTLESS_ASSIGN_OR_RETURN(weights_, make_owned_target(*fs_, options_.foreign_base, threads_));
  RunInfo info;
  info.layout = layout();
  info.base_digest = weights_->state().digest;
  info.tensor_digests = tensor_digests();
  // All receivers that start from this base get the same run id. Two directories with the same base
  // are told apart by the digests of their versions.
  info.run = run_ = xxh3_128(concat("weights that others publish: ", to_hex(info.base_digest)));
  run_info_ = run_info_to_json(info);
  return {};
}

std::vector<Digest> ForeignDirectory::tensor_digests() const {
  std::vector<Digest> digests(layout().size());
  for (const TensorShare& share : weights_->tracked().tensors) {
    digests[share.tensor] = share.digest;
  }
  return digests;
}

Result<const HeldVersion*> ForeignDirectory::find(const PublicationId& id) const {
  DRIFTLESS_RETURN_IF_ERROR(fenced_);
  for (const HeldVersion& version : held_) {
    if (version.id == id) return &version;
  }
  return not_there(options_.dir, id);
}

Result<MappedFile> ForeignDirectory::fetch_part(const PublicationId& id, const PartReceipt& part,
                                                const Deadline&) {
  DRIFTLESS_ASSIGN_OR_RETURN(const HeldVersion* const version, find(id));
  for (const MappedFile& held : version->parts) {
    if (held.path() == part.name && held.bytes().size() == part.size_bytes) return held;
  }
  return error(StatusCode::kCorrupt, options_.dir, ": ", to_string(id), " has no part '", part.name,
               "' of ", part.size_bytes, " bytes");
}

Status ForeignDirectory::check_held(std::uint64_t version, std::string_view digest,
                                    const Deadline& deadline) {
  const Status followed = wait_beyond(version - 1, deadline);
  const std::string claim = concat(options_.dir, ": the weights here are claimed to be version ",
                                   version, " and have digest ", digest);
  const std::string again = concat(": they are an earlier run's; start again from ",
                                   options_.foreign_base, " (of a checkpoint: a new copy)");
  if (followed.code() == StatusCode::kDeadlineExceeded) {
    return error(StatusCode::kWrongBase, claim, ", and the newest version there is ", newest_,
                 again);
  }
  DRIFTLESS_RETURN_IF_ERROR(followed);
  const auto found = digests_.find(version);
  // A version that a full version has replaced cannot be compared; that full version is taken next.
  if (found == digests_.end() || to_hex(found->second) == digest) return {};
  return error(StatusCode::kWrongBase, claim, ", and version ", version, " there has ",
               to_hex(found->second), again);
}

Status ForeignDirectory::wait_beyond(std::uint64_t version, const Deadline& deadline) {
  Backoff backoff(options_.poll_first, options_.poll_longest);
  while (newest_ <= version) {
    DRIFTLESS_RETURN_IF_ERROR(fenced_);
    const Result<bool> taken = take_next();
    if (taken.ok()) {
      rest_until_.reset();
      if (*taken) continue;
    } else if (is_at_rest(taken.status())) {
      return taken.status();
    }
    if (!backoff.sleep(deadline)) {
      return deadline.check(concat(options_.dir, ": waiting for a version past ", version,
                                   taken.ok() ? "" : "; ", taken.status().message()));
    }
  }
  return fenced_;
}

std::vector<FileState> ForeignDirectory::pending_states() {
  std::vector<std::string> directories = trl_directories(options_.dir);
  if (!trl_) {
    const auto there = list_versions(*fs_, options_.dir);
    directories.clear();
    if (there.ok()) {
      const auto next = std::ranges::upper_bound(*there, newest_);
      if (next != there->end()) {
        directories.push_back(join_path(options_.dir, version_directory_name(*next)));
      }
    }
  }
  std::vector<FileState> states;
  for (const std::string& directory : directories) {
    const auto names = fs_->list(directory);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      Result<FileState> state = FileState::of(*fs_, join_path(directory, name));
      if (state.ok()) states.push_back(std::move(*state));
    }
  }
  return states;
}

// Whether a failure is final, because no file of the version has changed for a while.
bool ForeignDirectory::is_at_rest(const Status& failed) {
  if (failed.code() == StatusCode::kIncomplete) return false;
  if (failed.code() == StatusCode::kMismatch) return true;
  std::vector<FileState> states = pending_states();
  if (!rest_until_ || states != last_states_) {
    rest_until_ = Deadline::after(kRestWait);
    last_states_ = std::move(states);
  }
  return rest_until_->expired();
}

Result<std::vector<std::uint64_t>> ForeignDirectory::look() {
  DRIFTLESS_RETURN_IF_ERROR(before_read_.run());
  Result<std::vector<std::uint64_t>> there = list_versions(*fs_, options_.dir);
  // The trainer makes the directory, and empties it when it is restarted.
  if (there.status().code() == StatusCode::kNotFound) return std::vector<std::uint64_t>();
  DRIFTLESS_RETURN_IF_ERROR(there.status());
  if (!there->empty()) return there;
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::uint64_t> steps, list_trl_steps(*fs_, options_.dir));
  trl_ = !steps.empty();
  return steps;
}

// Compares a version that was taken with the directory: all its files are unchanged and there are
// no others (kAll); some are gone, because it is being removed (kSome); or it was replaced by
// another version, whose files may have other names (kOther).
ForeignDirectory::There ForeignDirectory::look_at(std::uint64_t version) {
  const Taken& taken = taken_.at(version);
  if (taken.trl != trl_) return There::kOther;
  std::set<std::string> known;
  bool gone = false;
  for (const FileState& file : taken.files) {
    const Result<FileState> now = FileState::of(*fs_, file.path);
    if (now.ok() && file != *now) return There::kOther;
    gone = gone || !now.ok();
    known.insert(file.path);
  }
  const std::string directory = join_path(options_.dir, version_directory_name(version));
  const auto names =
      trl_ ? Result<std::vector<std::string>>(std::vector<std::string>()) : fs_->list(directory);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const bool read = name.ends_with(".safetensors") || name == kIndexName;
    if (read && !known.contains(join_path(directory, name))) return There::kOther;
  }
  return gone ? There::kSome : There::kAll;
}

// A TRL step may have an anchor beside the delta that was taken. In the same run both agree; if the
// trainer went back to an earlier step, the anchor differs.
Status ForeignDirectory::check_anchor() {
  const TrlPlace place = trl_place(options_.dir, newest_, true);
  const std::string path = join_path(place.directory, place.name);
  if (!trl_ || newest_ == 0 || !exists(*fs_, path)) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(FileState state, FileState::of(*fs_, path));
  if (state == compared_ || taken_.at(newest_).files.front() == state) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const SafetensorsFile anchor, SafetensorsFile::open(*fs_, path));
  for (std::size_t tensor = 0; tensor < layout().size(); ++tensor) {
    const SafetensorsEntry* const entry = anchor.find(layout()[tensor].name);
    if (entry == nullptr || std::ranges::equal(anchor.bytes(*entry), weights_->tensor(tensor))) {
      continue;
    }
    fenced_ = error(StatusCode::kWrongRun, path, ": tensor '", layout()[tensor].name,
                    "' has other bits than step ", newest_,
                    " that was followed: the trainer went back to an earlier step. Start again ",
                    "from ", options_.foreign_base);
    return fenced_;
  }
  compared_ = std::move(state);
  return {};
}

bool ForeignDirectory::newest_stands() {
  return newest_ == 0 || (taken_.contains(newest_) && look_at(newest_) == There::kAll);
}

// Each number that was taken must still be the same version, and no version may appear below the
// newest one.
Status ForeignDirectory::check_same_run(const std::vector<std::uint64_t>& there) {
  const bool first = !std::exchange(looked_, true);
  for (const std::uint64_t version : there) {
    if (version > newest_ || first) break;
    if (taken_.contains(version) ? look_at(version) != There::kOther : seen_.contains(version)) {
      continue;
    }
    fenced_ = error(StatusCode::kWrongRun, join_path(options_.dir, version_directory_name(version)),
                    ": is another one than the version ", version,
                    " that was followed: the trainer has begun anew, after version ", newest_,
                    " was taken here. Start again from ", options_.foreign_base);
    return fenced_;
  }
  seen_ = {there.begin(), there.end()};
  std::erase_if(taken_, [&](const auto& each) {  // the run may have removed these versions
    return each.first + kRemembered < newest_ && !seen_.contains(each.first);
  });
  return {};
}

Result<VersionDirectory> ForeignDirectory::open_number(std::uint64_t version) {
  return trl_ ? open_trl_step(*fs_, options_.dir, version, newest_)
              : open_version(*fs_, options_.dir, version);
}

Result<std::vector<FileState>> ForeignDirectory::states_of(const VersionDirectory& version) {
  std::vector<std::string> names = version.payload_files;
  if (exists(*fs_, join_path(version.path, kIndexName))) {
    names.emplace(names.begin(), kIndexName);
  }
  std::vector<FileState> states;
  for (const std::string& name : names) {
    DRIFTLESS_ASSIGN_OR_RETURN(FileState state, FileState::of(*fs_, join_path(version.path, name)));
    states.push_back(std::move(state));
  }
  return states;
}

// The version with the next number, or, if that is gone or never existed, the first full version
// after it.
Result<std::optional<VersionDirectory>> ForeignDirectory::choose(
    const std::vector<std::uint64_t>& there) {
  for (const std::uint64_t version : there) {
    if (version <= newest_) continue;
    Result<VersionDirectory> opened = open_number(version);
    if (trl_ && opened.status().code() == StatusCode::kNotFound) continue;
    if (opened.status().code() == StatusCode::kIncomplete && version != there.back()) {
      return error(StatusCode::kCorrupt, opened.status().message(),
                   "; and the next version is there already");  // so do not wait in vain
    }
    DRIFTLESS_ASSIGN_OR_RETURN(VersionDirectory found, std::move(opened));
    const bool follows = found.base_version == newest_;
    const bool fits = found.full() || (follows && !cut_off_);
    // Flush files have no end mark: only the next version, or DONE, shows that all of them are
    // there.
    if (fits && found.open_ended && version == there.back()) {
      return error(StatusCode::kIncomplete, found.path, ": it is complete only if the next ",
                   "version, or DONE, is there: waiting for either");
    }
    if (fits) return std::optional(std::move(found));
    if (version == newest_ + 1 && !follows) {
      return error(StatusCode::kWrongBase, found.path, ": builds on version ", found.base_version,
                   ", and version ", newest_, " was followed");
    }
  }
  if (there.empty() || there.back() <= newest_) return std::optional<VersionDirectory>();
  if (cut_off_) return cut_off_error();
  return error(StatusCode::kWrongBase, options_.dir, ": version ", newest_ + 1,
               " is not there, and no full version is: keep the versions since the base, or let "
               "the trainer write a full one");
}

Result<bool> ForeignDirectory::take_next() {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> there, look());
  DRIFTLESS_RETURN_IF_ERROR(check_same_run(there));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<VersionDirectory> version, choose(there));
  if (!version) return false;
  DRIFTLESS_RETURN_IF_ERROR(take(*version));
  return true;
}

// Copies the file into memory: the directory may be removed, or its server fail.
Result<MappedFile> ForeignDirectory::read_file(const VersionDirectory& version,
                                               const std::string& name) {
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs_->info(join_path(version.path, name)));
  const ByteRange whole{0, info.size_bytes};
  PartReceipt receipt;
  receipt.name = name;
  receipt.size_bytes = info.size_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::vector<MappedFile> read,
      reader_(version.path, receipt, {&whole, 1}, Deadline::after(kReadWait)));
  return MappedFile(name, std::make_shared<MappedFile>(read.front()), read.front().bytes());
}

Result<std::vector<MappedFile>> ForeignDirectory::read_parts(VersionDirectory& version,
                                                             Manifest& manifest) {
  Manifest sizes = manifest;
  for (const std::string& name : version.payload_files) {
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs_->info(join_path(version.path, name)));
    sizes.files.push_back({name, info.size_bytes, {}});
  }
  DRIFTLESS_RETURN_IF_ERROR(check_sizes(sizes, layout(), version.path));
  std::vector<MappedFile> parts;
  if (trl_) {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile file,
                               read_file(version, version.payload_files.front()));
    const auto current = [this](std::size_t tensor) { return weights_->tensor(tensor); };
    DRIFTLESS_ASSIGN_OR_RETURN(step_, read_trl_step(file, layout(), current, version));
    parts = step_.parts;
  } else {
    for (const std::string& name : version.payload_files) {
      DRIFTLESS_ASSIGN_OR_RETURN(MappedFile file, read_file(version, name));
      parts.push_back(std::move(file));
    }
  }
  if (version.directory_layout == DirectoryLayout::kHfDelta) {
    HfDeltaIndex index;
    index.version = version.version;
    index.base_version = version.base_version;
    if (!version.full()) index.encoding = version.encoding;
    index.checksum = version.checksum;
    index.weight_map = version.weight_map;
    const auto text = std::make_shared<const std::string>(index_to_json(index));
    parts.emplace_back(std::string(kIndexName), text, std::as_bytes(std::span(*text)));
  }
  for (const MappedFile& part : parts) {
    manifest.files.push_back({part.path(), part.bytes().size(), xxh3_128(part.bytes())});
  }
  return parts;
}

// Computes the digest after the version, and checks the checksums that it names.
Status ForeignDirectory::prove(const VersionDirectory& version,
                               const std::vector<MappedFile>& parts, Manifest& manifest) {
  WeightView view;
  view.name = concat("the copy that followed ", options_.dir);
  view.layout = &layout();
  view.held = [](std::size_t) { return HeldShare::kAll; };
  view.bytes = [this](std::size_t tensor, std::uint64_t offset, std::span<std::byte>) {
    return Result<const std::byte*>(weights_->tensor(tensor).data() + offset);
  };
  const std::vector<MappedFile> payload(
      parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(version.payload_files.size()));
  std::vector<VersionSource> chain;
  DRIFTLESS_ASSIGN_OR_RETURN(VersionSource source, VersionSource::open(*fs_, version, payload, {},
                                                                       layout(), "", threads_));
  manifest.payload_bytes = source.payload_bytes();
  chain.push_back(std::move(source));
  StageOptions options;
  options.threads = threads_;
  DRIFTLESS_ASSIGN_OR_RETURN(const StagedVersion staged,
                             stage_version(view, chain, options, [](auto) { return Status(); }));
  manifest.base_digest = weights_->state().digest;
  manifest.digest = manifest.base_digest + staged.digest_change;
  if (trl_ && step_.base_digest && *step_.base_digest != manifest.base_digest) {
    return error(StatusCode::kMismatch, version.path, ": step ", version.version,
                 " was made for weights of digest ", to_hex(*step_.base_digest),
                 ", and these have ", to_hex(manifest.base_digest),
                 "; start from the checkpoint of its run");
  }
  if (trl_ && step_.digest && *step_.digest != manifest.digest) {
    return error(StatusCode::kMismatch, version.path, ": step ", version.version,
                 " makes weights of digest ", to_hex(manifest.digest), ", and names ",
                 to_hex(*step_.digest), ": it is damaged");
  }
  manifest.changed_tensors = chain.front().changes().size();
  manifest.changed_units = staged.changed_units;
  for (const TensorChange& change : chain.front().changes()) {
    manifest.tensors.push_back({.name = layout()[change.tensor].name});
  }
  std::ranges::sort(manifest.tensors, {}, &ManifestTensor::name);
  return {};
}

// Applies the version to our copy of the weights, as a receiver would.
Status ForeignDirectory::follow(const Manifest& manifest, const std::vector<MappedFile>& parts) {
  std::vector<FetchedVersion> chain(1);
  chain[0] = {.manifest = manifest,
              .source = join_path(options_.dir, version_directory_name(manifest.id.version)),
              .parts = parts};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<StagedChange> staged,
                             weights_->stage(std::move(chain)));
  return staged->commit().status();
}

Status ForeignDirectory::take(VersionDirectory version) {
  if (version.manifest) {
    return error(StatusCode::kInvalidArgument, version.path,
                 ": was written by Driftless; follow it without road.shared_fs.foreign_base");
  }
  // Other processes may replace the files at any time. So read the files' states, open the version
  // again, and read the states again: if they are equal, all that was read is of one version.
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<FileState> before, states_of(version));
  const std::vector<std::string> names = version.payload_files;
  DRIFTLESS_ASSIGN_OR_RETURN(version, open_number(version.version));
  Manifest manifest;
  manifest.id = {run_, version.version};
  manifest.base_version = newest_;
  manifest.directory_layout = version.directory_layout;
  manifest.encoding = version.encoding;
  manifest.checksum = version.checksum;
  manifest.layout = layout().signature();
  manifest.total_units = layout().total_units();
  manifest.full_bytes = layout().total_bytes();
  const bool same_names = version.payload_files == names;
  const VersionDirectory opened = version;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<MappedFile> parts, read_parts(version, manifest));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<FileState> after, states_of(opened));
  if (!same_names || after != before) {
    return error(StatusCode::kIncomplete, version.path, ": was replaced while it was read");
  }
  // The checksums cover only the tensors that the delta changes: they do not identify its base.
  if (!version.full()) DRIFTLESS_RETURN_IF_ERROR(check_anchor());
  cut_off_ = !version.full() && !(trl_ && step_.base_digest) && !newest_stands();
  if (cut_off_) return cut_off_error();
  DRIFTLESS_RETURN_IF_ERROR(prove(version, parts, manifest));
  const std::vector<ManifestTensor> tensors = std::exchange(manifest.tensors, {});
  DRIFTLESS_RETURN_IF_ERROR(follow(manifest, parts));
  const std::vector<Digest> digests = tensor_digests();
  for (ManifestTensor tensor : tensors) {
    tensor.digest = digests[*layout().find(tensor.name)];
    manifest.tensors.push_back(std::move(tensor));
  }
  newest_ = version.version;
  taken_[newest_] = {trl_, before};
  digests_[newest_] = manifest.digest;
  held_.push_back({{newest_, PublicationKind::kVersion}, manifest_to_json(manifest), parts});
  drop_old();
  return {};
}

// Drops the oldest versions while there are more than kHeldVersions, or while their parts together
// exceed the size of the weights. The newest one always stays.
void ForeignDirectory::drop_old() {
  const auto bytes_of = [](const HeldVersion& version) {
    std::uint64_t sum = 0;
    for (const MappedFile& part : version.parts) sum += part.bytes().size();
    return sum;
  };
  std::uint64_t sum = 0;
  for (const HeldVersion& version : held_) sum += bytes_of(version);
  while (held_.size() > 1 && (held_.size() > kHeldVersions || sum > layout().total_bytes())) {
    sum -= bytes_of(held_.front());
    held_.pop_front();
  }
}

}  // namespace

Result<std::unique_ptr<ReceiveRoad>> make_foreign_receiver(FileSystem& fs,
                                                           const SharedFsOptions& options,
                                                           unsigned threads) {
  auto road = std::make_unique<ForeignDirectory>(fs, options, threads);
  DRIFTLESS_RETURN_IF_ERROR(road->open().with_context("road.shared_fs.foreign_base"));
  return std::unique_ptr<ReceiveRoad>(std::move(road));
}

}  // namespace driftless
