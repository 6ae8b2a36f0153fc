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
  std::unique_lock lock(mutex_);
  taken_.wait(lock, [this] { return busy_ + waiting_.size() < streams_; });
  waiting_.push_back(std::move(task));
  if (busy_ + waiting_.size() > threads_.size()) threads_.emplace_back([this] { work(); });
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
    taken_.notify_one();
  }
}

std::unique_ptr<File> make_part_file(std::shared_ptr<PartUpload> part) {
  std::string path = part->path();
  return std::make_unique<PartFile>(std::move(part), std::move(path));
}

// Needs the lock, like everything that uses ranges and pieces.
bool PartUpload::whole(std::uint32_t piece) const {
  const std::uint64_t begin = piece * kPieceBytes;
  auto range = ranges_.upper_bound(begin);
  if (range == ranges_.begin()) return false;
  return std::prev(range)->second >= begin + kPieceBytes;
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
  if (offset > kMaxObjectBytes || bytes.size() > kMaxObjectBytes - offset) {
    return error(StatusCode::kNoSpace, path(), ": a part of more than ", kMaxObjectBytes,
                 " bytes; a smaller buffer_size makes smaller parts");
  }
  {
    const std::scoped_lock lock(mutex_);
    synced_ = false;
    if (dropped_) return error(StatusCode::kIo, path(), ": the publication was given up");
  }
  const Status spooled = spool_.write(offset, bytes);
  std::vector<std::uint32_t> ready;
  {
    const std::scoped_lock lock(mutex_);
    if (failure_.ok()) failure_ = spooled;
    DRIFTLESS_RETURN_IF_ERROR(failure_);
    hash_.wrote(offset, bytes);
    const std::uint64_t end = offset + bytes.size();
    if (size_ <= kPieceBytes && end > kPieceBytes && !pieces_.empty()) {
      pieces_[0].again = true;  // it may have been an object of its own; now it is a piece
      pieces_[0].sent = false;
    }
    size_ = std::max(size_, end);
    note_written(offset, end);
    for (std::uint64_t at = offset / kPieceBytes; at * kPieceBytes < end; ++at) {
      const auto number = static_cast<std::uint32_t>(at);
      Piece& piece = pieces_[number];
      piece.again = piece.again || piece.sending || piece.sent;
      piece.sent = false;
      // A part of one piece, and a piece that changed after it was sent, wait for sync().
      if (size_ > kPieceBytes && !piece.again && whole(number)) ready.push_back(number);
    }
    for (const std::uint32_t number : ready) {
      pieces_[number].sending = true;
      ++under_way_;
    }
  }
  start(ready);
  return {};
}

// The pieces whose content is not in the store; counts them as in transfer from here on.
std::vector<std::uint32_t> PartUpload::unsent() {
  std::vector<std::uint32_t> found;
  const std::uint64_t pieces = size_ == 0 ? 1 : (size_ + kPieceBytes - 1) / kPieceBytes;
  for (std::uint32_t number = 0; number < pieces; ++number) {
    Piece& piece = pieces_[number];
    if (piece.sent || piece.sending) continue;
    piece.sending = true;
    piece.again = false;
    found.push_back(number);
  }
  under_way_ += static_cast<unsigned>(found.size());
  return found;
}

// Called without the lock, because it waits for a thread.
void PartUpload::start(const std::vector<std::uint32_t>& pieces) {
  for (const std::uint32_t piece : pieces) {
    senders_.start([self = shared_from_this(), piece] { self->send(piece); });
  }
}

void PartUpload::send(std::uint32_t piece) {
  Status sent;
  {
    const std::scoped_lock lock(mutex_);
    sent = dropped_ ? error(StatusCode::kIo, path(), ": the publication was given up") : failure_;
    if (sent.ok() && size_ > kPieceBytes) sent = begin_upload();
  }
  if (sent.ok()) sent = send_now(piece);
  const std::scoped_lock lock(mutex_);
  Piece& upload = pieces_[piece];
  upload.sending = false;
  upload.sent = sent.ok() && !upload.again;
  if (failure_.ok()) failure_ = sent;
  --under_way_;
  release_if_sent();
  changed_.notify_all();
}

// Needs the lock, so that only one upload begins.
Status PartUpload::begin_upload() {
  if (upload_) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(upload_, store_->upload(key_, deadline_));
  return {};
}

