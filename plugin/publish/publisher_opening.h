// SPDX-License-Identifier: Apache-2.0
// PublisherOpening: the work of Publisher::open() on one rank. The ranks agree on a layout, seed
// their stores from the base, and start a run or resume the one on the road. Private to
// plugin/publish.
#pragma once

#include "plugin/publish/rank_state.h"

namespace driftless {

// One thread; made for one opening.
class PublisherOpening {
 public:
  // The state, which outlives this, is new. open() fills it.
  explicit PublisherOpening(RankState& rank) : rank_(rank) {}

  // Collective, once. `base` and `live` as in Publisher::open(); with a snapshot `live` is not
  // read. The result: whether the ranks must publish an anchor of the version that the run starts
  // from, because receivers without a base wait for it. Not ok: the rank must not publish.
  [[nodiscard]] Result<bool> open(WeightSource& base, WeightSource& live, const Deadline& deadline);

 private:
  // The steps, in order.
  [[nodiscard]] Status open_quantized(const WeightSource& trainer_weights);
  [[nodiscard]] Result<bool> open_ranks(WeightSource& offered, WeightSource& live, Status ready,
                                        const Deadline& deadline);
  [[nodiscard]] Status assemble(WeightSource& base, const WeightSource& live, Status ready,
                                const Deadline& deadline);
  [[nodiscard]] Status make_live_store(std::vector<OwnedTensor> owned, const WeightSource& live);
  [[nodiscard]] Status seed(WeightSource& base, WeightSource& live, Status ready,
                            const Deadline& deadline);
  [[nodiscard]] Status open_live(WeightSource& live);
  [[nodiscard]] Status compare_with_base(WeightSource& base, const Deadline& deadline);
  [[nodiscard]] Result<bool> start_or_resume(const Deadline& deadline);
  [[nodiscard]] Status seed_mirror(Status ready, const Deadline& deadline);

  RankState& rank_;
};

}  // namespace driftless
