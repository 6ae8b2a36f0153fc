// SPDX-License-Identifier: Apache-2.0
// Publisher: the trainer's side. One object per publisher rank (PP-source rank); rank 0 leads.
//
//   source -> store (what the receivers have, and what changed) -> encode -> parts -> road
//   all ranks flushed -> leader seals the manifest -> commit: the store is the version
//   anything else     -> abort on all ranks: the store is rolled back, the next version carries it
//
// Every rank calls open(), publish() and close() equally often (a failed publish() counts). No call
// lasts longer than its deadline plus the time of its own work. One thread at a time; threads that
// a call starts end with it. The group, the roads and the file system outlive the publisher.
#pragma once

#include "collectives/group.h"
#include "collectives/road.h"
#include "core/quantize_rule.h"
#include "formats/manifest.h"
#include "formats/records.h"
#include "plugin/publish/block_splitter.h"
#include "plugin/publish/publisher_device.h"
#include "plugin/publish/run_state.h"
#include "plugin/publish/stage_clock.h"
#include "plugin/publish/weight_source.h"

namespace driftless {

enum class UpdateMode : unsigned char { kDelta, kFull };
// What to do with a road that holds versions of an earlier process.
enum class ResumeMode : unsigned char {
  kAuto,     // go on where there is a run with this base and layout, else start one
  kNever,    // refuse a road that is not empty
  kRequire,  // refuse a road that is empty
};

struct PublisherOptions {
  UpdateMode mode = UpdateMode::kDelta;
  DirectoryLayout layout = DirectoryLayout::kFrames;
  Encoding encoding = Encoding::kDeltas;
  // The first versions are in `encoding`, deltas; the others in what ends soonest on the link, as
  // the receivers tell (encoding_chooser.h). Frames only.
  bool encoding_auto = false;
  ChecksumKind checksum = ChecksumKind::kXxh3_128;  // of tensors, where the layout carries them
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;
  unsigned threads = 0;    // 0: default_threads()
  bool background = true;  // encode and write on a thread; false if the road is bound to one
  // A version of which more than this share of the units changed is sent in full.
  double full_above_density = 0.25;
  bool first_anchor = false;        // publish an anchor of version 0, for receivers without a base
  std::uint64_t anchor_every = 0;   // versions; 0: not by number
  bool anchor_by_size = false;      // when the versions since the last anchor outgrow an anchor
  std::uint64_t keep_versions = 0;  // versions to keep beside those that are needed; 0: keep all
  ResumeMode resume = ResumeMode::kAuto;
  // Frames are cut so; one for a tensor. A receiver that needs a slice fetches its blocks alone.
  std::vector<TensorCut> cuts = {};
  // Cut further as receivers announce that they hold slices. Frames in host memory only.
  bool cut_for_receivers = true;
  // The snapshot is kept and compared where this says; null: in host memory, by the processor. Of
  // this rank alone.
  std::shared_ptr<PublisherDevice> device = nullptr;
  // False: none is kept. The weights are read where they lie, and what changed comes by capture().
  bool keep_snapshot = true;
  // Of captured changes, and as much again while a version is under way; past it a tensor goes out
  // whole. Two values and 4 bytes a change.
  std::uint64_t capture_bytes = std::uint64_t{512} << 20;
  // Without a snapshot, every so many versions: a sweep proves that the weights are what the
  // captured changes make of them. 0: never.
  std::uint64_t sweep_every = 1;
  // Layouts hf_delta and flush: whole versions carry the files of this checkpoint that hold no
  // weights. Their readers make a directory exactly what a whole version holds. Empty: those of
  // the source (WeightSource::companions_dir()).
  std::string assets_dir;
  // Files that others read too (hf_delta, flush) hold positions of 4 bytes. A layout with a larger
  // tensor is published in an encoding whose positions fit; tests lower it.
  std::uint64_t position_limit = std::uint64_t{1} << 32;
  // Called on every rank once its files of a publication are written, with the directory that they
  // lie in, before anybody can see it. Not ok: it is not published. May be empty.
  std::function<Status(const std::string& directory)> before_visible;
  // The checkpoint that trainer and receivers start from. Tensors of it that no rank offers are
  // named in the notes of open() and recorded in the announcement, with their digests; with
  // `complete` they are an error. Empty: nobody says which there are.
  std::string base_checkpoint = {};
  // By which rule the sources quantize their weights; empty: they do not. Announced, and in every
  // manifest; a run goes on by the rule that it began with.
  std::string quantize_rule = {};
  // Whether weights become the tensors of base_checkpoint, if that has FP8 blocks: codes and scales
  // are made of what the sources offer, and the bytes of the base are those of base_checkpoint.
  // Without base_checkpoint, or with a quantize_rule, nothing is quantized here.
  QuantizeSettings quantize = {};
  bool complete = false;
  std::chrono::milliseconds deadline{120'000};  // of one publish(), agreement included
};

// What a version without a snapshot took, failed attempts included.
struct LiveCosts {
  std::uint64_t captured_bytes = 0;  // that the changes take
  std::uint64_t resent_tensors = 0;  // written without capture(), or with more than could be kept
  double capture_ms = 0;             // of capture(), since the last version
  double sweep_ms = 0;               // what the changes add up to, and the proof
  double step_ms = 0;                // all that held up the trainer's steps (PublisherSession)
};

struct PublishReport {
  Hash128 run;
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  Encoding encoding = Encoding::kDeltas;  // kFull if it was sent in full
  Digest digest;
  std::uint64_t changed_units = 0, total_units = 0;  // of all ranks, like the following
  std::uint64_t full_bytes = 0, delta_bytes = 0, wire_bytes = 0;
  // Of whole tensors that the leader keeps, since the layout has them and ranks offer blocks.
  std::uint64_t mirror_bytes = 0;
  bool anchor = false;  // an anchor of it was published, too
  // The tensors that changed most, largest first; of the leader, for a delta that was compared or
  // captured on the host. Of ranks that share a tensor each names its kMostChangedTensors.
  std::vector<TensorDensity> most_changed;
  std::vector<std::string> notes;  // dense, tensor dropped, anchor that failed: for the log
  LiveCosts live;                  // of this rank; zero if it keeps a snapshot
  double process_ms = 0;           // diff, encoding, writing; of this rank
  double flush_ms = 0;             // of that: until all that was written is where receivers look
  StageTimes stages;               // of process_ms, by this rank
  double manifest_publish_ms = 0;  // agreement and seal
  double seal_ms = 0;              // of that: from the last part to the verdict
  double total_ms = 0;
};

class BlockMirror;
class LiveStore;
class PublisherLeader;
class QuantizedStore;
class QuantizedWeights;
class RankOffers;
class WeightStore;
struct PayloadBuffers;
struct PayloadMessage;
struct PlanMessage;
struct OutcomeMessage;
struct PairedTensor;
struct PayloadContext;
struct TensorDigest;

class Publisher {
 public:
  // Collective. `base` offers the base checkpoint's bytes (version 0), which seed the snapshot; the
  // ranks' tensors together are the layout. A tensor, or block, that two ranks offer is the lower
  // rank's, and noted; if their bits differ, that is refused by name (kMismatch). Blocks of a
  // tensor that overlap otherwise, or leave a gap, are refused, by name and offset (kWrongLayout),
  // and so is a tensor that a rank holds and none offers (WeightSource::left_to_others()).
  // `history` (null: nothing to resume) is read where the road holds versions already: the snapshot
  // is then brought to the newest of them, so that the first publish() takes the receivers from
  // there to the weights it is given.
  //
  // Without a snapshot (options.keep_snapshot) `base` is read once, and `live` (null: it is `base`)
  // offers the same tensors where the trainer has them: they stay there, and are updated in place.
  [[nodiscard]] static Result<std::unique_ptr<Publisher>> open(const PublisherOptions& options,
                                                               Group& group, SendRoad& road,
                                                               ReceiveRoad* history,
                                                               WeightSource& base,
                                                               WeightSource* live = nullptr);
  ~Publisher();

