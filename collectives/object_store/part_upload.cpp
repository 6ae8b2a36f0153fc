// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/part_upload.h"

#include <algorithm>

namespace driftless::object_store {
namespace {

class PartFile final : public File {
 public:
  explicit PartFile(std::shared_ptr<PartUpload> part, std::string path)
      : part_(std::move(part)), path_(std::move(path)) {}
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() override { part_->close(); }

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return part_->write(offset, bytes);
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return part_->read(offset, bytes);
  }
  Status sync() override { return part_->sync(); }
  [[nodiscard]] const std::string& path() const override { return path_; }

 private:
  std::shared_ptr<PartUpload> part_;
  const std::string path_;
};

}  // namespace

Senders::Senders(unsigned streams) : streams_(std::max(1U, streams)) {}

Senders::~Senders() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Senders::start(std::function<void()> task) {
  const std::scoped_lock lock(mutex_);
  waiting_.push_back(std::move(task));
  if (busy_ + waiting_.size() > threads_.size() && threads_.size() < streams_) {
    threads_.emplace_back([this] { work(); });
  }
  changed_.notify_one();
}

void Senders::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
    if (ended_) return;
    std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    ++busy_;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    --busy_;
  }
}

std::unique_ptr<File> make_part_file(std::shared_ptr<PartUpload> part) {
  std::string path = part->path();
  return std::make_unique<PartFile>(std::move(part), std::move(path));
}

std::uint64_t PartUpload::piece_bytes(std::uint32_t piece) const {
  return std::min(kPieceBytes, size_ - piece * kPieceBytes);
}

bool PartUpload::written(std::uint64_t begin, std::uint64_t end) const {
  auto range = ranges_.upper_bound(begin);
  if (range == ranges_.begin()) return begin == end;
  --range;
  return range->second >= end;
}

void PartUpload::note_written(std::uint64_t begin, std::uint64_t end) {
  auto range = ranges_.upper_bound(begin);
  if (range != ranges_.begin() && std::prev(range)->second >= begin) {
    --range;
    begin = range->first;
  }
  while (range != ranges_.end() && range->first <= end) {
    end = std::max(end, range->second);
    range = ranges_.erase(range);
  }
  ranges_[begin] = end;
}

Status PartUpload::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  constexpr std::uint64_t kMostBytes = 10'000 * kPieceBytes;
  if (offset > kMostBytes || bytes.size() > kMostBytes - offset) {
    return error(StatusCode::kNoSpace, path(), ": a part of more than ", kMostBytes, " bytes");
  }
  {
    const std::scoped_lock lock(mutex_);
    synced_ = false;
  }
  const Status spooled = spool_.write(offset, bytes);
  const std::scoped_lock lock(mutex_);
  if (!spooled.ok()) {
    failure_ = failure_.ok() ? spooled : failure_;
    return spooled;
  }
  hash_.wrote(offset, bytes);
  const std::uint64_t end = offset + bytes.size();
  size_ = std::max(size_, end);
  note_written(offset, end);
  for (std::uint64_t piece = offset / kPieceBytes; piece * kPieceBytes < end; ++piece) {
    Piece& own = pieces_[static_cast<std::uint32_t>(piece)];
    own.again = own.again || own.sending;
    own.sent = false;
    const bool whole = written(piece * kPieceBytes, (piece + 1) * kPieceBytes);
    // A piece that was sent once and changed may change again: it waits for sync().
    if (whole && !own.sending && !own.again) send_later(static_cast<std::uint32_t>(piece));
  }
  return failure_;
}

// Under the lock.
void PartUpload::send_later(std::uint32_t piece) {
  pieces_[piece].sending = true;
  ++under_way_;
  senders_.start([self = shared_from_this(), piece] { self->send(piece); });
}

void PartUpload::send(std::uint32_t piece) {
  Status sent;
  {
    std::unique_lock lock(mutex_);
    if (!failure_.ok() || dropped_) {
      sent = error(StatusCode::kIo, path(), ": given up");
    } else {
      sent = begin_upload();
    }
  }
  if (sent.ok()) sent = send_now(piece);
  const std::scoped_lock lock(mutex_);
  Piece& own = pieces_[piece];
  own.sending = false;
  own.sent = sent.ok() && !own.again;
  own.again = !own.sent;
  if (!sent.ok() && failure_.ok()) failure_ = sent;
  --under_way_;
  changed_.notify_all();
}

