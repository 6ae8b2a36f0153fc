// SPDX-License-Identifier: Apache-2.0
// The hub in a directory:
//
//   leader                      the session of the current leader
//   .lock                       the leader holds it
//   <session>/<peer>/up/<n>     messages to the leader, numbered from 0, each renamed into place
//   <session>/<peer>/down/<n>   messages from the leader
//   <session>/<peer>/gone       either side has ended the link
//
// The reader of a message removes it. A hub that ends leaves the directories of existing links,
// with the last messages; each link removes its own directory, the last link also the session's.
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>

#include "collectives/hub/hub.h"
#include "core/file_system.h"
#include "core/hash128.h"

namespace driftless::hub {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::string_view kLeader = "leader";
constexpr std::string_view kGone = "gone";
constexpr std::string_view kLock = ".lock";
constexpr milliseconds kLockWait{2'000};
constexpr std::uint64_t kSessionBytes = 64;

// kNotFound if the directory does not exist: the leader creates it.
Status check_private(const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) return errno_status(errno, concat("hub: ", path));
  if (!S_ISDIR(info.st_mode) || (info.st_mode & 077) != 0 || info.st_uid != ::geteuid()) {
    return error(StatusCode::kInvalidArgument, "hub: ", path,
                 " must be a directory of this user that no other user can access: chmod 700 ",
                 path);
  }
  return {};
}

// One direction of a link.
class Mailbox {
 public:
  explicit Mailbox(std::string dir) : dir_(std::move(dir)) {}

  [[nodiscard]] Status put(std::string_view message) {
    FileSystem& fs = posix_file_system();
    const std::string part = join_path(dir_, ".part");
    const Status old = fs.remove_file(part);  // exists only after a failed write
    {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.create(part));
      DRIFTLESS_RETURN_IF_ERROR(
          file->pwrite(0, std::as_bytes(std::span(message.data(), message.size()))));
    }
    DRIFTLESS_RETURN_IF_ERROR(fs.rename_file(part, path(next_put_)));
    ++next_put_;
    return {};
  }

  [[nodiscard]] Result<std::optional<std::string>> take() {
    FileSystem& fs = posix_file_system();
    Result<std::string> text = read_text(fs, path(next_take_), kMaxMessageBytes);
    if (!text.ok() && text.status().code() == StatusCode::kNotFound) {
      return std::optional<std::string>();
    }
    if (!text.ok()) return text.status();
    DRIFTLESS_RETURN_IF_ERROR(fs.remove_file(path(next_take_)));
    ++next_take_;
    return std::optional<std::string>(std::move(*text));
  }

 private:
  [[nodiscard]] std::string path(std::uint64_t number) const {
    return join_path(dir_, std::to_string(number));
  }
  std::string dir_;
  std::uint64_t next_put_ = 0, next_take_ = 0;
};

Status lost(std::string_view why) {
  return error(StatusCode::kIo, "hub: the link to the leader is gone: ", why);
}

void mark_gone(const std::string& dir) {
  // If that fails, the other side ends the link when its own time limit passes.
  const Status marked = write_text(posix_file_system(), join_path(dir, kGone), "");
}

struct FilePeer {
  explicit FilePeer(const std::string& where)
      : dir(where), up(join_path(where, "up")), down(join_path(where, "down")) {}
  std::string dir;
  Mailbox up, down;
};

class FileHub final : public Hub {
 public:
  FileHub(std::string root, const std::string& session, std::unique_ptr<FileLock> lock)
      : lock_(std::move(lock)), root_(std::move(root)), dir_(join_path(root_, session)) {}
  ~FileHub() override {
    FileSystem& fs = posix_file_system();
    const Result<bool> still_held = lock_->held();  // otherwise the files belong to another leader
    const bool held = still_held.ok() && *still_held;
    if (held) const Status name = fs.remove_file(join_path(root_, kLeader));
    // Each side first marks its own end (here: removes kLeader), then looks for the other's mark.
    // So the side that ends second sees the first one's mark, and removes the directory.
    std::erase_if(peers_,
                  [&](const auto& peer) { return exists(fs, join_path(peer.second.dir, kGone)); });
    for (const auto& [made, peer] : known_) {
      if (!peers_.contains(peer)) const Status ended = remove_tree(fs, join_path(dir_, made));
    }
    // The next leader removes what dead links left.
    const Status session = peers_.empty() ? remove_tree(fs, dir_) : Status();
    if (held) const Status unlocked = fs.remove_file(join_path(root_, kLock));
  }

  [[nodiscard]] std::vector<HubEvent> poll(const Deadline& deadline) override {
    Backoff backoff(microseconds(200), milliseconds(5));
    std::vector<HubEvent> events;
    do {
      const std::scoped_lock lock(mutex_);
      look_for_new(events);
      look_at_all(events);
    } while (events.empty() && backoff.sleep(deadline));
    return events;
  }

  void send(std::uint64_t peer, std::string_view message) override {
    const std::scoped_lock lock(mutex_);
    const auto found = peers_.find(peer);
    if (found == peers_.end()) return;
    if (!found->second.down.put(message).ok()) dropped_.push_back(peer);
  }

  void drop(std::uint64_t peer) override {
    const std::scoped_lock lock(mutex_);
    dropped_.push_back(peer);
  }

 private:
  void look_for_new(std::vector<HubEvent>& events) {
    const auto names = posix_file_system().list(dir_);
    if (!names.ok()) return;
    for (const std::string& name : *names) {
      if (name.starts_with('.') || known_.contains(name)) continue;
      known_[name] = ++last_peer_;
      peers_.emplace(last_peer_, FilePeer(join_path(dir_, name)));
      events.push_back({HubEvent::Kind::kCame, last_peer_, {}});
    }
  }

