// SPDX-License-Identifier: Apache-2.0
// Spool: holds bytes in memory while they are few, otherwise in a file without a name. Threads may
// call write() and read() at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"

namespace driftless::object_store {

class Spool {
 public:
  // `directory`: empty for TMPDIR, or /tmp. The file is created only when `memory_bytes` are
  // exceeded.
  Spool(std::string directory, std::uint64_t memory_bytes);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // kNoSpace, naming the directory.
  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> bytes) const;
  // The whole content if it is in memory; valid until the next write().
  [[nodiscard]] std::span<const std::byte> memory() const;
  // Frees the content.
  void release();

 private:
  [[nodiscard]] Status open_file();

  const std::string directory_;
  const std::uint64_t memory_bytes_;
  mutable std::mutex mutex_;
  std::vector<std::byte> memory_;
  int file_ = -1;
};

// Memory for a part that is being downloaded: on the heap if the part is small, otherwise a mapping
// of a file without a name. `owner` keeps `bytes` alive.
struct SpooledMemory {
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
};
[[nodiscard]] Result<SpooledMemory> make_spooled_memory(const std::string& directory,
                                                        std::uint64_t size_bytes,
                                                        std::uint64_t memory_bytes);

}  // namespace driftless::object_store