  // Collective: the next version. Any other status than ok: no receiver will see this version, or,
  // if the outcome of the seal could not be learnt, the next call finds it out first; the message
  // names the rank and what failed there. kWrongRun: another publisher has taken the road over;
  // nothing of this one becomes visible any more, and every further call says so. `step`: of the
  // training, below Group::kStepLimit; ranks that give different ones make no version. Ascending
  // steps bring ranks together again of which one left out a call.
  [[nodiscard]] Result<PublishReport> publish(WeightSource& weights,
                                              std::optional<std::uint64_t> step = std::nullopt);
  // Without a snapshot, not collective: before weights are written, what they become. `values` has
  // entries of the source's tensors() by number, of their type, or float32 that is rounded to it as
  // it is written. Compares and keeps what changes, until a version with it is committed. May be
  // called several times for a version. Not ok: the next publish() finds out what is missing.
  // `stream`: of weights on a GPU, the one (a cudaStream_t; null: the default one) on which they
  // are written. It is not waited for, but for the first time: what is queued there afterwards may
  // write the weights and the values.
  struct NewTensor {
    std::size_t tensor = 0;
    const std::byte* data = nullptr;
    DType dtype = DType::kBF16;
    MemoryKind memory = MemoryKind::kHost;
  };
  [[nodiscard]] Status capture(std::span<const NewTensor> values, void* stream = nullptr);
  // Weights may be written that capture() was not shown: the next publish() finds out.
  void doubt();
  // The part of publish() that must be over before weights are written that capture() does not see
  // (WeightSource::watched()). Not collective; publish() with the same source does it if nobody
  // has. `stream` as above: the version has what is queued there until now, and publish() waits for
  // it. `behind`: publish() comes while the trainer goes on. The version is then what the weights
  // are in this call, or fails (kMismatch). They are read here, all of them, if capture() was not
  // called since the last version, if it failed, or if the last version found something; else only
  // tensors of which more changed than was kept.
  [[nodiscard]] Status observe(WeightSource& weights, void* stream = nullptr, bool behind = false);
  // The next publish() adds an anchor. Said by the leader. So it does where a receiver asks for one
  // because it fell too far behind (kAnchorWanted in its report).
  void request_anchor();
  // Collective: an anchor of the committed version now.
  [[nodiscard]] Status publish_anchor();

