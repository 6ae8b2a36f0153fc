// SPDX-License-Identifier: Apache-2.0
// Worker: one rank of an engine that follows a run. Its calls fail only through their reply:
// engines call their workers through queues, and these lose count if one rank raises and another
// does not. So every call returns a WorkerReply as JSON text, which reports the outcome and repeats
// the nonce of the call: a reply with another nonce belongs to another call.
//
//   open -> ( stage ... status -> commit | rollback )... -> close
//
// stage() starts a thread and returns; until the thread ends, every other call except status() and
// wait() is refused (kBusy). An error is repeated in every reply until the next call that succeeds.
//
// One call at a time; a second one is refused. status() and wait() may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "plugin/receive/receiver.h"
#include "plugin/receive/worker_reply.h"

namespace driftless {

// The operations that only the engine's process can do. Calls come from the thread that calls the
// worker; staged() and log() also come from the staging thread.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  // Joins the road of a configuration (a file's path, or its text) and opens a receiver, which the
  // host owns until close(). The first call makes the target; later ones use the same. `take_over`:
  // a run's id, or empty (ReceiverOptions::take_over).
  [[nodiscard]] virtual Result<Receiver*> open(const std::string& config,
                                               std::span<const std::string> sets,
                                               const std::string& take_over) = 0;
  virtual void close() = 0;
  // The target of that receiver.
  [[nodiscard]] virtual WeightTarget& target() = 0;
  // Returns an object that is kept while receiver or target work, also by the staging thread.
  [[nodiscard]] virtual Result<std::shared_ptr<const void>> use() {
    return std::shared_ptr<const void>();
  }
  // Called while the engine does not use its tensors; it may have moved them since the last call,
  // and the target follows them. Returns the moves that it found.
  [[nodiscard]] virtual Result<std::vector<std::string>> follow(const Receiver& /*receiver*/) {
    return std::vector<std::string>();
  }
  // Called after the target changed: an engine that computes with copies updates them.
  [[nodiscard]] virtual Status written() { return {}; }
  // Why the engine computes with other weights than the target's; empty: it does not.
  [[nodiscard]] virtual std::string unread() const { return {}; }
  // How many tensors reach the engine by each way (`direct`, `plan`, ...).
  [[nodiscard]] virtual std::map<std::string, std::uint64_t> ways() const { return {}; }
  // Runs `work` on a detached thread of its own. `work` does not throw.
  [[nodiscard]] virtual Status start(std::function<void()> work);
  // Called when a staging has ended, for engines whose status() cannot be called meanwhile.
  // `reply`: what status() returns.
  virtual void staged(const std::string& /*reply*/) {}
  // A line for the engine's log.
  virtual void log(const std::string& /*line*/) {}
};

class Worker : public std::enable_shared_from_this<Worker> {
 public:
  using Wait = std::chrono::milliseconds;

  [[nodiscard]] static std::shared_ptr<Worker> make(std::int64_t rank,
                                                    std::unique_ptr<WorkerHost> host);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Follows the run of a configuration. The same configuration again changes nothing; another one
  // replaces it, and the weights stay. Weights of another run are refused, unless `take_over` is
  // the id of the run that is followed: then its first full version replaces them.
  [[nodiscard]] std::string open(const std::string& config, std::span<const std::string> sets,
                                 const std::string& nonce, const std::string& take_over);
  // Starts a thread that waits for something newer and prepares it; drops what was staged before.
  // Only a commit with the same ticket may use it.
  [[nodiscard]] std::string stage(Wait timeout, const std::string& nonce,
                                  const std::string& ticket);
  [[nodiscard]] std::string status(const std::string& nonce) const;
  // Writes what is staged; refused unless it is `version` and was staged with the same ticket.
  [[nodiscard]] std::string commit(std::optional<std::int64_t> version, const std::string& nonce,
                                   const std::string& ticket);
  // Replies as a failed commit would, to a commit that must not be tried.
  [[nodiscard]] std::string refuse(const std::string& why, const std::string& nonce);
  // Returns to `version`: drops what is staged, or takes the last commit back.
  [[nodiscard]] std::string rollback(std::int64_t version, const std::string& nonce);
  // Adds to the reply this rank's share of each tensor (plugin/engines/engine_shares.h). With
  // `sweep` the weights are read now; otherwise the shares are those tracked since the last sweep.
  [[nodiscard]] std::string shares(bool sweep, const std::string& nonce);
  // Adds to the reply the present contents, whatever the rank's state
  // (plugin/engines/engine_places.h): for all tensors their shares, for one tensor its blocks, or
  // some of its elements.
  [[nodiscard]] std::string read(const std::string& tensor, std::uint64_t first,
                                 std::uint64_t units, const std::string& nonce);
  [[nodiscard]] std::string close(const std::string& nonce);
  // Waits until the thread of stage() has ended; false: it has not within that time.
  bool wait(Wait timeout) const;

 private:
  struct Held {  // a version number alone does not identify weights
    std::int64_t version;
    std::string run, digest;
    friend bool operator==(const Held&, const Held&) = default;
  };
  enum class Remember : bool { kNo, kYes };  // whether status() repeats a failure

  Worker(std::int64_t rank, std::unique_ptr<WorkerHost> host);
  // Runs `work`, which may add members to the reply, and returns the reply.
  [[nodiscard]] std::string answer(const std::string& nonce, Remember remember,
                                   const std::function<Status(Json& beside)>& work);
  [[nodiscard]] Status check_ready() const;
  [[nodiscard]] Result<MappedTarget*> mapped_target();
  [[nodiscard]] Status open_now(const std::string& config, std::span<const std::string> sets,
                                const std::string& take_over);
  [[nodiscard]] Status stage_now(Wait timeout, const std::string& nonce, const std::string& ticket);
  void stage_on_thread(Wait timeout, const std::string& nonce);
  [[nodiscard]] Status check_staged(std::optional<std::int64_t> version,
                                    const std::string& ticket) const;
  [[nodiscard]] Status commit_now(std::optional<std::int64_t> version, const std::string& ticket);
  [[nodiscard]] Status rollback_now(std::int64_t version);
  [[nodiscard]] Status close_now();
  [[nodiscard]] Status follow_moves();
  [[nodiscard]] Status take_back();
  // Lets the engine use the written weights. `undo`: if it refuses them, takes the commit back.
  [[nodiscard]] Status written(bool undo);
  [[nodiscard]] Status shares_now(bool sweep, Json& beside);
  // Updates the reply's state of the weights.
  void look();
  [[nodiscard]] Held held() const { return {now_.version, now_.run, now_.digest}; }
  [[nodiscard]] std::string nothing_newer() const;
  template <typename Change>
  void set(const Change& change) {
    const std::scoped_lock lock(mutex_);
    change(now_);
  }

  const std::unique_ptr<WorkerHost> host_;
  Receiver* receiver_ = nullptr;                             // owned by the host
  std::pair<std::string, std::vector<std::string>> opened_;  // configuration and overrides
  std::string ticket_;                                       // of the newest staging
  std::optional<std::int64_t> before_;                       // the version before the last commit
  bool holds_none_ = false;                                  // the weights are no version
  bool held_one_ = false;                                    // they were one before
  std::shared_ptr<const void> use_;                          // held by the staging thread
  std::atomic_flag in_call_ = ATOMIC_FLAG_INIT;

  // Written by the staging thread and by calls, and read by status().
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  WorkerReply now_;       // written by calls, and by the staging thread while it stages
  unsigned threads_ = 0;  // stagings that have not ended; one stages, the others still report
};

}  // namespace driftless
