// SPDX-License-Identifier: Apache-2.0
// Runs another program to its end.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"

namespace driftless::bench {

// A file in memory, without a name: gone with its last user, however that ends.
class MemoryFile {
 public:
  [[nodiscard]] static Result<MemoryFile> create();
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] Status write(std::span<const std::byte> bytes);  // appends
  [[nodiscard]] Result<std::string> text() const;                // all of it

 private:
  explicit MemoryFile(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

struct ProgramResult {
  int exit_code = 0;  // 128 + the signal where one ended it
  std::string output, errors;
};

// `arguments[0]` is the program, looked up in PATH. `inputs` become its descriptors 3, 4, ...
// kNotFound where it does not exist; kDeadlineExceeded where it had to be ended after `limit`.
[[nodiscard]] Result<ProgramResult> run_program(const std::vector<std::string>& arguments,
                                                const std::vector<const MemoryFile*>& inputs,
                                                std::chrono::milliseconds limit);

}  // namespace driftless::bench
