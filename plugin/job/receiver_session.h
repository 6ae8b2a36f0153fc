// SPDX-License-Identifier: Apache-2.0
// ReceiverSession: a rollout's place in a job, from joining to leaving. It owns the process' place
// among the others, the road, the receiver, the metrics, the signs of life and the listening for
// the end of the run. The command, the C library and the Python module are thin callers of it.
//
//   ReceiverSession session(config, process, options);
//   session.join(deadline); session.open(target, deadline);
//   while (!end) { if (session.stage(...)) session.commit(); end = session.listen_for_end(); }
//   session.leave(); session.close(deadline);
//
// One thread at a time. Targets outlive the session, or drop() comes first.
#pragma once

#include <functional>

#include "plugin/job/job_process.h"
#include "plugin/job/metrics.h"
#include "plugin/job/run_end.h"

namespace driftless {

struct SessionOptions {
  // On the road; none: by configuration and place, and no other receiver of this process has it.
  std::optional<std::string> id;
  // As ReceiverOptions has them; may be empty.
  std::function<Status(std::uint64_t version)> before_read;
  std::function<Status()> pause;
  std::function<Status()> resume;
  Hash128 take_over = {};
  // Called with what went wrong without harm: a report that the road refused, or weights that
  // nothing proves to be the version that they are said to be. May be empty.
  std::function<void(const Status&)> warn;
};

// Sums over the session.
struct SessionCounts {
  std::uint64_t newest = 0;  // version seen on the road
  std::uint64_t commits = 0, versions = 0, anchors = 0, rollbacks = 0;
  std::uint64_t stage_failures = 0, commit_failures = 0;
  std::uint64_t unheard = 0;  // signs of life that the road did not take
  std::uint64_t changed_units = 0, delta_bytes = 0, wire_bytes = 0, needed_bytes = 0;
  double fetch_ms = 0, stage_ms = 0, pause_ms = 0, apply_ms = 0, resume_ms = 0;
  double longest_pause_ms = 0;  // from the pause to the end of the resume
};

class ReceiverSession {
 public:
  ReceiverSession(Config config, std::shared_ptr<JobProcess> process, SessionOptions options);
  ReceiverSession(const ReceiverSession&) = delete;
  ReceiverSession& operator=(const ReceiverSession&) = delete;
  ~ReceiverSession();

  // Collective (JobProcess::receiver()): the road, and the file of metrics. Once.
  [[nodiscard]] Status join(const Deadline& deadline);
  // Waits for the run's announcement (Receiver::open()). After a failure it may be called again,
  // with another target.
  [[nodiscard]] Status open(WeightTarget& target, const Deadline& deadline);

  struct Newest {
    bool newer = false;  // than what the target holds
    std::uint64_t version = 0;
  };
  // Waits until something newer is on the road; fetches nothing.
  [[nodiscard]] Result<Newest> poll(const Deadline& deadline);
  // Receiver::stage(), with signs of life meanwhile.
  [[nodiscard]] Result<bool> stage(const Deadline& deadline);
  // The same, and false for kWrongBase and kMismatch until they have lasted for deadlines.fetch:
  // versions may appear out of order, the next one may bring the anchor that the receiver now asks
  // for, and bytes that did not fit are fetched again.
  [[nodiscard]] Result<bool> stage_patiently(const Deadline& deadline);
  // Why stage_patiently() had to wait last; ok if it never had.
  [[nodiscard]] const Status& trouble() const { return trouble_; }
  [[nodiscard]] Result<UpdateReport> commit();
  [[nodiscard]] Status rollback();
  // A sign of life now.
  [[nodiscard]] Status report();
  // kDeadlineExceeded once no report has come through for deadlines.connect.
  [[nodiscard]] Status check_contact() const;
  // The trainer's last word, once it was said.
  [[nodiscard]] Result<std::optional<EndOfRun>> listen_for_end();
  [[nodiscard]] Status leave();

  // Lets go of receiver and road; nobody is waited for.
  void drop();
  // drop(), then the orderly end of the process (collective).
  [[nodiscard]] Status close(const Deadline& deadline);

  [[nodiscard]] bool joined() const { return road_ != nullptr; }
  [[nodiscard]] const std::string& id() const { return id_; }
  [[nodiscard]] JobProcess& process() { return *process_; }
  // [opened]
  [[nodiscard]] TargetState state() const { return target_->state(); }
  [[nodiscard]] const Hash128& run() const { return receiver_->run(); }
  // Receiver::unproven().
  [[nodiscard]] const std::string& unproven() const { return receiver_->unproven(); }
  [[nodiscard]] std::optional<std::uint64_t> staged_version() const {
    return receiver_->staged_version();
  }
  // Receiver::tensor_digests(), as layout().
  [[nodiscard]] const std::vector<Digest>& tensor_digests() const {
    return receiver_->tensor_digests();
  }
  [[nodiscard]] const WeightLayout& layout() const { return receiver_->layout(); }
  [[nodiscard]] const SessionCounts& counts() const { return counts_; }

 private:
  class TimedRoad;
  class OwnId;
  void sign_of_life();
  void count(UpdateReport& report);

  Config config_;
  std::shared_ptr<JobProcess> process_;
  SessionOptions options_;
  std::unique_ptr<OwnId> own_id_;  // null: the caller chose it
  std::string id_;
  std::unique_ptr<TimedRoad> road_;
  std::unique_ptr<Receiver> receiver_;
  WeightTarget* target_ = nullptr;
  std::unique_ptr<MetricsWriter> metrics_;  // null: none
  EndListener end_;
  SessionCounts counts_;
  Deadline alive_;                   // until when the last sign of life lasts
  std::optional<Deadline> unheard_;  // from the first report that did not come through
  Status unheard_why_;
  std::optional<Deadline> stranded_;  // until when stage_patiently() waits
  bool warned_stranded_ = false;
  Status trouble_;
};

}  // namespace driftless
