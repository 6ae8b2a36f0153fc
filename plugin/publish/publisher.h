// SPDX-License-Identifier: Apache-2.0
// Publisher: the trainer's side. One object per publisher rank (PP-source rank); rank 0 leads.
//
//   source -> store (the receivers' weights, and the changes) -> encode -> parts -> road
//   all ranks flushed -> leader seals the manifest -> commit: the store is the version
//   anything else     -> abort on all ranks: the store is rolled back, the changes go with the next
//                        version
//
// Every rank calls open(), publish() and publish_anchor() the same number of times (a failed call
// counts). No call lasts longer than its deadline plus the time of its own work. One thread at a
// time; threads that a call starts end with it. The group, the roads and the file system outlive
// the publisher.
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
// What to do if the road holds versions of an earlier process.
enum class ResumeMode : unsigned char {
  kAuto,     // continue the road's run if there is one, else start one
  kNever,    // refuse a road that holds versions
  kRequire,  // refuse a road that holds none
};

struct PublisherOptions {
  UpdateMode mode = UpdateMode::kDelta;
  DirectoryLayout layout = DirectoryLayout::kFrames;
  Encoding encoding = Encoding::kDeltas;
  // The first versions are deltas in `encoding`; later ones in the encoding that is delivered
  // soonest, by the receivers' reports (encoding_chooser.h). Frames only.
  bool encoding_auto = false;
  ChecksumKind checksum = ChecksumKind::kXxh3_128;  // of tensors, if the layout carries them
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;
  unsigned threads = 0;    // 0: default_threads()
  bool background = true;  // other threads encode and write; false if the road allows only one
  // A version is sent in full if a larger share of the units changed.
  double full_above_density = 0.25;
  bool first_anchor = false;        // publish an anchor of version 0, for receivers without a base
  std::uint64_t anchor_every = 0;   // an anchor every so many versions; 0: not by number
  bool anchor_by_size = false;      // an anchor once the versions since the last one outgrow it
  std::uint64_t keep_versions = 0;  // newest ones to keep beside those still needed; 0: keep all
  ResumeMode resume = ResumeMode::kAuto;
  // How frames are cut; at most one cut per tensor. A receiver that needs a slice fetches only its
  // blocks.
  std::vector<TensorCut> cuts = {};
  // Cut further if receivers announce that they hold slices. Only for frames in host memory.
  bool cut_for_receivers = true;
  // Keeps and compares the snapshot; null: host memory and the CPU. Only for this rank.
  std::shared_ptr<PublisherDevice> device = nullptr;
  // False: no snapshot. The weights are read where they lie, and the changes come from capture().
  bool keep_snapshot = true;
  // Memory for captured changes; the same again while a version is under way. A change takes two
  // values and 4 bytes. A tensor that exceeds it is sent whole.
  std::uint64_t capture_bytes = std::uint64_t{512} << 20;
  // Without a snapshot: how many versions apart a sweep proves that the weights equal the last
  // version plus the captured changes. 0: never.
  std::uint64_t sweep_every = 1;
  // Layouts hf_delta and flush: whole versions carry this checkpoint's files that hold no weights,
  // because their readers need a directory with everything. Empty: the files of the source
  // (WeightSource::companions_dir()).
  std::string assets_dir;
  // Files that other readers use (hf_delta, flush) hold 4-byte positions. A layout with a larger
  // tensor is published in an encoding whose positions fit. Tests lower the limit.
  std::uint64_t position_limit = std::uint64_t{1} << 32;
  // Called on every rank after its files of a publication are written and before they are visible,
  // with their directory. Not ok: the version is not published. May be empty.
  std::function<Status(const std::string& directory)> before_visible;
  // The checkpoint that trainer and receivers start from. Its tensors that no rank offers are named
  // in the notes of open() and recorded with their digests in the announcement; with `complete`
  // they are an error. Empty: such tensors are not looked for.
  std::string base_checkpoint = {};
  // The rule by which the sources quantize their weights; empty: they do not. It is part of the
  // announcement and of every manifest; a resumed run keeps its rule.
  std::string quantize_rule = {};
  // Whether the publisher quantizes the weights if base_checkpoint has FP8 blocks: it makes codes
  // and scales from the sources' tensors, and version 0 has the bytes of base_checkpoint. Without
  // base_checkpoint, or with a quantize_rule, the publisher quantizes nothing.
  QuantizeSettings quantize = {};
  bool complete = false;
  std::chrono::milliseconds deadline{120'000};  // for one publish(), agreement included
};

// The costs of a version without a snapshot, failed attempts included.
struct LiveCosts {
  std::uint64_t captured_bytes = 0;  // memory of the changes
  std::uint64_t resent_tensors = 0;  // written without capture(), or with more than could be kept
  double capture_ms = 0;             // of capture(), since the last version
  double sweep_ms = 0;               // to sum the changes and prove them
  double step_ms = 0;                // all that delayed the trainer's steps (PublisherSession)
};

struct PublishReport {
  Hash128 run;
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  Encoding encoding = Encoding::kDeltas;  // kFull if it was sent in full
  Digest digest;
  std::uint64_t changed_units = 0, total_units = 0;  // over all ranks, like the next line
  std::uint64_t full_bytes = 0, delta_bytes = 0, wire_bytes = 0;
  // The whole tensors that the leader keeps (BlockMirror), because the layout has whole tensors and
  // ranks offer blocks.
  std::uint64_t mirror_bytes = 0;
  bool anchor = false;  // an anchor of this version was published, too
  // The tensors that changed most, largest first. Only on the leader, and only for a delta that was
  // compared or captured on the host. Each rank reports only its kMostChangedTensors, so the count
  // of a tensor that ranks share may be too small.
  std::vector<TensorDensity> most_changed;
  std::vector<std::string> notes;  // dense, tensor dropped, anchor that failed: for the log
  LiveCosts live;                  // of this rank; zero if it keeps a snapshot
  double process_ms = 0;           // diff, encoding, writing; of this rank
  double flush_ms = 0;             // part of it: until all parts are where receivers look
  StageTimes stages;               // parts of process_ms, on this rank
  double manifest_publish_ms = 0;  // agreement and seal
  double seal_ms = 0;              // part of it: from the last part to the verdict
  double total_ms = 0;
};

struct PayloadMessage;
struct PlanMessage;
struct OutcomeMessage;
struct PairedTensor;
struct PayloadContext;
struct RankState;
struct TensorDigest;

class Publisher {
 public:
  // Collective. `base` offers the base checkpoint's bytes (version 0), which seed the snapshot; the
  // layout is the tensors of all ranks. If two ranks offer the same tensor or block, the lower rank
  // publishes it, and a note reports that; copies whose bits differ are refused by name
  // (kMismatch). Blocks of a tensor that overlap otherwise or leave a gap are refused, by name and
  // offset (kWrongLayout), and so is a tensor that a rank holds and no rank offers
  // (WeightSource::left_to_others()). `history` (null: nothing to resume) is read if the road
  // already holds versions: the snapshot is then brought to the newest one, and the first publish()
  // leads the receivers from there to its weights.
  //
  // Without a snapshot (options.keep_snapshot) `base` is read once. `live` (null: it is `base`)
  // offers the same tensors where the trainer has them; they must stay there and be updated in
  // place.
  [[nodiscard]] static Result<std::unique_ptr<Publisher>> open(const PublisherOptions& options,
                                                               Group& group, SendRoad& road,
                                                               ReceiveRoad* history,
                                                               WeightSource& base,
                                                               WeightSource* live = nullptr);
  ~Publisher();

