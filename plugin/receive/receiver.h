// SPDX-License-Identifier: Apache-2.0
// Receiver: the rollout's side. Follows a road and keeps a target at its newest version, from the
// run's announcement to its end. The command, the C library, the Python module and the agent are
// thin callers of it; plugin/job makes its options for a process of a job (join_road()).
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

// The costs of one commit. If it folds several versions, bytes are sums over them.
struct UpdateReport {
  Hash128 run;
  std::uint64_t from_version = 0;
  std::uint64_t version = 0;
  std::uint64_t versions = 0;  // folded
  bool anchor = false;         // from an anchor
  std::string created;         // when the publisher sealed it (from the manifest)
  Digest digest;
  std::uint64_t changed_units = 0;
  std::set<std::uint32_t> tensors;  // the changed ones, by their numbers in the layout
  // All weights; the encoded payload; everything fetched, manifests included.
  std::uint64_t full_bytes = 0, delta_bytes = 0, wire_bytes = 0;
  // The part of wire_bytes that the target needed: its blocks, and the tables of frames.
  std::uint64_t needed_bytes = 0;
  std::string carrier;  // ReceiveRoad::carrier() of the last part
  double fetch_ms = 0;  // on the road, and hashing
  double stage_ms = 0;  // decoding and proving
  double pause_ms = 0, apply_ms = 0, resume_ms = 0;
  // When the weights were this version and the engine went on; empty: not known.
  std::optional<std::chrono::steady_clock::time_point> done;
  std::vector<std::string> notes;  // harmless failures: a refused report, ...
};

