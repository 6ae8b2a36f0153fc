// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "collectives/part_ranges.h"
#include "collectives/shared_fs/medium.h"
#include "collectives/shared_fs/receiver_file.h"
#include "collectives/shared_fs/visibility_hook.h"

namespace driftless {
namespace shared_fs {
namespace {

class Receiver final : public ReceiveRoad {
 public:
  Receiver(FileSystem& fs, SharedFsOptions options, PartReader reader)
      : fs_(&fs),
        options_(std::move(options)),
        reader_(std::move(reader)),
        before_read_(before_read_hook(options_)),
        heartbeat_(random_hash128().low >> 1) {}  // room to grow

  Result<std::string> run_info(const Deadline& deadline) override {
    const std::string file = join_path(options_.dir, kRunName);
    Backoff backoff(options_.poll_first, options_.poll_longest);
    Waiting waiting;
    const auto whom = [&] {
      return concat("waiting for a publisher to write ", file,
                    exists(*fs_, options_.dir)
                        ? ""
                        : "; its directory does not exist either: mistyped, or not mounted?");
    };
    do {
      DRIFTLESS_RETURN_IF_ERROR(before_read_.run());
      auto text = read_small(*fs_, file, kMaxRunInfoBytes);
      if (text.ok() || text.status().code() != StatusCode::kNotFound) return text;
    } while (waiting.sleep(backoff, deadline, whom));
    return deadline.check(whom());
  }

  Result<std::vector<PublicationId>> list(const Deadline& /*deadline*/) override {
    DRIFTLESS_RETURN_IF_ERROR(before_read_.run());
    const auto names = fs_->list(options_.dir);
    if (names.status().code() == StatusCode::kNotFound) return std::vector<PublicationId>();
    DRIFTLESS_RETURN_IF_ERROR(names.status());
    std::set<PublicationId> whole;
    for (const std::string& name : *names) {
      const auto id = parse_publication_name(name);
      if (!id.has_value()) continue;
      if (whole_.contains(*id) || exists(*fs_, join_path(path(*id), kDoneName))) whole.insert(*id);
    }
    whole_ = std::move(whole);
    return std::vector<PublicationId>(whole_.begin(), whole_.end());
  }

  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    Backoff backoff(options_.poll_first, options_.poll_longest);
    do {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, list(deadline));
      if (has_version_past(ids, version)) return {};
    } while (backoff.sleep(deadline));
    return deadline.check(concat(options_.dir, ": waiting for a version past ", version));
  }

  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading the manifest of ", path(id))));
    DRIFTLESS_RETURN_IF_ERROR(check_not_link(id));
    // Files of a directory may become visible late, in any order.
    const auto late = [](const Status& failure) {
      return failure.code() == StatusCode::kNotFound
                 ? error(StatusCode::kIncomplete, failure.message(), ": not there yet")
                 : failure;
    };
    const auto done = read_small(*fs_, join_path(path(id), kDoneName), done_text("").size());
    if (!done.ok()) return or_gone(id, late(done.status()));
    auto manifest = read_small(*fs_, join_path(path(id), kManifestName), kMaxManifestBytes);
    if (!manifest.ok()) return or_gone(id, late(manifest.status()));
    if (done_text(*manifest) != *done) {
      return error(StatusCode::kIncomplete, join_path(path(id), kManifestName),
                   ": its hash is not the one in DONE: the manifest is not yet whole, or damaged");
    }
    return manifest;
  }

  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", part.name, " of ", path(id))));
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("shared_fs", id, part, ranges));
    DRIFTLESS_RETURN_IF_ERROR(check_not_link(id));
    auto bytes = reader_(path(id), part, ranges, deadline);
    if (!bytes.ok()) return or_gone(id, bytes.status());
    return bytes;
  }
  [[nodiscard]] bool fetches_at_once() const override { return true; }

  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_report(report));
    const std::string file = file_of(report.id);
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("writing ", file)));
    const std::string directory = join_path(options_.dir, kReceiversName);
    if (!exists(*fs_, directory)) {  // the publisher creates the road's directory
      const Status made = fs_->make_directory(directory);
      if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
    }
    DRIFTLESS_RETURN_IF_ERROR(replace_text(*fs_, file, receiver_to_json(report, ++heartbeat_)));
    id_ = report.id;
    return {};
  }

  Status leave(const Deadline& deadline) override {
    if (id_.empty()) return {};
    const std::string file = file_of(id_);
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("removing ", file)));
    Status removed = fs_->remove_file(file);
    if (!removed.ok() && removed.code() != StatusCode::kNotFound) return removed;
    id_.clear();
    return {};
  }

 private:
  [[nodiscard]] std::string path(const PublicationId& id) const {
    return join_path(options_.dir, publication_name(id));
  }

  [[nodiscard]] std::string file_of(const std::string& receiver) const {
    return join_path(join_path(options_.dir, kReceiversName), receiver_file_name(receiver));
  }

  // A publisher creates directories: the target of a link may belong to another run, and change
  // unnoticed.
  [[nodiscard]] Status check_not_link(const PublicationId& id) const {
    const Result<FileInfo> info = fs_->info(path(id));
    if (!info.ok() || info->kind != FileKind::kSymlink) return {};
    return error(StatusCode::kInvalidArgument, path(id),
                 ": is a symbolic link, which a version never is; copy its target (cp -rL)");
  }

  // `failure`, or kNotFound if the whole publication is gone.
  [[nodiscard]] Status or_gone(const PublicationId& id, const Status& failure) const {
    if (fs_->info(path(id)).status().code() != StatusCode::kNotFound) return failure;
    return error(StatusCode::kNotFound, path(id),
                 ": it is not there (any more); take the newest anchor");
  }

  FileSystem* fs_;
  const SharedFsOptions options_;
  PartReader reader_;
  RepeatedHook before_read_;
  std::set<PublicationId> whole_;  // seen with DONE; not checked again
  std::string id_;                 // as last reported
  std::uint64_t heartbeat_;
};

}  // namespace
}  // namespace shared_fs

Result<std::unique_ptr<ReceiveRoad>> make_shared_fs_receiver(FileSystem& fs,
                                                             const SharedFsOptions& options,
                                                             PartReader reader) {
  DRIFTLESS_RETURN_IF_ERROR(shared_fs::check_options(options));
  if (reader == nullptr) reader = make_part_files_reader(fs);
  return std::unique_ptr<ReceiveRoad>(
      std::make_unique<shared_fs::Receiver>(fs, options, std::move(reader)));
}

}  // namespace driftless