  // Collective: publishes the next version. Any other status than ok: no receiver will see this
  // version, or, if the outcome of the seal is unknown, the next call resolves it first. The
  // message names the rank and the cause. kWrongRun: another publisher has taken over the road;
  // nothing of this publisher becomes visible any more, and every further call returns kWrongRun.
  // `step`: the training step, below Group::kStepLimit; ranks that give different steps make no
  // version. Ascending steps let ranks meet again after one of them left out a call.
  [[nodiscard]] Result<PublishReport> publish(WeightSource& weights,
                                              std::optional<std::uint64_t> step = std::nullopt);
  // Without a snapshot; not collective. Call it with the new values before they are written into
  // the weights. `values` names the source's tensors() by number; a value has the tensor's type, or
  // is float32 and rounded to that type when written. Keeps the changes until a version with them
  // is committed. May be called several times per version. Not ok: changes may be missing, and the
  // next publish() finds them. `stream` (a cudaStream_t; null: the default one): the stream on
  // which weights on a GPU are written. Work that is queued there after the call may overwrite the
  // weights and the values; capture() does not wait for the stream, except the first time.
  struct NewTensor {
    std::size_t tensor = 0;
    const std::byte* data = nullptr;
    DType dtype = DType::kBF16;
    MemoryKind memory = MemoryKind::kHost;
  };
  [[nodiscard]] Status capture(std::span<const NewTensor> values, void* stream = nullptr);
  // Call it if weights may have been written without capture(): publish() then looks for them.
  void doubt();
  // Fixes the weights of the next version. Call it before code other than the optimizer writes
  // watched tensors (WeightSource::watched()), because capture() does not see these writes. Not
  // collective. If it was not called, publish() with the same source does it. `stream` as above:
  // the version includes the work that is queued there until now, and publish() waits for it.
  // `in_background`: the trainer goes on during publish(). The version then has the weights of this
  // call, or fails (kMismatch). The call then reads the tensors with more changes than were kept.
  // It reads all weights if capture() was not called since the last version, if it failed, or, on a
  // GPU, if the last version had such tensors.
  [[nodiscard]] Status observe(WeightSource& weights, void* stream = nullptr,
                               bool in_background = false);
  // Leader: the next publish() adds an anchor. It also does if a receiver asks for one because it
  // fell too far behind (kAnchorWanted in its report).
  void request_anchor();
  // Collective: publishes an anchor of the committed version now.
  [[nodiscard]] Status publish_anchor();

