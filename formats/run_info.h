// SPDX-License-Identifier: Apache-2.0
// What a receiver must know of a run before any of its versions: announced by the publishers'
// leader over the road (SendRoad::announce), and checked by every receiver against its own weights.
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
// Beside the versions in a directory.
inline constexpr std::string_view kRunInfoName = "run.json";

// A tensor of the base that the run does not publish: in every version it is as it is there.
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
  // Of each tensor of version 0, as the layout; together the base's. A receiver of some of them
  // proves its base by these. Empty: the publisher does not say.
  std::vector<Digest> tensor_digests;
  // Sorted by name, none of the layout's. A receiver that holds one proves it by its digest. Empty:
  // there are none, or the publisher does not say.
  std::vector<UnpublishedTensor> unpublished = {};
  // By which rule the trainer quantizes its weights (core/quantize_rule.h); empty: it does not.
  std::string quantize_rule = {};
  // The run was on another road before: numbers up to this one were used there, and are not used
  // again. 0: it was not.
  std::uint64_t used_numbers = 0;
};

// One line of JSON. A tensor's name that is not UTF-8 cannot be written: parse_run_info() refuses
// what comes of it.
[[nodiscard]] std::string run_info_to_json(const RunInfo& info);
// Checks every field, and that the signature is that of the tensors; keys that it does not know are
// passed over. kUnsupported for a newer format. `what` names the source in errors.
[[nodiscard]] Result<RunInfo> parse_run_info(std::string_view text, std::string_view what);

}  // namespace driftless
