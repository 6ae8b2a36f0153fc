// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace driftless::testing {
namespace {

std::vector<std::string> names_of(const std::string& path) {
  std::vector<std::string> names;
  std::size_t at = 0;
  while (at < path.size()) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    if (end > at) names.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

}  // namespace

SimDisk::SimDisk() : root_(new_node(true)) {}

std::shared_ptr<SimDisk::Node> SimDisk::new_node(bool directory) {
  auto node = std::make_shared<Node>();
  node->directory = directory;
  node->number = ++nodes_;
  return node;
}

std::shared_ptr<SimDisk::Node> SimDisk::find(const std::string& path) const {
  std::shared_ptr<Node> node = root_;
  for (const std::string& name : names_of(path)) {
    if (!node->directory) return nullptr;
    const auto found = node->entries.find(name);
    if (found == node->entries.end()) return nullptr;
    node = found->second;
  }
  return node;
}

std::pair<std::shared_ptr<SimDisk::Node>, std::string> SimDisk::parent(
    const std::string& path) const {
  const std::size_t end = path.find_last_not_of('/') + 1;
  const std::size_t slash = path.rfind('/', end - 1);
  std::shared_ptr<Node> above = find(path.substr(0, slash + 1));
  if (above != nullptr && !above->directory) above = nullptr;
  return {std::move(above), path.substr(slash + 1, end - slash - 1)};
}

void SimDisk::write(const std::string& path, std::span<const std::byte> bytes) {
  ++changes;
  std::shared_ptr<Node> node = root_;
  std::vector<std::string> names = names_of(path);
  const std::string last = names.back();
  names.pop_back();
  for (const std::string& name : names) {
    std::shared_ptr<Node>& below = node->entries[name];
    if (below == nullptr) below = new_node(true);
    node = below;
  }
  const auto file = new_node(false);
  file->bytes.resize(bytes.size());
  std::ranges::copy(bytes, file->bytes.all().begin());
  node->entries[last] = file;
}

std::vector<std::byte> SimDisk::read(const std::string& path) const {
  const auto node = find(path);
  if (node == nullptr) return {};
  return {node->bytes.all().begin(), node->bytes.all().end()};
}

std::vector<std::string> SimDisk::list(const std::string& path) const {
  std::vector<std::string> names;
  const auto node = find(path);
  if (node == nullptr) return names;
  for (const auto& [name, below] : node->entries) names.push_back(name);
  return names;
}

bool SimDisk::has(const std::string& path) const { return find(path) != nullptr; }

void SimDisk::remove(const std::string& path) {
  ++changes;
  const auto [above, name] = parent(path);
  if (above != nullptr) above->entries.erase(name);
}

bool SimDisk::damage(const std::string& path, Random& random) {
  ++changes;
  const auto node = find(path);
  if (node == nullptr || node->directory || node->bytes.size() == 0) return false;
  node->bytes.all()[random.below(node->bytes.size())] ^=
      static_cast<std::byte>(1 + random.below(255));
  return true;
}

void SimDisk::lose_unsynced(const Process& process, double keep, Random& random) {
  ++changes;
  for (auto write = writes_.rbegin(); write != writes_.rend(); ++write) {
    if (write->by != &process || random.chance(keep)) continue;
    SimBytes& bytes = write->node->bytes;
    if (bytes.size() > write->old_size) bytes.resize(write->old_size);
    const std::size_t after = bytes.size() - std::min(bytes.size(), write->offset);
    std::ranges::copy(std::span(write->old_bytes).first(std::min(write->old_bytes.size(), after)),
                      bytes.all().begin() + static_cast<std::ptrdiff_t>(write->offset));
  }
  std::erase_if(writes_, [&](const UnsyncedWrite& write) { return write.by == &process; });
  const auto written = static_cast<std::size_t>(
      std::ranges::count_if(names_, [&](const UnsyncedName& name) { return name.by == &process; }));
  // The newest names are lost first: a file system journals names in order.
  std::size_t lost = random.chance(keep) ? random.below(written + 1) : written;
  for (auto name = names_.rbegin(); name != names_.rend() && lost > 0; ++name) {
    if (name->by != &process) continue;
    name->undo();
    --lost;
  }
  std::erase_if(names_, [&](const UnsyncedName& name) { return name.by == &process; });
}

class SimFile final : public File {
 public:
  SimFile(SimFileSystem fs, std::string path, std::shared_ptr<SimDisk::Node> node)
      : fs_(fs), path_(std::move(path)), node_(std::move(node)) {}

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const Status begun = fs_.begin(SimFileSystem::Call::kWrite, "writing " + path_);
    if (!begun.ok() && begun.code() != StatusCode::kNoSpace) return begun;
    if (!begun.ok()) bytes = bytes.first(bytes.size() / 2);
    SimDisk::UnsyncedWrite undo{fs_.process_, node_, offset, node_->bytes.size(), {}};
    if (offset < undo.old_size) {
      const std::size_t count = std::min<std::size_t>(bytes.size(), undo.old_size - offset);
      const auto from = node_->bytes.all().begin() + static_cast<std::ptrdiff_t>(offset);
      undo.old_bytes.assign(from, from + static_cast<std::ptrdiff_t>(count));
    }
    if (fs_.process_ != nullptr) fs_.disk_->writes_.push_back(std::move(undo));
    if (offset + bytes.size() > node_->bytes.size()) node_->bytes.resize(offset + bytes.size());
    std::ranges::copy(bytes, node_->bytes.all().begin() + static_cast<std::ptrdiff_t>(offset));
    return begun;
  }

  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    DRIFTLESS_RETURN_IF_ERROR(fs_.begin(SimFileSystem::Call::kRead, path_));
    if (offset + bytes.size() > node_->bytes.size()) {
      return error(StatusCode::kCorrupt, path_, ": ends early");
    }
    if (!bytes.empty()) std::memcpy(bytes.data(), node_->bytes.all().data() + offset, bytes.size());
    return {};
  }

  Status sync() override {
    DRIFTLESS_RETURN_IF_ERROR(fs_.begin(SimFileSystem::Call::kWrite, "syncing " + path_));
    std::erase_if(fs_.disk_->writes_, [&](const auto& write) { return write.node == node_; });
    return {};
  }

  [[nodiscard]] const std::string& path() const override { return path_; }

 private:
  SimFileSystem fs_;
  std::string path_;
  std::shared_ptr<SimDisk::Node> node_;
};

