// SPDX-License-Identifier: Apache-2.0
// Receiver: the rollout's side. Follows a road and keeps a target at its newest version, from the
// run's announcement to its end. The command, the C library, the Python module and the agent are
// thin callers of it; plugin/job has the options of a process in a job (join_road()).
//
//   discover -> fetch -> verify -> decode = stage()      while the engine works
//   pause -> commit -> resume                            O(changed), all or nothing
//   report(version, digest)                              to the publisher, also while it waits
//
// One thread at a time. Road and target outlive it.
#pragma once

#include <functional>

#include "collectives/road.h"
#include "formats/receiver_needs.h"
#include "formats/records.h"
#include "plugin/receive/run_digests.h"
#include "plugin/receive/run_end.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// What one commit took: several versions may be folded into it. Bytes are sums over them.
struct UpdateReport {
  Hash128 run;
  std::uint64_t from_version = 0;
  std::uint64_t version = 0;
  std::uint64_t versions = 0;  // folded
  bool anchor = false;         // taken from an anchor
  std::string created;         // when the publisher sealed it, as its manifest says
  Digest digest;
  std::uint64_t changed_units = 0;
  std::set<std::uint32_t> tensors;  // that changed, by their numbers in the layout
  // Of all weights; of the encoded payload; of everything fetched, manifests included.
  std::uint64_t full_bytes = 0, delta_bytes = 0, wire_bytes = 0;
  // Of what was fetched of the parts, what the target has a use for: its blocks, and tables.
  std::uint64_t needed_bytes = 0;
  std::string carrier;  // ReceiveRoad::carrier(), of the last of it
  double fetch_ms = 0;  // on the road, and hashing
  double stage_ms = 0;  // decoding and proving
  double pause_ms = 0, apply_ms = 0, resume_ms = 0;
  std::vector<std::string> notes;  // what failed without harm: a report to the road, ...
};

