// SPDX-License-Identifier: Apache-2.0
// PublisherRank: the one implementation of Publisher, and what publisher ranks tell each other
// through their Group (JSON, small but for the tensor lists). Private to publisher*.cpp.
#pragma once

#include <set>

#include "formats/receiver_needs.h"
#include "formats/run_info.h"
#include "plugin/publish/encoding_chooser.h"
#include "plugin/publish/live_weights.h"
#include "plugin/publish/publisher.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {

// By the number in the layout, ascending.
using TensorDigests = std::vector<TensorDigest>;

using RankOffer = std::pair<std::uint32_t, std::uint32_t>;  // a rank, and which of its offers

inline constexpr std::uint64_t kNoStep = ~std::uint64_t{0};

// From every rank to the leader. Which fields are used depends on the moment.
struct RankMessage {
  Status status;                    // of this rank
  std::vector<TensorSpec> tensors;  // that it offers
  std::vector<TensorBox> boxes;     // which part of each
  std::vector<std::string> left;    // that it holds and leaves to others
  std::uint64_t version = 0;        // that it has committed
  std::uint64_t step = kNoStep;     // that it publishes
  std::uint64_t doubtful = 0;       // sealed or not, it does not know; 0: none
  bool needs_full = false;          // no delta leads from what the receivers have to its weights
  Digest digest;                    // of its weights
  // Of tensors that it owns: of the base and of a full version of all, of a delta of the changed.
  TensorDigests tensor_digests;
  TensorDigests unchanged;  // of a delta: of the other tensors that it shares with other ranks
  TensorDigests copies;     // of the base, and of a version: of its offers that others have, too
  PayloadFindings findings;
  std::vector<PartReceipt> parts;
  std::vector<std::string> notes;  // for all
};

enum class Verdict : unsigned char { kNone, kCommit, kAbort, kRedoFull, kDoubt };

// From the leader to all.
struct LeaderMessage {
  Status status;  // not ok: the operation ends here, on all ranks
  Verdict verdict = Verdict::kNone;
  Hash128 run;
  std::uint64_t version = 0, base_version = 0;
  bool full = false;
  bool anchor = false;  // an anchor of the version follows
  bool resume = false;
  Digest digest;                                   // of all ranks' weights
  std::vector<TensorSpec> tensors;                 // of all ranks, ordered as the layout
  std::vector<std::vector<std::uint32_t>> owners;  // of each: a rank, or one for each block
  // Offers that another rank has, too: a rank, the first of them, and how many.
  std::vector<std::array<std::uint32_t, 3>> dropped;
  std::vector<RankOffer> copied;     // what stays of each
  std::vector<BlockCut> cuts;        // ascending by tensor
  std::uint8_t encoding = 0;         // of the version, unless it is full
  std::vector<std::uint32_t> plain;  // tensors that are never coded
  std::vector<std::string> notes;
  std::uint64_t changed_units = 0, delta_bytes = 0, wire_bytes = 0;
};

[[nodiscard]] std::string to_message(const RankMessage& message);
[[nodiscard]] std::string to_message(const LeaderMessage& message);
[[nodiscard]] Result<RankMessage> parse_rank_message(std::string_view text);
[[nodiscard]] Result<LeaderMessage> parse_leader_message(std::string_view text);

// Which part of each of its tensors a source offers; what has all of a tensor is the tensor.
[[nodiscard]] Result<std::vector<TensorBox>> boxes_of(const WeightSource& weights);

class PublisherRank final : public Publisher {
 public:
  PublisherRank(const PublisherOptions& options, Group& group, SendRoad& road,
                ReceiveRoad* history);

  // The steps of Publisher::open(), in order. publisher_open.cpp.
  [[nodiscard]] Status assemble(WeightSource& base, const Deadline& deadline);
  [[nodiscard]] Status seed(WeightSource& base, WeightSource& live, const Deadline& deadline);
  [[nodiscard]] Status start_or_resume(const Deadline& deadline);