Status SimFileSystem::begin(Call call, const std::string& what) {
  if (simulation_ == nullptr) return {};
  DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
  if (call != Call::kRead) ++disk_->changes;
  // While a process dies, a destructor on another fiber may still hold its files.
  if (process_->dead) return error(StatusCode::kIo, process_->name, ": the process is dead");
  if (call == Call::kRead) return {};
  if (call == Call::kWrite && disk_->full) return errno_status(ENOSPC, what);
  if (simulation_->random_source().chance(disk_->error_rate)) return errno_status(EIO, what);
  return {};
}

void SimFileSystem::note(std::shared_ptr<SimDisk::Node> directory, std::function<void()> undo) {
  if (process_ == nullptr) return;
  disk_->names_.push_back({process_, std::move(directory), std::move(undo)});
}

Result<std::unique_ptr<File>> SimFileSystem::create(const std::string& path) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kWrite, "creating " + path));
  const auto [above, name] = disk_->parent(path);
  if (above == nullptr) return errno_status(ENOENT, path);
  if (above->entries.contains(name)) return errno_status(EEXIST, path);
  const auto node = disk_->new_node(false);
  above->entries[name] = node;
  note(above, [above = above, name = name, node] {
    if (const auto at = above->entries.find(name); at != above->entries.end() && at->second == node)
      above->entries.erase(at);
  });
  return std::unique_ptr<File>(std::make_unique<SimFile>(*this, path, node));
}

Result<std::unique_ptr<File>> SimFileSystem::open(const std::string& path) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kRead, path));
  const auto node = disk_->find(path);
  if (node == nullptr) return errno_status(ENOENT, path);
  if (node->directory) return errno_status(EISDIR, path);
  return std::unique_ptr<File>(std::make_unique<SimFile>(*this, path, node));
}

Result<FileInfo> SimFileSystem::info(const std::string& path) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kRead, path));
  const auto node = disk_->find(path);
  if (node == nullptr) return errno_status(ENOENT, path);
  FileInfo info;
  info.kind = node->directory ? FileKind::kDirectory : FileKind::kFile;
  info.size_bytes = node->bytes.size();
  info.identity = {1, node->number};
  return info;
}

Result<std::vector<std::string>> SimFileSystem::list(const std::string& path) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kRead, path));
  const auto node = disk_->find(path);
  if (node == nullptr) return errno_status(ENOENT, path);
  if (!node->directory) return errno_status(ENOTDIR, path);
  return disk_->list(path);
}

Status SimFileSystem::make_directory(const std::string& path) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kWrite, "creating " + path));
  const auto [above, name] = disk_->parent(path);
  if (above == nullptr) return errno_status(ENOENT, path);
  if (above->entries.contains(name)) return errno_status(EEXIST, path);
  const auto node = disk_->new_node(true);
  above->entries[name] = node;
  note(above, [above = above, name = name, node] {
    if (const auto at = above->entries.find(name); at != above->entries.end() && at->second == node)
      above->entries.erase(at);
  });
  return {};
}