struct ReceiverOptions {
  std::string id = "receiver";  // plain, unique on the road
  // Of parts staged for one commit, at most; of `compact` with what it takes once decoded.
  std::uint64_t fold_bytes = std::uint64_t{1} << 30;
  unsigned read_workers = 4;  // ranges of parts that are fetched and taken at a time
  // Of tensors in full shape that an engine's loader is given at a time (an engine's target).
  std::uint64_t chunk_bytes = std::uint64_t{512} << 20;
  std::chrono::milliseconds fetch_deadline{60'000};    // of one stage() once something is there
  std::chrono::milliseconds report_deadline{10'000};   // of one word to the road
  std::chrono::milliseconds connect_deadline{60'000};  // without a report that comes through
  unsigned threads = 0;                                // for hashing; 0: default_threads()
  ProofRule proof;                                     // for the target
  // The run that may take over weights that are another run's, by a full version (admit()); zero:
  // none may.
  Hash128 take_over = {};
  // What this receiver reads, as it announces it; empty: all that this build knows.
  std::vector<Encoding> encodings = {};
  // Called before a version is read, also before it is tried again; a failure is stage()'s. For
  // file systems that have to be told to look. May be empty.
  std::function<Status(std::uint64_t version)> before_read;
  // Called around the writing, also by rollback(). A failure of pause leaves everything as it was,
  // and commit() may be called again; one of resume is returned after the commit, which holds. An
  // engine whose weights a failed commit left without a version stays paused; stage() resumes it
  // once they are one again. May be empty.
  std::function<Status()> pause;
  std::function<Status()> resume;
  // Called with what went wrong without harm: a report that the road refused, or weights that
  // nothing proves to be the version that they are said to be. May be empty.
  std::function<void(const Status&)> warn;
  // Called with every commit, for its metrics. A failure is a note in the report. May be empty.
  std::function<Status(const UpdateReport&)> record;
  // The text of the trainer's last word, once it was said (listen_for_end()). May be empty.
  std::function<EndListener::Heard()> hear_end;
  std::shared_ptr<const void> keeps;  // lives as long as the receiver: its road, say
};

// Sums over a receiver's life.
struct ReceiverCounts {
  std::uint64_t newest = 0;  // version seen on the road
  std::uint64_t commits = 0, versions = 0, anchors = 0, rollbacks = 0;
  std::uint64_t stage_failures = 0, commit_failures = 0;
  std::uint64_t unheard = 0;  // signs of life that the road did not take
  std::uint64_t changed_units = 0, delta_bytes = 0, wire_bytes = 0, needed_bytes = 0;
  double fetch_ms = 0, stage_ms = 0, pause_ms = 0, apply_ms = 0, resume_ms = 0;
  double longest_pause_ms = 0;  // from the pause to the end of the resume

  void add(const UpdateReport& report);
};

class AnchorOffer;
class VersionFetcher;
struct FetchedChain;
struct MappedPart;

class Receiver {
 public:
  // Waits for the run's announcement, refuses another layout (kWrongLayout), another run
  // (kWrongRun) unless options.take_over admits it, another base, or weights that are not the
  // version that they are said to be (kWrongBase), registers with the road. A target without a
  // layout gets the run's. If neither announcement nor manifests tell the digest of that version,
  // unproven() says so.
  [[nodiscard]] static Result<std::unique_ptr<Receiver>> open(const ReceiverOptions& options,
                                                              ReceiveRoad& road,
                                                              WeightTarget& target,
                                                              const Deadline& deadline);
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver();

  struct Newest {
    bool newer = false;  // than what the target holds
    std::uint64_t version = 0;
  };
  // Waits until something newer is on the road; fetches nothing.
  [[nodiscard]] Result<Newest> poll(const Deadline& deadline);
  // Waits until something newer than the target is there, and makes it ready: versions that follow
  // the target's version, as many as there are, or an anchor where they cannot be had any more.
  // What is damaged or incomplete is fetched again until options.fetch_deadline. False: the
  // deadline passed and nothing was new. kWrongBase: versions are gone and there is no anchor.
  // After any failure the target is as it was, and stage() may be called again. Gives signs of life
  // while it waits.
  [[nodiscard]] Result<bool> stage(const Deadline& deadline);
  // While it waits, it gives its bytes of the newest anchor to a road whose receivers serve each
  // other (anchor_offer.h); not after this. For weights that somebody else may take away.
  void offer_nothing();
  // As stage(), and false for kWrongBase and kMismatch until they have lasted for fetch_deadline:
  // versions may appear out of order, the next one may bring the anchor that the receiver now asks
  // for, and bytes that did not fit are fetched again.
  [[nodiscard]] Result<bool> stage_patiently(const Deadline& deadline);
  // Why stage_patiently() had to wait last; ok if it never had.
  [[nodiscard]] const Status& trouble() const { return trouble_; }
  // Commits what stage() made ready, and reports it to the road. kCorrupt, with nothing committed:
  // a part that is mapped, not copied, was changed since; stage() fetches it again.
  [[nodiscard]] Result<UpdateReport> commit();
  // Drops what is staged; where nothing is, takes the last commit back (StagedChange::undo). If
  // that fails, the state may not be valid any more: stage() takes a full version then.
  [[nodiscard]] Status rollback();
  // A sign of life now, with the times of the last commit.
  [[nodiscard]] Status report();
  // kDeadlineExceeded once no report has come through for connect_deadline.
  [[nodiscard]] Status check_contact() const { return contact_.check(state().id.version); }
  // The trainer's last word, once it was said.
  [[nodiscard]] Result<std::optional<EndOfRun>> listen_for_end();
  // Nothing more will be asked for.
  [[nodiscard]] Status leave();

  [[nodiscard]] const std::string& id() const { return options_.id; }
  [[nodiscard]] TargetState state() const { return target_->state(); }
  // Why nothing proves yet that the weights are the version that they are said to be; empty: they
  // are proven, or they are no version. The reports to the road say it, too.
  [[nodiscard]] const std::string& unproven() const { return digests_.unproven(); }
  // What commit() would bring; none if nothing is staged. Receivers that commit together compare
  // it first.
  [[nodiscard]] std::optional<std::uint64_t> staged_version() const;
  [[nodiscard]] const Hash128& run() const { return digests_.run(); }
  // Of the run: the digest of each tensor at the version that the target holds, as announcement and
  // manifests say. As the layout. Empty if they do not say, or if the manifests that led to the
  // version were gone when the receiver was opened; then from the next full version on.
  [[nodiscard]] const std::vector<Digest>& tensor_digests() const;
  [[nodiscard]] const WeightLayout& layout() const { return digests_.layout(); }
  [[nodiscard]] const ReceiverCounts& counts() const { return counts_; }

 private:
  Receiver(const ReceiverOptions& options, ReceiveRoad& road, WeightTarget& target,
           const RunInfo& run);
  [[nodiscard]] Status announce_needs();
  [[nodiscard]] Result<bool> stage_once(const Deadline& deadline);
  [[nodiscard]] Result<bool> stage_chain(const TargetState& state, FetchedChain chain);
  // Commits what is staged, between pause and resume: report_.
  [[nodiscard]] Status apply();
  // What the target holds of this run: nothing while it holds another's, which a full version is to
  // replace.
  [[nodiscard]] TargetState own_state() const;
  // Sends a report that is no sign of life: sign_of_life() is due as before, and warns if the road
  // refuses reports.
  [[nodiscard]] Status say();
  // Between two looks for news. Whether there is more to be offered.
  [[nodiscard]] bool offer_anchor();
  void note_speed();
  void sign_of_life();
  // Not while the weights are parts of two versions.
  [[nodiscard]] Status resume();

  ReceiverOptions options_;
  ReceiveRoad* road_;
  WeightTarget* target_;
  std::unique_ptr<VersionFetcher> fetcher_;
  RunDigests digests_;
  std::vector<MappedPart> mapped_;  // of what is staged
  ReceiverNeeds announced_;         // told first, and since then
  std::string needs_;               // the same, as reported
  unsigned misfits_ = 0;            // in a row
  bool left_paused_ = false;
  bool stranded_ = false;  // neither the next version nor an anchor is there, undamaged
  std::unique_ptr<StagedChange> staged_;
  std::unique_ptr<StagedChange> committed_;  // the last one, for rollback()
  UpdateReport report_;                      // of what is staged
  std::unique_ptr<AnchorOffer> offer_;       // null: nothing is offered
  ReceiverCounts counts_;
  TrainerContact contact_;
  EndListener end_;
  std::optional<Deadline> patience_;  // of stage_patiently(), while it waits
  bool warned_ = false;               // that it does
  Status trouble_;
  std::optional<Digest> timed_;  // of the commit that the times are of
  double timed_stage_ms_ = 0, timed_commit_ms_ = 0;
};

}  // namespace driftless
