// SPDX-License-Identifier: Apache-2.0
#include "collectives/open_part.h"

#include <atomic>
#include <cstring>
#include <limits>

namespace driftless {

class OpenPartFile final : public File {
 public:
  explicit OpenPartFile(std::shared_ptr<OpenPart> part) : part_(std::move(part)) {}
  OpenPartFile(const OpenPartFile&) = delete;
  OpenPartFile& operator=(const OpenPartFile&) = delete;
  ~OpenPartFile() override {
    const std::scoped_lock lock(part_->mutex_);
    part_->open_ = false;
    part_->file_closed(part_->synced_ && !part_->failed_);
  }

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const std::scoped_lock lock(part_->mutex_);
    if (bytes.empty()) return {};
    if (part_->closed_) {
      return error(StatusCode::kInvalidArgument, what(),
                   " belongs to a publication that was aborted or flushed");
    }
    if (offset > std::numeric_limits<std::int64_t>::max() - bytes.size()) {
      return error(StatusCode::kInvalidArgument, what(), ": offset ", offset, " is too large");
    }
    const std::uint64_t end = offset + bytes.size();
    if (end > part_->size_bytes_) {
      DRIFTLESS_RETURN_IF_ERROR(part_->room_(end - part_->size_bytes_).with_context(what()));
    }
    part_->synced_ = false;
    const std::uint64_t before =
        std::exchange(part_->size_bytes_, std::max(part_->size_bytes_, end));
    const Status written = part_->write(offset, bytes);
    if (written.ok()) return {};
    part_->size_bytes_ = before;
    part_->failed_ = true;
    return written.with_context(what());
  }

  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    const std::scoped_lock lock(part_->mutex_);
    if (bytes.empty()) return {};
    const std::uint64_t size = part_->size_bytes_;
    if (offset > size || bytes.size() > size - offset) {
      return error(StatusCode::kCorrupt, what(), " ends at byte ", size, ", ", bytes.size(),
                   " bytes were asked for at ", offset);
    }
    return part_->read(offset, bytes);
  }

  Status sync() override {
    const std::scoped_lock lock(part_->mutex_);
    DRIFTLESS_RETURN_IF_ERROR(part_->sync());
    part_->synced_ = true;
    return {};
  }

  [[nodiscard]] const std::string& path() const override { return part_->name_; }

 private:
  [[nodiscard]] std::string what() const {
    return concat(part_->road_, ": part '", part_->name_, "'");
  }
  const std::shared_ptr<OpenPart> part_;
};

TakeRoom make_byte_budget(std::uint64_t bytes, std::string option) {
  return [left = std::make_shared<std::atomic<std::uint64_t>>(bytes), bytes,
          option = std::move(option)](std::uint64_t more) {
    std::uint64_t now = *left;
    while (now >= more) {
      if (left->compare_exchange_weak(now, now - more)) return Status();
    }
    return error(StatusCode::kNoSpace, "does not fit into ", bytes, " bytes; raise ", option);
  };
}

void OpenPart::close() {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
}

Result<PartReceipt> OpenPart::finish(unsigned rank) {
  const std::scoped_lock lock(mutex_);
  if (open_ || failed_ || !synced_) {
    return error(failed_ ? StatusCode::kIo : StatusCode::kInvalidArgument, road_, ": part '", name_,
                 "' of rank ", rank,
                 open_     ? " is still open"
                 : failed_ ? " could not be written; abort the publication"
                           : " was not synced after its last write");
  }
  PartReceipt receipt{.name = name_, .rank = rank, .size_bytes = size_bytes_, .hash = {}};
  DRIFTLESS_RETURN_IF_ERROR(complete(receipt));
  return receipt;
}

std::unique_ptr<File> make_part_file(std::shared_ptr<OpenPart> part) {
  return std::make_unique<OpenPartFile>(std::move(part));
}

Status BufferPart::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!buffer_.write(offset, bytes)) {
    return error(StatusCode::kNoSpace, "no memory for ", size_bytes(), " bytes");
  }
  hash_.wrote(offset, bytes);
  return {};
}

Status BufferPart::read(std::uint64_t offset, std::span<std::byte> bytes) {
  std::memcpy(bytes.data(), buffer_.bytes().data() + offset, bytes.size());
  return {};
}

// Read back only if it was not written front to back.
Hash128 BufferPart::hash() const {
  const std::optional<Hash128> known = hash_.hash();
  return known ? *known : xxh3_128(buffer_.bytes());
}

Status BufferPart::complete(PartReceipt& receipt) {
  receipt.hash = hash();
  return {};
}

}  // namespace driftless
