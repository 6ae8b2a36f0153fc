// SPDX-License-Identifier: Apache-2.0
// Worker: one rank of an engine that follows a run, behind calls that never fail but by their
// reply. Engines call their workers through queues that lose count when one rank raises and another
// does not. So every call returns a WorkerReply as JSON text, which says what happened and echoes
// the nonce that it was given: a reply with another nonce belongs to another call.
//
//   open -> ( stage ... status -> commit | rollback )... -> close
//
// stage() starts a thread and returns; until it ends, every other call but status() and wait() is
// refused (kBusy). An error is in every reply until the next call that succeeds.
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

// What only the engine's process can do. Calls come from the thread that calls the worker, except
// staged() and log(), which come from the staging thread, too.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  // Joins the road of a configuration (a file's path, or its text) and opens a receiver, the host's
  // until close(). The first call makes the target; later ones use the same. `take_over`: the run's
  // id, or empty (ReceiverOptions::take_over).
  [[nodiscard]] virtual Result<Receiver*> open(const std::string& config,
                                               std::span<const std::string> sets,
                                               const std::string& take_over) = 0;
  virtual void close() = 0;
  // That receiver's.
  [[nodiscard]] virtual WeightTarget& target() = 0;
  // Held as long as receiver or target are at work, also by the staging thread.
  [[nodiscard]] virtual Result<std::shared_ptr<const void>> use() {
    return std::shared_ptr<const void>();
  }
  // The engine does not use its tensors now, and may have moved them since the last call: the
  // target follows them. What it found.
  [[nodiscard]] virtual Result<std::vector<std::string>> follow(const Receiver& /*receiver*/) {
    return std::vector<std::string>();
  }
  // The target has changed: an engine that computes with a copy takes what it holds.
  [[nodiscard]] virtual Status written() { return {}; }
  // Why the engine computes with something else than lies in the target; empty: it does not.
  [[nodiscard]] virtual std::string unread() const { return {}; }
  // How many tensors get into the engine in which way.
  [[nodiscard]] virtual std::map<std::string, std::uint64_t> ways() const { return {}; }
  // Runs `work` on a thread of its own, which nobody joins. It does not throw.
  [[nodiscard]] virtual Status start(std::function<void()> work);
  // A staging has ended: for engines that cannot be asked meanwhile. `reply`: as of status().
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

  // Follows the run of a configuration. Repeating it changes nothing; another configuration takes
  // the place of the first, and the weights stay. Weights of another run are refused, unless
  // `take_over` is the run's id: then its first full version replaces them.
  [[nodiscard]] std::string open(const std::string& config, std::span<const std::string> sets,
                                 const std::string& nonce, const std::string& take_over);
  // Starts a thread that waits for something newer and makes it ready; what was staged before is
  // dropped. Only a commit with the same ticket takes it.
  [[nodiscard]] std::string stage(Wait timeout, const std::string& nonce,
                                  const std::string& ticket);
  [[nodiscard]] std::string status(const std::string& nonce) const;
  // Writes what is staged; refused if that is not `version`, or was staged with another ticket.
  [[nodiscard]] std::string commit(std::optional<std::int64_t> version, const std::string& nonce,
                                   const std::string& ticket);
  // For a commit that must not be tried: answered like one that failed.
  [[nodiscard]] std::string refuse(const std::string& why, const std::string& nonce);
  // Back to `version`: drops what is staged, or takes the last commit back.
  [[nodiscard]] std::string rollback(std::int64_t version, const std::string& nonce);
  // What this rank holds of each tensor, beside the reply (plugin/engines/engine_shares.h). With
  // `sweep` the weights are read now; else it is what was tracked since they were.
  [[nodiscard]] std::string shares(bool sweep, const std::string& nonce);
  // What lies there now, whatever the rank holds, beside the reply (plugin/engines/
  // engine_places.h): of all tensors their shares, of one its blocks, or some elements.
  [[nodiscard]] std::string read(const std::string& tensor, std::uint64_t first,
                                 std::uint64_t units, const std::string& nonce);
  [[nodiscard]] std::string close(const std::string& nonce);
  // Until the thread of stage() has ended; false: it has not within that time.
  bool wait(Wait timeout) const;

 private:
  struct Held {  // the number alone does not say whether weights are a version
    std::int64_t version;
    std::string run, digest;
    friend bool operator==(const Held&, const Held&) = default;
  };
  enum class Remember : bool { kNo, kYes };  // whether status() tells a failure, too

  Worker(std::int64_t rank, std::unique_ptr<WorkerHost> host);
  // The reply to a call that does `work`, which adds to the reply.
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
  // The engine takes what was written. `undo`: what it does not take is taken back.
  [[nodiscard]] Status written(bool undo);
  [[nodiscard]] Status shares_now(bool sweep, Json& beside);
  // What the weights are now.
  void look();
  [[nodiscard]] Held held() const { return {now_.version, now_.run, now_.digest}; }
  [[nodiscard]] std::string nothing_newer() const;
  template <typename Change>
  void set(const Change& change) {
    const std::scoped_lock lock(mutex_);
    change(now_);
  }

  const std::unique_ptr<WorkerHost> host_;
  Receiver* receiver_ = nullptr;                             // the host's
  std::pair<std::string, std::vector<std::string>> opened_;  // configuration and settings
  std::string ticket_;                                       // of the newest staging
  std::optional<std::int64_t> before_;  // the version that the last commit replaced
  bool holds_none_ = false;             // the weights are those of no version
  bool held_one_ = false;               // they were, once
  std::shared_ptr<const void> use_;     // the staging thread's
  std::atomic_flag in_call_ = ATOMIC_FLAG_INIT;

  // The staging thread writes these, and status() reads them.
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  WorkerReply now_;       // written by calls, and by the staging thread while it stages
  unsigned threads_ = 0;  // of stagings that have not ended: one stages, others tell of theirs
};

}  // namespace driftless