  [[nodiscard]] Result<PublishReport> publish(WeightSource& weights,
                                              std::optional<std::uint64_t> step) override;
  [[nodiscard]] Status capture(std::span<const NewTensor> values, void* stream) override;
  [[nodiscard]] Status observe(WeightSource& weights, void* stream, bool behind) override;
  void doubt() override {
    if (live_) live_->doubt(true);
  }
  void request_anchor() override { anchor_requested_ = true; }
  [[nodiscard]] Status publish_anchor() override;
  [[nodiscard]] const WeightLayout& layout() const override { return layout_; }
  [[nodiscard]] VersionId version() const override { return id_; }
  [[nodiscard]] const Digest& digest() const override { return digest_; }
  [[nodiscard]] bool resumed() const override { return resumed_; }
  [[nodiscard]] const std::vector<std::string>& notes() const override { return notes_; }

 private:
  // A version of which this rank does not know whether it was sealed.
  struct Doubt {
    std::uint64_t version = 0;
    TensorDigests tensor_digests;  // of this rank's tensors that it changes
    Digest digest;                 // of all; known to the leader
    bool full = false;
    Hash128 manifest;  // the hash of what was to be sealed; known to the leader
  };

  // Agreement. The leader's view of all ranks; a failure of one names it.
  [[nodiscard]] Result<std::vector<RankMessage>> collect(const RankMessage& mine,
                                                         const Deadline& deadline);
  // What the leader says: into `message`, which the leader gives.
  [[nodiscard]] Status hear(LeaderMessage& message, const Deadline& deadline);
  // The same; a status of the leader's that is not ok is returned.
  [[nodiscard]] Result<LeaderMessage> tell(LeaderMessage message, const Deadline& deadline);

  // All ranks but the leader, which has, begin. None writes before all have begun: a road whose
  // flush() is a meeting would wait for one that could not begin, and a leader that fails at once
  // would take away what the others are still looking for. Not ok: dropped on this rank.
  [[nodiscard]] Status begin_together(const PublicationId& id, const Deadline& deadline);

  // publisher_open.cpp
  // Reads the snapshot: the digest of each of its tensors.
  [[nodiscard]] Status digest_snapshot();
  [[nodiscard]] std::vector<std::uint32_t> owned_tensors() const;  // each once, ascending
  [[nodiscard]] LeaderMessage assembly(const std::vector<RankMessage>& ranks);
  [[nodiscard]] Status own(const LeaderMessage& told);
  // Leader: which tensors of the base checkpoint no rank offers.
  [[nodiscard]] Status find_unpublished();
  // The snapshot as a target, of which other ranks have the rest.
  [[nodiscard]] Result<std::unique_ptr<MappedTarget>> snapshot_target() const;
  [[nodiscard]] Result<std::string> announced(const Deadline& deadline);
  [[nodiscard]] LeaderMessage find_start(const Deadline& deadline);
  [[nodiscard]] Status catch_up(std::uint64_t version, const Deadline& deadline);
  [[nodiscard]] Result<Digest> newest_digest(std::uint64_t version, const Deadline& deadline);

