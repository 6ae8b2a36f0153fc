#include "collectives/nccl/tcp/token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace driftless::nccl {
namespace {

constexpr std::size_t kLeastBytes = 16;
constexpr std::size_t kMostBytes = 4096;

Result<std::string> read_private(int file, const std::string& path) {
  struct stat info{};
  if (::fstat(file, &info) != 0) return errno_status(errno, path);
  if (!S_ISREG(info.st_mode) || (info.st_mode & 077) != 0 || info.st_uid != ::geteuid()) {
    return error(StatusCode::kInvalidArgument, path,
                 ": the token must be in a file that its owner, who runs this, alone may read: "
                 "chmod 600 ",
                 path);
  }
  std::string text(kMostBytes + 1, '\0');
  const ssize_t size = ::read(file, text.data(), text.size());
  if (size < 0) return errno_status(errno, path);
  text.resize(static_cast<std::size_t>(size));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() < kLeastBytes || text.size() > kMostBytes) {
    return error(StatusCode::kInvalidArgument, path, ": a token of ", text.size(),
                 " bytes, expected ", kLeastBytes, " to ", kMostBytes,
                 ": openssl rand -hex 32 makes one");
  }
  return text;
}

}  // namespace

Result<std::string> read_token(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return errno_status(errno, concat("token file ", path));
  Result<std::string> token = read_private(file, path);
  ::close(file);
  return token;
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
