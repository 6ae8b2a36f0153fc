// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/part_ring.h"

#include <cstring>
#include <limits>

namespace driftless::mpi_rma {

// The publisher's file of a part.
class RingFile final : public File {
 public:
  RingFile(std::shared_ptr<PartRing> ring, std::uint64_t turn, std::size_t index, std::string name)
      : ring_(std::move(ring)), turn_(turn), index_(index), name_(std::move(name)) {}
  ~RingFile() override { ring_->close(turn_, index_); }
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return ring_->write(turn_, index_, offset, bytes).with_context(name_);
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return ring_->read(turn_, index_, offset, bytes).with_context(name_);
  }
  Status sync() override { return ring_->sync(turn_, index_).with_context(name_); }
  [[nodiscard]] const std::string& path() const override { return name_; }

 private:
  std::shared_ptr<PartRing> ring_;
  std::uint64_t turn_;
  std::size_t index_;
  std::string name_;
};

PartRing::PartRing(std::span<std::byte> memory, unsigned versions, std::string option,
                   std::function<void(std::uint64_t)> raise)
    : memory_(memory), versions_(versions), option_(std::move(option)), raise_(std::move(raise)) {}

void PartRing::begin(std::uint64_t version) {
  const std::unique_lock lock(mutex_);
  drop_locked();
  current_ = Publication{version, head_};
  while (live_.size() >= versions_) evict_oldest();
}

Result<std::unique_ptr<File>> PartRing::create(const std::string& name) {
  const std::unique_lock lock(mutex_);
  if (!current_) return error(StatusCode::kInvalidArgument, name, ": no publication was begun");
  if (std::any_of(parts_.begin(), parts_.end(), [&](const Part& p) { return p.name == name; })) {
    return error(StatusCode::kAlreadyExists, name, ": this publication has a part of that name");
  }
  Part& part = parts_.emplace_back();
  part.name = name;
  part.open = true;
  if (!growing_) {
    if (const Status status = place(part); !status.ok()) {
      parts_.pop_back();
      return status.with_context(name);
    }
    growing_ = parts_.size() - 1;
  }
  return std::unique_ptr<File>(
      std::make_unique<RingFile>(shared_from_this(), turn_, parts_.size() - 1, name));
}

Result<std::vector<PartReceipt>> PartRing::flush() {
  const std::unique_lock lock(mutex_);
  if (!current_) return error(StatusCode::kInvalidArgument, "flush() of no publication");
  for (Part& part : parts_) {
    if (part.open || !part.hash) {
      return error(StatusCode::kInvalidArgument, part.name,
                   ": still open, or not synced since it was written");
    }
    if (!part.placed) DRIFTLESS_RETURN_IF_ERROR(place(part).with_context(part.name));
  }
  std::vector<PartReceipt> receipts;
  for (Part& part : parts_) {  // after all are placed, because placing one may move others
    const PartLabel label{
        .version = current_->version, .size_bytes = part.size, .name = xxh3_128(part.name)};
    std::memcpy(block(part), &label, sizeof(label));
    receipts.push_back({.name = part.name,
                        .rank = 0,
                        .size_bytes = part.size,
                        .hash = *part.hash,
                        .locator = part.at % memory_.size() + sizeof(label)});
  }
  return receipts;
}

Result<std::uint64_t> PartRing::append(std::string_view bytes) {
  const std::unique_lock lock(mutex_);
  if (!current_) return error(StatusCode::kInvalidArgument, "append() to no publication");
  const std::uint64_t capacity = memory_.size();
  std::uint64_t position = head_;
  if (bytes.size() > capacity) return too_small(bytes.size());
  // Parts stay where the receipts place them, so only the new bytes may be placed elsewhere.
  if (position % capacity + bytes.size() > capacity) position = round_up(position, capacity);
  const std::uint64_t end = position + bytes.size();
  if (end - current_->begin > capacity) {
    restart_ = true;
    return too_small(end - current_->begin);
  }
  evict_before(end);
  if (!bytes.empty()) std::memcpy(&memory_[position % capacity], bytes.data(), bytes.size());
  head_ = round_up(end, kPartAlignment);
  return position % capacity;
}

