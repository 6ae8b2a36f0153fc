// SPDX-License-Identifier: Apache-2.0
// What the two sides of the loopback road share: the publications, the announcement and what the
// receivers said. Every call may come from any thread.
#pragma once

#include <condition_variable>
#include <mutex>

#include "collectives/held_publications.h"
#include "collectives/loopback/loopback_road.h"

namespace driftless {

class LoopbackMedium {
 public:
  LoopbackMedium(const LoopbackOptions& options, unsigned ranks);
  [[nodiscard]] const LoopbackOptions& options() const { return options_; }

  // The sending side.
  [[nodiscard]] Status announce(std::string_view run_info);
  // The number of the attempt, by which the calls below tell a late word about an earlier one.
  [[nodiscard]] Result<std::uint64_t> begin(const PublicationId& id, unsigned rank);
  [[nodiscard]] Status flush(std::uint64_t attempt, unsigned rank, std::vector<HeldPart> parts);
  [[nodiscard]] Status seal(std::uint64_t attempt, std::string_view manifest);
  void abort(std::uint64_t attempt, unsigned rank);
  [[nodiscard]] std::optional<Hash128> published(const PublicationId& id) const;
  [[nodiscard]] std::vector<ReceiverReport> receivers();

  // The receiving side.
  [[nodiscard]] Result<std::string> run_info(const Deadline& deadline) const;
  [[nodiscard]] std::vector<PublicationId> list() const;
  [[nodiscard]] Status wait_beyond(std::uint64_t version, const Deadline& deadline) const;
  [[nodiscard]] Result<std::string> manifest(const PublicationId& id) const;
  [[nodiscard]] Result<HeldPart> part(const PublicationId& id, const PartReceipt& part) const;
  void report(const ReceiverReport& report);
  void leave(const std::string& receiver);

 private:
  struct Pending {
    PublicationId id;
    std::uint64_t attempt = 0;
    std::map<unsigned, std::uint64_t> bytes;  // of the ranks that have flushed
  };
  struct Heard {
    ReceiverReport report;
    Deadline::Clock::time_point at;
  };

  // With the mutex held.
  [[nodiscard]] bool is_pending(std::uint64_t attempt) const {
    return pending_.has_value() && pending_->attempt == attempt;
  }

  const LoopbackOptions options_;
  const unsigned ranks_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;  // announced, or sealed
  std::optional<std::string> run_info_;
  RetentionRing ring_;
  HeldPublications held_{"loopback"};
  std::optional<Pending> pending_;  // begun by the leader
  std::uint64_t attempts_ = 0;
  std::map<std::string, Heard> heard_;
};

[[nodiscard]] std::unique_ptr<SendRoad> make_loopback_sender(std::shared_ptr<LoopbackMedium> medium,
                                                             unsigned rank);
[[nodiscard]] std::unique_ptr<ReceiveRoad> make_loopback_receiver(
    std::shared_ptr<LoopbackMedium> medium);
[[nodiscard]] std::shared_ptr<LoopbackMail> make_loopback_mail(unsigned ranks);
[[nodiscard]] std::unique_ptr<Group> make_loopback_group(std::shared_ptr<LoopbackMail> mail,
                                                         unsigned rank);

}  // namespace driftless
