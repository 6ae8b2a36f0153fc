// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/client.h"

namespace driftless::peer {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kConnectSlice{2'000};
// A stopped leader keeps its links, but another leader may already listen.
constexpr milliseconds kReplySlice{30'000};
constexpr milliseconds kRest{1'000};

}  // namespace

Status Client::connect(const Deadline& deadline) {
  const Deadline slice = deadline.sooner(kConnectSlice);
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<hub::Link> made, connector_(slice));
  DRIFTLESS_RETURN_IF_ERROR(made->send(to_bytes(hello_), slice));
  link_ = std::move(made);
  closed_ = false;
  return {};
}

// kIo: the link is lost, or the leader closes.
Result<Reply> Client::ask_once(const Request& request, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(link_->send(to_bytes(request), deadline));
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, link_->receive(deadline));
    if (!bytes) return deadline.check("peer: waiting for a reply");
    DRIFTLESS_ASSIGN_OR_RETURN(Reply reply, parse_reply(*bytes));
    if (reply.number == request.number) return reply;
    if (reply.number != 0) continue;  // to an abandoned request
    closed_ = true;
    return error(StatusCode::kIo, "peer: the leading trainer has closed its road");
  }
}

bool Client::rests() {
  const std::scoped_lock lock(mutex_);
  return silent_ && !rest_.expired();
}

Result<Reply> Client::ask(Request request, const Deadline& deadline) {
  const std::scoped_lock lock(mutex_);
  Backoff backoff(milliseconds(5), milliseconds(200));
  Waiting waiting;
  Status last;
  // An attempt that timed out must not hide why earlier ones failed.
  const auto note = [&last](const Status& why) {
    if (!why.ok() && (last.ok() || why.code() != StatusCode::kDeadlineExceeded)) last = why;
  };
  do {
    if (link_ == nullptr) {
      const Status connected = connect(deadline);
      note(connected);
      if (!connected.ok() && closed_) {
        return error(StatusCode::kIo, "peer: the leading trainer at ", leader_,
                     " has closed its road");
      }
    }
    if (link_ == nullptr) continue;
    request.number = ++asked_;
    Result<Reply> reply = ask_once(request, deadline.sooner(kReplySlice));
    if (reply.ok()) {
      silent_ = false;
      if (reply->code != StatusCode::kOk) return Status(reply->code, reply->text);
      return reply;
    }
    note(reply.status());
    link_.reset();
    backoff.reset();
  } while (waiting.sleep(backoff, deadline, [&] {
    return concat("peer: the leading trainer at ", leader_, ": ", last.message());
  }));
  silent_ = true;
  rest_ = Deadline::after(kRest);
  return deadline.check(
      concat("peer: the leading trainer at ", leader_, " does not answer: ", last.message()));
}

}  // namespace driftless::peer
