// SPDX-License-Identifier: Apache-2.0
// The receiving side: a thread that receives, and calls that return what it has received.
//
// The thread keeps the link to the leader, joins the group, receives the broadcasts of the
// publisher ranks, acknowledges them with their hashes, and holds committed publications.
//
// Order. The leader sends the requests to receive to all receivers in one order. A receiver starts
// each broadcast at once, and started broadcasts proceed in parallel, each on its own communicator.
// So broadcasts cannot wait for each other in a cycle.
//
// The thread never waits for a broadcast: it polls the work in progress. Work that exceeds the
// deadline that came with it is aborted.
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>

#include "collectives/held_publications.h"
#include "collectives/nccl/message.h"
#include "collectives/nccl/nccl_road.h"
#include "collectives/part_ranges.h"
#include "core/wait_visibly.h"

namespace driftless::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectSlice{1'000};  // the destructor may have to wait so long
constexpr milliseconds kIdleSlice{20};
constexpr milliseconds kBusySlice{1};

class Receiver final : public ReceiveRoad {
 public:
  Receiver(NcclOptions options, std::shared_ptr<Fabric> fabric, Connector connector,
           std::shared_ptr<EndNote> end)
      : options_(std::move(options)),
        fabric_(std::move(fabric)),
        connector_(std::move(connector)),
        end_(end == nullptr ? std::make_shared<EndNote>() : std::move(end)),
        thread_([this] { run(); }) {}
  ~Receiver() override {
    stop_ = true;
    thread_.join();
  }

  // Thread-safe.
  Result<std::string> run_info(const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    Waiting waiting;
    const auto whom = [&] {
      return link_ == nullptr ? concat("nccl: looking for the leading trainer: ", missed_)
                              : "nccl: waiting for the announcement of the run";
    };
    const auto there = [&] { return run_info_.has_value(); };
    if (wait_visibly(waiting, changed_, lock, deadline, there, whom)) return *run_info_;
    return deadline.check(whom());
  }

