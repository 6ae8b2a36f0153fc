// SPDX-License-Identifier: Apache-2.0
// Control: the requests of a publisher rank's sending side to the leader. On the leader it is
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
#include "collectives/nccl/nccl_road.h"

namespace driftless::nccl {

using hub::HubEvent;
using hub::Link;

// A publication that was begun.
struct Attempt {
  std::uint64_t number = 0;
  std::uint64_t generation = 0;  // of the group that receives it
  unsigned receivers = 0;        // number of receivers in that group
};

class Control {
 public:
  virtual ~Control() = default;
  // On the leader only, like seal() and receivers().
  [[nodiscard]] virtual Status announce(std::string_view run_info) = 0;
  [[nodiscard]] virtual Result<Attempt> begin(const PublicationId& id,
                                              const Deadline& deadline) = 0;
  // Offers the parts that this rank will send to the receivers of the group. The message names the
  // attempt and the generation. It has Fabric::new_meeting() unless the communicator of this
  // generation exists. Ok: the offer was sent to every receiver of the group.
  [[nodiscard]] virtual Status offer(Message offer, const Deadline& deadline) = 0;
  // Not ok if the attempt can no longer be committed. Does not wait.
  [[nodiscard]] virtual Status check(std::uint64_t attempt) = 0;
  // Reports that this rank could not send.
  virtual void failed(std::uint64_t attempt, const Status& why) = 0;
  [[nodiscard]] virtual Status seal(std::uint64_t attempt, std::string_view manifest,
                                    const Deadline& deadline) = 0;
  virtual void abort(std::uint64_t attempt) = 0;
  [[nodiscard]] virtual Result<std::optional<Hash128>> published(const PublicationId& id,
                                                                 const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::vector<ReceiverReport>> receivers() = 0;
  [[nodiscard]] virtual std::vector<std::string> left() const { return {}; }
};

// For publisher ranks other than the leader. Connects when first used, and again if the link was
// lost. `start`: NcclOptions::start.
[[nodiscard]] std::unique_ptr<Control> make_remote_control(Connector connector, unsigned rank,
                                                           unsigned ranks, std::uint64_t start);

// LeaderControl: the road's state on the leading publisher rank, and the thread that answers all
// other processes.
//
// A receiver is in the group from its hello until it leaves, falls silent or loses its link. A
// publication goes to the group that exists when the leader begins it. Groups are numbered
// (generations): as long as no receiver comes or goes and nothing fails, ranks and receivers reuse
// their communicators; a new generation makes new ones.
//
// A publication is committed when every remaining receiver of its group has acknowledged all parts
// with the hashes that the publisher ranks computed. If a receiver goes while parts travel, the
// communicators break for all, and the attempt fails. If it goes later, the attempt continues
// without it, unless no receiver remains. Without receivers a publication commits at once.
//
// On destruction the leader answers the pending requests and sends a goodbye to all: nothing is
// answered after that, so no process needs to wait for an answer. It does not wait for receivers to
// leave.
//
// Thread-safe.
class LeaderControl final : public Control {
 public:
  // Throws std::system_error if no thread can be created. `end`: its text is sent to all receivers
  // once it is set; may be null.
  LeaderControl(const NcclOptions& options, unsigned ranks, std::unique_ptr<Hub> hub,
                std::shared_ptr<EndNote> end);
  ~LeaderControl() override;  // the thread sends the goodbye and ends

  // Calls of the leader's own rank.
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
    bool receives = false;                 // false: a publisher rank
    bool member = false;                   // receives the next publication
    bool has_end = false;                  // has answered kEnd
    std::optional<ReceiverReport> report;  // the last one
    Clock::time_point last_message_at;     // time of its last message
    Clock::time_point reported;
  };
  // A publication between begin() and its commit or failure.
  struct Pending {
    std::uint64_t number = 0;
    PublicationId id;
    std::set<std::uint64_t> members;
    std::map<unsigned, std::vector<PartReceipt>> offers;       // by rank
    std::map<std::uint64_t, std::set<unsigned>> acknowledged;  // by receiver: the ranks
    std::set<std::uint64_t> committed;                         // by receiver
    bool had_members = false;
    Status failure;
  };

  void run();
  void handle(const HubEvent& event);
  void send_goodbye();
  void send_end();

  // The functions below need the mutex.
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
  const std::shared_ptr<EndNote> end_;

  mutable std::mutex mutex_;
  std::set<std::string> left_;  // ids of receivers that called leave()
  std::condition_variable changed_;
  std::map<std::uint64_t, Peer> peers_;
  std::optional<std::string> run_info_;
  bool end_sent_ = false;
  std::optional<Pending> pending_;
  RetentionRing ring_;  // the published versions
  bool began_ = false;
  std::uint64_t attempts_ = 0;
  std::uint64_t generation_ = 0;
  std::set<std::uint64_t> group_;  // receivers of this generation
  bool group_is_broken_ = true;
  bool stop_ = false;
  std::thread thread_;  // started last
};

}  // namespace driftless::nccl
