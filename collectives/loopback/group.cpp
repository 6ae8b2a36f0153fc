// SPDX-License-Identifier: Apache-2.0
// The publisher ranks' group inside one process.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "collectives/loopback/medium.h"

namespace driftless {

// The ranks' letter boxes. Every call may come from any thread.
class LoopbackMail {
 public:
  // When within an epoch: the n-th call of gather() or broadcast(), counted alike on all ranks.
  struct Moment {
    std::uint64_t epoch = 0;
    std::uint64_t call = 0;
    friend auto operator<=>(const Moment&, const Moment&) = default;
  };

  explicit LoopbackMail(unsigned ranks) : boxes_(ranks) {}
  [[nodiscard]] unsigned ranks() const { return static_cast<unsigned>(boxes_.size()); }

  // Drops what is older. What was sent ahead of it stays.
  void begin_epoch(unsigned rank, std::uint64_t epoch) {
    const std::scoped_lock lock(mutex_);
    Box& box = boxes_[rank];
    box.epoch = epoch;
    box.letters.erase(box.letters.begin(), box.letters.lower_bound(Key({epoch, 0}, 0)));
  }

  void send(unsigned from, unsigned to, const Moment& when, std::string_view message) {
    const std::scoped_lock lock(mutex_);
    Box& box = boxes_[to];
    if (when.epoch < box.epoch) return;
    box.letters.insert_or_assign(Key(when, from), std::string(message));
    arrived_.notify_all();
  }

  // The letters of ranks `first` to `last` for this moment, in their order.
  [[nodiscard]] Result<std::vector<std::string>> take(unsigned rank, unsigned first, unsigned last,
                                                      const Moment& when, std::string_view what,
                                                      const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    Box& box = boxes_[rank];
    const auto count = [&] {
      return std::distance(box.letters.lower_bound(Key(when, first)),
                           box.letters.upper_bound(Key(when, last)));
    };
    const bool all = wait_until(arrived_, lock, deadline.at(),
                                [&] { return count() == std::ptrdiff_t{last} - first + 1; });
    if (!all) {
      std::string silent;
      for (unsigned from = first; from <= last; ++from) {
        if (box.letters.contains(Key(when, from))) continue;
        silent += concat(silent.empty() ? "" : ", ", "rank ", from);
      }
      return deadline.check(concat(what, " on rank ", rank, ": nothing from ", silent));
    }
    std::vector<std::string> messages;
    for (unsigned from = first; from <= last; ++from) {
      messages.push_back(std::move(box.letters.extract(Key(when, from)).mapped()));
    }
    return messages;
  }

 private:
  using Key = std::pair<Moment, unsigned>;  // when, and from whom
  struct Box {
    std::uint64_t epoch = 0;
    std::map<Key, std::string> letters;
  };
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Box> boxes_;
};

namespace {

class LoopbackGroup final : public Group {
 public:
  LoopbackGroup(std::shared_ptr<LoopbackMail> mail, unsigned rank)
      : mail_(std::move(mail)), rank_(rank) {}

  [[nodiscard]] unsigned rank() const override { return rank_; }
  [[nodiscard]] unsigned size() const override { return mail_->ranks(); }

  void begin_epoch(std::uint64_t epoch) override {
    if (epoch <= now_.epoch) return;  // they ascend
    now_ = {epoch, 0};
    mail_->begin_epoch(rank_, epoch);
  }

  Result<std::vector<std::string>> gather(std::string_view message,
                                          const Deadline& deadline) override {
    const LoopbackMail::Moment when = next();
    mail_->send(rank_, 0, when, message);
    if (rank_ != 0) return std::vector<std::string>();
    return mail_->take(0, 0, size() - 1, when, "gather", deadline);
  }

  Result<std::string> broadcast(std::string_view message, const Deadline& deadline) override {
    const LoopbackMail::Moment when = next();
    if (rank_ != 0) {
      DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::string> heard,
                                 mail_->take(rank_, 0, 0, when, "broadcast", deadline));
      return std::move(heard.front());
    }
    for (unsigned to = 1; to < size(); ++to) mail_->send(0, to, when, message);
    return std::string(message);
  }

 private:
  LoopbackMail::Moment next() {
    ++now_.call;
    return now_;
  }

  std::shared_ptr<LoopbackMail> mail_;
  const unsigned rank_;
  LoopbackMail::Moment now_;
};

}  // namespace

std::shared_ptr<LoopbackMail> make_loopback_mail(unsigned ranks) {
  return std::make_shared<LoopbackMail>(ranks);
}

std::unique_ptr<Group> make_loopback_group(std::shared_ptr<LoopbackMail> mail, unsigned rank) {
  return std::make_unique<LoopbackGroup>(std::move(mail), rank);
}

}  // namespace driftless
