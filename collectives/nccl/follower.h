// SPDX-License-Identifier: Apache-2.0
// Follower: a receiver's thread. It keeps the link to the leader, joins, receives what the
// publisher ranks broadcast, acknowledges it with its hashes, and puts what is committed on the
// landing.
//
// Order. All receivers are told by the leader to receive, in one order, and start each broadcast at
// once; what has been started goes on beside the others, each on its own communicator. So no
// receiver waits in one communicator for what another would send only after something else.
//
// The thread never waits for the fabric or a peer: it looks at what is under way again and again.
// Whatever lasts longer than the deadline that came with it is cut off.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/landing.h"
#include "collectives/nccl/message.h"
#include "collectives/nccl/nccl_options.h"
#include "collectives/nccl/rendezvous.h"

namespace driftless::nccl {

class Follower {
 public:
  // kIo where no thread can be had.
  [[nodiscard]] static Result<std::unique_ptr<Follower>> start(
      const NcclOptions& options, std::shared_ptr<Fabric> fabric,
      std::unique_ptr<Connector> connector);
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;
  ~Follower();  // the thread ends

  // From any thread.
  [[nodiscard]] Result<std::string> run_info(const Deadline& deadline);
  [[nodiscard]] Status wait_beyond(std::uint64_t version, const Deadline& deadline);
  [[nodiscard]] std::vector<PublicationId> list();
  [[nodiscard]] Result<std::string> manifest(const PublicationId& id);
  [[nodiscard]] Result<LandedPart> part(const PublicationId& id, const PartReceipt& wanted);
  // The leader's answer; it is asked again where the link is lost meanwhile. Nothing, and at once,
  // where the leader has said goodbye and no other one is there: nobody will answer.
  // kDeadlineExceeded where it does not answer and has said nothing: slow, out of reach or dead.
  [[nodiscard]] std::optional<Status> ask(Message message, std::string_view what,
                                          const Deadline& deadline);

 private:
  using Clock = Deadline::Clock;
  struct Held {
    std::uint64_t generation = 0;
    std::unique_ptr<Communicator> communicator;
  };
  // A broadcast on its way.
  struct Transfer {
    std::uint64_t attempt = 0;
    unsigned rank = 0;
    std::vector<LandedPart> parts;
    Deadline deadline;
    bool started = false;
  };

  Follower(NcclOptions options, std::shared_ptr<Fabric> fabric,
           std::unique_ptr<Connector> connector);

  // All below on the thread.
  void run();
  void look_for_the_leader();
  void hear();
  void hear_last_words();
  void lose_link();
  void sign_of_life();
  void handle(Message message);
  void welcome(const Message& message);
  void receive(const Message& message);
  [[nodiscard]] Status prepare(const Message& message, Transfer& transfer);
  void advance_all();
  // True once it is over.
  [[nodiscard]] Result<bool> advance(Transfer& transfer);
  [[nodiscard]] Status finish(Transfer& transfer);
  void cut_off(std::uint64_t attempt);
  void refuse(std::uint64_t attempt, unsigned rank, const Status& why);
  void tell(const Message& message);

  const NcclOptions options_;
  const std::shared_ptr<Fabric> fabric_;
  const std::unique_ptr<Connector> connector_;
  std::atomic<bool> stop_ = false;

  // Of the thread alone. Communicators go before the memory that they write to.
  std::list<Transfer> transfers_;
  std::map<unsigned, Held> communicators_;  // by publisher rank
  Clock::time_point heard_, pinged_;
  bool lost_ = false;  // the link, which is then let go at the end of a round

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Link> link_;  // null while there is none; set by the thread alone
  std::optional<std::string> run_info_;
  std::uint64_t session_ = 0;  // of the leader
  bool closed_ = false;        // it said goodbye; until another one says welcome
  Landing landing_;
  std::uint64_t requests_ = 0;
  std::map<std::uint64_t, std::optional<Message>> replies_;  // to requests that somebody waits for
  std::thread thread_;                                       // started last
};

}  // namespace driftless::nccl
