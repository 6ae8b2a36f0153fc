// SPDX-License-Identifier: Apache-2.0
// AnchorOffer: a receiver that followed deltas holds the values of the anchor of its version. It
// assembles the anchor's parts, with the frame heads that the trainer sealed, and offers them to a
// road whose receivers serve each other, so that a joining receiver reads the weights from other
// receivers, not from the trainer. The road keeps only bytes whose hash is the trainer's, so
// weights that differ do no harm. One thread at a time.
#pragma once

#include "collectives/road.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

class AnchorOffer {
 public:
  // Offers the next part of the anchor of `held`, the version that the target holds. False: there
  // is no such anchor, or all of it was offered. After a failure no more of that anchor is offered.
  [[nodiscard]] Result<bool> offer_next(ReceiveRoad& road, const WeightTarget& target,
                                        const VersionId& held, const Deadline& deadline);
  [[nodiscard]] std::uint64_t kept_bytes() const { return kept_bytes_; }  // by the road, in all

 private:
  [[nodiscard]] Status begin(ReceiveRoad& road, const WeightLayout& layout, const VersionId& held,
                             const Deadline& deadline);
  [[nodiscard]] Status offer_part(ReceiveRoad& road, const WeightTarget& target,
                                  const PartReceipt& part, const Deadline& deadline);

  PublicationId anchor_;           // the last one that was considered
  std::vector<PartReceipt> left_;  // its parts that are not offered yet
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace driftless
