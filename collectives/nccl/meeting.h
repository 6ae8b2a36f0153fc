// What a publisher rank tells its receivers so that they connect: NCCL's unique id, and the version
// of the NCCL that made it. Different versions do not talk to each other; they wait for each other
// until the deadline, without a word. Two come together more easily than it seems: an engine brings
// the NCCL of its torch, a command the system's.
#pragma once

#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless::nccl {

[[nodiscard]] std::string make_meeting(std::string_view unique_id, int version);
// The unique id. kUnsupported where `version`, this process' own, is not the maker's.
[[nodiscard]] Result<std::string_view> read_meeting(std::string_view meeting, int version);

[[nodiscard]] std::string nccl_version_text(int version);  // 22809: "2.28.9"

}  // namespace driftless::nccl