  // publisher.cpp
  [[nodiscard]] Result<PublishReport> publish_guarded(WeightSource& weights);
  [[nodiscard]] Status give_up(const LeaderMessage& plan, const LeaderMessage& verdict,
                               const RankMessage& mine);
  [[nodiscard]] Status check_source(const WeightSource& weights) const;
  // Every tensor of this rank, in the source's batches; and each offer of copies_ to `copy`.
  [[nodiscard]] Status visit(WeightSource& weights,
                             const std::function<Status(std::span<const PairedTensor>)>& use,
                             const std::function<Status(const OfferedTensor&)>& copy) const;
  [[nodiscard]] Result<LeaderMessage> make_plan(Status ready, const Deadline& deadline);
  [[nodiscard]] LeaderMessage plan_of(const std::vector<RankMessage>& ranks,
                                      const Deadline& deadline);
  // Leader: whether the publication is there as this publisher sealed it. kWrongRun: another's is.
  [[nodiscard]] Result<bool> published(const PublicationId& id, const Hash128& manifest,
                                       const Deadline& deadline);
  // Leader: what the road said, with both runs named if it fenced this publisher. Remembers that.
  [[nodiscard]] Status note_fence(Status said);
  void resolve_doubt(bool published);
  [[nodiscard]] RankMessage produce(const LeaderMessage& plan, WeightSource& weights,
                                    const Deadline& deadline);
  [[nodiscard]] LeaderMessage conclude(const LeaderMessage& plan,
                                       Result<std::vector<RankMessage>> ranks,
                                       const Deadline& deadline);
  void seal(const LeaderMessage& plan, std::vector<RankMessage>& ranks, LeaderMessage& outcome,
            const Deadline& deadline);
  void commit(std::uint64_t version, const TensorDigests& changed, const Digest& digest);
  void take_back(bool full);
  [[nodiscard]] bool anchor_wanted();
  // Frames have blocks; the layouts of others have whole tensors.
  [[nodiscard]] bool takes_blocks() const {
    return options_.layout == DirectoryLayout::kFrames || options_.layout == DirectoryLayout::kHdf5;
  }
  // In hf_delta the version itself is whole if an anchor is due: others look among versions.
  [[nodiscard]] bool anchors_among_versions() const {
    return options_.layout == DirectoryLayout::kHfDelta;
  }
  [[nodiscard]] bool anchor_due(std::uint64_t version);
  void choose_anchor(const LeaderMessage& plan, LeaderMessage& outcome, const Deadline& deadline);
  void prune(std::vector<std::string>& notes);

  // publisher_copies.cpp: what several ranks offer under one name is one tensor, in every version.
  void find_copies(const LeaderMessage& told, const std::set<std::uint32_t>& dropped);
  [[nodiscard]] Status digest_copy(const OfferedTensor& offered, TensorDigests& digests) const;
  // Without a snapshot: where they lie; what is watched is read in the call that observes it.
  [[nodiscard]] Status look_at_copy(const OfferedTensor& offered) const;
  [[nodiscard]] Status observe_copies();
  [[nodiscard]] Status digest_live_copies(TensorDigests& digests) const;
  // Of those that this rank publishes and need not read again: what it knows of the tensor.
  void add_kept_copies(RankMessage& mine) const;
  [[nodiscard]] Status check_copies(const std::vector<RankMessage>& ranks) const;  // the leader

  // publisher_cuts.cpp: how a version is cut and encoded, so that all receivers can read it.
  // Leader: what the options want of these tensors, or why that cannot be.
  [[nodiscard]] Result<std::vector<BlockCut>> wanted_cuts(
      std::span<const TensorSpec> tensors) const;
  // Leader: the same, and what the receivers announced.
  void hear_receivers(LeaderMessage& plan);
  void read_needs(const std::map<std::string, std::string>& heard, std::vector<std::string>& notes);
  [[nodiscard]] std::string who_cannot(Encoding encoding) const;  // names; empty: all can
  // `compact` is coded with the snapshot's units, where they are compared.
  [[nodiscard]] bool codes_compact() const {
    return options_.device == nullptr || options_.device->on_device();
  }
  [[nodiscard]] Encoding choose_encoding(const std::vector<ReceiverReport>& reports,
                                         std::vector<std::string>& notes);
  [[nodiscard]] Encoding encoding_for(Encoding wanted, std::vector<std::string>& notes) const;
  // Tensors of which a receiver holds a part that the version is not cut to.
  [[nodiscard]] std::vector<std::uint32_t> plain_for(std::span<const BlockCut> cuts) const;
  [[nodiscard]] std::vector<BlockCut> cuts_for(std::vector<std::string>& notes) const;
  // What the leader told of it.
  [[nodiscard]] Status adopt(const LeaderMessage& plan);

  // publisher_mirror.cpp: whole tensors for layouts of others, if ranks offer blocks.
  [[nodiscard]] Status open_mirror();
  [[nodiscard]] Status seed_mirror(Status ready, const Deadline& deadline);
  [[nodiscard]] Result<std::vector<std::string>> gather_bytes(Status ready, const std::string& mine,
                                                              const Deadline& deadline);
  [[nodiscard]] PayloadContext block_context(const PayloadContext& made,
                                             std::vector<std::vector<std::byte>>& frames);
  [[nodiscard]] Status write_mirror(const PayloadContext& made,
                                    const std::vector<std::string>& messages,
                                    PayloadFindings& findings);
  void mirror_blocks(const PayloadContext& made, RankPayload* blocks,
                     const std::vector<std::vector<std::byte>>& frames, const Deadline& deadline,
                     RankMessage& mine);

