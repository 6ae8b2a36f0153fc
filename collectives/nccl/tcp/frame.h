// SPDX-License-Identifier: Apache-2.0
// Messages in a stream of bytes: length, proof, content. The proof is over direction, number and
// content, so that none can be changed, left out, sent twice or sent back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless::nccl {

enum class Direction : unsigned char { kToServer = 1, kToClient = 2 };

class FrameWriter {
 public:
  FrameWriter(std::string key, Direction direction) : key_(std::move(key)), direction_(direction) {}
  [[nodiscard]] Result<std::string> frame(std::string_view content);

 private:
  std::string key_;
  Direction direction_;
  std::uint64_t number_ = 0;
};

class FrameReader {
 public:
  FrameReader(std::string key, Direction direction) : key_(std::move(key)), direction_(direction) {}
  void append(std::string_view bytes) { bytes_.append(bytes); }
  // The next whole message; nothing where it has not arrived. kCorrupt: the stream is no good.
  [[nodiscard]] Result<std::optional<std::string>> next();

 private:
  std::string key_;
  Direction direction_;
  std::uint64_t number_ = 0;
  std::string bytes_;
  std::size_t taken_ = 0;  // of bytes_
};

}  // namespace driftless::nccl