  void look_at_all(std::vector<HubEvent>& events) {
    for (auto& [peer, known] : peers_) {
      for (;;) {
        Result<std::optional<std::string>> message = known.up.take();
        if (!message.ok()) dropped_.push_back(peer);
        if (!message.ok() || !message->has_value()) break;
        events.push_back({HubEvent::Kind::kMessage, peer, std::move(**message)});
      }
      if (exists(posix_file_system(), join_path(known.dir, kGone))) dropped_.push_back(peer);
    }
    for (const std::uint64_t peer : std::exchange(dropped_, {})) {
      const auto found = peers_.find(peer);
      if (found == peers_.end()) continue;
      mark_gone(found->second.dir);
      peers_.erase(found);
      events.push_back({HubEvent::Kind::kWent, peer, {}});
    }
  }

  const std::unique_ptr<FileLock> lock_;
  const std::string root_, dir_;
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> known_;
  std::map<std::uint64_t, FilePeer> peers_;
  std::vector<std::uint64_t> dropped_;
  std::uint64_t last_peer_ = 0;
};

class FileLink final : public Link {
 public:
  FileLink(std::string root, std::string session, const std::string& dir)
      : root_(std::move(root)), session_(std::move(session)), peer_(dir) {}
  ~FileLink() override {
    FileSystem& fs = posix_file_system();
    mark_gone(peer_.dir);
    const Result<std::string> now = read_text(fs, join_path(root_, kLeader), kSessionBytes);
    const bool over = now.ok() ? *now != session_ : now.status().code() == StatusCode::kNotFound;
    if (!over) return;  // the hub finds the mark
    const Status mine = remove_tree(fs, peer_.dir);
    // Succeeds only if it is empty.
    const Status session = fs.remove_directory(join_path(root_, session_));
  }

  Status send(std::string_view message, const Deadline&) override {
    const std::scoped_lock lock(mutex_);
    const Status put = peer_.up.put(message);
    return put.ok() ? put : lost(put.message());
  }

  Result<std::optional<std::string>> receive(const Deadline& deadline) override {
    Backoff backoff(microseconds(200), milliseconds(5));
    for (;;) {
      Result<std::optional<std::string>> message = peer_.down.take();
      if (!message.ok()) return lost(message.status().message());
      if (message->has_value()) return message;
      const Status there = check_leader();
      if (!there.ok()) {  // messages sent before it left come first
        message = peer_.down.take();
        if (message.ok() && message->has_value()) return message;
        return there;
      }
      if (!backoff.sleep(deadline)) return message;
    }
  }

 private:
  [[nodiscard]] Status check_leader() {
    FileSystem& fs = posix_file_system();
    if (exists(fs, join_path(peer_.dir, kGone))) return lost("the leader has ended it");
    const Result<std::string> now = read_text(fs, join_path(root_, kLeader), kSessionBytes);
    if (!now.ok() || *now != session_) return lost("the directory has another leader now, or none");
    return {};
  }

  const std::string root_, session_;
  std::mutex mutex_;  // protects sending
  FilePeer peer_;
};

Result<std::unique_ptr<Link>> connect_by_files(const std::string& root) {
  FileSystem& fs = posix_file_system();
  DRIFTLESS_RETURN_IF_ERROR(check_private(root));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string session,
                             read_text(fs, join_path(root, kLeader), kSessionBytes));
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(session));
  const std::string name = to_hex(random_hash128());
  const std::string dir = join_path(join_path(root, session), name);
  const std::string made = join_path(join_path(root, session), "." + name);
  DRIFTLESS_RETURN_IF_ERROR(fs.make_directory(made));
  DRIFTLESS_RETURN_IF_ERROR(fs.make_directory(join_path(made, "up")));
  DRIFTLESS_RETURN_IF_ERROR(fs.make_directory(join_path(made, "down")));
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_new(made, dir));
  return std::unique_ptr<Link>(std::make_unique<FileLink>(root, session, dir));
}

}  // namespace

Result<std::unique_ptr<Hub>> make_file_hub(const std::string& directory) {
  FileSystem& fs = posix_file_system();
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return errno_status(errno, concat("hub: ", directory));
  }
  DRIFTLESS_RETURN_IF_ERROR(check_private(directory));
  Result<std::unique_ptr<FileLock>> lock = fs.lock(join_path(directory, kLock), kLockWait);
  if (!lock.ok()) {
    return lock.status().with_context(
        concat("hub: another trainer leads at ", directory, "; use another directory"));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  for (const std::string& name : names) {
    // Sessions of leaders that died, or whose links are about to remove them. A directory that
    // cannot be removed does no harm.
    if (hash128_from_hex(name).ok()) {
      const Status removed = remove_tree(fs, join_path(directory, name));
    }
  }
  const std::string session = to_hex(random_hash128());
  DRIFTLESS_RETURN_IF_ERROR(fs.make_directory(join_path(directory, session)));
  auto hub = std::make_unique<FileHub>(directory, session, std::move(*lock));
  DRIFTLESS_RETURN_IF_ERROR(replace_text(fs, join_path(directory, kLeader), session));
  return std::unique_ptr<Hub>(std::move(hub));
}

Result<Connector> make_file_connector(const std::string& directory) {
  if (directory.empty()) {
    return error(StatusCode::kInvalidArgument, "hub: the rendezvous has no directory");
  }
  return Connector([root = directory](const Deadline&) { return connect_by_files(root); });
}

}  // namespace driftless::hub
