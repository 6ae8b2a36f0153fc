// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_shm/part_segment.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <vector>

namespace driftless::host_shm {
namespace {
constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max();
}  // namespace

class SegmentFile final : public File {
 public:
  explicit SegmentFile(std::shared_ptr<PartSegment> part) : part_(std::move(part)) {}
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;
  ~SegmentFile() override {
    const std::scoped_lock lock(part_->mutex_);
    part_->open_ = false;
  }

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const std::scoped_lock lock(part_->mutex_);
    if (bytes.empty()) return {};
    if (part_->closed_) {
      return error(StatusCode::kInvalidArgument, "host_shm: part '", part_->name_,
                   "' belongs to a publication that was aborted or flushed");
    }
    if (offset > kMostBytes - bytes.size()) {
      return error(StatusCode::kInvalidArgument, part_->name_, ": offset ", offset,
                   " is too large");
    }
    const std::uint64_t end = offset + bytes.size();
    if (end > part_->size_bytes_) {
      DRIFTLESS_RETURN_IF_ERROR(part_->room_(end - part_->size_bytes_)
                                    .with_context(concat("host_shm: part '", part_->name_, "'")));
      part_->size_bytes_ = end;
    }
    part_->synced_ = false;
    DRIFTLESS_RETURN_IF_ERROR(write_all(part_->file_, offset, bytes, part_->name_));
    part_->hash_.wrote(offset, bytes);
    return {};
  }

  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    const std::scoped_lock lock(part_->mutex_);
    return read_all(part_->file_, offset, bytes, part_->name_);
  }

  Status sync() override {
    const std::scoped_lock lock(part_->mutex_);
    part_->synced_ = true;
    return {};
  }

  [[nodiscard]] const std::string& path() const override { return part_->name_; }

 private:
  std::shared_ptr<PartSegment> part_;
};

PartSegment::PartSegment(std::string name, std::string file_name, Descriptor file, TakeRoom room)
    : name_(std::move(name)),
      file_name_(std::move(file_name)),
      file_(std::move(file)),
      room_(std::move(room)) {}

std::uint64_t PartSegment::size_bytes() const {
  const std::scoped_lock lock(mutex_);
  return size_bytes_;
}

void PartSegment::close() {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
}

Status PartSegment::fill(std::uint64_t size) {
  int failure = EINTR;
  while (failure == EINTR) {
    failure = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(size));
  }
  if (failure == 0) return {};
  return errno_status(failure, concat("host_shm: memory for part '", name_,
                                      "'; enlarge the file system or lower road.host_shm.size"));
}

Result<Hash128> PartSegment::read_hash(std::uint64_t size) {
  PartHash hash;
  std::vector<std::byte> piece(std::min(size, kReadBytes));
  for (std::uint64_t at = 0; at < size; at += piece.size()) {
    piece.resize(std::min(size - at, kReadBytes));
    DRIFTLESS_RETURN_IF_ERROR(read_all(file_, at, piece, name_));
    hash.wrote(at, piece);
  }
  return *hash.hash();
}

Result<PartReceipt> PartSegment::finish(std::uint64_t index) {
  const std::scoped_lock lock(mutex_);
  if (open_ || !synced_) {
    return error(StatusCode::kInvalidArgument, "host_shm: part '", name_, "'",
                 open_ ? " is still open" : " was not synced after its last write");
  }
  PartReceipt receipt;
  receipt.name = name_;
  receipt.size_bytes = size_bytes_;
  receipt.locator = index;
  const std::optional<Hash128> hash = hash_.hash();
  if (hash.has_value() && hash_.size_bytes() == size_bytes_) {
    receipt.hash = *hash;
  } else {
    if (size_bytes_ > 0) DRIFTLESS_RETURN_IF_ERROR(fill(size_bytes_));
    DRIFTLESS_ASSIGN_OR_RETURN(receipt.hash, read_hash(size_bytes_));
  }
  return receipt;
}

std::unique_ptr<File> make_segment_file(std::shared_ptr<PartSegment> segment) {
  return std::make_unique<SegmentFile>(std::move(segment));
}

}  // namespace driftless::host_shm
