// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/medium.h"

#include <cstring>

namespace driftless::nccl {

std::string nccl_version_text(int version) {
  return concat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string make_meeting(std::string_view unique_id, int version) {
  const auto stored = static_cast<std::uint32_t>(version);
  std::string meeting(reinterpret_cast<const char*>(&stored), sizeof(stored));
  return meeting.append(unique_id);
}

Result<std::string_view> read_meeting(std::string_view meeting, int version) {
  std::uint32_t stored = 0;
  if (meeting.size() <= sizeof(stored)) {
    return error(StatusCode::kCorrupt, "nccl: a meeting of ", meeting.size(), " bytes");
  }
  std::memcpy(&stored, meeting.data(), sizeof(stored));
  if (stored == static_cast<std::uint32_t>(version)) return meeting.substr(sizeof(stored));
  return error(StatusCode::kUnsupported, "nccl: the publisher has NCCL ",
               nccl_version_text(static_cast<int>(stored)), ", this receiver has ",
               nccl_version_text(version),
               ": they cannot talk to each other. Have both load the same libnccl.so.2 (a Python "
               "process takes the one that torch loaded, so import torch before the job)");
}

}  // namespace driftless::nccl