  // publisher_live.cpp: without a snapshot.
  [[nodiscard]] Status capture_blocks(std::span<const NewTensor> values, void* stream);
  [[nodiscard]] Status look_at(WeightSource& weights, void* stream, bool behind);
  [[nodiscard]] Status open_live(WeightSource& live);
  [[nodiscard]] Status digest_base(WeightSource& base, TensorDigests& copies);
  [[nodiscard]] RankMessage look_at_live(std::uint64_t version);
  void start_otherwise(std::uint64_t version);  // the weights are not the version's
  [[nodiscard]] RankMessage produce_live(const PayloadContext& made, const Deadline& deadline,
                                         TensorDigests& copies);
  // Whether the bytes of tensors that change are read, beside what was captured of them.
  [[nodiscard]] bool reads_weights() const {
    return encoding_ == Encoding::kCompact || options_.layout == DirectoryLayout::kHfDelta;
  }
  // That a payload is of weights that nobody wrote meanwhile, as far as it was read from them.
  [[nodiscard]] Status prove_read(const RankMessage& mine, bool full);
  // What was captured, proven; the notes name what is not as it was said to be.
  [[nodiscard]] Status prove_live(RankMessage& mine);
  [[nodiscard]] bool sweep_due() const;  // with the next version

  // publisher_seal.cpp: what a publication consists of, steps and anchors alike.
  [[nodiscard]] Result<std::unique_ptr<RankPayload>> make_payload(const PayloadContext& made) const;
  [[nodiscard]] PayloadContext context(const PublicationId& id, std::uint64_t base_version,
                                       bool full);
  using AddBatch = std::function<Status(std::span<const PairedTensor>)>;
  [[nodiscard]] RankMessage write_payload(const PayloadContext& made, const Deadline& deadline,
                                          const std::function<Status(const AddBatch&)>& fill);
  void flush_parts(RankMessage& mine, bool full, const Deadline& deadline);
  [[nodiscard]] bool has_index(bool full) const;  // the leader adds one once it has heard all
  [[nodiscard]] Status add_index(const PublicationId& id, std::uint64_t base_version, bool full,
                                 std::vector<RankMessage>& ranks, const Deadline& deadline,
                                 std::vector<std::string>& notes);
  [[nodiscard]] Status add_assets(std::vector<std::string>& notes);
  [[nodiscard]] Result<std::vector<PartReceipt>> flush(const Deadline& deadline);
  // The digests of this rank's tensors after a version that was found to change them so.
  [[nodiscard]] TensorDigests digests_after(const PayloadFindings& findings, bool full) const;
  [[nodiscard]] Status list_tensors(const std::vector<RankMessage>& ranks,
                                    Manifest& manifest) const;
  [[nodiscard]] Result<Manifest> manifest_of(const PublicationId& id, std::uint64_t base_version,
                                             bool full,
                                             const std::vector<RankMessage>& ranks) const;
  // Ok: sealed. `doubt` is set where nobody can say; then sealing_ is the manifest's hash.
  [[nodiscard]] Status seal_publication(const PublicationId& id, std::uint64_t base_version,
                                        bool full, std::vector<RankMessage>& ranks,
                                        const Deadline& deadline, LeaderMessage& outcome,
                                        bool& doubt);
  void fit_positions();
  // Of the version that is committed; begun already by the leader. Its failure is a note.
  [[nodiscard]] Status add_anchor(std::vector<std::string>& notes);
  // What the snapshot has: all of it, or of tensors that are offered in blocks.
  [[nodiscard]] std::vector<PairedTensor> offer_snapshot(bool blocks_alone) const;
  [[nodiscard]] RankMessage write_anchor(const PublicationId& id, const Deadline& deadline);

