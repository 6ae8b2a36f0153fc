// SPDX-License-Identifier: Apache-2.0
// What write_delta() hands to the layouts: both checkpoints, and what the comparison found.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/status.h"
#include "formats/checkpoint.h"
#include "formats/version_dir.h"
#include "plugin/checkpoint/delta_writer.h"

namespace driftless {

struct DeltaInput {
  const Checkpoint* before = nullptr;
  const Checkpoint* after = nullptr;
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  Encoding encoding = Encoding::kXor;
  const DeltaOptions* options = nullptr;

  [[nodiscard]] const WeightLayout& layout() const { return before->layout(); }
};

struct DeltaFindings {
  std::vector<std::uint64_t> changed_units;  // per tensor of the layout
  Digest base_digest;
  Digest digest;
  std::uint64_t payload_bytes = 0;     // of the payload files
  std::vector<std::string> checksums;  // per tensor; empty where not changed
};

// Compares both checkpoints; `in_order` sees every changed piece in order (may be empty). Fills
// changed_units and the digests.
[[nodiscard]] Status compare_checkpoints(const DeltaInput& input, DeltaFindings& findings,
                                         const std::function<Status(const DeltaView&)>& in_order);

// The checksum of each tensor in `tensors` as it is after the change, into findings.checksums.
[[nodiscard]] Status sum_tensors(const DeltaInput& input, const std::vector<std::uint32_t>& tensors,
                                 DeltaFindings& findings);

// One per layout: compare, write the payload files into the version, fill the findings.
[[nodiscard]] Status write_flush_payload(FileSystem& fs, const DeltaInput& input,
                                         const VersionWriter& version, DeltaFindings& findings);
[[nodiscard]] Status write_hf_payload(FileSystem& fs, const DeltaInput& input,
                                      const VersionWriter& version, DeltaFindings& findings);

}  // namespace driftless