struct ReceiverOptions {
  std::string id = "receiver";  // of plain characters, unique on the road
  // The most bytes of parts that one commit folds; a single version may have more. For `compact`,
  // the decoded changes count, too.
  std::uint64_t fold_bytes = std::uint64_t{1} << 30;
  unsigned read_workers = 4;  // parts or ranges of parts that are fetched at a time
  // Bytes of full-shape tensors that an engine's loader is given at a time (an engine's target).
  std::uint64_t chunk_bytes = std::uint64_t{512} << 20;
  std::chrono::milliseconds fetch_deadline{60'000};    // of one stage(), once something is there
  std::chrono::milliseconds report_deadline{10'000};   // of one report to the road
  std::chrono::milliseconds connect_deadline{60'000};  // without a successful report
  unsigned threads = 0;                                // for hashing; 0: default_threads()
  ProofRule proof;                                     // for the target
  // The run that may replace the weights of another run by a full version (admit()); zero: none
  // may.
  Hash128 take_over = {};
  // The encodings that this receiver announces; empty: all that this build reads.
  std::vector<Encoding> encodings = {};
  // Called before each attempt to read a version; stage() returns its failure. For file systems
  // that must be refreshed. May be empty.
  std::function<Status(std::uint64_t version)> before_read;
  // Called around writing, also by rollback(). If pause fails, nothing has changed and commit() may
  // be called again. If resume fails, the commit holds, and commit() returns the failure. If a
  // failed commit left the weights without a version, the engine stays paused until stage() has
  // recovered one, or a later commit has written one. May be empty.
  std::function<Status()> pause;
  std::function<Status()> resume;
  // Called with harmless failures: a refused report, a gap in the versions that lasts, or weights
  // that nothing proves to be the declared version. May be empty.
  std::function<void(const Status&)> warn;
  // Called with every commit, for metrics. A failure becomes a note in the report. May be empty.
  std::function<Status(const UpdateReport&)> record;
  // Returns the text of the end-of-run note, once there is one (listen_for_end()). May be empty.
  std::function<EndListener::Note()> fetch_end;
  std::shared_ptr<const void> keeps;  // kept alive with the receiver, for example its road
};

// Sums over a receiver's life.
struct ReceiverCounts {
  std::uint64_t newest = 0;  // seen on the road
  std::uint64_t commits = 0, versions = 0, anchors = 0, rollbacks = 0;
  std::uint64_t stage_failures = 0, commit_failures = 0;
  std::uint64_t failed_reports = 0;  // reports that the road did not accept
  std::uint64_t changed_units = 0, delta_bytes = 0, wire_bytes = 0, needed_bytes = 0;
  double fetch_ms = 0, stage_ms = 0, pause_ms = 0, apply_ms = 0, resume_ms = 0;
  double longest_pause_ms = 0;  // from pause to the end of resume

  void add(const UpdateReport& report);
};

class AnchorOffer;
class VersionFetcher;
struct FetchedChain;
struct MappedPart;

class Receiver {
 public:
  // Waits for the run's announcement and registers with the road. Refuses another layout
  // (kWrongLayout), another run (kWrongRun) unless options.take_over admits it, another base, or
  // weights that are not the version that they were declared to be (kWrongBase). A target without a
  // layout gets the run's. If neither the announcement nor the manifests have the digest of that
  // version, unproven() returns why.
  [[nodiscard]] static Result<std::unique_ptr<Receiver>> open(const ReceiverOptions& options,
                                                              ReceiveRoad& road,
                                                              WeightTarget& target,
                                                              const Deadline& deadline);
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver();

  struct Newest {
    bool newer = false;  // than the target's version
    std::uint64_t version = 0;
  };
  // Waits until something newer is on the road; fetches nothing.
  [[nodiscard]] Result<Newest> poll(const Deadline& deadline);
  // Waits for something newer than the target's version, and prepares it: the versions that follow,
  // as many as there are, or an anchor if they are no longer available. Fetches damaged or
  // incomplete parts again until options.fetch_deadline. False: the deadline passed and nothing was
  // new. kWrongBase: versions are gone and there is no anchor. After any failure the target is
  // unchanged, and stage() may be called again. Sends reports while it waits.
  [[nodiscard]] Result<bool> stage(const Deadline& deadline);
  // While it waits, a receiver offers the anchor of its version to a road whose receivers
  // serve each other (anchor_offer.h). After this call it no longer does: its weights may be moved
  // or freed.
  void offer_nothing();
  // As stage(), but returns false on kWrongBase, kMismatch, kCorrupt and kIncomplete until they
  // have lasted for fetch_deadline: versions may appear out of order, the next one may bring the
  // anchor that the receiver now asks for, and damaged bytes are fetched again.
  [[nodiscard]] Result<bool> stage_patiently(const Deadline& deadline);
  // Why stage_patiently() last had to wait; ok if it never had to.
  [[nodiscard]] const Status& trouble() const { return trouble_; }
  // Commits what stage() prepared, and reports it to the road. kCorrupt, with nothing committed: a
  // part that is mapped, not copied, has changed since; stage() fetches it again.
  [[nodiscard]] Result<UpdateReport> commit();
  // Drops what is staged; if nothing is, takes the last commit back (StagedChange::undo()). If that
  // fails, the state may not be valid any more: stage() then takes a full version.
  [[nodiscard]] Status rollback();
  // Sends a report now, with the times of the last commit.
  [[nodiscard]] Status report();
  // kDeadlineExceeded if every report of the last connect_deadline has timed out.
  [[nodiscard]] Status check_contact() const { return contact_.check(state().id.version); }
  // The trainer's end-of-run note, once there is one.
  [[nodiscard]] Result<std::optional<EndOfRun>> listen_for_end();
  // Reports to the road that this receiver makes no further calls.
  [[nodiscard]] Status leave();

  [[nodiscard]] const std::string& id() const { return options_.id; }
  [[nodiscard]] TargetState state() const { return target_->state(); }
  // Why nothing proves yet that the weights are the version that they were declared to be; empty:
  // they are proven, or no version is held. If set, reports count every tensor as unproven.
  [[nodiscard]] const std::string& unproven() const { return digests_.unproven(); }
  // The version that commit() would reach; none if nothing is staged. Receivers that commit
  // together compare it first.
  [[nodiscard]] std::optional<std::uint64_t> staged_version() const;
  [[nodiscard]] const Hash128& run() const { return digests_.run(); }
  // The run's digest of each tensor at the target's version, from the announcement and the
  // manifests, ordered as the layout. Empty if these have none. Also empty until the next full
  // version if the manifests that lead to this one were gone when the receiver was opened.
  [[nodiscard]] const std::vector<Digest>& tensor_digests() const;
  [[nodiscard]] const WeightLayout& layout() const { return digests_.layout(); }
  [[nodiscard]] const ReceiverCounts& counts() const { return counts_; }

 private:
  Receiver(const ReceiverOptions& options, ReceiveRoad& road, WeightTarget& target,
           const RunInfo& run);
  [[nodiscard]] Status announce_needs(const Deadline& deadline);
  [[nodiscard]] Result<bool> stage_once(const Deadline& deadline);
  [[nodiscard]] Result<bool> stage_chain(const TargetState& state, FetchedChain chain);
  // Commits what is staged, between pause and resume, and fills report_.
  [[nodiscard]] Status apply();
  // The target's state within this run: no version while it holds another run's, which a full
  // version will replace.
  [[nodiscard]] TargetState held_state() const;
  // Sends a report outside of the regular ones: sign_of_life() stays due as before, and warns if
  // the road refuses reports.
  [[nodiscard]] Status send_report(std::chrono::milliseconds longest);
  // Called while waiting. Whether more is left to offer.
  [[nodiscard]] bool offer_anchor();
  void note_speed();
  void sign_of_life();
  // Calls options.resume, unless the target holds no version: then the engine stays paused.
  [[nodiscard]] Status resume();

  ReceiverOptions options_;
  ReceiveRoad* road_;
  WeightTarget* target_;
  std::unique_ptr<VersionFetcher> fetcher_;
  RunDigests digests_;
  std::vector<MappedPart> mapped_;  // of staged_
  ReceiverNeeds needs_values_;      // the first announcement, with later changes
  std::string needs_;               // needs_values_ as text
  unsigned misfits_ = 0;            // in a row
  bool left_paused_ = false;
  bool stranded_ = false;  // the next version and every anchor are gone or damaged
  std::unique_ptr<StagedChange> staged_;
  std::unique_ptr<StagedChange> committed_;  // the last one, for rollback()
  UpdateReport report_;                      // of staged_
  std::unique_ptr<AnchorOffer> offer_;       // null: nothing is offered
  ReceiverCounts counts_;
  TrainerContact contact_;
  EndListener end_;
  std::optional<Deadline> patience_;  // of stage_patiently(), while it waits
  bool warned_ = false;               // that stage_patiently() waits
  Status trouble_;
  std::optional<Digest> timed_;  // digest of the commit that the times belong to
  double timed_stage_ms_ = 0, timed_commit_ms_ = 0;
};

}  // namespace driftless