void PartRing::finish() {
  const std::unique_lock lock(mutex_);
  if (!current_) return;
  live_.push_back(*current_);
  current_.reset();
  parts_.clear();
  growing_.reset();
  ++turn_;
}

void PartRing::drop() {
  const std::unique_lock lock(mutex_);
  drop_locked();
}

void PartRing::drop_locked() {
  if (current_) head_ = restart_ ? round_up(head_, memory_.size()) : current_->begin;
  restart_ = false;
  current_.reset();
  parts_.clear();
  growing_.reset();
  ++turn_;
}

Status PartRing::write(std::uint64_t turn, std::size_t index, std::uint64_t offset,
                       std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  if (offset > std::numeric_limits<std::uint64_t>::max() / 4 - bytes.size()) {
    return error(StatusCode::kInvalidArgument, "offset ", offset, " is beyond any part");
  }
  {
    const std::unique_lock lock(mutex_);
    DRIFTLESS_RETURN_IF_ERROR(check(turn, index));
    Part& part = parts_[index];
    const std::uint64_t old_size = part.size;
    DRIFTLESS_RETURN_IF_ERROR(grow(part, offset + bytes.size()));
    part.hash.reset();
    // A gap reads as zeros, as in a file.
    if (offset > old_size) std::memset(this->bytes(part) + old_size, 0, offset - old_size);
  }
  const std::shared_lock lock(mutex_);
  DRIFTLESS_RETURN_IF_ERROR(check(turn, index));
  std::memcpy(this->bytes(parts_[index]) + offset, bytes.data(), bytes.size());
  parts_[index].hashing->wrote(offset, bytes);
  return {};
}

Status PartRing::read(std::uint64_t turn, std::size_t index, std::uint64_t offset,
                      std::span<std::byte> bytes) {
  if (bytes.empty()) return {};
  const std::shared_lock lock(mutex_);
  DRIFTLESS_RETURN_IF_ERROR(check(turn, index));
  Part& part = parts_[index];
  if (offset > part.size || bytes.size() > part.size - offset) {
    return error(StatusCode::kCorrupt, "ends at ", part.size, ", read of ", bytes.size(),
                 " bytes at ", offset);
  }
  std::memcpy(bytes.data(), this->bytes(part) + offset, bytes.size());
  return {};
}

Status PartRing::sync(std::uint64_t turn, std::size_t index) {
  {
    const std::unique_lock lock(mutex_);
    DRIFTLESS_RETURN_IF_ERROR(check(turn, index));
    Part& part = parts_[index];
    if (!part.placed && !growing_) {
      DRIFTLESS_RETURN_IF_ERROR(place(part));
      growing_ = index;
    }
  }
  Hash128 hash;
  {
    const std::shared_lock lock(mutex_);
    DRIFTLESS_RETURN_IF_ERROR(check(turn, index));
    Part& part = parts_[index];
    const std::optional<Hash128> known = part.hashing->hash();
    hash = known ? *known : xxh3_128(std::span<const std::byte>(bytes(part), part.size));
  }
  const std::unique_lock lock(mutex_);
  DRIFTLESS_RETURN_IF_ERROR(check(turn, index));
  parts_[index].hash = hash;
  return {};
}

void PartRing::close(std::uint64_t turn, std::size_t index) {
  const std::unique_lock lock(mutex_);
  if (turn != turn_ || index >= parts_.size()) return;
  parts_[index].open = false;
  if (growing_ == index) growing_.reset();
}

Status PartRing::check(std::uint64_t turn, std::size_t index) const {
  if (turn == turn_ && index < parts_.size()) return {};
  return error(StatusCode::kInvalidArgument, "its publication was sealed or dropped");
}

Status PartRing::grow(Part& part, std::uint64_t size) {
  if (size <= part.size) return {};
  if (size > memory_.size()) return too_small(size);
  if (part.placed) return grow_in_ring(part, size);
  if (!part.buffer.resize(size)) {
    return error(StatusCode::kNoSpace, "no memory for a part of ", size,
                 " bytes that is written while another one is open");
  }
  part.size = size;
  return {};
}

