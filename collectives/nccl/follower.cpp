// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/follower.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace driftless::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectSlice{1'000};  // the end may have to wait so long
constexpr milliseconds kIdleSlice{20};
constexpr milliseconds kBusySlice{1};

}  // namespace

Result<std::unique_ptr<Follower>> Follower::start(const NcclOptions& options,
                                                  std::shared_ptr<Fabric> fabric,
                                                  std::unique_ptr<Connector> connector) {
  std::unique_ptr<Follower> follower(
      new Follower(options, std::move(fabric), std::move(connector)));
  try {
    follower->thread_ = std::thread([made = follower.get()] { made->run(); });
  } catch (const std::system_error& failure) {
    return error(StatusCode::kIo, "nccl: no thread for the receiver: ", failure.what());
  }
  return follower;
}

Follower::Follower(NcclOptions options, std::shared_ptr<Fabric> fabric,
                   std::unique_ptr<Connector> connector)
    : options_(std::move(options)), fabric_(std::move(fabric)), connector_(std::move(connector)) {}

Follower::~Follower() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void Follower::run() {
  while (!stop_) {
    if (link_ == nullptr) {
      look_for_the_leader();
      continue;
    }
    hear();
    advance_all();
    sign_of_life();
    if (!lost_) continue;
    hear_last_words();
    lose_link();
  }
  communicators_.clear();
  transfers_.clear();
}

void Follower::look_for_the_leader() {
  const Deadline slice = Deadline::after(kConnectSlice);
  Result<std::unique_ptr<Link>> made = connector_->connect(slice);
  if (made.ok()) {
    const Message hello{.kind = MessageKind::kHello};
    if ((*made)->send(to_bytes(hello), slice).ok()) {
      heard_ = pinged_ = Clock::now();
      const std::scoped_lock lock(mutex_);
      link_ = std::move(*made);
      changed_.notify_all();
      return;
    }
  }
  // Refused at once: not again at once.
  Backoff backoff(milliseconds(20), milliseconds(20));
  backoff.sleep(slice);
}

void Follower::hear() {
  const Deadline slice = Deadline::after(transfers_.empty() ? kIdleSlice : kBusySlice);
  Result<std::optional<std::string>> bytes = link_->receive(slice);
  while (bytes.ok() && bytes->has_value()) {
    heard_ = Clock::now();
    Result<Message> message = parse_message(**bytes);
    if (!message.ok()) {
      lost_ = true;
      return;
    }
    handle(std::move(*message));
    bytes = link_->receive(Deadline::after(milliseconds(0)));
  }
  if (!bytes.ok() || Clock::now() - heard_ > options_.silence) lost_ = true;
}

// A link is often found to be lost by sending. What the leader said before is there all the same:
// answers, a commit, that it closes.
void Follower::hear_last_words() {
  for (;;) {
    const auto bytes = link_->receive(Deadline::after(milliseconds(0)));
    if (!bytes.ok() || !bytes->has_value()) return;
    Result<Message> message = parse_message(**bytes);
    if (!message.ok()) return;
    if (message->kind != MessageKind::kReceive) handle(std::move(*message));
  }
}

void Follower::lose_link() {
  lost_ = false;
  communicators_.clear();
  transfers_.clear();
  const std::scoped_lock lock(mutex_);
  landing_.forget_staged();
  link_.reset();
  changed_.notify_all();
}

void Follower::sign_of_life() {
  const Clock::time_point now = Clock::now();
  if (now - pinged_ < options_.silence / 5) return;
  pinged_ = now;
  tell({.kind = MessageKind::kPing});
}

void Follower::tell(const Message& message) {
  if (lost_) return;
  const Status sent = link_->send(to_bytes(message), Deadline::after(options_.silence));
  if (!sent.ok()) lost_ = true;
}

void Follower::handle(Message message) {
  switch (message.kind) {
    case MessageKind::kWelcome: welcome(message); return;
    case MessageKind::kReceive: receive(message); return;
    case MessageKind::kDrop: cut_off(message.attempt); return;
    case MessageKind::kProbe: tell({.kind = MessageKind::kPing}); return;
    case MessageKind::kAnnounce: {
      const std::scoped_lock lock(mutex_);
      run_info_ = std::move(message.text);
      changed_.notify_all();
      return;
    }
    case MessageKind::kGoodbye: {
      lost_ = true;  // another leader may come
      const std::scoped_lock lock(mutex_);
      closed_ = true;
      changed_.notify_all();
      return;
    }
    case MessageKind::kReply: {
      const std::scoped_lock lock(mutex_);
      const auto waiting = replies_.find(message.request);
      if (waiting != replies_.end()) waiting->second = std::move(message);
      changed_.notify_all();
      return;
    }
    case MessageKind::kCommit: {
      std::unique_lock lock(mutex_);
      const bool done =
          landing_.commit(message.attempt, message.id, std::move(message.text), message.ids);
      changed_.notify_all();
      lock.unlock();
      if (done) tell({.kind = MessageKind::kCommitted, .attempt = message.attempt});
      return;
    }
    default: return;
  }
}

