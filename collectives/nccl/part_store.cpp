// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/part_store.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace driftless::nccl {

// How much may still be written.
struct PartStore::Room {
  explicit Room(std::uint64_t bytes) : left(bytes) {}
  [[nodiscard]] bool take(std::uint64_t bytes) {
    std::uint64_t now = left;
    while (now >= bytes) {
      if (left.compare_exchange_weak(now, now - bytes)) return true;
    }
    return false;
  }
  std::atomic<std::uint64_t> left;
};

struct PartStore::Part {
  std::string name;
  std::mutex mutex;
  Block block;             // its size is the capacity
  std::uint64_t size = 0;  // of what was written
  bool synced = false;     // since the last write
  bool open = true;
};

namespace {

constexpr std::uint64_t kFirstBytes = std::uint64_t{64} << 10;

// So that it holds `size` bytes; what is there moves along.
Status grow(Fabric& fabric, PartStore::Part& part, std::uint64_t size) {
  if (size <= part.block.size) return {};
  const std::uint64_t twice =
      part.block.size > std::numeric_limits<std::uint64_t>::max() / 2 ? size : part.block.size * 2;
  DRIFTLESS_ASSIGN_OR_RETURN(const Block larger,
                             fabric.allocate(std::max({size, twice, kFirstBytes})));
  if (part.size > 0) {
    DRIFTLESS_RETURN_IF_ERROR(fabric.copy(larger.data, part.block.data, part.size));
  }
  part.block = larger;
  return {};
}

class PartFile final : public File {
 public:
  PartFile(std::shared_ptr<Fabric> fabric, std::shared_ptr<PartStore::Part> part,
           std::shared_ptr<PartStore::Room> room)
      : fabric_(std::move(fabric)), part_(std::move(part)), room_(std::move(room)) {}
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
    if (end > part_->size && !room_->take(end - part_->size)) {
      return error(StatusCode::kNoSpace, "nccl: part '", part_->name, "' does not fit at byte ",
                   offset, "; raise ring_size");
    }
    part_->synced = false;
    DRIFTLESS_RETURN_IF_ERROR(grow(*fabric_, *part_, end).with_context(part_->name));
    if (offset > part_->size) {
      DRIFTLESS_RETURN_IF_ERROR(
          fabric_->zero(part_->block.data + part_->size, offset - part_->size));
    }
    DRIFTLESS_RETURN_IF_ERROR(
        fabric_->copy(part_->block.data + offset, bytes.data(), bytes.size()));
    part_->size = std::max(part_->size, end);
    return {};
  }

  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    const std::scoped_lock lock(part_->mutex);
    if (bytes.empty()) return {};
    if (offset > part_->size || bytes.size() > part_->size - offset) {
      return error(StatusCode::kCorrupt, part_->name, ": ends at byte ", part_->size);
    }
    return fabric_->copy(bytes.data(), part_->block.data + offset, bytes.size());
  }

  Status sync() override {
    const std::scoped_lock lock(part_->mutex);
    part_->synced = true;
    return {};
  }

  [[nodiscard]] const std::string& path() const override { return part_->name; }

 private:
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<PartStore::Part> part_;
  std::shared_ptr<PartStore::Room> room_;
};

}  // namespace

PartStore::PartStore(std::shared_ptr<Fabric> fabric, unsigned rank, std::uint64_t most_bytes)
    : fabric_(std::move(fabric)), rank_(rank), room_(std::make_shared<Room>(most_bytes)) {}

Result<std::unique_ptr<File>> PartStore::create(const std::string& name) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(name));
  if (std::ranges::any_of(parts_, [&](const auto& part) { return part->name == name; })) {
    return error(StatusCode::kAlreadyExists, "nccl: rank ", rank_, " has a part '", name,
                 "' already");
  }
  parts_.push_back(std::make_shared<Part>());
  parts_.back()->name = name;
  return std::unique_ptr<File>(std::make_unique<PartFile>(fabric_, parts_.back(), room_));
}

Result<PartStore::Finished> PartStore::finish() {
  Finished finished;
  std::vector<std::span<const std::byte>> stretches;
  for (const auto& part : parts_) {
    const std::scoped_lock lock(part->mutex);
    if (part->open || !part->synced) {
      return error(StatusCode::kInvalidArgument, "nccl: part '", part->name, "' of rank ", rank_,
                   part->open ? " is still open" : " was not synced after its last write");
    }
    finished.receipts.push_back({part->name, rank_, part->size, {}, 0});
    finished.blocks.push_back({part->block.owner, part->block.data, part->size});
    stretches.emplace_back(part->block.data, part->size);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Hash128> hashes, fabric_->hash(stretches));
  for (std::size_t i = 0; i < hashes.size(); ++i) finished.receipts[i].hash = hashes[i];
  return finished;
}

}  // namespace driftless::nccl
