// SPDX-License-Identifier: Apache-2.0
#include "formats/checksum.h"

#include <zlib.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#ifdef DRIFTLESS_HAS_LIBBLAKE3
#include <blake3.h>
#else
#include "formats/blake3.h"
#endif

#include <array>
#include <cstdint>
#include <utility>

#include "core/hash128.h"
#include "formats/strict_json.h"

namespace driftless {

class Checksum::Algorithm {
 public:
  virtual ~Algorithm() = default;
  virtual void update(std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual std::string hex() const = 0;
};

namespace {

struct KindName {
  ChecksumKind kind;
  std::string_view name;
};
constexpr std::array<KindName, 3> kKinds{{{ChecksumKind::kXxh3_128, "xxh3-128"},
                                          {ChecksumKind::kBlake3, "blake3"},
                                          {ChecksumKind::kAdler32, "adler32"}}};

std::string hex_of(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15U];
  }
  return text;
}

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
    // zlib answers a null pointer with the start value, forgetting what came before.
    if (bytes.empty()) return;
    sum_ = ::adler32_z(sum_, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  }
  [[nodiscard]] std::string hex() const override {
    std::array<std::byte, 4> big_endian;
    for (std::size_t i = 0; i < 4; ++i)
      big_endian[i] = static_cast<std::byte>(sum_ >> (24 - 8 * i));
    return hex_of(big_endian);
  }

 private:
  uLong sum_ = 1;
};

#ifdef DRIFTLESS_HAS_LIBBLAKE3

class Blake3Algorithm final : public Checksum::Algorithm {
 public:
  Blake3Algorithm() { blake3_hasher_init(&hasher_); }
  void update(std::span<const std::byte> bytes) override {
    blake3_hasher_update(&hasher_, bytes.data(), bytes.size());
  }
  [[nodiscard]] std::string hex() const override {
    std::array<std::uint8_t, BLAKE3_OUT_LEN> digest{};
    blake3_hasher_finalize(&hasher_, digest.data(), digest.size());
    return hex_of(std::as_bytes(std::span(digest)));
  }

 private:
  blake3_hasher hasher_{};
};

#else

class Blake3Algorithm final : public Checksum::Algorithm {
 public:
  void update(std::span<const std::byte> bytes) override { hash_.update(bytes); }
  [[nodiscard]] std::string hex() const override { return hex_of(hash_.digest()); }

 private:
  Blake3 hash_;
};

#endif

std::unique_ptr<Checksum::Algorithm> make_algorithm(ChecksumKind kind) {
  switch (kind) {
    case ChecksumKind::kXxh3_128: return std::make_unique<Xxh3Algorithm>();
    case ChecksumKind::kBlake3: return std::make_unique<Blake3Algorithm>();
    case ChecksumKind::kAdler32: break;
  }
  return std::make_unique<Adler32Algorithm>();
}

}  // namespace

std::string_view to_string(ChecksumKind kind) {
  for (const KindName& known : kKinds) {
    if (known.kind == kind) return known.name;
  }
  return "unknown";
}

Result<ChecksumKind> parse_checksum_kind(std::string_view name) {
  for (const KindName& known : kKinds) {
    if (known.name == name) return known.kind;
  }
  return error(StatusCode::kInvalidArgument, "unknown checksum ", shown(name),
               "; known are xxh3-128, blake3 and adler32");
}

Checksum::Checksum(ChecksumKind kind) : algorithm_(make_algorithm(kind)) {}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::update(std::span<const std::byte> bytes) { algorithm_->update(bytes); }

std::string Checksum::hex() const { return algorithm_->hex(); }

std::string checksum_hex(ChecksumKind kind, std::span<const std::byte> bytes) {
  Checksum checksum(kind);
  checksum.update(bytes);
  return checksum.hex();
}

}  // namespace driftless
