// SPDX-License-Identifier: Apache-2.0
// RankState: the state of one publisher rank, from the opening of the run on. PublisherOpening
// makes it, and Publisher makes versions from it. Private to plugin/publish.
#pragma once

#include "plugin/publish/block_mirror.h"
#include "plugin/publish/publisher_leader.h"
#include "plugin/publish/quantized_store.h"
#include "plugin/publish/rank_offers.h"

namespace driftless {

// One thread at a time. The group and the roads outlive it. It is not moved, because its parts
// refer to each other.
struct RankState {
  RankState(const PublisherOptions& given, Group& ranks, SendRoad& to, ReceiveRoad* from);
  RankState(const RankState&) = delete;
  RankState& operator=(const RankState&) = delete;

  // The offers of the trainer's own weights, which differ from the published ones if they are
  // quantized.
  [[nodiscard]] RankOffers& live_offers() { return trainer_offers ? *trainer_offers : *offers; }
  void use_buffers();  // for the encoding of the run's shape
  void set_digests(std::vector<Digest> digests);
  [[nodiscard]] PayloadContext context(const PublicationId& id, std::uint64_t base_version,
                                       bool full);
  // Collective, after a failure that all ranks know of: whether they switch to the road's fallback
  // now.
  [[nodiscard]] Result<bool> use_fallback();
  // Agrees with the other ranks on the largest magnitudes of FP8 blocks. Collective if ranks share
  // blocks. `measured`: the status of measuring them.
  [[nodiscard]] Status agree_on_blocks(const Status& measured, const Deadline& deadline);

  PublisherOptions options;
  Group& group;
  SendRoad& road;
  ReceiveRoad* history;
  unsigned threads;

  RunState run;
  std::unique_ptr<Checkpoint> quantized_base;
  std::unique_ptr<QuantizedWeights> quantized;  // null: this rank does not quantize
  std::unique_ptr<RankOffers> offers;
  std::unique_ptr<WeightStore> store;
  LiveStore* live = nullptr;  // the store, or part of it, if there is no snapshot
  // The store, if there is no snapshot and weights are quantized; then also the offers and layout
  // of the trainer's weights.
  QuantizedStore* quantized_live = nullptr;
  std::unique_ptr<RankOffers> trainer_offers;
  std::unique_ptr<WeightLayout> trainer_layout;
  std::unique_ptr<BlockMirror> mirror;  // a layout of whole tensors, some of which are in blocks
  std::unique_ptr<PublisherLeader> leader;  // null on other ranks
  std::unique_ptr<PayloadBuffers> buffers;
  Digest part_digest;                  // of this rank's weights at the last committed version
  std::vector<Digest> tensor_digests;  // likewise of this rank's tensors, as the layout
  bool needs_full = false;             // the next version
  bool resumed = false;
  bool shares_blocks = false;      // ranks own parts of the same FP8 blocks
  std::vector<std::string> notes;  // of the opening
};

}  // namespace driftless
