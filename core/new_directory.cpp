// SPDX-License-Identifier: Apache-2.0
#include "core/new_directory.h"

#include <algorithm>

namespace driftless {

Result<bool> make_last_directory(FileSystem& fs, const std::string& path) {
  if (exists(fs, path)) return false;
  const std::string plain = path.substr(0, path.find_last_not_of('/') + 1);
  const std::size_t slash = plain.rfind('/');
  const std::string parent = slash == std::string::npos
                                 ? "."
                                 : plain.substr(0, std::max<std::size_t>(slash, 1));  // or "/"
  const Status there = fs.info(parent).status();
  if (there.code() == StatusCode::kNotFound) {
    return error(StatusCode::kNotFound, path, ": neither this directory nor ", parent,
                 " exists: mistyped, or not mounted? Only the last directory of a path is made");
  }
  DRIFTLESS_RETURN_IF_ERROR(there);
  const Status made = fs.make_directory(plain);
  if (made.code() == StatusCode::kAlreadyExists) return false;
  DRIFTLESS_RETURN_IF_ERROR(made);
  return true;
}

}  // namespace driftless
