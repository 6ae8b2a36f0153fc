// SPDX-License-Identifier: Apache-2.0
#include "tools/temporary_directory.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/file_system.h"

namespace driftless {

Result<TemporaryDirectory> TemporaryDirectory::create() {
  std::error_code failure;
  const std::filesystem::path root = std::filesystem::temp_directory_path(failure);
  if (failure) return error(StatusCode::kIo, "TMPDIR: ", failure.message());
  std::string pattern = join_path(root.string(), "driftless-XXXXXX");
  if (::mkdtemp(pattern.data()) == nullptr) {
    return errno_status(errno, concat("creating ", pattern));
  }
  return TemporaryDirectory(std::move(pattern));
}

TemporaryDirectory::~TemporaryDirectory() {
  if (path_.empty()) return;
  const Status ignored = remove_tree(posix_file_system(), path_);  // a destructor cannot report it
}

}  // namespace driftless