Status PartUpload::send_now(std::uint32_t piece) {
  std::uint64_t size = 0;
  bool closed = false;
  {
    const std::scoped_lock lock(mutex_);
    size = size_;
    closed = !open_;
  }
  // The memory of a closed part is sent directly, because nothing changes it any more.
  if (size <= kPieceBytes && closed) return store_->put(key_, spool_.memory(), false, deadline_);
  std::vector<std::byte> bytes(std::min(kPieceBytes, size - piece * kPieceBytes));
  DRIFTLESS_RETURN_IF_ERROR(spool_.read(piece * kPieceBytes, bytes));
  if (size <= kPieceBytes) return store_->put(key_, bytes, false, deadline_);
  return upload_->put(piece, bytes, deadline_);
}

Status PartUpload::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  {
    const std::scoped_lock lock(mutex_);
    if (offset > size_ || bytes.size() > size_ - offset) {
      return error(StatusCode::kCorrupt, path(), ": ", size_, " bytes, read from ", offset, " to ",
                   offset + bytes.size());
    }
  }
  return spool_.read(offset, bytes);
}

Status PartUpload::sync() {
  std::vector<std::uint32_t> rest;
  {
    const std::scoped_lock lock(mutex_);
    DRIFTLESS_RETURN_IF_ERROR(failure_);
    synced_ = true;
    rest = unsent();
  }
  start(rest);
  return {};
}

void PartUpload::close() {
  const std::scoped_lock lock(mutex_);
  open_ = false;
  release_if_sent();
}

// Needs the lock. Frees content that was written front to back and is in the store.
void PartUpload::release_if_sent() {
  const bool all = std::ranges::all_of(pieces_, [](const auto& each) { return each.second.sent; });
  if (!open_ && synced_ && all && failure_.ok() && under_way_ == 0 && hash_.hash()) {
    spool_.release();
  }
}

Status PartUpload::check_finished() const {
  const std::scoped_lock lock(mutex_);
  if (open_) return error(StatusCode::kInvalidArgument, path(), ": the part is still open");
  if (!failure_.ok()) return failure_.with_context(concat(path(), ": writing the part failed"));
  if (synced_) return {};
  return error(StatusCode::kInvalidArgument, path(),
               ": the part was not synced after its last write");
}

Status PartUpload::wait_until_sent(const Deadline& deadline) {
  for (;;) {
    std::vector<std::uint32_t> rest;
    {
      std::unique_lock lock(mutex_);
      if (!wait_until(changed_, lock, deadline.at(), [this] { return under_way_ == 0; })) {
        return deadline.check(concat("uploading ", path()));
      }
      if (!failure_.ok())
        return failure_.with_context(concat(path(), ": uploading the part failed"));
      rest = unsent();  // pieces that changed while they were being sent
    }
    if (rest.empty()) return {};
    start(rest);
  }
}

Status PartUpload::complete(std::uint64_t size, const Deadline& deadline) {
  if (size <= kPieceBytes) return {};
  const auto pieces = static_cast<std::uint32_t>((size + kPieceBytes - 1) / kPieceBytes);
  Status finished = upload_->finish(pieces, deadline);
  if (finished.code() != StatusCode::kNotFound) return finished;
  // An answer was lost: the store has the object, and no longer the upload.
  const Result<std::uint64_t> there = store_->size(key_, deadline);
  return there.ok() && *there == size ? Status() : finished;
}

Result<PartReceipt> PartUpload::finish(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(wait_until_sent(deadline));
  PartReceipt receipt;
  receipt.name = name_;
  receipt.size_bytes = hash_.size_bytes();
  DRIFTLESS_RETURN_IF_ERROR(complete(receipt.size_bytes, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(receipt.hash, hash());
  spool_.release();
  return receipt;
}

Result<Hash128> PartUpload::hash() const {
  if (const auto known = hash_.hash()) return *known;
  PartHash again;
  std::vector<std::byte> bytes;
  for (std::uint64_t done = 0; done < hash_.size_bytes(); done += bytes.size()) {
    bytes.resize(std::min(kPieceBytes, hash_.size_bytes() - done));
    DRIFTLESS_RETURN_IF_ERROR(spool_.read(done, bytes));
    again.wrote(done, bytes);
  }
  return *again.hash();
}

void PartUpload::drop() {
  std::unique_lock lock(mutex_);
  dropped_ = true;
  changed_.wait(lock, [this] { return under_way_ == 0; });
  if (upload_) upload_->drop();
}

}  // namespace driftless::object_store
