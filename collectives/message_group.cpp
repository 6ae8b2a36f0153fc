// SPDX-License-Identifier: Apache-2.0
#include "collectives/message_group.h"

#include <cstring>

namespace driftless {
namespace {

using std::chrono::microseconds;

// Precedes every message.
struct Header {
  std::uint64_t epoch = 0;
  std::uint64_t operation = 0;  // number of the gather() or broadcast() within the epoch
  std::uint64_t kind = 0;       // kind of the call
  std::uint64_t size_bytes = 0;
};
enum Kind : std::uint64_t { kGather = 1, kBroadcast = 2 };

}  // namespace

void MessageGroup::begin_epoch(std::uint64_t epoch) {
  epoch_ = epoch;
  operation_ = 0;
  std::erase_if(inbox_, [&](const auto& entry) { return std::get<0>(entry.first) < epoch; });
}

Result<std::vector<std::string>> MessageGroup::gather(std::string_view message,
                                                      const Deadline& deadline) {
  ++operation_;
  if (!leads()) {
    DRIFTLESS_RETURN_IF_ERROR(send(0, 0, kGather, message, deadline));
    return std::vector<std::string>{};
  }
  std::vector<std::string> messages(size());
  messages[0] = message;
  std::vector<unsigned> silent;
  for (unsigned from = 1; from < size(); ++from) silent.push_back(from);
  const auto done = [&]() -> Result<bool> {
    std::vector<unsigned> still;
    for (const unsigned from : silent) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool there, arrived(from, kGather, &messages[from]));
      if (!there) still.push_back(from);
    }
    silent = std::move(still);
    return silent.empty();
  };
  const auto whom = [&] {
    return concat("nothing from ", names_of(silent), "; ", size() - 1 - silent.size(), " of ",
                  size() - 1, " others have answered");
  };
  DRIFTLESS_RETURN_IF_ERROR(wait_until(done, whom, deadline));
  return messages;
}

Result<std::string> MessageGroup::broadcast(std::string_view message, const Deadline& deadline) {
  ++operation_;
  if (leads()) {
    DRIFTLESS_RETURN_IF_ERROR(send(1, size() - 1, kBroadcast, message, deadline));
    return std::string(message);
  }
  std::string text;
  DRIFTLESS_RETURN_IF_ERROR(wait_until(
      [&] { return arrived(0, kBroadcast, &text); },
      [this] { return concat(mail_->name(rank()), ": nothing from ", mail_->name(0)); }, deadline));
  return text;
}

template <typename Done, typename Whom>
Status MessageGroup::wait_until(const Done& done, const Whom& whom, const Deadline& deadline) {
  Backoff backoff(microseconds(10), microseconds(500));
  Waiting waiting;
  do {
    DRIFTLESS_RETURN_IF_ERROR(take_all());
    DRIFTLESS_ASSIGN_OR_RETURN(const bool over, done());
    if (over) return {};
    waiting.look(whom);
  } while (mail_->rest(backoff, deadline));
  return deadline.check(whom());
}

// Sends to ranks `first` to `last`, and waits until the messages are on their way or received: a
// long message makes progress only while this rank waits here. Does not wait for messages of
// earlier epochs, which may never end.
Status MessageGroup::send(unsigned first, unsigned last, std::uint64_t kind,
                          std::string_view message, const Deadline& deadline) {
  const Header header{epoch_, operation_, kind, message.size()};
  if (message.size() > mail_->most_bytes() - sizeof(header)) {
    return error(StatusCode::kInvalidArgument, "a message of ", message.size(),
                 " bytes to other ranks; the limit is ", mail_->most_bytes() - sizeof(header));
  }
  const std::string_view begin(reinterpret_cast<const char*>(&header), sizeof(header));
  const std::uint64_t mark = mail_->mark();
  for (unsigned to = first; to <= last; ++to) {
    DRIFTLESS_RETURN_IF_ERROR(mail_->send(to, concat(begin, message), deadline));
  }
  std::vector<unsigned> silent;
  const auto done = [&]() -> Result<bool> {
    DRIFTLESS_ASSIGN_OR_RETURN(silent, mail_->unsent(mark));
    return silent.empty();
  };
  return wait_until(
      done, [&] { return concat(mail_->name(rank()), ": no answer from ", names_of(silent)); },
      deadline);
}

std::string MessageGroup::names_of(const std::vector<unsigned>& ranks) const {
  std::string names;
  for (const unsigned rank : ranks) names += concat(names.empty() ? "" : ", ", mail_->name(rank));
  return names;
}

Status MessageGroup::take_all() {
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<GroupMail::Letter> letter, mail_->take());
    if (!letter) return {};
    DRIFTLESS_RETURN_IF_ERROR(keep(letter->from, letter->bytes));
  }
}

Status MessageGroup::keep(unsigned from, const std::string& bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) {
    return error(StatusCode::kCorrupt, "publisher rank ", from, " sent ", bytes.size(), " bytes");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.size_bytes != bytes.size() - sizeof(header)) {
    return error(StatusCode::kCorrupt, "publisher rank ", from, " announced ", header.size_bytes,
                 " bytes and sent ", bytes.size() - sizeof(header));
  }
  const bool stale =
      header.epoch < epoch_ || (header.epoch == epoch_ && header.operation < operation_);
  if (stale) return {};
  inbox_[{header.epoch, header.operation, from}] = {header.kind, bytes.substr(sizeof(header))};
  return {};
}

// Takes the message of this operation from `from`, if it has arrived.
Result<bool> MessageGroup::arrived(unsigned from, std::uint64_t kind, std::string* text) {
  const auto found = inbox_.find({epoch_, operation_, from});
  if (found == inbox_.end()) return false;
  if (found->second.kind != kind) {
    return error(StatusCode::kInternal, "publisher ranks ", rank(), " and ", from,
                 " call gather() and broadcast() in different order");
  }
  *text = std::move(found->second.text);
  inbox_.erase(found);
  return true;
}

}  // namespace driftless