  PublisherOptions options_;
  // WeightSource::companions_dir() of the base, and of what was published last.
  std::string base_companions_, companions_;
  Group& group_;
  SendRoad& road_;
  ReceiveRoad* history_;
  unsigned threads_;

  WeightLayout layout_;                // of all ranks
  std::vector<TensorSpec> offered_;    // what this rank's sources offer, in their order
  std::vector<TensorBox> boxes_;       // which part of each
  std::vector<std::uint32_t> number_;  // of each in the snapshot; kNotOurs: dropped
  // Offers that other ranks have, too: those to be read, those that are all that this rank has of a
  // tensor of the layout and publishes, and, without a snapshot, where the former lie.
  std::set<std::uint32_t> copies_;
  std::map<std::uint32_t, std::uint32_t> kept_copies_;
  std::map<std::uint32_t, OfferedTensor> live_copies_;
  std::set<std::uint32_t> watched_copies_;
  TensorDigests seen_copies_;        // of those, since observe()
  std::vector<std::size_t> owners_;  // per tensor of the layout: ranks that own some of it
  std::vector<bool> in_blocks_;      // per tensor of the layout: no rank owns all of it
  Snapshot snapshot_;
  UndoLog undo_;
  std::optional<LiveWeights> live_;        // if there is no snapshot; then snapshot_ is the weights
  std::optional<Status> observed_;         // of observe(), until publish()
  std::uint64_t since_sweep_ = 0;          // versions
  LiveCosts live_costs_;                   // since the last version
  std::optional<PayloadBuffers> buffers_;  // once the layout is known
  Encoding encoding_;                      // of deltas: the options', or what all receivers read
  std::vector<std::uint32_t> plain_;       // tensors that `compact` must not code

  bool mirrored_ = false;           // a layout of whole tensors, some of which come in blocks
  std::uint64_t mirror_bytes_ = 0;  // of those
  std::optional<PayloadBuffers> block_buffers_, mirror_buffers_;
  Snapshot mirror_;  // the leader's, like its undo log
  UndoLog mirror_undo_;

  VersionId id_;                        // committed
  Digest digest_;                       // of all ranks' weights at id_
  Digest part_digest_;                  // of this rank's
  Digest base_digest_;                  // of version 0, all ranks
  std::vector<Digest> tensor_digests_;  // of this rank's tensors at id_, as the layout
  // Of each tensor of version 0, as the layout; known to the leader. Empty if the announcement
  // on the road has none.
  std::vector<Digest> base_tensor_digests_;
  bool needs_full_ = false;
  bool resumed_ = false;
  double flush_ms_ = 0;  // of the last version
  std::optional<Doubt> doubt_;

  // The leader's.
  Status fenced_;    // not ok: another publisher has taken the road over; nothing more is published
  Hash128 sealing_;  // the hash of the manifest that was sealed last, or was to be
  // That may have been visible in this run. Past id_ only after a restart that did not find it.
  std::uint64_t highest_number_ = 0;
  bool anchor_requested_ = false;
  std::vector<std::vector<TensorBox>> all_boxes_;  // of each tensor, of all ranks
  std::map<RankOffer, RankOffer> kept_for_;        // of each offer that is dropped: the same one
  std::map<RankOffer, std::string> copied_names_;  // of those
  std::vector<UnpublishedTensor> unpublished_;     // of the base checkpoint, if it is given
  std::vector<BlockCut> own_cuts_, cuts_;          // by the options; as they are now
  // What each receiver announced: when the version was planned, and if that plan was told.
  std::map<std::string, std::string> hearing_, heard_;
  std::uint64_t step_ = kNoStep;                    // of publish()
  std::map<std::string, ReceiverNeeds> receivers_;  // what was heard last, read
  EncodingChooser chooser_;
  std::optional<std::uint64_t> newest_anchor_;
  std::uint64_t chain_bytes_ = 0;  // of the steps since the newest anchor, or since the base
  std::vector<std::string> notes_;
};

inline constexpr std::uint32_t kNotOurs = ~std::uint32_t{0};

}  // namespace driftless
