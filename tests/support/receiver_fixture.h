// SPDX-License-Identifier: Apache-2.0
// A receiver that follows a run over a loopback road. A test chooses the road's replies.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "collectives/forwarding_receive_road.h"
#include "plugin/receive/receiver.h"
#include "support/damaged_bytes.h"
#include "support/published_run.h"

namespace driftless::testing {

// Passes calls on; the next ones fail as the test chose.
class ScriptedRoad final : public ForwardingReceiveRoad {
 public:
  explicit ScriptedRoad(std::unique_ptr<ReceiveRoad> road)
      : ForwardingReceiveRoad(std::move(road)) {}

  std::deque<Status> manifest_failures, part_failures, report_failures;
  int damaged_parts = 0;            // the next ones come with a flipped bit
  std::function<void()> once_part;  // before the next part
  std::function<void()> at_report;  // before each report
  int manifests = 0, parts = 0;     // asked for

  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    ++manifests;
    if (Status failure = next(manifest_failures); !failure.ok()) return failure;
    return road_->fetch_manifest(id, deadline);
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    ++parts;
    if (auto act = std::exchange(once_part, nullptr)) act();
    if (Status failure = next(part_failures); !failure.ok()) return failure;
    auto fetched = road_->fetch_part(id, part, deadline);
    if (!fetched.ok() || damaged_parts == 0) return fetched;
    --damaged_parts;
    return with_flipped_bit(*fetched, fetched->bytes().size() - 1);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    ++parts;
    if (auto act = std::exchange(once_part, nullptr)) act();
    if (Status failure = next(part_failures); !failure.ok()) return failure;
    auto fetched = road_->fetch_ranges(id, part, ranges, deadline);
    if (!fetched.ok() || fetched->empty() || damaged_parts == 0) return fetched;
    --damaged_parts;
    fetched->back() = with_flipped_bit(fetched->back(), fetched->back().bytes().size() - 1);
    return fetched;
  }
  [[nodiscard]] bool fetches_at_once() const override { return false; }
  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    if (at_report) at_report();
    if (Status failure = next(report_failures); !failure.ok()) return failure;
    return road_->report(report, deadline);
  }

 private:
  static Status next(std::deque<Status>& failures) {
    if (failures.empty()) return {};
    Status status = failures.front();
    failures.pop_front();
    return status;
  }
};

class ReceiverTest : public ::testing::Test {
 protected:
  ReceiverTest() {
    options_.id = "rollout-0";
    options_.fetch_deadline = std::chrono::milliseconds(300);
    options_.threads = 1;
  }

  void announce() {
    const Status failure = sender_->announce(run_info_to_json(run_.info()), soon());
    ASSERT_TRUE(failure.ok()) << failure.to_string();
  }
  void publish(std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t version = from; version <= to; ++version) send(*sender_, run_.step(version));
  }
  // Follows from version 0, or from nothing.
  Status open(std::optional<VersionId> initial = VersionId{}) {
    receiver_.reset();
    held_ = run_.weights[0];
    if (!initial) held_ = changed_weights(held_, 77, 0.5, "none");
    auto target = make_memory_target(run_.layout, pointers(held_), initial, 1);
    if (!target.ok()) return target.status();
    target_ = std::move(*target);
    return open_on(*target_);
  }
  Status open_on(WeightTarget& target) {
    auto opened = Receiver::open(options_, road_, target, soon());
    if (opened.ok()) receiver_ = std::move(*opened);
    return opened.status();
  }
  Result<UpdateReport> update() {
    const auto staged = receiver_->stage(Deadline::after(std::chrono::milliseconds(200)));
    if (!staged.ok()) return staged.status();
    if (!*staged) return error(StatusCode::kDeadlineExceeded, "nothing new");
    return receiver_->commit();
  }
  [[nodiscard]] std::uint64_t reported() {
    const auto reports = sender_->receivers();
    EXPECT_TRUE(reports.ok() && reports->size() == 1);
    return reports->front().version;
  }
  static Deadline soon() { return Deadline::after(std::chrono::milliseconds(500)); }

  LoopbackHub hub_{LoopbackOptions{.ring_versions = 8}, 1};
  std::unique_ptr<SendRoad> sender_ = hub_.sender(0);
  ScriptedRoad road_{hub_.receiver()};
  PublishedRun run_{random_weights(1, 100)};
  ReceiverOptions options_;
  Weights held_;
  std::unique_ptr<WeightTarget> target_;
  std::unique_ptr<Receiver> receiver_;
};

}  // namespace driftless::testing
