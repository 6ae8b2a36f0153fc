// SPDX-License-Identifier: Apache-2.0
// RunInfo: the announcement of a run, which receivers read before its versions. The publishers'
// leader announces it over the road (SendRoad::announce), and every receiver compares it with its
// own weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/hash128.h"
#include "core/layout.h"
#include "core/status.h"

namespace driftless {

inline constexpr std::uint64_t kRunInfoFormat = 1;
inline constexpr std::uint64_t kMaxRunInfoBytes = 256ULL << 20;
// The announcement's file in a directory of versions.
inline constexpr std::string_view kRunInfoName = "run.json";

// A tensor of the base that the run does not publish: it stays unchanged in every version.
struct UnpublishedTensor {
  TensorSpec spec;
  Digest digest;

  friend bool operator==(const UnpublishedTensor&, const UnpublishedTensor&) = default;
};

struct RunInfo {
  Hash128 run;              // never zero
  WeightLayout layout;      // of all ranks together
  Digest base_digest;       // of the weights of version 0
  std::uint32_t ranks = 1;  // publisher ranks, at least 1
  // The digest of each tensor of version 0, in the layout's order; they add up to the base's
  // digest. A receiver of some of the tensors proves its base by these. Empty: the publisher
  // provides none.
  std::vector<Digest> tensor_digests;
  // Sorted by name; none is in the layout. A receiver that holds such a tensor proves it by its
  // digest. Empty: there are none, or the publisher does not list them.
  std::vector<UnpublishedTensor> unpublished = {};
  // The rule by which the trainer quantizes its weights (core/quantize_rule.h); empty: it does not.
  std::string quantize_rule = {};
  // If the run was on another road before: version numbers up to this one were used there, and are
  // not used again. 0: it was not.
  std::uint64_t used_numbers = 0;
};

// One line of JSON. A tensor name that is not UTF-8 cannot be written; parse_run_info() refuses the
// result.
[[nodiscard]] std::string run_info_to_json(const RunInfo& info);
// Checks every field, and that the signature matches the tensors; ignores unknown keys.
// kUnsupported for a newer format. `what` names the source in errors.
[[nodiscard]] Result<RunInfo> parse_run_info(std::string_view text, std::string_view what);

}  // namespace driftless
