// SPDX-License-Identifier: Apache-2.0
#include "core/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

namespace driftless {
namespace {

Status check_secret_file(int file, const std::string& path) {
  struct stat info{};
  if (::fstat(file, &info) != 0) return errno_status(errno, concat("secret file ", path));
  if (!S_ISREG(info.st_mode)) {
    return error(StatusCode::kInvalidArgument, "secret file ", path,
                 ": not a regular file; put the secret into a file of mode 600");
  }
  if (info.st_uid != ::geteuid()) {
    return error(StatusCode::kInvalidArgument, "secret file ", path, ": belongs to user ",
                 info.st_uid, ", expected user ", ::geteuid(),
                 " who runs this process; copy it to a file of your own of mode 600");
  }
  if ((info.st_mode & 077U) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%03o", static_cast<unsigned>(info.st_mode & 0777U));
    return error(StatusCode::kInvalidArgument, "secret file ", path, ": has mode ", mode.data(),
                 ", so its group or others can access it; expected 600: chmod 600 ", path,
                 ", and make a new secret if others may have read it");
  }
  return {};
}

Result<std::string> read_to_end(int file, const std::string& path, std::size_t max_bytes) {
  std::string text;
  std::array<char, 4096> piece{};
  for (;;) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(errno, concat("secret file ", path));
    if (got == 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
    if (text.size() > max_bytes) {
      return error(StatusCode::kInvalidArgument, "secret file ", path, ": longer than ", max_bytes,
                   " bytes, so it is not a secret; name the right file");
    }
  }
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  text.resize(last == std::string::npos ? 0 : last + 1);
  if (!text.empty()) return text;
  return error(StatusCode::kInvalidArgument, "secret file ", path,
               ": is empty; write the secret into it");
}

}  // namespace

Result<std::string> read_secret_file(const std::string& path, std::size_t max_bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return errno_status(errno, concat("secret file ", path));
  Status safe = check_secret_file(file, path);
  Result<std::string> text =
      safe.ok() ? read_to_end(file, path, max_bytes) : Result<std::string>(std::move(safe));
  ::close(file);
  return text;
}

Result<std::string> read_token_file(const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token, read_secret_file(path));
  if (is_plain_text(token)) return token;
  return error(StatusCode::kInvalidArgument, "secret file ", path,
               ": the token has spaces, zero bytes or other characters that no header can hold");
}

bool is_plain_text(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7F; });
}

}  // namespace driftless
