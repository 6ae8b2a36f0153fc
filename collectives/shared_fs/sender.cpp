// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <array>

#include "collectives/shared_fs/medium.h"
#include "collectives/shared_fs/receiver_file.h"
#include "collectives/shared_fs/visibility_hook.h"
#include "core/host_name.h"
#include "core/new_directory.h"

namespace driftless {
namespace shared_fs {
namespace {

constexpr std::size_t kLockBytes = 256;  // always this size: the file is written in place

std::string this_process() { return concat("process ", ::getpid(), " on ", host_name()); }

// PublisherLock: which session owns the directory. The leader of a publisher holds the lock file;
// its content names a session, new for every leader, and the process:
//
//   0123456789abcdef0123456789abcdef process 4711 on trainer-0
//
// If the lock file is removed or replaced, the lock is lost permanently: the session is fenced. The
// other publisher ranks follow the session of the directory into which they first wrote.
class PublisherLock {
 public:
  // [leader] kBusy, naming the process, if another publisher holds the directory after `wait`.
  [[nodiscard]] static Result<PublisherLock> take(FileSystem& fs, const std::string& dir,
                                                  std::chrono::milliseconds wait) {
    PublisherLock mine(fs, join_path(dir, kLockName));
    Result<std::unique_ptr<FileLock>> lock = fs.lock(mine.path_, wait);
    if (lock.status().code() == StatusCode::kBusy) {
      const Result<std::string> text = mine.read();
      return error(StatusCode::kBusy, dir, ": another publisher (",
                   text.ok() ? owner_in(*text) : "another process",
                   ") holds this directory, waited ", wait.count(),
                   " ms; stop it, or publish to another directory");
    }
    DRIFTLESS_RETURN_IF_ERROR(lock.status());
    mine.lock_ = std::move(*lock);
    mine.session_ = to_hex(random_hash128());
    mine.owner_ = this_process();
    mine.kept_ = true;
    std::string text = concat(mine.session_, " ", mine.owner_);
    text.resize(kLockBytes - 1, ' ');
    text += '\n';
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.open(mine.path_));
    DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, std::as_bytes(std::span(text))));
    DRIFTLESS_RETURN_IF_ERROR(mine.check());
    return mine;
  }

  // [other ranks] Holds nothing.
  [[nodiscard]] static PublisherLock follow(FileSystem& fs, const std::string& dir) {
    return {fs, join_path(dir, kLockName)};
  }

  // Ok while this session owns the directory. kWrongRun, naming both processes: fenced. Any other
  // failure: ownership cannot be determined at the moment. On another rank before keep(): reads the
  // current session, and returns ok.
  [[nodiscard]] Status check() {
    bool held = true;
    if (lock_ != nullptr) {
      DRIFTLESS_ASSIGN_OR_RETURN(held, lock_->held());
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string now, read());
    if (!kept_) {
      session_ = session_in(now);
      owner_ = owner_in(now);
      return {};
    }
    return held && session_in(now) == session_ ? Status() : fenced(now);
  }

  // [other ranks] Follows the current session from now on.
  void keep() { kept_ = true; }
  // 32 digits; empty on a rank that has not seen a session.
  [[nodiscard]] const std::string& session() const { return session_; }

 private:
  PublisherLock(FileSystem& fs, std::string path) : fs_(&fs), path_(std::move(path)) {}
  [[nodiscard]] Result<std::string> read() const {
    Result<std::string> text = read_small(*fs_, path_, kMaxLockBytes);
    if (text.status().code() == StatusCode::kNotFound) return std::string();
    return text;
  }

  [[nodiscard]] Status fenced(const std::string& now) const {
    const std::string what = now.empty()
                                 ? std::string("the file was removed")
                                 : concat(owner_in(now), " has taken the directory over since");
    return error(
        StatusCode::kWrongRun, path_, ": ", owner_, " does not hold the lock any more: ", what,
        ". Nothing more is published by this run; stop it, and start it again once no other "
        "publishes here (it resumes from what is there), or use another directory");
  }