// Under the lock.
Status PartUpload::begin_upload() {
  if (upload_) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(upload_, store_->upload(key_, Deadline::after(request_timeout_)));
  return {};
}

Status PartUpload::send_now(std::uint32_t piece) {
  std::uint64_t size = 0;
  {
    const std::scoped_lock lock(mutex_);
    size = piece_bytes(piece);
  }
  std::vector<std::byte> bytes(size);
  DRIFTLESS_RETURN_IF_ERROR(spool_.read(piece * kPieceBytes, bytes));
  return upload_->put(piece, bytes, Deadline::after(request_timeout_));
}

Status PartUpload::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  {
    const std::scoped_lock lock(mutex_);
    if (offset > size_ || bytes.size() > size_ - offset) {
      return error(StatusCode::kCorrupt, path(), ": ", size_, " bytes, none from ", offset, " to ",
                   offset + bytes.size());
    }
  }
  return spool_.read(offset, bytes);
}

Status PartUpload::sync() {
  std::unique_lock lock(mutex_);
  if (size_ > kPieceBytes) {
    const auto pieces = static_cast<std::uint32_t>((size_ + kPieceBytes - 1) / kPieceBytes);
    changed_.wait(lock, [this] { return under_way_ == 0; });
    for (std::uint32_t piece = 0; failure_.ok() && piece < pieces; ++piece) {
      Piece& own = pieces_[piece];
      if (own.sent) continue;
      own.again = false;
      send_later(piece);
    }
    changed_.wait(lock, [this] { return under_way_ == 0; });
  } else if (failure_.ok()) {
    changed_.wait(lock, [this] { return under_way_ == 0; });
    std::vector<std::byte> bytes(size_);
    failure_ = spool_.read(0, bytes);
    if (failure_.ok()) {
      lock.unlock();
      const Status put = store_->put(key_, bytes, false, Deadline::after(request_timeout_));
      lock.lock();
      if (failure_.ok()) failure_ = put;
    }
  }
  synced_ = failure_.ok();
  return failure_;
}

Status PartUpload::check_finished() const {
  if (open_) return error(StatusCode::kInvalidArgument, path(), ": the part is still open");
  const std::scoped_lock lock(mutex_);
  if (!failure_.ok()) return failure_.with_context(concat(path(), ": writing the part failed"));
  if (synced_) return {};
  return error(StatusCode::kInvalidArgument, path(),
               ": the part was not synced after its last write");
}

Status PartUpload::finish(const Deadline& deadline) {
  std::uint64_t size = 0;
  {
    const std::scoped_lock lock(mutex_);
    size = size_;
  }
  if (size <= kPieceBytes) return {};
  const auto pieces = static_cast<std::uint32_t>((size + kPieceBytes - 1) / kPieceBytes);
  return upload_->finish(pieces, deadline);
}

Result<PartReceipt> PartUpload::receipt() const {
  PartReceipt receipt;
  receipt.name = name_;
  receipt.size_bytes = hash_.size_bytes();
  if (const auto hash = hash_.hash()) {
    receipt.hash = *hash;
    return receipt;
  }
  PartHash again;
  std::vector<std::byte> bytes;
  for (std::uint64_t done = 0; done < receipt.size_bytes; done += bytes.size()) {
    bytes.resize(std::min(kPieceBytes, receipt.size_bytes - done));
    DRIFTLESS_RETURN_IF_ERROR(spool_.read(done, bytes));
    again.wrote(done, bytes);
  }
  receipt.hash = *again.hash();
  return receipt;
}

void PartUpload::drop() {
  std::unique_lock lock(mutex_);
  dropped_ = true;
  changed_.wait(lock, [this] { return under_way_ == 0; });
  if (upload_) upload_->drop();
}

}  // namespace driftless::object_store
