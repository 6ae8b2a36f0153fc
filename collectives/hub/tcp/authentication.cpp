// SPDX-License-Identifier: Apache-2.0
#include "collectives/hub/tcp/authentication.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "collectives/hub/hub.h"
#include "core/secret_file.h"

namespace driftless::hub {
namespace {

constexpr std::size_t kLeastBytes = 16;

// Derives the proofs of the two sides of a new connection ("client", "server"), and the key of its
// messages ("session"), from their nonces.
Result<std::string> derive(std::string_view what, std::string_view token, std::string_view server,
                           std::string_view client) {
  return prove(token, concat("driftless ", what, server, client));
}

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

Result<std::string> read_token(const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token, read_secret_file(path));
  if (token.size() >= kLeastBytes) return token;
  return error(StatusCode::kInvalidArgument, path, ": a token of ", token.size(),
               " bytes, expected ", kLeastBytes, " or more: openssl rand -hex 32 makes one");
}

Result<std::string> prove(std::string_view key, std::string_view text) {
  std::string proof(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &size);
  if (made == nullptr || size != kProofBytes) {
    return error(StatusCode::kInternal, "libcrypto could not compute HMAC-SHA256");
  }
  proof.resize(size);
  return proof;
}

bool same_proof(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Result<std::string> new_nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return errno_status(errno, "getrandom");
  }
  return nonce;
}

Result<Admission> admit(std::string_view token, std::string_view nonce, std::string_view proof) {
  if (proof.size() != kClientProofBytes) {
    return error(StatusCode::kInvalidArgument, "hub: a proof of ", proof.size(), " bytes");
  }
  const std::string_view theirs = proof.substr(0, kNonceBytes);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string expected, derive("client", token, nonce, theirs));
  if (!same_proof(proof.substr(kNonceBytes), expected)) {
    return error(StatusCode::kInvalidArgument,
                 "hub: the other process does not have the run's token");
  }
  Admission admitted;
  DRIFTLESS_ASSIGN_OR_RETURN(admitted.key, derive("session", token, nonce, theirs));
  DRIFTLESS_ASSIGN_OR_RETURN(admitted.answer, derive("server", token, nonce, theirs));
  return admitted;
}

Result<Admission> answer_hello(std::string_view token, std::string_view hello,
                               std::string* expected_proof) {
  if (hello.size() != kServerHelloBytes || !hello.starts_with(kGreeting)) {
    return error(StatusCode::kCorrupt,
                 "hub: the process that listens there is not a leader of this release");
  }
  const std::string_view theirs = hello.substr(kGreeting.size());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string mine, new_nonce());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string proof, derive("client", token, theirs, mine));
  DRIFTLESS_ASSIGN_OR_RETURN(*expected_proof, derive("server", token, theirs, mine));
  Admission admission;
  admission.answer = concat(mine, proof);
  DRIFTLESS_ASSIGN_OR_RETURN(admission.key, derive("session", token, theirs, mine));
  return admission;
}

Result<std::string> FrameWriter::header(std::string_view content) {
  if (content.size() > kMaxMessageBytes) {
    return error(StatusCode::kInvalidArgument, "hub: a message of ", content.size(),
                 " bytes exceeds the limit of ", kMaxMessageBytes);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string proof, proof_of(key_, direction_, number_, content));
  ++number_;
  const std::uint64_t size = content.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof(size));
  return bytes.append(proof);
}

Result<std::string> FrameWriter::frame(std::string_view content) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string bytes, header(content));
  return std::move(bytes.append(content));
}

Result<std::optional<std::string>> FrameReader::next() {
  const std::string_view left = std::string_view(bytes_).substr(taken_);
  if (left.size() < kHeaderBytes) return std::optional<std::string>();
  std::uint64_t size = 0;
  std::memcpy(&size, left.data(), sizeof(size));
  if (size > kMaxMessageBytes) {
    return error(StatusCode::kCorrupt, "hub: a message announces ", size, " bytes; the limit is ",
                 kMaxMessageBytes);
  }
  if (left.size() - kHeaderBytes < size) return std::optional<std::string>();
  const std::string_view proof = left.substr(kLengthBytes, kProofBytes);
  const std::string_view content = left.substr(kHeaderBytes, size);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string expected,
                             proof_of(key_, direction_, number_, content));
  if (!same_proof(proof, expected)) {
    return error(StatusCode::kCorrupt, "hub: message ", number_, " has a false proof");
  }
  ++number_;
  std::optional<std::string> message(content);
  taken_ += kHeaderBytes + size;
  if (taken_ == bytes_.size() || taken_ > (std::size_t{1} << 20)) {
    bytes_ = bytes_.substr(taken_);  // a new string frees the memory of a large message
    taken_ = 0;
  }
  return message;
}

}  // namespace driftless::hub
