// SPDX-License-Identifier: Apache-2.0
// RunDigests: the digest of every tensor of a run, from version to version. The announcement has
// those of version 0, and each manifest those of the tensors that it changes.
#pragma once

#include <span>

#include "plugin/targets/weight_target.h"

namespace driftless {

// What a version makes of the digests before it, as the layout. Empty: not known; only a full
// version makes them known again. kMismatch, naming `source`, if the manifest has a digest of a
// tensor that the layout has not, or if all together do not add up to its digest.
[[nodiscard]] Status follow_digests(const WeightLayout& layout, const Manifest& manifest,
                                    std::string_view source, std::vector<Digest>& digests);

// Moves with a target: staged, committed, taken back.
class RunDigests {
 public:
  // Of each tensor as the layout; empty: not known.
  struct At {
    std::uint64_t version = 0;
    std::vector<Digest> tensors;
  };

  explicit RunDigests(WeightLayout layout) : layout_(std::move(layout)) {}

  [[nodiscard]] const WeightLayout& layout() const { return layout_; }
  [[nodiscard]] const At& committed() const { return committed_; }
  // The target is found to hold another version than the one that was committed here.
  void set(At found) { committed_ = std::move(found); }
  // After what is committed.
  [[nodiscard]] Status stage(std::span<const FetchedVersion> chain);
  // What was staged last, which was committed meanwhile.
  void commit();
  // The last commit, which was taken back meanwhile.
  void undo() { committed_ = before_; }

 private:
  WeightLayout layout_;
  At committed_, staged_, before_;
};

}  // namespace driftless