// The growing part is the last one in the ring: the bytes after it are free or belong to older
// publications.
Status PartRing::grow_in_ring(Part& part, std::uint64_t size) {
  const std::uint64_t capacity = memory_.size();
  const std::uint64_t needed = sizeof(PartLabel) + size;
  std::uint64_t target = part.at;
  if (target % capacity + needed > capacity) target = round_up(target, capacity);
  // If it is the first part, the publication begins with it.
  const bool first = part.at == current_->begin;
  const std::uint64_t begin = first ? target : current_->begin;
  if (target + needed - begin > capacity) return compact(part, size);
  evict_before(target + needed);
  if (target != part.at) {
    const std::byte* from = block(part);
    current_->begin = begin;
    part.at = target;
    std::memmove(block(part), from, sizeof(PartLabel) + part.size);
  }
  part.size = size;
  head_ = round_up(target + needed, kPartAlignment);
  return {};
}

// Evicts everything else, and moves the parts together to the beginning of the memory, `last` after
// the others.
Status PartRing::compact(Part& last, std::uint64_t size) {
  const std::uint64_t capacity = memory_.size();
  std::vector<Part*> order;
  std::uint64_t needed = sizeof(PartLabel) + size;
  for (Part& part : parts_) {
    if (!part.placed || &part == &last) continue;
    order.push_back(&part);
    needed += round_up(sizeof(PartLabel) + part.size, kPartAlignment);
  }
  if (needed > capacity) return too_small(needed);
  PartBuffer aside;
  if (!aside.write(0, {bytes(last), last.size})) {
    return error(StatusCode::kNoSpace, "no memory to move a part of ", last.size, " bytes");
  }
  while (!live_.empty()) evict_oldest();
  std::sort(order.begin(), order.end(),
            [&](const Part* a, const Part* b) { return a->at % capacity < b->at % capacity; });
  const std::uint64_t begin = round_up(head_, capacity);
  std::uint64_t position = begin;
  for (Part* part : order) {  // each moves downwards, or stays
    const std::byte* from = block(*part);
    const std::uint64_t moved = sizeof(PartLabel) + part->size;
    part->at = position;
    std::memmove(block(*part), from, moved);
    position += round_up(moved, kPartAlignment);
  }
  current_->begin = begin;
  last.at = position;
  last.size = size;
  if (!aside.bytes().empty()) {
    std::memcpy(bytes(last), aside.bytes().data(), aside.bytes().size());
  }
  head_ = round_up(position + sizeof(PartLabel) + size, kPartAlignment);
  return {};
}

// Copies a part from its buffer into the ring, after all others there.
Status PartRing::place(Part& part) {
  const std::uint64_t size = std::exchange(part.size, 0);
  part.placed = true;
  part.at = head_;
  if (const Status status = grow_in_ring(part, size); !status.ok()) {
    part.placed = false;
    part.size = size;
    return status;
  }
  if (size > 0) std::memcpy(bytes(part), part.buffer.bytes().data(), size);
  part.buffer = {};
  return {};
}

// Makes room for positions up to `end_position`; the caller has checked that current_ itself fits.
void PartRing::evict_before(std::uint64_t end_position) {
  while (!live_.empty() && end_position - live_.front().begin > memory_.size()) evict_oldest();
}

void PartRing::evict_oldest() {
  live_.pop_front();
  raise_(live_.empty() ? current_->version : live_.front().version);
}

std::byte* PartRing::block(const Part& part) { return memory_.data() + part.at % memory_.size(); }

std::byte* PartRing::bytes(Part& part) {
  return part.placed ? block(part) + sizeof(PartLabel) : part.buffer.writable().data();
}

Status PartRing::too_small(std::uint64_t needed) const {
  return error(StatusCode::kNoSpace, "the publication needs ", needed, " bytes, and this rank has ",
               memory_.size(), ": raise ", option_);
}

}  // namespace driftless::mpi_rma
