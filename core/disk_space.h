// SPDX-License-Identifier: Apache-2.0
// The free space and the kind of a file system, for checks before a run. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"

namespace driftless {

struct DiskSpace {
  std::uint64_t free_bytes = 0;   // for this user
  std::uint64_t total_bytes = 0;  // 0: the file system does not report it
  std::string kind;               // "nfs", "lustre", "tmpfs", ...; "0x1234" if it is not known
};
// Examines the file system that holds `path`, which must exist.
[[nodiscard]] Result<DiskSpace> disk_space(const std::string& path);

// Rounded down, in the largest of GiB, MiB and KiB that gives at least ten: "12GiB", "9728MiB".
[[nodiscard]] std::string about(std::uint64_t bytes);

}  // namespace driftless
