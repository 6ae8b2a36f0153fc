// SPDX-License-Identifier: Apache-2.0
// PublisherLeader: the work that the leading publisher rank does for all ranks: the layout of all
// ranks, the start of the run, the plan of a version, its seal, anchors, fences, pruning and
// numbers. It exists on the leader alone; Publisher sends the messages. Private to plugin/publish.
#pragma once

#include "formats/run_info.h"
#include "plugin/publish/rank_messages.h"
#include "plugin/publish/receiver_planner.h"

namespace driftless {

// Flushes the road. Ok: everything that this rank wrote is where receivers look for it, and
// PublisherOptions::before_visible returned ok.
[[nodiscard]] Result<std::vector<PartReceipt>> flush_road(SendRoad& road,
                                                          const PublisherOptions& options,
                                                          const Deadline& deadline);

// One thread at a time. All arguments outlive it.
class PublisherLeader {
 public:
  PublisherLeader(const PublisherOptions& options, unsigned ranks, SendRoad& road,
                  ReceiveRoad* history, const RunState& run, unsigned threads);

  // The steps of open(), in order.
  [[nodiscard]] AssemblyMessage assemble(const std::vector<OfferMessage>& ranks);
  // Adds up the digests of the base over all ranks. Copies that differ are refused by name.
  [[nodiscard]] DigestMessage add_up(const std::vector<BaseMessage>& ranks);
  // Finds the tensors of the base checkpoint that no rank offers.
  [[nodiscard]] Status find_unpublished(std::vector<std::string>& notes);
  [[nodiscard]] StartMessage find_start(const Deadline& deadline);
  // Announces the run. `held`: the digest of all ranks' weights at the start; `live`: the publisher
  // keeps no snapshot.
  void start(const Digest& held, bool live, StartMessage& start, const Deadline& deadline);

  // The steps of publish(), in order.
  // Whether the publication is on the road as this publisher sealed it. kWrongRun: it is there, but
  // from another publisher.
  [[nodiscard]] Result<bool> published(const PublicationId& id, const Hash128& manifest,
                                       const Deadline& deadline);
  // `in_background`: the version is made while the trainer goes on.
  [[nodiscard]] PlanMessage plan(const std::vector<ReadyMessage>& ranks, bool needs_full,
                                 bool in_background, const Deadline& deadline);
  // Merges the ranks' maxima of the FP8 blocks that they share.
  [[nodiscard]] MaximaMessage agree(const Result<std::vector<MaximaMessage>>& ranks);
  // After a failure: switches to the road's fallback if the road failed on a rank. `troubles`: one
  // StatusMessage of each rank.
  [[nodiscard]] FallbackMessage use_fallback(const std::vector<std::string>& troubles,
                                             const Deadline& deadline);
  // Decides on the version (commit, abort or redo), and seals it. `in_background`: it was made
  // while the trainer went on.
  [[nodiscard]] OutcomeMessage conclude(const PlanMessage& plan,
                                        Result<std::vector<PayloadMessage>> ranks,
                                        bool in_background, const Deadline& deadline);
  void prune(std::vector<std::string>& notes);

  // Begins a publication on the road.
  [[nodiscard]] Status begin(const PublicationId& id, const Deadline& deadline);
  // Adds the index if the layout has one, and seals. Sets `doubt` if the seal's outcome is unknown;
  // sealing() is then the hash of the manifest.
  struct Publication {
    PublicationId id;
    std::uint64_t base_version = 0;
    bool full = false;
  };
  [[nodiscard]] Status seal(const Publication& made, std::vector<PayloadMessage>& ranks,
                            const Deadline& deadline, OutcomeMessage& outcome, bool& doubt);
  [[nodiscard]] const Hash128& sealing() const { return sealing_; }
  // For the version that conclude() decided on.
  [[nodiscard]] std::vector<TensorDensity> most_changed() const;

  void request_anchor() { anchor_requested_ = true; }
  void anchored(std::uint64_t version);  // an anchor of it is published
  // The highest version number that may have been visible in this run. It exceeds the committed
  // version only after a restart that did not find that version.
  [[nodiscard]] std::uint64_t highest_number() const { return highest_number_; }
  [[nodiscard]] ReceiverPlanner& planner() { return planner_; }

 private:
  // Returns the road's status; if the road fenced this publisher, names both runs and keeps the
  // status.
  [[nodiscard]] Status note_fence(Status status);
  // Ok if these weights can continue the run on the road.
  [[nodiscard]] Status check_run(const RunInfo& found) const;
  [[nodiscard]] std::string announcement_text() const;
  [[nodiscard]] Status resume(const std::string& announcement, StartMessage& start,
                              const Deadline& deadline);
  [[nodiscard]] Status check_copies(const std::vector<TensorDigests>& ranks,
                                    bool in_background) const;
  void seal_version(const PlanMessage& plan, std::vector<PayloadMessage>& ranks,
                    OutcomeMessage& outcome, const Deadline& deadline);
  [[nodiscard]] Status add_index(const Publication& made, std::vector<PayloadMessage>& ranks,
                                 const Deadline& deadline, std::vector<std::string>& notes);
  [[nodiscard]] Result<Manifest> manifest_of(const Publication& made,
                                             const std::vector<PayloadMessage>& ranks) const;
  [[nodiscard]] bool anchor_wanted();  // whether a receiver wants one
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

  std::map<RankOffer, RankOffer> kept_for_;        // dropped offer -> the kept one
  std::map<RankOffer, std::string> copied_names_;  // kept offer -> tensor name
  std::vector<UnpublishedTensor> unpublished_;     // of base_checkpoint, if it is set
  // The digest of each tensor of version 0, ordered as the layout. Empty if the announcement on the
  // road has none.
  std::vector<Digest> base_tensor_digests_;

  BlockMaxima maxima_;     // of FP8 blocks that ranks share
  RunInfo announcement_;   // set once the run is announced
  std::string found_;      // the announcement of a resumed run, as it is on the road
  std::string fallback_;   // why the fallback road is used; empty: it is not used
  bool bridging_ = false;  // no version was committed since the switch to the fallback road
  Status fenced_;  // not ok: another publisher fenced this one, and nothing more is published
  std::map<std::uint32_t, std::uint64_t> changed_;  // units of the most changed tensors
  Hash128 sealing_;  // the hash of the last manifest that was sealed, or was to be
  std::uint64_t highest_number_ = 0;
  bool anchor_requested_ = false;
  std::optional<std::uint64_t> newest_anchor_;
  std::uint64_t chain_bytes_ = 0;  // of the versions since the newest anchor, or since the base
};

}  // namespace driftless
