// SPDX-License-Identifier: Apache-2.0
// Receiver: the rollout's side. Follows a road and keeps a target at its newest version.
//
//   discover -> fetch -> verify -> decode = stage()      while the engine works
//   pause -> commit -> resume                            O(changed), all or nothing
//   report(version, digest)                              to the publisher
//
// One thread at a time. Road and target outlive it.
#pragma once

#include <functional>

#include "collectives/road.h"
#include "formats/receiver_proof.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

struct ReceiverOptions {
  std::string id = "receiver";  // plain, unique on the road
  // Of parts staged for one commit, at most; of `compact` with what it takes once decoded.
  std::uint64_t fold_bytes = std::uint64_t{1} << 30;
  unsigned read_workers = 4;  // ranges of parts that are fetched and taken at a time
  // Of tensors in full shape that an engine's loader is given at a time (an engine's target).
  std::uint64_t chunk_bytes = std::uint64_t{512} << 20;
  std::chrono::milliseconds fetch_deadline{60'000};   // of one stage() once something is there
  std::chrono::milliseconds report_deadline{10'000};  // of one word to the road
  unsigned threads = 0;                               // for hashing; 0: default_threads()
  ProofRule proof;                                    // for the target
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
};

// What one commit took: several versions may be folded into it. Bytes are sums over them.
struct UpdateReport {
  std::uint64_t from_version = 0;
  std::uint64_t version = 0;
  std::uint64_t versions = 0;  // folded
  bool anchor = false;         // taken from an anchor
  Digest digest;
  std::uint64_t changed_units = 0;
  std::set<std::uint32_t> tensors;  // that changed, by their numbers in the layout
  // Of all weights; of the encoded payload; of everything fetched, manifests included.
  std::uint64_t full_bytes = 0, delta_bytes = 0, wire_bytes = 0;
  // Of what was fetched of the parts, what the target has a use for: its blocks, and tables.
  std::uint64_t needed_bytes = 0;
  double fetch_ms = 0;  // on the road, and hashing
  double stage_ms = 0;  // decoding and proving
  double pause_ms = 0, apply_ms = 0, resume_ms = 0;
  std::vector<std::string> notes;  // what failed without harm: a report to the road, ...
};

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
  virtual ~Receiver() = default;

  // Waits until something newer than the target is there, and makes it ready: versions that follow
  // the target's version, as many as there are, or an anchor where they cannot be had any more.
  // What is damaged or incomplete is fetched again until options.fetch_deadline. False: the
  // deadline passed and nothing was new. kWrongBase: versions are gone and there is no anchor.
  // After any failure the target is as it was, and stage() may be called again.
  [[nodiscard]] virtual Result<bool> stage(const Deadline& deadline) = 0;
  // Commits what stage() made ready, and reports it to the road. kCorrupt, with nothing committed:
  // a part that is mapped, not copied, was changed since; stage() fetches it again.
  [[nodiscard]] virtual Result<UpdateReport> commit() = 0;
  // Drops what is staged; where nothing is, takes the last commit back (StagedChange::undo). If
  // that fails, the state may not be valid any more: stage() takes a full version then.
  [[nodiscard]] virtual Status rollback() = 0;
  // A sign of life, to be given while nothing is new.
  [[nodiscard]] virtual Status report() = 0;
  // Nothing more will be asked for.
  [[nodiscard]] virtual Status leave() = 0;

  [[nodiscard]] virtual TargetState state() const = 0;
  // Why nothing proves yet that the weights are the version that they are said to be; empty: they
  // are proven, or they are no version. The reports to the road say it, too.
  [[nodiscard]] virtual const std::string& unproven() const = 0;
  // What commit() would bring; none if nothing is staged. Receivers that commit together compare
  // it first.
  [[nodiscard]] virtual std::optional<std::uint64_t> staged_version() const = 0;
  [[nodiscard]] virtual const Hash128& run() const = 0;
  // Of the run: the digest of each tensor at the version that the target holds, as announcement and
  // manifests say. As the layout. Empty if they do not say, or if the manifests that led to the
  // version were gone when the receiver was opened; then from the next full version on.
  [[nodiscard]] virtual const std::vector<Digest>& tensor_digests() const = 0;
  [[nodiscard]] virtual const WeightLayout& layout() const = 0;
};

}  // namespace driftless
