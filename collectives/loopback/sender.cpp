// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <utility>

#include "collectives/loopback/medium.h"
#include "collectives/part_hash.h"

namespace driftless {
namespace {

// A part while it is written: shared by the road and by the file, which may outlive it.
struct OpenPart {
  std::string name;
  std::mutex mutex;
  PartBuffer buffer;
  PartHash hash;
  bool synced = false;  // since the last write
  bool open = true;
};

// How much this rank may still write.
class Room {
 public:
  explicit Room(std::uint64_t bytes) : left_(bytes) {}
  [[nodiscard]] bool take(std::uint64_t bytes) {
    std::uint64_t left = left_;
    while (left >= bytes) {
      if (left_.compare_exchange_weak(left, left - bytes)) return true;
    }
    return false;
  }

 private:
  std::atomic<std::uint64_t> left_;
};

class PartFile final : public File {
 public:
  PartFile(std::shared_ptr<OpenPart> part, std::shared_ptr<Room> room)
      : part_(std::move(part)), room_(std::move(room)) {}
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() override {
    const std::scoped_lock lock(part_->mutex);
    part_->open = false;
  }

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const std::scoped_lock lock(part_->mutex);
    if (bytes.empty()) return {};
    if (offset > std::numeric_limits<std::uint64_t>::max() - bytes.size()) {
      return error(StatusCode::kInvalidArgument, part_->name, ": offset ", offset, " is too large");
    }
    const std::uint64_t end = offset + bytes.size();
    const std::uint64_t size = part_->buffer.bytes().size();
    if (end > size && !room_->take(end - size)) {
      return error(StatusCode::kNoSpace, "loopback: part '", part_->name, "' does not fit at byte ",
                   offset, "; raise ring_bytes");
    }
    part_->synced = false;
    if (!part_->buffer.write(offset, bytes)) {
      return error(StatusCode::kNoSpace, "loopback: no memory for part '", part_->name,
                   "' of at least ", end, " bytes");
    }
    part_->hash.wrote(offset, bytes);
    return {};
  }

  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    const std::scoped_lock lock(part_->mutex);
    if (bytes.empty()) return {};
    const std::span<const std::byte> held = part_->buffer.bytes();
    if (offset > held.size() || bytes.size() > held.size() - offset) {
      return error(StatusCode::kCorrupt, part_->name, ": ends at byte ", held.size());
    }
    std::memcpy(bytes.data(), held.data() + offset, bytes.size());
    return {};
  }

  Status sync() override {
    const std::scoped_lock lock(part_->mutex);
    part_->synced = true;
    return {};
  }

  [[nodiscard]] const std::string& path() const override { return part_->name; }

 private:
  std::shared_ptr<OpenPart> part_;
  std::shared_ptr<Room> room_;
};

// The part as receivers will see it. Its bytes are moved out: nobody writes any more.
LoopbackPart finish(OpenPart& part, unsigned rank, PartPool& pool) {
  const std::scoped_lock lock(part.mutex);
  LoopbackPart finished;
  finished.receipt.name = part.name;
  finished.receipt.rank = rank;
  finished.receipt.size_bytes = part.buffer.bytes().size();
  const std::optional<Hash128> hash = part.hash.hash();
  finished.receipt.hash = hash.has_value() ? *hash : xxh3_128(part.buffer.bytes());
  finished.buffer = pool.share(std::move(part.buffer));
  return finished;
}

class LoopbackSender final : public SendRoad {
 public:
  LoopbackSender(std::shared_ptr<LoopbackMedium> medium, unsigned rank)
      : medium_(std::move(medium)), rank_(rank) {}
  LoopbackSender(const LoopbackSender&) = delete;
  LoopbackSender& operator=(const LoopbackSender&) = delete;
  ~LoopbackSender() override { drop(); }

  Status announce(std::string_view run_info, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: announcing the run"));
    return medium_->announce(run_info);
  }

  Status begin(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("loopback: beginning ", to_string(id))));
    drop();
    DRIFTLESS_ASSIGN_OR_RETURN(attempt_, medium_->begin(id, rank_));
    // Anchors are beside the ring.
    room_ = std::make_shared<Room>(id.kind == PublicationKind::kStep
                                       ? medium_->options().ring_bytes
                                       : std::numeric_limits<std::uint64_t>::max());
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
    if (std::ranges::any_of(parts_, [&](const auto& part) { return part->name == name; })) {
      return error(StatusCode::kAlreadyExists, "loopback: rank ", rank_, " has a part '", name,
                   "' already");
    }
    parts_.push_back(std::make_shared<OpenPart>());
    parts_.back()->buffer = pool_->take();
    parts_.back()->name = name;
    return std::unique_ptr<File>(std::make_unique<PartFile>(parts_.back(), room_));
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: flushing"));
    for (const auto& part : parts_) {
      const std::scoped_lock lock(part->mutex);
      if (part->open || !part->synced) {
        return error(StatusCode::kInvalidArgument, "loopback: part '", part->name, "' of rank ",
                     rank_, part->open ? " is still open" : " was not synced after its last write");
      }
    }
    std::vector<LoopbackPart> finished;
    std::vector<PartReceipt> receipts;
    for (const auto& part : parts_) {
      finished.push_back(finish(*part, rank_, *pool_));
      receipts.push_back(finished.back().receipt);
    }
    parts_.clear();
    DRIFTLESS_RETURN_IF_ERROR(medium_->flush(*attempt_, rank_, std::move(finished)));
    return receipts;
  }

  Status seal(std::string_view manifest, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: sealing"));
    DRIFTLESS_RETURN_IF_ERROR(medium_->seal(*attempt_, manifest));
    attempt_.reset();
    return {};
  }

  Status abort() override {
    drop();
    return {};
  }

  Result<std::optional<Hash128>> published(const PublicationId& id, const Deadline&) override {
    return medium_->published(id);
  }
  Result<std::vector<ReceiverReport>> receivers() override { return medium_->receivers(); }
  Result<std::vector<PublicationId>> prune(std::uint64_t) override {
    return std::vector<PublicationId>();  // the ring makes room by itself
  }
  [[nodiscard]] MemoryKind part_memory() const override { return MemoryKind::kHost; }
  void progress() override {}

 private:
  [[nodiscard]] Status check_begun(std::string_view what) const {
    if (attempt_.has_value()) return {};
    return error(StatusCode::kInvalidArgument, "loopback: ", what, " on rank ", rank_,
                 " without a begin()");
  }

  void drop() {
    parts_.clear();
    if (attempt_.has_value()) medium_->abort(*attempt_, rank_);
    attempt_.reset();
  }

  std::shared_ptr<LoopbackMedium> medium_;
  const unsigned rank_;
  const std::shared_ptr<PartPool> pool_ = std::make_shared<PartPool>();
  std::optional<std::uint64_t> attempt_;  // of the medium; none: nothing was begun
  std::shared_ptr<Room> room_;
  std::vector<std::shared_ptr<OpenPart>> parts_;
};

}  // namespace

std::unique_ptr<SendRoad> make_loopback_sender(std::shared_ptr<LoopbackMedium> medium,
                                               unsigned rank) {
  return std::make_unique<LoopbackSender>(std::move(medium), rank);
}

}  // namespace driftless
