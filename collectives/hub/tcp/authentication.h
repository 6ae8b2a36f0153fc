// SPDX-License-Identifier: Apache-2.0
// The secret of a run, the proofs made with it, and the first bytes on a TCP connection of the hub,
// all of fixed size: server: greeting, nonce; client: nonce, proof; server: proof.
#pragma once

#include "collectives/road.h"

namespace driftless::hub {

inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kNonceBytes = 32;

// Reads the secret from a token file (core/secret_file.h). kInvalidArgument if others could read
// the file, or the secret is shorter than 16 bytes.
[[nodiscard]] Result<std::string> read_token(const std::string& path);

// HMAC-SHA256. kInternal if the library refuses.
[[nodiscard]] Result<std::string> prove(std::string_view key, std::string_view text);
// Compares in constant time.
[[nodiscard]] bool same_proof(std::string_view one, std::string_view other);
[[nodiscard]] Result<std::string> new_nonce();

inline constexpr std::string_view kGreeting = "DRFTHUB1";
inline constexpr std::size_t kServerHelloBytes = kGreeting.size() + kNonceBytes;
inline constexpr std::size_t kClientProofBytes = kNonceBytes + kProofBytes;

struct Admission {
  std::string key;     // for the connection's messages
  std::string answer;  // to be sent to the other side
};

// [server] `proof`: the client's kClientProofBytes. kInvalidArgument if it is wrong.
[[nodiscard]] Result<Admission> admit(std::string_view token, std::string_view nonce,
                                      std::string_view proof);
// [client] `hello`: the server's kServerHelloBytes.
[[nodiscard]] Result<Admission> answer_hello(std::string_view token, std::string_view hello,
                                             std::string* expected_proof);

// Messages in a stream of bytes: length, proof, content. The proof covers direction, number and
// content, so that no message can be changed, left out, repeated or sent back.
enum class Direction : unsigned char { kToServer = 1, kToClient = 2 };

class FrameWriter {
 public:
  FrameWriter(std::string key, Direction direction) : key_(std::move(key)), direction_(direction) {}
  // header() returns the bytes that precede the next message's content; frame() returns them and
  // the content.
  [[nodiscard]] Result<std::string> header(std::string_view content);
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
  // The next whole message; empty if it has not arrived. kCorrupt: the stream is damaged.
  [[nodiscard]] Result<std::optional<std::string>> next();
  // Bytes of messages that have not arrived whole.
  [[nodiscard]] std::size_t held_bytes() const { return bytes_.size() - taken_; }

 private:
  std::string key_;
  Direction direction_;
  std::uint64_t number_ = 0;
  std::string bytes_;
  std::size_t taken_ = 0;  // bytes of bytes_ that were returned
};

}  // namespace driftless::hub
