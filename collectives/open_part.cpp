// SPDX-License-Identifier: Apache-2.0
#include "collectives/open_part.h"

#include <atomic>
#include <cstring>
#include <limits>

namespace driftless {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;  // between two checks of the deadline

}  // namespace

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
      return error(StatusCode::kNoSpace, what(), ": offset ", offset, " is too large");
    }
    const std::uint64_t end = offset + bytes.size();
    if (end > part_->size_bytes_ && part_->room_) {
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
    Status synced = part_->sync();
    part_->synced_ = synced.ok();
    part_->failed_ = part_->failed_ || !synced.ok();
    return synced;
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

Result<PartReceipt> OpenPart::finish(unsigned rank, const Deadline& deadline) {
  const std::scoped_lock lock(mutex_);
  if (open_ || failed_ || !synced_) {
    return error(failed_ ? StatusCode::kIo : StatusCode::kInvalidArgument, road_, ": part '", name_,
                 "'",
                 open_     ? " is still open"
                 : failed_ ? " could not be written; abort the publication"
                           : " was not synced after its last write");
  }
  PartReceipt receipt{.name = name_, .rank = rank, .size_bytes = size_bytes_, .hash = {}};
  DRIFTLESS_RETURN_IF_ERROR(complete(receipt, deadline));
  return receipt;
}

std::unique_ptr<File> make_part_file(std::shared_ptr<OpenPart> part) {
  return std::make_unique<OpenPartFile>(std::move(part));
}

Status HashedPart::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  DRIFTLESS_RETURN_IF_ERROR(store(offset, bytes));
  hash_.wrote(offset, bytes);
  return {};
}

Status HashedPart::complete(PartReceipt& receipt, const Deadline& deadline) {
  std::optional<Hash128> known = hash_.hash();
  if (!known.has_value()) {
    std::vector<std::byte> piece(std::min(size_bytes(), kPieceBytes));
    PartHash again;
    for (std::uint64_t done = 0; done < size_bytes(); done += piece.size()) {
      DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading part '", name(), "' back")));
      piece.resize(std::min<std::uint64_t>(piece.size(), size_bytes() - done));
      DRIFTLESS_RETURN_IF_ERROR(read(done, piece));
      again.wrote(done, piece);
    }
    known = again.hash();
  }
  receipt.hash = *known;
  return {};
}

Status BufferPart::store(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (buffer_.write(offset, bytes)) return {};
  return error(StatusCode::kNoSpace, "no memory for ", size_bytes(), " bytes");
}

Status BufferPart::read(std::uint64_t offset, std::span<std::byte> bytes) {
  std::memcpy(bytes.data(), buffer_.bytes().data() + offset, bytes.size());
  return {};
}

}  // namespace driftless
