// SPDX-License-Identifier: Apache-2.0
// A directory for one test, removed at its end.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace driftless::testing {

class TempDir {
 public:
  // kMemory: on a file system in memory where there is one, for small files and many syncs.
  enum class Where { kDisk, kMemory };
  explicit TempDir(Where where = Where::kDisk) {
    std::error_code ignored;
    const bool memory = where == Where::kMemory && ::access("/dev/shm", W_OK) == 0 &&
                        std::filesystem::space("/dev/shm", ignored).available > (1U << 30);
    const std::filesystem::path root =
        memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string pattern = (root / "driftless-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace driftless::testing