  [[nodiscard]] const WeightLayout& layout() const;  // of all ranks
  [[nodiscard]] VersionId version() const;           // the last committed one
  [[nodiscard]] const Digest& digest() const;        // all ranks, at version()
  [[nodiscard]] bool resumed() const;
  [[nodiscard]] const std::vector<std::string>& notes() const;  // of open()

 private:
  // A version that this rank may or may not have sealed.
  struct Doubt;

  Publisher(const PublisherOptions& options, Group& group, SendRoad& road, ReceiveRoad* history);

  [[nodiscard]] Status publish_first_anchor();
  [[nodiscard]] Result<PublishReport> publish_guarded(WeightSource& weights,
                                                      WeightSource* trainer_weights = nullptr);
  [[nodiscard]] Result<PublishReport> publish_once(Status ready, WeightSource& weights,
                                                   WeightSource* trainer_weights);
  [[nodiscard]] Result<PlanMessage> make_plan(Status ready, const Deadline& deadline);
  // Measures FP8 blocks before a version is made, or made again. `trainer_weights`: the weights if
  // there is a snapshot and they are quantized; otherwise null.
  [[nodiscard]] Status measure_blocks(const PlanMessage& plan, WeightSource* trainer_weights,
                                      const Deadline& deadline);
  [[nodiscard]] Status prepare_live(bool full);
  [[nodiscard]] PayloadMessage produce(const PlanMessage& plan, WeightSource& weights,
                                       const Deadline& deadline);
  // Writes a version or an anchor: `fill` passes batches to its argument.
  using AddBatch = std::function<Status(std::span<const PairedTensor>)>;
  [[nodiscard]] PayloadMessage write_payload(PayloadContext made, const Deadline& deadline,
                                             const std::function<Status(const AddBatch&)>& fill);
  // Adds an anchor of the committed version; the leader has begun it already.
  [[nodiscard]] Status add_anchor(std::vector<std::string>& notes);
  // Ends a version that failed: drops it, or keeps it in doubt.
  [[nodiscard]] Status give_up(const PlanMessage& plan, const OutcomeMessage& outcome,
                               const PayloadMessage& mine);
  void resolve_doubt(bool published);
  void commit(std::uint64_t version, const std::vector<TensorDigest>& changed,
              const Digest& digest);
  void take_back(bool full);

  std::unique_ptr<RankState> rank_;
  Status measured_;                      // the status of measuring the FP8 blocks
  std::vector<std::string> live_notes_;  // from prepare_live()
  std::uint64_t step_ = 0;               // the last step that publish() was given
  std::optional<Status> observed_;       // the result of observe(), until publish()
  bool all_ranks_know_ = false;  // every rank knows that the last attempt at a version failed
  StageTimes stages_;            // of the last publication
  double flush_ms_ = 0;          // the flushing part of stages_.send_ms
  std::unique_ptr<Doubt> doubt_;
};

}  // namespace driftless