  FileSystem* fs_;
  std::string path_;
  std::string session_;
  std::string owner_;  // of the session: "process 4711 on trainer-0"
  bool kept_ = false;
  std::unique_ptr<FileLock> lock_;  // null: not the leader
};

class Sender final : public SendRoad {
 public:
  Sender(FileSystem& fs, const SharedFsOptions& options, unsigned rank,
         std::unique_ptr<PartSink> sink)
      : fs_(&fs),
        options_(options),
        rank_(rank),
        lock_(PublisherLock::follow(fs, options.dir)),
        sink_(std::move(sink)),
        watch_(fs, join_path(options.dir, kReceiversName), options.patience) {}
  ~Sender() override { const Status ignored = abort(); }

  [[nodiscard]] Status open() {
    if (!leads()) return {};  // the leader creates the directory
    DRIFTLESS_ASSIGN_OR_RETURN(made_, make_last_directory(*fs_, options_.dir));
    DRIFTLESS_ASSIGN_OR_RETURN(lock_, PublisherLock::take(*fs_, options_.dir, options_.lock_wait));
    return clear_leftovers();
  }

  Status announce(std::string_view run_info, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_leads("announcing"));
    const std::string file = path(kRunName);
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("writing ", file)));
    if (run_info.size() > kMaxRunInfoBytes) {
      return error(StatusCode::kUnsupported, file, ": an announcement of ", run_info.size(),
                   " bytes, at most ", kMaxRunInfoBytes, " are allowed");
    }
    DRIFTLESS_RETURN_IF_ERROR(lock_.check());
    const auto before = read_small(*fs_, file, kMaxRunInfoBytes);
    if (before.ok() && *before == run_info) return {};
    if (before.ok()) return of_another_run(file);
    if (before.status().code() != StatusCode::kNotFound) return before.status();
    DRIFTLESS_RETURN_IF_ERROR(use_number(0));
    // No receiver has reported to a run that is not announced yet. A receiver of the previous run
    // may write meanwhile: its reports name that run.
    watch_.clear();
    // Never replaces another run's announcement: this process may have been stopped and have lost
    // the directory long ago.
    const std::string mine = path(hidden_run_name(lock_.session()));
    DRIFTLESS_RETURN_IF_ERROR(or_fenced(write_text(*fs_, mine, run_info)));
    const Status named = fs_->rename_new(mine, file);
    if (named.code() == StatusCode::kAlreadyExists) return or_fenced(of_another_run(file));
    DRIFTLESS_RETURN_IF_ERROR(or_fenced(named));
    return fs_->sync_directory(options_.dir);
  }

  Status begin(const PublicationId& id, const Deadline& deadline) override {
    const Status ignored = abort();  // clear_leftovers() removes what it leaves
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat(options_.dir, ": beginning ", to_string(id))));
    std::string name;
    if (leads()) {
      DRIFTLESS_RETURN_IF_ERROR(lock_.check());
      DRIFTLESS_RETURN_IF_ERROR(clear_leftovers());
      DRIFTLESS_RETURN_IF_ERROR(check_order(id));
      name = new_hidden_name(id, lock_.session());
      DRIFTLESS_RETURN_IF_ERROR(fs_->make_directory(path(name)));
    } else {
      DRIFTLESS_ASSIGN_OR_RETURN(name, await_hidden(id, deadline));
      lock_.keep();
    }
    last_hidden_ = name;
    pending_ = Pending{id, name};
    Status begun = sink_->begin(path(name), deadline);
    if (begun.ok()) return {};
    const Status also_ignored = abort();
    return begun;
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
    if (name.starts_with('.') || name == kManifestName || name == kDoneName) {
      return error(StatusCode::kInvalidArgument, path(pending_->name), ": a part cannot be named '",
                   name, "'");
    }
    auto part = sink_->create_part(name);
    if (!part.ok()) return or_fenced(part.status());
    return part;
  }
  [[nodiscard]] bool writes_at_once() const override { return sink_->writes_at_once(); }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
    auto receipts = sink_->flush(deadline);
    if (!receipts.ok()) return or_fenced(receipts.status());
    for (PartReceipt& receipt : *receipts) receipt.rank = rank_;
    const std::string hidden = path(pending_->name);
    DRIFTLESS_RETURN_IF_ERROR(or_fenced(fs_->sync_directory(hidden)));
    const VisibilityHook hook{"before_visible",
                              options_.before_visible,
                              {{"DRIFTLESS_DIR", options_.dir}, {"DRIFTLESS_VERSION_DIR", hidden}}};
    DRIFTLESS_RETURN_IF_ERROR(run_hook(hook, options_.hook_timeout, deadline));
    return receipts;
  }
  [[nodiscard]] std::string pending_directory() const override {
    return pending_ ? path(pending_->name) : std::string();
  }

  Status seal(std::string_view manifest, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_leads("sealing"));
    DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
    const std::string hidden = path(pending_->name);
    const std::string final_path = path(publication_name(pending_->id));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("sealing ", final_path)));
    if (manifest.size() > kMaxManifestBytes) {
      return error(StatusCode::kUnsupported, final_path, ": a manifest of ", manifest.size(),
                   " bytes, at most ", kMaxManifestBytes, " are allowed");
    }
    DRIFTLESS_RETURN_IF_ERROR(
        or_fenced(write_text(*fs_, join_path(hidden, kManifestName), manifest)));
    DRIFTLESS_RETURN_IF_ERROR(
        or_fenced(write_text(*fs_, join_path(hidden, kDoneName), done_text(manifest))));
    DRIFTLESS_RETURN_IF_ERROR(or_fenced(fs_->sync_directory(hidden)));
    if (is_version(pending_->id)) {
      DRIFTLESS_RETURN_IF_ERROR(or_fenced(use_number(pending_->id.version)));
    }
    // A new leader first takes the lock, and then moves the hidden directories away. So if this one
    // still holds the lock here and another takes over later, the renaming fails.
    DRIFTLESS_RETURN_IF_ERROR(lock_.check());
    DRIFTLESS_RETURN_IF_ERROR(or_fenced(fs_->rename_new(hidden, final_path)));
    pending_.reset();
    DRIFTLESS_RETURN_IF_ERROR(fs_->sync_directory(options_.dir));
    return run_after_publish(options_, final_path, deadline);
  }

  Status abort() override {
    if (!pending_.has_value()) return {};
    const std::string name = std::exchange(pending_, std::nullopt)->name;
    DRIFTLESS_RETURN_IF_ERROR(sink_->abort());
    if (!leads()) return {};  // the leader owns the directory
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string dropped, drop(*fs_, options_.dir, name));
    remove_dropped(*fs_, options_.dir, dropped);
    return {};
  }

  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    const std::string directory = path(publication_name(id));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("looking for ", directory)));
    const auto done = read_small(*fs_, join_path(directory, kDoneName), done_text("").size());
    if (done.status().code() == StatusCode::kNotFound) return std::optional<Hash128>();
    DRIFTLESS_RETURN_IF_ERROR(done.status());
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::string manifest,
        read_small(*fs_, join_path(directory, kManifestName), kMaxManifestBytes));
    if (done_text(manifest) == *done) return std::optional(xxh3_128(manifest));
    return error(StatusCode::kCorrupt, directory,
                 ": DONE is not the hash of manifest.json; remove ",
                 "this directory if no process needs it");
  }

  Result<std::vector<ReceiverReport>> receivers() override {
    DRIFTLESS_RETURN_IF_ERROR(check_leads("asking for the receivers"));
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<ReceiverWatch::Receiver> alive, watch_.look());
    std::vector<ReceiverReport> reports;
    for (ReceiverWatch::Receiver& receiver : alive) reports.push_back(std::move(receiver.report));
    return reports;
  }

  [[nodiscard]] std::vector<std::string> left() const override { return watch_.left(); }
  [[nodiscard]] std::vector<std::string> notes() const override {
    if (!made_) return {};
    return {concat("made the directory ", options_.dir, ", which was not there")};
  }

  Result<std::uint64_t> highest_number() override {
    DRIFTLESS_RETURN_IF_ERROR(check_leads("asking for the highest number"));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> used, used_numbers());
    if (!used.empty()) return std::ranges::max(used);
    return error(StatusCode::kCorrupt, path(used_name(0)), ": neither this nor a later file of ",
                 "the kind is there, so it is unknown which versions of the run were visible, and "
                 "a number could be used twice; start a new run in an empty directory");
  }

  Result<std::vector<PublicationId>> prune(std::uint64_t version) override {
    DRIFTLESS_RETURN_IF_ERROR(check_leads("pruning"));
    DRIFTLESS_RETURN_IF_ERROR(lock_.check());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ReceiverWatch::Receiver> alive, watch_.look());
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, there());
    std::vector<PublicationId> removed;
    std::vector<std::string> dropped;
    Status failed;
    for (const PublicationId& id : prunable(ids, version, alive)) {
      failed = lock_.check();  // another publisher may have taken the directory over since
      if (!failed.ok()) break;
      auto name = drop(*fs_, options_.dir, publication_name(id));
      failed = name.status();
      if (!failed.ok()) break;  // later ones stay, so that there is no gap
      failed = lock_.check();
      // The directory may be the other publisher's, with the same number.
      if (failed.code() == StatusCode::kWrongRun) {
        const Status ignored =
            name->empty() ? Status() : fs_->rename_new(path(*name), path(publication_name(id)));
        break;
      }
      removed.push_back(id);
      dropped.push_back(std::move(*name));
    }
    // After a power cut a name must not reappear without all of its files.
    if (!dropped.empty()) DRIFTLESS_RETURN_IF_ERROR(fs_->sync_directory(options_.dir));
    for (const std::string& name : dropped) remove_dropped(*fs_, options_.dir, name);
    DRIFTLESS_RETURN_IF_ERROR(failed);
    return removed;
  }

 private:
  struct Pending {
    PublicationId id;
    std::string name;  // of the hidden directory
  };

  [[nodiscard]] bool leads() const { return rank_ == 0; }
  [[nodiscard]] std::string path(std::string_view name) const {
    return join_path(options_.dir, name);
  }

  // kWrongRun if another publisher has taken the directory over, because that explains `failed`.
  [[nodiscard]] Status or_fenced(Status failed) {
    if (failed.ok()) return failed;
    const Status held = lock_.check();
    return held.code() == StatusCode::kWrongRun ? held : failed;
  }

  [[nodiscard]] Status check_leads(std::string_view what) const {
    if (leads()) return {};
    return error(StatusCode::kInvalidArgument, options_.dir, ": ", what, " is for rank 0, this is ",
                 "rank ", rank_);
  }

  [[nodiscard]] Status check_begun(std::string_view what) const {
    if (pending_.has_value()) return {};
    return error(StatusCode::kInvalidArgument, options_.dir, ": ", what, " on rank ", rank_,
                 " without a begin()");
  }

  // [leader] Called before the version can be seen. If a visible version was removed since, no
  // other may get its number: receivers that compare numbers would take it for the same.
  [[nodiscard]] Status use_number(std::uint64_t version) {
    const std::string mine = path(used_name(version));
    if (!exists(*fs_, mine)) DRIFTLESS_RETURN_IF_ERROR(fs_->create(mine).status());
    DRIFTLESS_RETURN_IF_ERROR(fs_->sync_directory(options_.dir));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> used, used_numbers());
    for (const std::uint64_t number : used) {
      if (number >= version) continue;
      const Status ignored = fs_->remove_file(path(used_name(number)));
    }
    return {};
  }

  [[nodiscard]] Result<std::vector<std::uint64_t>> used_numbers() const {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->list(options_.dir));
    std::vector<std::uint64_t> used;
    for (const std::string& name : names) {
      if (const auto number = parse_used_name(name); number.has_value()) used.push_back(*number);
    }
    return used;
  }

  // Removes what a dead publisher, or an attempt of this one, left. The lock is held. A live
  // publisher that has lost its lock loses the publication that it is writing: it cannot seal it
  // any more.
  [[nodiscard]] Status clear_leftovers() {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->list(options_.dir));
    for (const std::string& name : names) {
      if (!is_leftover(name)) continue;
      std::string dropped = name;
      if (!is_dropped(name)) {
        DRIFTLESS_ASSIGN_OR_RETURN(dropped, drop(*fs_, options_.dir, name));
      }
      remove_dropped(*fs_, options_.dir, dropped);
    }
    return {};
  }

  [[nodiscard]] static Status of_another_run(const std::string& file) {
    return error(
        StatusCode::kAlreadyExists, file,
        ": the directory belongs to another run; use another directory, or empty this one");
  }

  [[nodiscard]] Status already_there(const PublicationId& id) const {
    return error(
        StatusCode::kAlreadyExists, path(publication_name(id)),
        ": it is there already, and publications are never replaced; choose another number "
        "or another directory");
  }

  [[nodiscard]] Status check_order(const PublicationId& id) const {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, there());
    for (const PublicationId& other : ids) {
      if (other.kind != id.kind || other.version < id.version) continue;
      if (other == id) return already_there(id);
      return error(StatusCode::kInvalidArgument, options_.dir, ": ", to_string(id), " after ",
                   to_string(other), ": versions ascend");
    }
    return {};
  }

  [[nodiscard]] Result<std::string> await_hidden(const PublicationId& id,
                                                 const Deadline& deadline) {
    Backoff backoff(options_.poll_first, options_.poll_longest);
    Waiting waiting;
    const auto whom = [&] {
      return concat(options_.dir, ": rank ", rank_, " waits for the directory of ", to_string(id),
                    ", which rank 0 makes");
    };
    do {
      DRIFTLESS_RETURN_IF_ERROR(lock_.check());
      Result<std::vector<std::string>> listed = fs_->list(options_.dir);
      // The leader has created it: this host sees it late, or has not mounted it.
      if (listed.status().code() == StatusCode::kNotFound) continue;
      DRIFTLESS_RETURN_IF_ERROR(listed.status());
      std::vector<std::string>& names = *listed;
      if (std::ranges::find(names, publication_name(id)) != names.end()) return already_there(id);
      std::erase_if(names, [&](const std::string& name) {
        return lock_.session().empty() || !is_hidden_name_of(id, lock_.session(), name) ||
               name == last_hidden_;
      });
      if (names.size() == 1) return names.front();
    } while (waiting.sleep(backoff, deadline, whom));
    return deadline.check(whom());
  }

  [[nodiscard]] Result<std::vector<PublicationId>> there() const {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->list(options_.dir));
    std::vector<PublicationId> ids;
    for (const std::string& name : names) {
      if (const auto id = parse_publication_name(name); id.has_value()) ids.push_back(*id);
    }
    std::ranges::sort(ids);
    return ids;
  }

  FileSystem* fs_;
  const SharedFsOptions options_;
  const unsigned rank_;
  PublisherLock lock_;  // released last
  std::unique_ptr<PartSink> sink_;
  ReceiverWatch watch_;
  std::optional<Pending> pending_;
  std::string last_hidden_;  // of the last attempt: a listing may still show it
  bool made_ = false;        // open() made the directory
};

}  // namespace
}  // namespace shared_fs

Result<std::unique_ptr<SendRoad>> make_shared_fs_sender(FileSystem& fs,
                                                        const SharedFsOptions& options,
                                                        unsigned rank, unsigned ranks,
                                                        std::unique_ptr<PartSink> sink) {
  DRIFTLESS_RETURN_IF_ERROR(shared_fs::check_options(options));
  if (rank >= ranks) {
    return error(StatusCode::kInvalidArgument, options.dir, ": rank ", rank, " of ", ranks);
  }
  if (sink == nullptr) sink = make_part_files_sink(fs);
  auto sender = std::make_unique<shared_fs::Sender>(fs, options, rank, std::move(sink));
  DRIFTLESS_RETURN_IF_ERROR(sender->open());
  return std::unique_ptr<SendRoad>(std::move(sender));
}

}  // namespace driftless
