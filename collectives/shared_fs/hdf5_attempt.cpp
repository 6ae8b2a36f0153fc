// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/hdf5_rounds.h"

namespace driftless {

// A part while it is being filled. Closing its file queues it for the rounds.
class Hdf5Part final : public BufferPart {
 public:
  Hdf5Part(std::shared_ptr<Hdf5Attempt> attempt, std::size_t index, std::string group,
           std::string name)
      : BufferPart(std::move(group), std::move(name),
                   make_byte_budget(attempt->limits_.part_bytes, "max_part_bytes"), {}),
        attempt_(std::move(attempt)),
        index_(index) {}

 protected:
  // The bytes are final; they reach stable storage with flush().
  Status sync() override { return attempt_->status(); }
  void file_closed(bool whole) override {
    std::optional<Hash128> hash = whole ? known_hash() : std::nullopt;
    PartBuffer buffer = take();
    if (whole && !hash) hash = xxh3_128(buffer.bytes());
    attempt_->close_part(index_, std::move(buffer), hash);
  }

 private:
  const std::shared_ptr<Hdf5Attempt> attempt_;
  const std::size_t index_;
};

Hdf5Attempt::Hdf5Attempt(std::shared_ptr<Hdf5Monitor> monitor, std::string directory, Hash128 id,
                         unsigned rank, Limits limits, const Deadline& deadline)
    : monitor_(std::move(monitor)),
      directory_(std::move(directory)),
      id_(id),
      rank_(rank),
      limits_(limits),
      deadline_(deadline) {}

Result<std::unique_ptr<File>> Hdf5Attempt::create_part(const std::string& name) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
  const std::string group =
      concat(join_path(directory_, kHdf5FileName), ":", hdf5_group_name(rank_));
  const std::string path = concat(group, "/", name);
  if (name.size() > kMaxHdf5PartName) {
    return error(StatusCode::kInvalidArgument, path, ": a part's name has at most ",
                 kMaxHdf5PartName, " bytes");
  }
  std::unique_lock<std::mutex> lock(monitor_->mutex);
  DRIFTLESS_RETURN_IF_ERROR(wait_for_room(lock, path));
  if (flushing_) {
    return error(StatusCode::kInvalidArgument, path, ": the publication was flushed already");
  }
  for (const Part& part : parts_) {
    if (part.receipt.name == name) {
      return error(StatusCode::kAlreadyExists, path, ": is there already");
    }
  }
  parts_.push_back({{.name = name, .rank = rank_, .hash = {}}});
  return make_part_file(
      std::make_shared<Hdf5Part>(shared_from_this(), parts_.size() - 1, group, name));
}

Status Hdf5Attempt::wait_for_room(std::unique_lock<std::mutex>& lock, const std::string& path) {
  const auto room = [this] {
    return !failure_.ok() || over_ || queue_.size() < limits_.queued_parts;
  };
  if (!monitor_->changed.wait_until(lock, deadline_.at(), room)) {
    return deadline_.check(
        concat(path, ": waiting for the other publisher ranks to write their earlier parts"));
  }
  if (!failure_.ok()) return failure_;
  if (over_) return error(StatusCode::kInvalidArgument, path, ": the publication is over");
  return {};
}

void Hdf5Attempt::close_part(std::size_t index, PartBuffer buffer,
                             const std::optional<Hash128>& hash) {
  auto finished = std::make_shared<Hdf5FinishedPart>();
  finished->buffer = std::move(buffer);
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  Part& part = parts_[index];
  part.closed = true;
  part.synced = hash.has_value();
  if (!part.synced || !failure_.ok() || over_) return;
  part.receipt.size_bytes = finished->buffer.bytes().size();
  part.receipt.hash = *hash;
  finished->receipt = part.receipt;
  queue_.push_back(std::move(finished));
  monitor_->changed.notify_all();
}

Status Hdf5Attempt::start_flush() {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  if (!failure_.ok()) return failure_;
  for (const Part& part : parts_) {
    if (part.closed && part.synced) continue;
    return error(StatusCode::kInvalidArgument, directory_, ": part '", part.receipt.name,
                 "' of publisher rank ", rank_,
                 part.closed ? " was not synced after its last write" : " is still open");
  }
  flushing_ = true;
  monitor_->changed.notify_all();
  return {};
}

bool Hdf5Attempt::over() const {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  return over_;
}

bool Hdf5Attempt::wait_over(const Deadline& deadline) const {
  std::unique_lock<std::mutex> lock(monitor_->mutex);
  return monitor_->changed.wait_until(lock, deadline.at(), [this] { return over_; });
}

Status Hdf5Attempt::status() const {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  return failure_;
}

std::vector<PartReceipt> Hdf5Attempt::receipts() const {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  std::vector<PartReceipt> receipts;
  for (const Part& part : parts_) receipts.push_back(part.receipt);
  return receipts;
}

void Hdf5Attempt::fail(const Status& why) {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  if (over_ || !failure_.ok()) return;
  failure_ = why;
  // The front part may be in a round at this moment; the round owns it, too.
  queue_.clear();
  monitor_->changed.notify_all();
}

Hdf5Attempt::Word Hdf5Attempt::word() const {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  return word_locked();
}

Hdf5Attempt::Word Hdf5Attempt::word_locked() const {
  if (over_) return Word::kNothing;
  if (!failure_.ok()) return Word::kFailed;
  if (!queue_.empty()) return Word::kPart;
  return flushing_ ? Word::kNoMore : Word::kNothing;
}

std::shared_ptr<const Hdf5FinishedPart> Hdf5Attempt::front() const {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  return queue_.empty() ? nullptr : queue_.front();
}

void Hdf5Attempt::pop_front() {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  if (!queue_.empty()) queue_.pop_front();
  monitor_->changed.notify_all();
}

void Hdf5Attempt::end(const Status& how) {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  if (over_) return;
  if (failure_.ok()) failure_ = how;
  over_ = true;
  queue_.clear();
  monitor_->changed.notify_all();
}

}  // namespace driftless