  [[nodiscard]] const WeightLayout& layout() const { return run_.layout; }  // of all ranks
  [[nodiscard]] VersionId version() const { return run_.id; }         // the last that was committed
  [[nodiscard]] const Digest& digest() const { return run_.digest; }  // of all ranks' weights there
  [[nodiscard]] bool resumed() const { return resumed_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }  // of open()

 private:
  // A version of which this rank does not know whether it was sealed.
  struct Doubt;

  Publisher(const PublisherOptions& options, Group& group, SendRoad& road, ReceiveRoad* history);

  // The steps of open(), in order.
  [[nodiscard]] Status open_quantized(const WeightSource& own);
  [[nodiscard]] Status open_ranks(WeightSource& base, WeightSource& live, Status ready,
                                  const Deadline& deadline);
  [[nodiscard]] Status assemble(WeightSource& base, const WeightSource& live, Status ready,
                                const Deadline& deadline);
  [[nodiscard]] Status seed(WeightSource& base, WeightSource& live, Status ready,
                            const Deadline& deadline);
  [[nodiscard]] Status start_or_resume(const Deadline& deadline);
  [[nodiscard]] Status open_live(WeightSource& live);
  [[nodiscard]] Status make_live_store(std::vector<OwnedTensor> owned, const WeightSource& live);
  [[nodiscard]] Status compare_with_base(WeightSource& base, const Deadline& deadline);
  // Of the trainer's weights, if they are quantized: those lie elsewhere than what is offered.
  [[nodiscard]] RankOffers& live_offers() { return own_offers_ ? *own_offers_ : *offers_; }
  [[nodiscard]] Status prepare_live(bool full);
  [[nodiscard]] Status seed_mirror(Status ready, const Deadline& deadline);
  void use_buffers();  // for the encoding of the run's shape
  void set_digests(std::vector<Digest> digests);

