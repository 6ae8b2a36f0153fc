// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/part_memory.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace driftless::peer {
namespace {

constexpr std::uint64_t kFirstBytes = std::uint64_t{64} << 10;

}  // namespace

Segment::Segment(Segment&& other) noexcept
    : file_(std::move(other.file_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)),
      exposure_(std::move(other.exposure_)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  std::swap(exposure_, other.exposure_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr && !exposed()) ::munmap(data_, capacity_);
}

Status Segment::reserve(std::uint64_t bytes) {
  if (bytes <= capacity_) return {};
  if (exposed()) {  // its addresses must stay, so it grows in a new segment
    Segment larger;
    DRIFTLESS_RETURN_IF_ERROR(larger.reserve(bytes));
    std::memcpy(larger.data_, data_, capacity_);
    *this = std::move(larger);
    return {};
  }
  if (!file_.valid()) {
    Descriptor made(::memfd_create("driftless part", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!made.valid()) return errno_status(errno, "peer: memfd_create");
    // Readers rely on this: memory that they have mapped stays.
    if (::fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      return errno_status(errno, "peer: sealing the memory of a part");
    }
    file_ = std::move(made);
  }
  const std::uint64_t size = std::bit_ceil(std::max(bytes, kFirstBytes));
  const auto no_memory = [&](int code) {
    return error(StatusCode::kNoSpace, "peer: no memory for a part of ", bytes,
                 " bytes: ", std::strerror(code));
  };
  if (::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) return no_memory(errno);
  void* const at = data_ == nullptr
                       ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0)
                       : ::mremap(data_, capacity_, size, MREMAP_MAYMOVE);
  if (at == MAP_FAILED) return no_memory(errno);
  data_ = static_cast<std::byte*>(at);
  capacity_ = size;
  return {};
}

void ChunkSet::add(std::uint64_t chunk) {
  const std::scoped_lock lock(mutex_);
  has_[chunk] = true;
}

bool ChunkSet::has(std::uint64_t chunk) const {
  const std::scoped_lock lock(mutex_);
  return has_[chunk];
}

bool ChunkSet::covers(const ByteRange& range) const {
  if (range.size_bytes == 0) return true;
  const std::scoped_lock lock(mutex_);
  const auto first = has_.begin() + static_cast<std::ptrdiff_t>(range.offset / kChunkBytes);
  const std::uint64_t last = (range.offset + range.size_bytes - 1) / kChunkBytes;
  return std::find(first, has_.begin() + static_cast<std::ptrdiff_t>(last) + 1, false) ==
         has_.begin() + static_cast<std::ptrdiff_t>(last) + 1;
}

const std::vector<Hash128>& StoredPart::chunk_hashes() const {
  std::call_once(hashed_, [this] {
    hashes_.resize(chunks_in(size_bytes));
    for (std::uint64_t i = 0; i < hashes_.size(); ++i) {
      const ByteRange range = chunk_at(i, size_bytes);
      hashes_[i] = xxh3_128(bytes().subspan(range.offset, range.size_bytes));
    }
  });
  return hashes_;
}

Segment PartStore::take_memory() {
  const std::scoped_lock lock(mutex_);
  if (spare_.empty()) return {};
  Segment memory = std::move(spare_.back());
  spare_.pop_back();
  spare_bytes_ -= memory.capacity();
  return memory;
}

void PartStore::give_back(Segment memory) {
  const std::scoped_lock lock(mutex_);
  if (spare_bytes_ + memory.capacity() > most_spare_) return;
  spare_bytes_ += memory.capacity();
  spare_.push_back(std::move(memory));
}

std::shared_ptr<const StoredPart> PartStore::put(const PublicationId& id, const std::string& name,
                                                 Segment memory, std::uint64_t bytes,
                                                 std::unique_ptr<ChunkSet> chunks) {
  auto part = std::make_unique<StoredPart>();
  part->memory = std::move(memory);
  part->size_bytes = bytes;
  part->chunks = std::move(chunks);
  // The last reader, or the store, releases it. The store may be gone by then.
  std::shared_ptr<const StoredPart> shared(
      part.release(), [store = weak_from_this()](const StoredPart* done) {
        const std::unique_ptr<StoredPart> owned(const_cast<StoredPart*>(done));
        const std::shared_ptr<PartStore> home = store.lock();
        if (home != nullptr && !owned->shared) home->give_back(std::move(owned->memory));
      });
  std::shared_ptr<const StoredPart> before;  // destroyed without the lock
  const std::scoped_lock lock(mutex_);
  before = std::exchange(parts_[id][name], shared);
  return shared;
}

std::shared_ptr<const StoredPart> PartStore::find(const PublicationId& id,
                                                  const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  const auto publication = parts_.find(id);
  if (publication == parts_.end()) return nullptr;
  const auto part = publication->second.find(name);
  return part == publication->second.end() ? nullptr : part->second;
}

void PartStore::drop(const PublicationId& id) {
  decltype(parts_)::node_type gone;  // destroyed without the lock: it may call give_back()
  const std::scoped_lock lock(mutex_);
  gone = parts_.extract(id);
}

void PartStore::keep_only(const std::vector<PublicationId>& ids) {
  std::vector<decltype(parts_)::node_type> gone;
  const std::scoped_lock lock(mutex_);
  for (auto it = parts_.begin(); it != parts_.end();) {
    const auto next = std::next(it);
    if (std::ranges::find(ids, it->first) == ids.end()) gone.push_back(parts_.extract(it));
    it = next;
  }
}

Status SegmentPart::store(std::uint64_t offset, std::span<const std::byte> bytes) {
  DRIFTLESS_RETURN_IF_ERROR(memory_.reserve(size_bytes()));
  if (offset > written_) std::memset(memory_.data() + written_, 0, offset - written_);
  if (!bytes.empty()) std::memcpy(memory_.data() + offset, bytes.data(), bytes.size());
  written_ = std::max(written_, offset + bytes.size());
  return {};
}

Status SegmentPart::read(std::uint64_t offset, std::span<std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(bytes.data(), memory_.data() + offset, bytes.size());
  return {};
}

}  // namespace driftless::peer
