// SPDX-License-Identifier: Apache-2.0
// MemoryFile: a nameless file in memory. It disappears with its last user, even if that crashes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "core/descriptor.h"

namespace driftless {

class MemoryFile {
 public:
  MemoryFile() : file_(::memfd_create("driftless", MFD_CLOEXEC)) {}
  // A path that is valid for this process and its children.
  [[nodiscard]] std::string path() const {
    return concat("/proc/", ::getpid(), "/fd/", file_.get());
  }

 private:
  Descriptor file_;
};

}  // namespace driftless
