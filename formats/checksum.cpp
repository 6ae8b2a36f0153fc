// SPDX-License-Identifier: Apache-2.0
#include "formats/checksum.h"

#include <zlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdint>

#include "core/hash128.h"
#include "formats/blake3.h"
#include "formats/strict_json.h"

namespace driftless {

namespace {

constexpr std::string_view kNames[] = {"xxh3-128", "blake3", "adler32"};  // in the enum's order

class Xxh3Algorithm final : public Checksum::Algorithm {
 public:
  Xxh3Algorithm() { XXH3_128bits_reset(&state_); }
  void update(std::span<const std::byte> bytes) override {
    XXH3_128bits_update(&state_, bytes.data(), bytes.size());
  }
  [[nodiscard]] std::string hex() const override {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    return to_hex(Hash128{hash.high64, hash.low64});
  }

 private:
  XXH3_state_t state_{};
};

class Adler32Algorithm final : public Checksum::Algorithm {
 public:
  void update(std::span<const std::byte> bytes) override {
    // For a null pointer zlib returns the start value, and the previous checksum would be lost.
    if (bytes.empty()) return;
    sum_ = ::adler32_z(sum_, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  }
  [[nodiscard]] std::string hex() const override {
    const std::uint32_t big_endian = __builtin_bswap32(static_cast<std::uint32_t>(sum_));
    return to_hex(std::as_bytes(std::span(&big_endian, 1)));
  }

 private:
  uLong sum_ = 1;
};

class Blake3Algorithm final : public Checksum::Algorithm {
 public:
  void update(std::span<const std::byte> bytes) override { hash_.update(bytes); }
  [[nodiscard]] std::string hex() const override { return to_hex(hash_.digest()); }

 private:
  Blake3 hash_;
};

std::unique_ptr<Checksum::Algorithm> make_algorithm(ChecksumKind kind) {
  switch (kind) {
    case ChecksumKind::kXxh3_128: return std::make_unique<Xxh3Algorithm>();
    case ChecksumKind::kBlake3: return std::make_unique<Blake3Algorithm>();
    case ChecksumKind::kAdler32: break;
  }
  return std::make_unique<Adler32Algorithm>();
}

}  // namespace

std::string_view to_string(ChecksumKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

Result<ChecksumKind> parse_checksum_kind(std::string_view name) {
  const auto* const at = std::ranges::find(kNames, name);
  if (at != std::end(kNames)) return static_cast<ChecksumKind>(at - kNames);
  return error(StatusCode::kInvalidArgument, "unknown checksum ", shown(name),
               "; known are xxh3-128, blake3 and adler32");
}

Checksum::Checksum(ChecksumKind kind) : algorithm_(make_algorithm(kind)) {}

std::string checksum_hex(ChecksumKind kind, std::span<const std::byte> bytes) {
  Checksum checksum(kind);
  checksum.update(bytes);
  return checksum.hex();
}

}  // namespace driftless
