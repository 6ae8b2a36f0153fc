// SPDX-License-Identifier: Apache-2.0

#include "collectives/nccl/control.h"

namespace driftless::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTrySlice{2'000};  // for one attempt
constexpr milliseconds kAskSlice{1'000};  // between two checks of the waiting time

class RemoteControl final : public Control {
 public:
  RemoteControl(Connector connector, unsigned rank, unsigned ranks, std::uint64_t start)
      : connector_(std::move(connector)), rank_(rank), ranks_(ranks), start_(start) {}

  Status announce(std::string_view) override { return leaders("announce()"); }
  Status seal(std::uint64_t, std::string_view, const Deadline&) override {
    return leaders("seal()");
  }
  Result<std::vector<ReceiverReport>> receivers() override { return leaders("receivers()"); }
  // The leader's abort drops the publication of all ranks.
  void abort(std::uint64_t) override {}

  Result<Attempt> begin(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const Message reply,
                               ask({.kind = MessageKind::kBegin, .id = id}, deadline));
    return Attempt{reply.attempt, reply.generation, reply.count};
  }

  Status offer(Message offer, const Deadline& deadline) override {
    offer.rank = rank_;
    offer.wait_ms = static_cast<std::uint64_t>(deadline.remaining().count());
    return ask(std::move(offer), deadline).status();
  }

  Status check(std::uint64_t attempt) override {
    for (bool more = true; more;) {
      const Result<bool> took = take_one(Deadline::after(milliseconds(0)));
      if (!took.ok()) return took.status();
      more = *took;
    }
    return attempt == dropped_ ? drop_reason_ : Status();
  }

  void failed(std::uint64_t attempt, const Status& why) override {
    if (link_ == nullptr) return;
    const Message message =
        with_status({.kind = MessageKind::kFailed, .rank = rank_, .attempt = attempt}, why);
    // If it does not arrive, the leader's own deadline ends the attempt.
    const Status sent = link_->send(to_bytes(message), Deadline::after(milliseconds(1'000)));
    if (!sent.ok()) link_.reset();
  }

  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const Message reply,
                               ask({.kind = MessageKind::kPublished, .id = id}, deadline));
    if (reply.name.empty()) return std::optional<Hash128>();
    DRIFTLESS_ASSIGN_OR_RETURN(const Hash128 manifest, hash128_from_hex(reply.name));
    return std::optional(manifest);
  }

 private:
  [[nodiscard]] Status leaders(std::string_view call) const {
    return error(StatusCode::kInvalidArgument, "nccl: ", call, " is for the leader, this is rank ",
                 rank_);
  }

  [[nodiscard]] Status connect(const Deadline& deadline) {
    if (link_ != nullptr) return {};
    Backoff backoff(milliseconds(5), milliseconds(200));
    Waiting waiting;
    for (;;) {
      Result<std::unique_ptr<Link>> made = connector_(deadline.sooner(kTrySlice));
      if (made.ok()) {
        link_ = std::move(*made);
        break;
      }
      const auto whom = [&] {
        return concat("nccl: rank ", rank_, " looks for the leader: ", made.status().message());
      };
      if (!waiting.sleep(backoff, deadline, whom)) return deadline.check(whom());
    }
    const Message hello{
        .kind = MessageKind::kHello, .rank = rank_, .count = ranks_, .session = start_};
    return link_->send(to_bytes(hello), deadline);
  }

  // True if a message was there. Stores replies, and handles other messages.
  [[nodiscard]] Result<bool> take_one(const Deadline& deadline) {
    if (link_ == nullptr) return error(StatusCode::kIo, "nccl: the link to the leader was lost");
    const Result<std::optional<std::string>> bytes = link_->receive(deadline);
    if (!bytes.ok()) {
      link_.reset();
      return bytes.status();
    }
    if (!bytes->has_value()) return false;
    DRIFTLESS_ASSIGN_OR_RETURN(Message message, parse_message(**bytes));
    if (message.kind == MessageKind::kGoodbye) {
      link_.reset();
      return error(StatusCode::kIo, "nccl: the leader has closed its road; rank ", rank_,
                   " can send it no more requests");
    }
    if (message.kind == MessageKind::kDrop) {
      dropped_ = message.attempt;
      drop_reason_ = message.code == StatusCode::kOk
                         ? error(StatusCode::kBusy, "nccl: the leader aborted the publication")
                         : status_of(message);
    } else if (message.kind == MessageKind::kReply && message.request == request_) {
      reply_ = std::move(message);
    }
    return true;
  }

  [[nodiscard]] Result<Message> ask(Message message, const Deadline& deadline) {
    DRIFTLESS_RETURN_IF_ERROR(connect(deadline));
    message.request = ++request_;
    reply_.reset();
    const Status sent = link_->send(to_bytes(message), deadline);
    if (!sent.ok()) {
      link_.reset();
      return sent;
    }
    Waiting waiting;
    while (!reply_.has_value()) {
      const auto whom = [&] {
        return concat("nccl: rank ", rank_, " waiting for an answer of the leader");
      };
      DRIFTLESS_RETURN_IF_ERROR(deadline.check(whom()));
      waiting.look(whom);
      DRIFTLESS_RETURN_IF_ERROR(take_one(deadline.sooner(kAskSlice)).status());
    }
    DRIFTLESS_RETURN_IF_ERROR(status_of(*reply_));
    return std::move(*reply_);
  }

  const Connector connector_;
  const unsigned rank_, ranks_;
  const std::uint64_t start_;
  std::unique_ptr<Link> link_;
  std::uint64_t request_ = 0;
  std::optional<Message> reply_;  // to request_
  std::uint64_t dropped_ = 0;     // the last attempt that the leader dropped
  Status drop_reason_;
};

}  // namespace

std::unique_ptr<Control> make_remote_control(Connector connector, unsigned rank, unsigned ranks,
                                             std::uint64_t start) {
  return std::make_unique<RemoteControl>(std::move(connector), rank, ranks, start);
}

}  // namespace driftless::nccl
