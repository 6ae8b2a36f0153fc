// SPDX-License-Identifier: Apache-2.0
// PublisherLeader: what the leading publisher rank does for all. The layout that the ranks make up,
// the start of the run, the plan of a version, its seal, anchors, fences, pruning and numbers. It
// exists on the leader alone; messages travel in Publisher. Private to plugin/publish.
#pragma once

#include "formats/run_info.h"
#include "plugin/publish/rank_messages.h"
#include "plugin/publish/receiver_planner.h"

namespace driftless {

// Ok: all that this rank wrote is where receivers will look, and PublisherOptions::before_visible
// agrees.
[[nodiscard]] Result<std::vector<PartReceipt>> flush_road(SendRoad& road,
                                                          const PublisherOptions& options,
                                                          const Deadline& deadline);

// One thread at a time. Everything that it is given outlives it.
class PublisherLeader {
 public:
  PublisherLeader(const PublisherOptions& options, unsigned ranks, SendRoad& road,
                  ReceiveRoad* history, const RunState& run, unsigned threads);

  // open(), in order.
  [[nodiscard]] AssemblyMessage assemble(const std::vector<OfferMessage>& ranks);
  // The base of all ranks. Copies that differ are refused by name.
  [[nodiscard]] DigestMessage add_up(const std::vector<BaseMessage>& ranks);
  // Which tensors of the base checkpoint no rank offers.
  [[nodiscard]] Status find_unpublished(std::vector<std::string>& notes);
  [[nodiscard]] StartMessage find_start(const Deadline& deadline);
  // `held`: what all ranks hold at the start; `live`: without a snapshot. Announces the run.
  void start(const Digest& held, bool live, StartMessage& start, const Deadline& deadline);

  // publish(), in order.
  // Whether the publication is there as this publisher sealed it. kWrongRun: another's is.
  [[nodiscard]] Result<bool> published(const PublicationId& id, const Hash128& manifest,
                                       const Deadline& deadline);
  // `behind`: the version is made while the trainer goes on.
  [[nodiscard]] PlanMessage plan(const std::vector<ReadyMessage>& ranks, bool needs_full,
                                 bool behind, const Deadline& deadline);
  // What ranks have of FP8 blocks that they share.
  [[nodiscard]] MaximaMessage agree(const Result<std::vector<MaximaMessage>>& ranks);
  // After a failure: goes over to the road's fallback if the road has failed on a rank. `troubles`:
  // a StatusMessage of each.
  [[nodiscard]] FallbackMessage use_fallback(const std::vector<std::string>& troubles,
                                             const Deadline& deadline);
  // What becomes of the version. `behind`: it was made while the trainer went on.
  [[nodiscard]] OutcomeMessage conclude(const PlanMessage& plan,
                                        Result<std::vector<PayloadMessage>> ranks, bool behind,
                                        const Deadline& deadline);
  void prune(std::vector<std::string>& notes);

  // Begins a publication on the road.
  [[nodiscard]] Status begin(const PublicationId& id, const Deadline& deadline);
  // Adds the index if the layout has one, and seals. `doubt` is set if nobody can say whether that
  // worked; sealing() is the manifest's hash.
  struct Publication {
    PublicationId id;
    std::uint64_t base_version = 0;
    bool full = false;
  };
  [[nodiscard]] Status seal(const Publication& made, std::vector<PayloadMessage>& ranks,
                            const Deadline& deadline, OutcomeMessage& outcome, bool& doubt);
  [[nodiscard]] const Hash128& sealing() const { return sealing_; }
  // Of the version that conclude() was about.
  [[nodiscard]] std::vector<TensorDensity> most_changed() const;

  void request_anchor() { anchor_requested_ = true; }
  void anchored(std::uint64_t version);  // there is an anchor of it
  // That may have been visible in this run. Past the committed version only after a restart that
  // did not find it.
  [[nodiscard]] std::uint64_t highest_number() const { return highest_number_; }
  [[nodiscard]] ReceiverPlanner& planner() { return planner_; }

 private:
  [[nodiscard]] Result<std::string> announced(const Deadline& deadline);
  // What the road said, with both runs named if it fenced this publisher. Remembers that.
  [[nodiscard]] Status note_fence(Status said);
  // Whether the run on the road is one that these weights go on with.
  [[nodiscard]] Status check_run(const RunInfo& found) const;
  [[nodiscard]] Status resume(const std::string& announcement, StartMessage& start,
                              const Deadline& deadline);
  [[nodiscard]] Status check_copies(const std::vector<TensorDigests>& ranks, bool behind) const;
  void seal_version(const PlanMessage& plan, std::vector<PayloadMessage>& ranks,
                    OutcomeMessage& outcome, const Deadline& deadline);
  [[nodiscard]] Status add_index(const Publication& made, std::vector<PayloadMessage>& ranks,
                                 const Deadline& deadline, std::vector<std::string>& notes);
  [[nodiscard]] Result<Manifest> manifest_of(const Publication& made,
                                             const std::vector<PayloadMessage>& ranks) const;
  [[nodiscard]] bool anchor_wanted();  // by a receiver
  [[nodiscard]] bool anchor_due(std::uint64_t version);
  void choose_anchor(const PlanMessage& plan, OutcomeMessage& outcome, const Deadline& deadline);

  const PublisherOptions& options_;
  const PublicationFormat& format_;
  unsigned ranks_;
  SendRoad& road_;
  ReceiveRoad* history_;
  const RunState& run_;
  unsigned threads_;
  ReceiverPlanner planner_;

  std::map<RankOffer, RankOffer> kept_for_;        // of each offer that is dropped: the same one
  std::map<RankOffer, std::string> copied_names_;  // of those
  std::vector<UnpublishedTensor> unpublished_;     // of the base checkpoint, if it is given
  // Of each tensor of version 0, as the layout. Empty if the announcement on the road has none.
  std::vector<Digest> base_tensor_digests_;

  BlockMaxima maxima_;     // of FP8 blocks that ranks cut between them
  RunInfo announced_;      // once the run is announced
  std::string fallback_;   // why the road's fallback is used; empty: it is not
  bool bridging_ = false;  // no version is there that receivers of any other one can take
  Status fenced_;  // not ok: another publisher has taken the road over; nothing more is published
  std::map<std::uint32_t, std::uint64_t> changed_;  // units of tensors that changed most
  Hash128 sealing_;  // the hash of the manifest that was sealed last, or was to be
  std::uint64_t highest_number_ = 0;
  bool anchor_requested_ = false;
  std::optional<std::uint64_t> newest_anchor_;
  std::uint64_t chain_bytes_ = 0;  // of the versions since the newest anchor, or since the base
};

}  // namespace driftless
