// SPDX-License-Identifier: Apache-2.0
// A group of publisher ranks over messages: what MPI's and the hub's groups have in common. No call
// waits longer than its deadline for a rank that is gone.
#pragma once

#include <map>
#include <tuple>

#include "collectives/group.h"

namespace driftless {

// Carries messages between rank 0 and the others, each whole, those of one rank in their order. One
// thread at a time.
class GroupMail {
 public:
  struct Letter {
    unsigned from = 0;
    std::string bytes;
  };

  virtual ~GroupMail() = default;
  [[nodiscard]] virtual unsigned rank() const = 0;
  [[nodiscard]] virtual unsigned size() const = 0;
  [[nodiscard]] virtual std::uint64_t most_bytes() const = 0;  // of a message
  // "publisher rank 2", and what is known of it.
  [[nodiscard]] virtual std::string name(unsigned rank) const = 0;
  // To rank 0, or from it. The message may be on its way later: unsent().
  [[nodiscard]] virtual Status send(unsigned to, std::string bytes, const Deadline& deadline) = 0;
  // Ranks whose messages are not on their way yet, of those since mark() returned `since`.
  [[nodiscard]] virtual std::uint64_t mark() const { return 0; }
  [[nodiscard]] virtual Result<std::vector<unsigned>> unsent(std::uint64_t /*since*/) {
    return std::vector<unsigned>();
  }
  // The next message that has arrived. Does not wait.
  [[nodiscard]] virtual Result<std::optional<Letter>> take() = 0;
  // Waits until another message may have arrived. False: the deadline is over.
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
  // Epoch, operation, rank it came from.
  using Key = std::tuple<std::uint64_t, std::uint64_t, unsigned>;
  struct Arrived {
    std::uint64_t kind;
    std::string text;
  };
  // `done` looks; `whom` names those that are waited for.
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