  Result<std::vector<PublicationId>> list(const Deadline&) override {
    const std::scoped_lock lock(mutex_);
    return held_.list();
  }

  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    const bool there =
        changed_.wait_until(lock, deadline.at(), [&] { return held_.has_version_past(version); });
    return there ? Status() : deadline.check(concat("nccl: waiting for a version past ", version));
  }

  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline&) override {
    const std::scoped_lock lock(mutex_);
    return held_.manifest(id);
  }

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("nccl: fetching a part of ", to_string(id))));
    DRIFTLESS_ASSIGN_OR_RETURN(const HeldPart held, held(id, part));
    if (fabric_->memory() == options_.arrival || held.bytes.empty()) {
      return MappedFile(part.name, held.owner, held.bytes, options_.arrival);
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Block host, fabric_->allocate_host(held.bytes.size()));
    DRIFTLESS_RETURN_IF_ERROR(fabric_->copy(host.data, held.bytes.data(), held.bytes.size()));
    return MappedFile(part.name, host.owner, {host.data, held.bytes.size()});
  }

  // The part was broadcast whole; only the ranges are copied from device memory to the host.
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(
        deadline.check(concat("nccl: fetching ranges of a part of ", to_string(id))));
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("nccl", id, part, ranges));
    DRIFTLESS_ASSIGN_OR_RETURN(const HeldPart held, held(id, part));
    if (fabric_->memory() == options_.arrival) {
      return slices(MappedFile(part.name, held.owner, held.bytes, options_.arrival), ranges);
    }
    const RangePlaces places(ranges);
    DRIFTLESS_ASSIGN_OR_RETURN(const Block host, fabric_->allocate_host(places.total_bytes()));
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const std::span<std::byte> into = places.of(i, host.data);
      if (into.empty()) continue;
      DRIFTLESS_RETURN_IF_ERROR(
          fabric_->copy(into.data(), held.bytes.data() + ranges[i].offset, into.size()));
    }
    return places.files(part.name, host.owner, host.data);
  }
  [[nodiscard]] bool fetches_at_once() const override { return true; }

  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_report(report));
    const std::string what = concat("nccl: receiver ", report.id, " reporting");
    const std::optional<Status> reply = ask({.kind = MessageKind::kReport,
                                             .id = {.version = report.version},
                                             .name = report.id,
                                             .text = report.proof,
                                             .needs = report.needs},
                                            what, deadline);
    if (!reply) {
      return error(StatusCode::kIo, what,
                   ": the leading trainer has closed its road, so no process receives the report; "
                   "report again once another trainer is there");
    }
    reported_ = reported_ || reply->ok();
    return *reply;
  }

  Status leave(const Deadline& deadline) override {
    if (!reported_) return {};
    const std::optional<Status> left =
        ask({.kind = MessageKind::kLeave}, "nccl: leaving", deadline);
    // A leader that has closed holds nothing for this receiver, and sends it nothing.
    if (left) DRIFTLESS_RETURN_IF_ERROR(*left);
    reported_ = false;
    return {};
  }

 private:
  using Clock = Deadline::Clock;
  struct Member {
    std::uint64_t generation = 0;
    std::unique_ptr<Communicator> communicator;
  };
  // A broadcast in progress.
  struct Transfer {
    std::uint64_t attempt = 0;
    unsigned rank = 0;
    std::vector<PartReceipt> parts;
    std::vector<Block> blocks;  // of the parts
    Deadline deadline;
    bool started = false;
  };

  [[nodiscard]] Result<HeldPart> held(const PublicationId& id, const PartReceipt& part) {
    const std::scoped_lock lock(mutex_);
    return held_.part(id, part);
  }

  // The leader's answer; repeats the request if the link is lost meanwhile. Returns nothing at once
  // if the leader has sent its goodbye and no other leader has appeared: no process will answer.
  // kDeadlineExceeded if there was neither an answer nor a goodbye: the leader is slow, unreachable
  // or dead.
  [[nodiscard]] std::optional<Status> ask(Message message, std::string_view what,
                                          const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    Waiting waiting;
    const auto whom = [&] {
      return concat(
          what,
          link_ == nullptr ? ": the link to the leader is lost: " : ": the leader does not answer",
          link_ == nullptr ? missed_ : "");
    };
    while (!closed_ && !deadline.expired()) {
      const auto there = [&] { return link_ != nullptr || closed_; };
      if (!wait_visibly(waiting, changed_, lock, deadline, there, whom) || closed_) continue;
      const std::shared_ptr<hub::Link> link = link_;
      const std::uint64_t request = ++requests_;
      message.request = request;
      replies_[request] = std::nullopt;
      lock.unlock();
      const Status sent = link->send(to_bytes(message), deadline);
      lock.lock();
      // A request that cannot be sent needs no error here: the thread notices that the link is
      // lost, reads its last messages, and the request is repeated.
      const auto over = [&] { return replies_[request].has_value() || link_ != link || closed_; };
      static_cast<void>(wait_visibly(waiting, changed_, lock, deadline, over, whom));
      const std::optional<Message> reply = std::move(replies_[request]);
      replies_.erase(request);
      if (reply.has_value()) return status_of(*reply);
    }
    if (closed_) return std::nullopt;
    return deadline.check(whom());
  }

  // The functions below run on the thread.
  void run() {
    while (!stop_) {
      if (link_ == nullptr) {
        look_for_the_leader();
        continue;
      }
      receive_messages();
      advance_all();
      sign_of_life();
      if (!lost_) continue;
      read_last_messages();
      lose_link();
    }
    communicators_.clear();
    transfers_.clear();
  }

  void look_for_the_leader() {
    const Deadline slice = Deadline::after(kConnectSlice);
    Result<std::unique_ptr<hub::Link>> made = connector_(slice);
    if (made.ok()) {
      const Message hello{.kind = MessageKind::kHello};
      if ((*made)->send(to_bytes(hello), slice).ok()) {
        last_message_at_ = pinged_ = Clock::now();
        return update([&] { link_ = std::move(*made); });
      }
    } else {
      const std::scoped_lock lock(mutex_);
      missed_ = made.status().message();
    }
    // After an immediate refusal it waits before it tries again.
    Backoff backoff(milliseconds(20), milliseconds(20));
    backoff.sleep(slice);
  }

  void receive_messages() {
    const Deadline slice = Deadline::after(transfers_.empty() ? kIdleSlice : kBusySlice);
    Result<std::optional<std::string>> bytes = link_->receive(slice);
    while (bytes.ok() && bytes->has_value()) {
      last_message_at_ = Clock::now();
      Result<Message> message = parse_message(**bytes);
      if (!message.ok()) {
        lost_ = true;
        return;
      }
      handle(std::move(*message));
      bytes = link_->receive(Deadline::after(milliseconds(0)));
    }
    if (!bytes.ok() || Clock::now() - last_message_at_ > options_.silence) lost_ = true;
  }

  // Often a send fails first on a lost link. The leader's earlier messages can still be read:
  // answers, a commit, its goodbye.
  void read_last_messages() {
    for (;;) {
      const auto bytes = link_->receive(Deadline::after(milliseconds(0)));
      if (!bytes.ok() || !bytes->has_value()) return;
      Result<Message> message = parse_message(**bytes);
      if (!message.ok()) return;
      if (message->kind != MessageKind::kReceive) handle(std::move(*message));
    }
  }

  void lose_link() {
    lost_ = false;
    communicators_.clear();
    transfers_.clear();
    update([&] {
      held_.forget_staged();
      link_.reset();
      // After the end of the run a lost link counts as the leader's goodbye.
      if (end_->text()) closed_ = true;
    });
  }

  // Changes state that other threads wait for.
  void update(const auto& change) {
    const std::scoped_lock lock(mutex_);
    change();
    changed_.notify_all();
  }

  void sign_of_life() {
    const Clock::time_point now = Clock::now();
    if (now - pinged_ < options_.silence / 5) return;
    pinged_ = now;
    send({.kind = MessageKind::kPing});
  }

  void handle(Message message) {
    switch (message.kind) {
      case MessageKind::kWelcome: welcome(message); return;
      case MessageKind::kReceive: receive(message); return;
      case MessageKind::kDrop: cut_off(message.attempt); return;
      case MessageKind::kProbe: send({.kind = MessageKind::kPing}); return;
      case MessageKind::kAnnounce: return update([&] { run_info_ = std::move(message.text); });
      case MessageKind::kEnd:
        end_->store(std::move(message.text));
        send({.kind = MessageKind::kEnd});
        return;
      case MessageKind::kGoodbye:
        lost_ = true;  // another leader may start
        return update([&] { closed_ = true; });
      case MessageKind::kReply:
        return update([&] {
          const auto waiting = replies_.find(message.request);
          if (waiting != replies_.end()) waiting->second = std::move(message);
        });
      case MessageKind::kCommit: {
        bool done = false;
        update([&] {
          done = held_.commit(message.attempt, message.id, std::move(message.text), message.ids);
        });
        if (done) send({.kind = MessageKind::kCommitted, .attempt = message.attempt});
        return;
      }
      default: return;
    }
  }

  void welcome(const Message& message) {
    const std::scoped_lock lock(mutex_);
    if (message.session !=
        session_) {  // another leader: publications of the last one belong to another chain
      held_.clear();
      run_info_.reset();
      end_->store(std::nullopt);
    }
    session_ = message.session;
    closed_ = false;
    if (message.count != 0) run_info_ = message.text;
    changed_.notify_all();
  }

  void receive(const Message& message) {
    Transfer transfer{.attempt = message.attempt,
                      .rank = message.rank,
                      .parts = message.parts,
                      .blocks = {},
                      .deadline = Deadline::after(milliseconds(
                          std::min<std::uint64_t>(message.wait_ms, std::uint64_t{1} << 40))),
                      .started = false};
    const Status ready = prepare(message, transfer);
    if (!ready.ok()) {
      refuse(message.attempt, message.rank, ready);
      return;
    }
    transfers_.push_back(std::move(transfer));
  }

  [[nodiscard]] Status prepare(const Message& message, Transfer& transfer) {
    for (const PartReceipt& part : message.parts) {
      DRIFTLESS_ASSIGN_OR_RETURN(Block block, fabric_->allocate(part.size_bytes));
      transfer.blocks.push_back(std::move(block));
    }
    Member& held = communicators_[message.rank];
    if (!message.meeting.empty()) {
      if (message.index == 0 || message.index >= message.count) {
        return error(StatusCode::kCorrupt, "nccl: bad rank ", message.index, " of ", message.count);
      }
      held.communicator.reset();  // frees its memory before the new one is made
      DRIFTLESS_ASSIGN_OR_RETURN(held.communicator,
                                 fabric_->connect(message.meeting, message.index, message.count));
      held.generation = message.generation;
    }
    if (held.communicator == nullptr || held.generation != message.generation) {
      return error(StatusCode::kInternal, "nccl: no communicator of group ", message.generation,
                   " with rank ", message.rank);
    }
    return {};
  }

  void advance_all() {
    std::erase_if(transfers_, [&](Transfer& transfer) {
      const Result<bool> over = advance(transfer);
      if (over.ok()) return *over;
      communicators_.erase(transfer.rank);
      refuse(transfer.attempt, transfer.rank, over.status());
      return true;
    });
  }

  // True once the transfer is done.
  [[nodiscard]] Result<bool> advance(Transfer& transfer) {
    Communicator& communicator = *communicators_[transfer.rank].communicator;
    DRIFTLESS_ASSIGN_OR_RETURN(bool done, communicator.poll());
    if (done && !transfer.started) {
      DRIFTLESS_RETURN_IF_ERROR(communicator.broadcast(transfer.blocks));
      transfer.started = true;
      DRIFTLESS_ASSIGN_OR_RETURN(done, communicator.poll());
    }
    if (done) {
      DRIFTLESS_RETURN_IF_ERROR(finish(transfer));
      return true;
    }
    DRIFTLESS_RETURN_IF_ERROR(
        transfer.deadline.check(concat("nccl: receiving from publisher rank ", transfer.rank)));
    return false;
  }

  [[nodiscard]] Status finish(Transfer& transfer) {
    std::vector<HeldPart> parts;
    std::vector<std::span<const std::byte>> stretches;
    for (std::size_t i = 0; i < transfer.parts.size(); ++i) {
      const Block& block = transfer.blocks[i];
      stretches.emplace_back(block.data, transfer.parts[i].size_bytes);
      parts.push_back({transfer.parts[i], block.owner, stretches.back()});
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Hash128> hashes, fabric_->hash(stretches));
    Message ack{.kind = MessageKind::kAck,
                .rank = transfer.rank,
                .attempt = transfer.attempt,
                .parts = transfer.parts};
    for (std::size_t i = 0; i < hashes.size(); ++i) ack.parts[i].hash = hashes[i];
    {
      const std::scoped_lock lock(mutex_);
      held_.stage(transfer.attempt, transfer.rank, std::move(parts));
    }
    send(ack);
    return {};
  }

  void cut_off(std::uint64_t attempt) {
    for (const Transfer& transfer : transfers_) {
      if (transfer.attempt == attempt) communicators_.erase(transfer.rank);
    }
    std::erase_if(transfers_, [&](const Transfer& each) { return each.attempt == attempt; });
    const std::scoped_lock lock(mutex_);
    held_.drop(attempt);
  }

  void refuse(std::uint64_t attempt, unsigned rank, const Status& why) {
    send(with_status({.kind = MessageKind::kAck, .rank = rank, .attempt = attempt}, why));
  }

  void send(const Message& message) {
    if (lost_) return;
    const Status sent = link_->send(to_bytes(message), Deadline::after(options_.silence));
    if (!sent.ok()) lost_ = true;
  }

  const NcclOptions options_;
  const std::shared_ptr<Fabric> fabric_;
  const Connector connector_;
  const std::shared_ptr<EndNote> end_;
  std::atomic<bool> stop_ = false;
  bool reported_ = false;

  // Used only by the thread. Communicators are destroyed before the memory that they write to.
  std::list<Transfer> transfers_;
  std::map<unsigned, Member> communicators_;  // by publisher rank
  Clock::time_point last_message_at_, pinged_;
  bool lost_ = false;  // the link was lost; run() drops it at the end of a round

  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<hub::Link> link_;  // null without a link; only the thread sets it
  std::string missed_;               // why the last attempt to connect failed
  std::optional<std::string> run_info_;
  std::uint64_t session_ = 0;  // of the leader
  bool closed_ = false;        // it sent a goodbye, and no other leader a welcome since
  HeldPublications held_{"nccl"};
  std::uint64_t requests_ = 0;
  std::map<std::uint64_t, std::optional<Message>> replies_;  // to requests with a waiting thread
  std::thread thread_;                                       // started last
};

}  // namespace

Result<std::unique_ptr<ReceiveRoad>> make_receiver(const NcclOptions& options,
                                                   std::shared_ptr<Fabric> fabric,
                                                   Connector connector,
                                                   std::shared_ptr<EndNote> end) {
  try {
    return std::unique_ptr<ReceiveRoad>(std::make_unique<Receiver>(
        options, std::move(fabric), std::move(connector), std::move(end)));
  } catch (const std::system_error& failure) {
    return error(StatusCode::kIo, "nccl: no thread for the receiver: ", failure.what());
  }
}

}  // namespace driftless::nccl