  [[nodiscard]] Result<PublishReport> publish_guarded(WeightSource& weights,
                                                      WeightSource* own = nullptr);
  [[nodiscard]] Result<PublishReport> publish_once(Status ready, WeightSource& weights,
                                                   WeightSource* own);
  // Collective, after a failure that all ranks have heard of: whether they go over to the road's
  // fallback now.
  [[nodiscard]] Result<bool> use_fallback();
  [[nodiscard]] Result<PlanMessage> make_plan(Status ready, const Deadline& deadline);
  // Of FP8 blocks, before a version is made, or made again: what they hold. `own`: the weights, if
  // there is a snapshot and they are quantized.
  [[nodiscard]] Status measure_blocks(const PlanMessage& plan, WeightSource* own,
                                      const Deadline& deadline);
  // Of FP8 blocks: the largest magnitudes, which all ranks agree on. Collective if ranks share
  // blocks.
  [[nodiscard]] Status agree_on_blocks(const Deadline& deadline);
  [[nodiscard]] PayloadMessage produce(const PlanMessage& plan, WeightSource& weights,
                                       const Deadline& deadline);
  // A version or an anchor: `fill` passes batches to what it is given.
  using AddBatch = std::function<Status(std::span<const PairedTensor>)>;
  [[nodiscard]] PayloadMessage write_payload(PayloadContext made, const Deadline& deadline,
                                             const std::function<Status(const AddBatch&)>& fill);
  [[nodiscard]] PayloadContext context(const PublicationId& id, std::uint64_t base_version,
                                       bool full);
  // An anchor of the version that is committed; begun already by the leader.
  [[nodiscard]] Status add_anchor(std::vector<std::string>& notes);
  // Nothing was committed, as far as this rank knows.
  [[nodiscard]] Status give_up(const PlanMessage& plan, const OutcomeMessage& outcome,
                               const PayloadMessage& mine);
  void resolve_doubt(bool published);
  void commit(std::uint64_t version, const std::vector<TensorDigest>& changed,
              const Digest& digest);
  void take_back(bool full);

  PublisherOptions options_;
  Group& group_;
  SendRoad& road_;
  ReceiveRoad* history_;
  unsigned threads_;

  RunState run_;
  std::unique_ptr<Checkpoint> quantized_base_;
  std::unique_ptr<QuantizedWeights> quantized_;  // null: this rank does not quantize
  Status measured_;                              // how it went to measure what is quantized
  std::unique_ptr<RankOffers> offers_;
  std::unique_ptr<WeightStore> store_;
  LiveStore* live_ = nullptr;  // the store, or the store's, if there is no snapshot
  // The store, if there is no snapshot and weights are quantized; what the trainer's are there.
  QuantizedStore* quantized_live_ = nullptr;
  std::unique_ptr<RankOffers> own_offers_;
  std::unique_ptr<WeightLayout> own_layout_;
  std::vector<std::string> live_notes_;  // of prepare_live()
  std::unique_ptr<BlockMirror> mirror_;  // a layout of whole tensors, some of which are in blocks
  std::unique_ptr<PublisherLeader> leader_;  // null on other ranks
  std::unique_ptr<PayloadBuffers> buffers_;
  Digest part_digest_;                  // of this rank's weights at the committed version
  std::vector<Digest> tensor_digests_;  // of this rank's tensors there, as the layout
  std::uint64_t step_ = 0;              // of publish()
  std::optional<Status> observed_;      // of observe(), until publish()
  bool needs_full_ = false;
  bool all_heard_ = false;  // every rank knows that the last attempt at a version failed
  bool resumed_ = false;
  bool shares_blocks_ = false;  // ranks cut FP8 blocks between them
  StageTimes stages_;           // of the last publication
  double flush_ms_ = 0;         // of its send_ms
  std::unique_ptr<Doubt> doubt_;
  std::vector<std::string> notes_;
};

}  // namespace driftless
