// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/tcp/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>

#include "core/secret_file.h"

namespace driftless::nccl {
namespace {

constexpr std::size_t kLeastBytes = 16;

// What the two sides of a new connection say ("client", "server"), and the key of its messages
// ("session"), from their nonces.
Result<std::string> derive(std::string_view what, std::string_view token, std::string_view server,
                           std::string_view client) {
  return prove(token, concat("driftless ", what, server, client));
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

Result<Admission> admit(std::string_view token, std::string_view nonce, std::string_view said) {
  if (said.size() != kClientProofBytes) {
    return error(StatusCode::kInvalidArgument, "nccl: a proof of ", said.size(), " bytes");
  }
  const std::string_view theirs = said.substr(0, kNonceBytes);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string expected, derive("client", token, nonce, theirs));
  if (!same_proof(said.substr(kNonceBytes), expected)) {
    return error(StatusCode::kInvalidArgument, "nccl: somebody does not know the run's token");
  }
  Admission admitted;
  DRIFTLESS_ASSIGN_OR_RETURN(admitted.key, derive("session", token, nonce, theirs));
  DRIFTLESS_ASSIGN_OR_RETURN(admitted.answer, derive("server", token, nonce, theirs));
  return admitted;
}

Result<Admission> answer_hello(std::string_view token, std::string_view hello,
                               std::string* expected_proof) {
  if (hello.size() != kServerHelloBytes || !hello.starts_with(kGreeting)) {
    return error(StatusCode::kCorrupt, "nccl: what listens there is not a leader of this release");
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

}  // namespace driftless::nccl