Status SimFileSystem::rename(const std::string& from, const std::string& to, bool replaces) {
  const auto [old_above, old_name] = disk_->parent(from);
  const auto [new_above, new_name] = disk_->parent(to);
  if (old_above == nullptr || !old_above->entries.contains(old_name) || new_above == nullptr) {
    return errno_status(ENOENT, from);
  }
  const auto node = old_above->entries.at(old_name);
  std::shared_ptr<SimDisk::Node> replaced;
  if (const auto at = new_above->entries.find(new_name); at != new_above->entries.end()) {
    replaced = at->second;
    if (!replaces || replaced->directory) return errno_status(EEXIST, to);
  }
  old_above->entries.erase(old_name);
  new_above->entries[new_name] = node;
  note(new_above,
       [=, old_above = old_above, old_name = old_name, new_above = new_above, new_name = new_name] {
         const auto at = new_above->entries.find(new_name);
         if (at == new_above->entries.end() || at->second != node) return;
         new_above->entries.erase(at);
         if (replaced != nullptr) new_above->entries[new_name] = replaced;
         old_above->entries.emplace(old_name, node);
       });
  return {};
}

Status SimFileSystem::rename_file(const std::string& from, const std::string& to) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kWrite, "renaming " + from));
  return rename(from, to, true);
}

Status SimFileSystem::rename_new(const std::string& from, const std::string& to) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kWrite, "renaming " + from));
  return rename(from, to, false);
}

Status SimFileSystem::remove(const std::string& path, bool directory) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kRemove, "removing " + path));
  const auto [above, name] = disk_->parent(path);
  if (above == nullptr || !above->entries.contains(name)) return errno_status(ENOENT, path);
  const auto node = above->entries.at(name);
  if (node->directory != directory) return errno_status(directory ? ENOTDIR : EISDIR, path);
  if (!node->entries.empty()) return errno_status(ENOTEMPTY, path);
  above->entries.erase(name);
  note(above, [above = above, name = name, node] { above->entries.emplace(name, node); });
  return {};
}

Status SimFileSystem::remove_file(const std::string& path) { return remove(path, false); }
Status SimFileSystem::remove_directory(const std::string& path) { return remove(path, true); }

Status SimFileSystem::sync_directory(const std::string& path) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kWrite, "syncing " + path));
  const auto node = disk_->find(path);
  if (node == nullptr) return errno_status(ENOENT, path);
  std::erase_if(disk_->names_, [&](const auto& name) { return name.directory == node; });
  return {};
}

Result<MappedFile> SimFileSystem::map(const std::string& path) {
  DRIFTLESS_RETURN_IF_ERROR(begin(Call::kRead, path));
  const auto node = disk_->find(path);
  if (node == nullptr) return errno_status(ENOENT, path);
  if (node->directory) return errno_status(EISDIR, path);
  const std::uint64_t size = node->bytes.size();
  return MappedFile(path, size == 0 ? nullptr : node->bytes.map(), size, {1, node->number});
}

class SimLock final : public FileLock {
 public:
  SimLock(SimFileSystem fs, std::string path, std::shared_ptr<SimDisk::Node> node)
      : fs_(fs), path_(std::move(path)), node_(std::move(node)), token_(std::make_shared<char>()) {
    node_->lock = token_;
  }
  Result<bool> held() override {
    DRIFTLESS_RETURN_IF_ERROR(fs_.begin(SimFileSystem::Call::kRead, path_));
    return fs_.disk_->find(path_) == node_;
  }

 private:
  SimFileSystem fs_;
  std::string path_;
  std::shared_ptr<SimDisk::Node> node_;
  std::shared_ptr<void> token_;
};

Result<std::unique_ptr<FileLock>> SimFileSystem::lock(const std::string& path,
                                                      std::chrono::milliseconds wait) {
  const auto end = environment().now() + wait;
  while (true) {
    DRIFTLESS_RETURN_IF_ERROR(begin(Call::kWrite, "locking " + path));
    const auto [above, name] = disk_->parent(path);
    if (above == nullptr) return errno_status(ENOENT, path);
    auto& node = above->entries[name];
    if (node == nullptr) node = disk_->new_node(false);
    if (node->lock.expired()) {
      return std::unique_ptr<FileLock>(std::make_unique<SimLock>(*this, path, node));
    }
    if (environment().now() >= end) return error(StatusCode::kBusy, path, ": is locked");
    environment().sleep_until(environment().now() + std::chrono::milliseconds(10));
  }
}

}  // namespace driftless::testing
