// SPDX-License-Identifier: Apache-2.0
// Spool: bytes that are too many for memory, in a file without a name. Small ones stay in memory.
// write() and read() may overlap, from any thread.
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
  // `directory`: empty: TMPDIR, or /tmp. Nothing is made there before `memory_bytes` are exceeded.
  Spool(std::string directory, std::uint64_t memory_bytes);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // kNoSpace, naming the directory.
  [[nodiscard]] Status write(std::uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] Status read(std::uint64_t offset, std::span<std::byte> bytes) const;
  // All of it, if it is in memory; valid until something is written.
  [[nodiscard]] std::span<const std::byte> memory() const;
  // Nothing of it is needed any more.
  void release();

 private:
  [[nodiscard]] Status open_file();

  const std::string directory_;
  const std::uint64_t memory_bytes_;
  mutable std::mutex mutex_;
  std::vector<std::byte> memory_;
  int file_ = -1;
};

// Memory of a part that is being downloaded: on the heap if it is small, else a mapping of a file
// without a name. `bytes` are writable until `content` is given away.
struct SpooledMemory {
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
};
[[nodiscard]] Result<SpooledMemory> make_spooled_memory(const std::string& directory,
                                                        std::uint64_t size_bytes,
                                                        std::uint64_t memory_bytes);

}  // namespace driftless::object_store