void Follower::welcome(const Message& message) {
  const std::scoped_lock lock(mutex_);
  if (message.session != session_) {  // another leader: what the last one sent is of another chain
    landing_.clear();
    run_info_.reset();
  }
  session_ = message.session;
  closed_ = false;
  if (message.count != 0) run_info_ = message.text;
  changed_.notify_all();
}

void Follower::receive(const Message& message) {
  Transfer transfer{.attempt = message.attempt,
                    .rank = message.rank,
                    .parts = {},
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

Status Follower::prepare(const Message& message, Transfer& transfer) {
  for (const PartReceipt& part : message.parts) {
    DRIFTLESS_ASSIGN_OR_RETURN(Block block, fabric_->allocate(part.size_bytes));
    transfer.parts.push_back({part, std::move(block)});
  }
  Held& held = communicators_[message.rank];
  if (!message.meeting.empty()) {
    if (message.index == 0 || message.index >= message.count) {
      return error(StatusCode::kCorrupt, "nccl: place ", message.index, " of ", message.count);
    }
    held.communicator.reset();  // the old one first: it holds memory
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

void Follower::advance_all() {
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    Result<bool> over = advance(*it);
    if (over.ok() && !*over) {
      ++it;
      continue;
    }
    if (!over.ok()) {
      communicators_.erase(it->rank);
      refuse(it->attempt, it->rank, over.status());
    }
    it = transfers_.erase(it);
  }
}

Result<bool> Follower::advance(Transfer& transfer) {
  Communicator& communicator = *communicators_[transfer.rank].communicator;
  DRIFTLESS_ASSIGN_OR_RETURN(bool done, communicator.poll());
  if (done && !transfer.started) {
    std::vector<Block> blocks;
    for (const LandedPart& part : transfer.parts) blocks.push_back(part.block);
    DRIFTLESS_RETURN_IF_ERROR(communicator.broadcast(blocks));
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

Status Follower::finish(Transfer& transfer) {
  std::vector<std::span<const std::byte>> stretches;
  for (const LandedPart& part : transfer.parts) {
    stretches.emplace_back(part.block.data, part.receipt.size_bytes);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Hash128> hashes, fabric_->hash(stretches));
  Message ack{.kind = MessageKind::kAck, .rank = transfer.rank, .attempt = transfer.attempt};
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    ack.parts.push_back(transfer.parts[i].receipt);
    ack.parts.back().hash = hashes[i];
  }
  {
    const std::scoped_lock lock(mutex_);
    landing_.stage(transfer.attempt, transfer.rank, std::move(transfer.parts));
  }
  tell(ack);
  return {};
}

void Follower::cut_off(std::uint64_t attempt) {
  for (auto it = transfers_.begin(); it != transfers_.end();) {
    if (it->attempt != attempt) {
      ++it;
      continue;
    }
    communicators_.erase(it->rank);
    it = transfers_.erase(it);
  }
  const std::scoped_lock lock(mutex_);
  landing_.drop(attempt);
}

void Follower::refuse(std::uint64_t attempt, unsigned rank, const Status& why) {
  tell({.kind = MessageKind::kAck,
        .code = why.code(),
        .rank = rank,
        .attempt = attempt,
        .text = std::string(why.message())});
}

Result<std::string> Follower::run_info(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.at(), [&] { return run_info_.has_value(); });
  if (run_info_.has_value()) return *run_info_;
  return deadline.check(link_ == nullptr ? "nccl: looking for the leading trainer"
                                         : "nccl: waiting for the announcement of the run");
}

Status Follower::wait_beyond(std::uint64_t version, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const bool there =
      changed_.wait_until(lock, deadline.at(), [&] { return landing_.has_step_past(version); });
  return there ? Status()
               : deadline.check(concat("nccl: waiting for a step past version ", version));
}

std::vector<PublicationId> Follower::list() {
  const std::scoped_lock lock(mutex_);
  return landing_.list();
}

Result<std::string> Follower::manifest(const PublicationId& id) {
  const std::scoped_lock lock(mutex_);
  return landing_.manifest(id);
}

Result<LandedPart> Follower::part(const PublicationId& id, const PartReceipt& wanted) {
  const std::scoped_lock lock(mutex_);
  return landing_.part(id, wanted);
}

std::optional<Status> Follower::ask(Message message, std::string_view what,
                                    const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (!closed_ && !deadline.expired()) {
    changed_.wait_until(lock, deadline.at(), [&] { return link_ != nullptr || closed_; });
    if (link_ == nullptr || closed_) continue;
    const std::shared_ptr<Link> link = link_;
    const std::uint64_t request = ++requests_;
    message.request = request;
    replies_[request] = std::nullopt;
    lock.unlock();
    const Status sent = link->send(to_bytes(message), deadline);
    lock.lock();
    // Where it could not be sent the thread finds the link lost, too, and hears its last words.
    changed_.wait_until(lock, deadline.at(),
                        [&] { return replies_[request].has_value() || link_ != link || closed_; });
    const std::optional<Message> reply = std::move(replies_[request]);
    replies_.erase(request);
    if (reply.has_value()) return status_of(*reply);
  }
  if (closed_) return std::nullopt;
  return deadline.check(concat(what, link_ == nullptr ? ": the link to the leader is lost"
                                                      : ": the leader does not answer"));
}

}  // namespace driftless::nccl
