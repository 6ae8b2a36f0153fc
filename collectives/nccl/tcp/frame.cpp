// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/tcp/frame.h"

#include <cstring>

#include "collectives/nccl/message.h"
#include "collectives/nccl/tcp/handshake.h"

namespace driftless::nccl {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kHeaderBytes = kLengthBytes + kProofBytes;

Result<std::string> proof_of(std::string_view key, Direction direction, std::uint64_t number,
                             std::string_view content) {
  std::string text;
  text.reserve(content.size() + 9);
  text.push_back(static_cast<char>(direction));
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
  text.append(content);
  return prove(key, text);
}

}  // namespace

Result<std::string> FrameWriter::frame(std::string_view content) {
  if (content.size() > kMaxMessageBytes) {
    return error(StatusCode::kInvalidArgument, "nccl: a message of ", content.size(),
                 " bytes, at most ", kMaxMessageBytes);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string proof, proof_of(key_, direction_, number_, content));
  ++number_;
  const std::uint64_t size = content.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes.append(proof);
  bytes.append(content);
  return bytes;
}

Result<std::optional<std::string>> FrameReader::next() {
  const std::string_view left = std::string_view(bytes_).substr(taken_);
  if (left.size() < kHeaderBytes) return std::optional<std::string>();
  std::uint64_t size = 0;
  std::memcpy(&size, left.data(), sizeof(size));
  if (size > kMaxMessageBytes) {
    return error(StatusCode::kCorrupt, "nccl: a message announces ", size, " bytes, at most ",
                 kMaxMessageBytes);
  }
  if (left.size() - kHeaderBytes < size) return std::optional<std::string>();
  const std::string_view proof = left.substr(kLengthBytes, kProofBytes);
  const std::string_view content = left.substr(kHeaderBytes, size);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string expected,
                             proof_of(key_, direction_, number_, content));
  if (!same_proof(proof, expected)) {
    return error(StatusCode::kCorrupt, "nccl: message ", number_, " has a false proof");
  }
  ++number_;
  std::optional<std::string> message(content);
  taken_ += kHeaderBytes + size;
  if (taken_ == bytes_.size() || taken_ > (std::size_t{1} << 20)) {
    bytes_.erase(0, taken_);
    taken_ = 0;
  }
  return message;
}

}  // namespace driftless::nccl
