// SPDX-License-Identifier: Apache-2.0
#include "collectives/part_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace driftless {

struct PartHash::Stream {
  XXH3_state_t state;
};

PartHash::PartHash() : stream_(std::make_unique<Stream>()) { XXH3_128bits_reset(&stream_->state); }

PartHash::~PartHash() = default;

void PartHash::wrote(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const std::scoped_lock lock(mutex_);
  if (offset != size_bytes_) stream_.reset();
  if (stream_ != nullptr) XXH3_128bits_update(&stream_->state, bytes.data(), bytes.size());
  size_bytes_ = std::max(size_bytes_, offset + bytes.size());
}

std::uint64_t PartHash::size_bytes() const {
  const std::scoped_lock lock(mutex_);
  return size_bytes_;
}

std::optional<Hash128> PartHash::hash() const {
  const std::scoped_lock lock(mutex_);
  if (stream_ == nullptr) return std::nullopt;
  const XXH128_hash_t hash = XXH3_128bits_digest(&stream_->state);
  return Hash128{hash.high64, hash.low64};
}

Result<Hash128> hash_by(std::span<const std::byte> bytes, const Deadline& deadline,
                        std::string_view what) {
  constexpr std::size_t kPieceBytes = std::size_t{64} << 20;
  if (bytes.size() <= kPieceBytes) return xxh3_128(bytes);
  PartHash hash;
  for (std::size_t done = 0; done < bytes.size(); done += kPieceBytes) {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("hashing ", what)));
    hash.wrote(done, bytes.subspan(done, std::min(kPieceBytes, bytes.size() - done)));
  }
  return *hash.hash();
}

}  // namespace driftless
