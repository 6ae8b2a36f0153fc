// SPDX-License-Identifier: Apache-2.0
// Checksums of a tensor's bytes as other tools write them: xxh3-128, blake3, adler32.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

enum class ChecksumKind : unsigned char {
  kXxh3_128,  // NOLINT(readability-identifier-naming): 3128 would be another number
  kBlake3,
  kAdler32,
};

[[nodiscard]] std::string_view to_string(ChecksumKind kind);  // "xxh3-128", "blake3", "adler32"
[[nodiscard]] Result<ChecksumKind> parse_checksum_kind(std::string_view name);

// One running checksum, fed in pieces. Used by one thread at a time.
class Checksum {
 public:
  explicit Checksum(ChecksumKind kind);

  void update(std::span<const std::byte> bytes) { algorithm_->update(bytes); }
  // The checksum of all bytes so far in lowercase hexadecimal: 32, 64 or 8 digits.
  [[nodiscard]] std::string hex() const { return algorithm_->hex(); }

  // The interface of the algorithms; checksum.cpp has one for each kind.
  class Algorithm {
   public:
    virtual ~Algorithm() = default;
    virtual void update(std::span<const std::byte> bytes) = 0;
    [[nodiscard]] virtual std::string hex() const = 0;
  };

 private:
  std::unique_ptr<Algorithm> algorithm_;
};

[[nodiscard]] std::string checksum_hex(ChecksumKind kind, std::span<const std::byte> bytes);

}  // namespace driftless
