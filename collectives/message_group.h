// SPDX-License-Identifier: Apache-2.0
// A group of publisher ranks over messages: the common part of the groups over MPI and over the
// hub. No call waits longer than its deadline for a rank that is gone.
#pragma once

#include <map>
#include <tuple>

#include "collectives/group.h"

namespace driftless {

// Carries whole messages between rank 0 and the other ranks. Messages of one rank arrive in the
// order in which it sent them. One thread at a time.
class GroupMail {
 public:
  struct Letter {
    unsigned from = 0;
    std::string bytes;
  };

  virtual ~GroupMail() = default;
  [[nodiscard]] virtual unsigned rank() const = 0;
  [[nodiscard]] virtual unsigned size() const = 0;
  [[nodiscard]] virtual std::uint64_t most_bytes() const = 0;  // limit for one message
  // How errors name a rank: "publisher rank 2", with what is known about it.
  [[nodiscard]] virtual std::string name(unsigned rank) const = 0;
  // Sends to rank 0, or from rank 0. May return before the message is on its way: see unsent().
  [[nodiscard]] virtual Status send(unsigned to, std::string bytes, const Deadline& deadline) = 0;
  // mark() returns a point in the sequence of sent messages. unsent(since) returns the ranks to
  // which a message after that point is not yet on its way.
  [[nodiscard]] virtual std::uint64_t mark() const { return 0; }
  [[nodiscard]] virtual Result<std::vector<unsigned>> unsent(std::uint64_t /*since*/) {
    return std::vector<unsigned>();
  }
  // The next message that has arrived. Does not wait.
  [[nodiscard]] virtual Result<std::optional<Letter>> take() = 0;
  // Waits until another message may have arrived. False: the deadline has passed.
  [[nodiscard]] virtual bool rest(Backoff& backoff, const Deadline& deadline) = 0;
};

class MessageGroup final : public Group {
 public:
  explicit MessageGroup(std::unique_ptr<GroupMail> mail) : mail_(std::move(mail)) {}
  [[nodiscard]] unsigned rank() const override { return mail_->rank(); }
  [[nodiscard]] unsigned size() const override { return mail_->size(); }
  void begin_epoch(std::uint64_t epoch) override;
  Result<std::vector<std::string>> gather(std::string_view message,
                                          const Deadline& deadline) override;
  Result<std::string> broadcast(std::string_view message, const Deadline& deadline) override;

 private:
  // Epoch, operation, sending rank.
  using Key = std::tuple<std::uint64_t, std::uint64_t, unsigned>;
  struct Arrived {
    std::uint64_t kind;
    std::string text;
  };
  // Calls `done` until it returns true. On a timeout the error names the ranks that `whom` returns.
  template <typename Done, typename Whom>
  [[nodiscard]] Status wait_until(const Done& done, const Whom& whom, const Deadline& deadline);
  [[nodiscard]] Status send(unsigned first, unsigned last, std::uint64_t kind,
                            std::string_view message, const Deadline& deadline);
  [[nodiscard]] std::string names_of(const std::vector<unsigned>& ranks) const;
  [[nodiscard]] Status take_all();
  [[nodiscard]] Status keep(unsigned from, const std::string& bytes);
  [[nodiscard]] Result<bool> arrived(unsigned from, std::uint64_t kind, std::string* text);

  const std::unique_ptr<GroupMail> mail_;
  std::uint64_t epoch_ = 0;
  std::uint64_t operation_ = 0;
  std::map<Key, Arrived> inbox_;
};

}  // namespace driftless
