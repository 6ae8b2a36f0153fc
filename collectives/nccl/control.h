// SPDX-License-Identifier: Apache-2.0
// Control: what the sending side of a publisher rank asks of the leader. On the leader it is
// LeaderControl; on other ranks calls travel over a Link.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "collectives/held_publications.h"
#include "collectives/hub/hub.h"
#include "collectives/nccl/message.h"
#include "collectives/nccl/nccl_options.h"

namespace driftless::nccl {

using hub::Connector;
using hub::Hub;
using hub::HubEvent;
using hub::Link;

// A publication that was begun.
struct Attempt {
  std::uint64_t number = 0;
  std::uint64_t generation = 0;  // of the group that it goes to
  unsigned receivers = 0;        // in that group
};

class Control {
 public:
  virtual ~Control() = default;
  [[nodiscard]] virtual Status announce(std::string_view run_info) = 0;  // leader, like seal()
  [[nodiscard]] virtual Result<Attempt> begin(const PublicationId& id,
                                              const Deadline& deadline) = 0;
  // What this rank has to send: attempt, generation, parts, and the meeting unless the communicator
  // of this generation is there already. Ok: every receiver of the group has been told to receive
  // it.
  [[nodiscard]] virtual Status offer(Message offer, const Deadline& deadline) = 0;
  // Not ok once the attempt cannot be committed any more. Does not wait.
  [[nodiscard]] virtual Status check(std::uint64_t attempt) = 0;
  // This rank could not send.
  virtual void failed(std::uint64_t attempt, const Status& why) = 0;
  [[nodiscard]] virtual Status seal(std::uint64_t attempt, std::string_view manifest,
                                    const Deadline& deadline) = 0;
  virtual void abort(std::uint64_t attempt) = 0;
  [[nodiscard]] virtual Result<std::optional<Hash128>> published(const PublicationId& id,
                                                                 const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::vector<ReceiverReport>> receivers() = 0;
  [[nodiscard]] virtual std::vector<std::string> left() const { return {}; }
};

// For publisher ranks other than the leader. Connects when it is first used, and again once the
// link was lost. `start`: NcclOptions::start.
[[nodiscard]] std::unique_ptr<Control> make_remote_control(Connector connector, unsigned rank,
                                                           unsigned ranks, std::uint64_t start);

// LeaderControl: what the leading publisher rank knows, and the thread that answers everybody else.
//
// A receiver is in the group from its hello until it leaves, falls silent or loses its link. The
// group of a publication is the one that is there when the leader begins it. Groups are numbered
// (generations): as long as nobody comes or goes and nothing fails, ranks and receivers use the
// communicators that they have; a new generation makes new ones.
//
// A publication is committed when every receiver of its group that is still there has acknowledged
// all parts with the hashes that the publisher ranks computed. One that goes while parts travel
// breaks the communicators of the others, too, so that attempt is over; one that goes later is not
// waited for, unless it was the only one. Without any receiver a publication commits at once.
//
// Its last word to everybody is a goodbye: from then on nobody answers, so nobody needs to wait for
// an answer. What was asked before is answered first. It does not wait for receivers to leave.
//
// Every call may come from any thread.
class LeaderControl final : public Control {
 public:
  // Throws std::system_error if no thread can be had.
  LeaderControl(const NcclOptions& options, unsigned ranks, std::unique_ptr<Hub> hub);
  ~LeaderControl() override;  // says goodbye; the thread ends first

  // Of the leader's own rank.
  Status announce(std::string_view run_info) override;
  Result<Attempt> begin(const PublicationId& id, const Deadline& deadline) override;
  Status offer(Message offer, const Deadline& deadline) override;
  Status check(std::uint64_t attempt) override;
  void failed(std::uint64_t attempt, const Status& why) override;
  Status seal(std::uint64_t attempt, std::string_view manifest, const Deadline& deadline) override;
  void abort(std::uint64_t attempt) override;
  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override;
  Result<std::vector<ReceiverReport>> receivers() override;
  [[nodiscard]] std::vector<std::string> left() const override;

 private:
  using Clock = Deadline::Clock;
  struct Peer {
    bool greeted = false;
    bool receives = false;                 // else a publisher rank
    bool member = false;                   // receives the next publication
    std::optional<ReceiverReport> report;  // the last one
    Clock::time_point heard;               // anything
    Clock::time_point reported;
  };
  // A publication between begin() and its end.
  struct Pending {
    std::uint64_t number = 0;
    PublicationId id;
    std::set<std::uint64_t> members;
    std::map<unsigned, std::vector<PartReceipt>> offers;       // by rank
    std::map<std::uint64_t, std::set<unsigned>> acknowledged;  // by receiver: ranks
    std::set<std::uint64_t> committed;                         // by receiver
    bool had_members = false;
    Status failure;
  };

  void run();
  void handle(const HubEvent& event);
  void say_goodbye();

  // All below with the mutex held.
  void handle(std::uint64_t peer, const Message& message);
  void greet(std::uint64_t peer, const Message& message);
  void take_report(std::uint64_t peer, const Message& message);
  void take_ack(std::uint64_t peer, const Message& message);
  void remove_peer(std::uint64_t peer, const std::string& why);
  void remove_member(std::uint64_t peer, const std::string& why);
  void remove_silent();
  void send(std::uint64_t peer, const Message& message);
  void reply(std::uint64_t peer, std::uint64_t request, const Status& status, Message more = {});
  [[nodiscard]] Result<Attempt> join_attempt(const PublicationId& id) const;
  [[nodiscard]] Status take_offer(Message offer);
  [[nodiscard]] Status check_pending(std::uint64_t attempt) const;
  [[nodiscard]] bool all_acknowledged() const;
  [[nodiscard]] Status give_up_waiting(const Deadline& deadline);
  void fail(const Status& why);
  void drop_pending();
  void probe_members(std::unique_lock<std::mutex>& lock, const Deadline& deadline);
  void renew_group();
  void commit(std::string_view manifest);
  [[nodiscard]] std::set<std::uint64_t> members() const;
  [[nodiscard]] std::set<std::uint64_t> unacknowledged() const;
  [[nodiscard]] std::string name_of(std::uint64_t peer) const;
  [[nodiscard]] std::string names_of(const std::set<std::uint64_t>& peers) const;

  const NcclOptions options_;
  const unsigned ranks_;
  const std::uint64_t session_;
  const std::unique_ptr<Hub> hub_;

  mutable std::mutex mutex_;
  std::set<std::string> left_;  // ids of receivers that signed off
  std::condition_variable changed_;
  std::map<std::uint64_t, Peer> peers_;
  std::optional<std::string> run_info_;
  std::optional<Pending> pending_;
  RetentionRing ring_;  // of what is published
  bool began_ = false;
  std::uint64_t attempts_ = 0;
  std::uint64_t generation_ = 0;
  std::set<std::uint64_t> group_;  // of this generation
  bool group_is_broken_ = true;
  bool stop_ = false;
  std::thread thread_;  // started last
};

}  // namespace driftless::nccl
