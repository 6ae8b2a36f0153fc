// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/tcp/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>

#include "core/secret_file.h"

namespace driftless::nccl {
namespace {

constexpr std::size_t kLeastBytes = 16;
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

Result<std::string> client_proof(std::string_view token, std::string_view server,
                                 std::string_view client) {
  return prove(token, concat("driftless client", server, client));
}

Result<std::string> server_proof(std::string_view token, std::string_view server,
                                 std::string_view client) {
  return prove(token, concat("driftless server", server, client));
}

Result<std::string> session_key(std::string_view token, std::string_view server,
                                std::string_view client) {
  return prove(token, concat("driftless session", server, client));
}

}  // namespace driftless::nccl
