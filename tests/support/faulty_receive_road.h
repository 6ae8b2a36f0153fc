// SPDX-License-Identifier: Apache-2.0
// A ReceiveRoad that passes every call on, and at random fails as networks and file systems do: a
// reply is late, comes after the deadline or has other bytes, or what it asks for is missing, for a
// while or for good.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "collectives/forwarding_receive_road.h"
#include "support/damaged_bytes.h"

namespace driftless::testing {

class FaultyReceiveRoad final : public ForwardingReceiveRoad {
 public:
  FaultyReceiveRoad(std::unique_ptr<ReceiveRoad> road, std::uint64_t seed, double rate)
      : ForwardingReceiveRoad(std::move(road)), random_(seed), rate_(rate) {}

  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    if (fires()) return failure();
    return road_->list(deadline);
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    if (fires()) return failure();
    Result<std::string> text = road_->fetch_manifest(id, deadline);
    if (text.ok() && !text->empty() && fires()) (*text)[random_() % text->size()] ^= 4;
    return text;
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    if (fires()) return failure();
    Result<MappedFile> bytes = road_->fetch_part(id, part, deadline);
    if (!bytes.ok() || bytes->bytes().empty() || !fires()) return bytes;
    auto damaged =
        std::make_shared<std::vector<std::byte>>(bytes->bytes().begin(), bytes->bytes().end());
    (*damaged)[random_() % damaged->size()] ^= std::byte{16};
    if (random_() % 2 == 0) damaged->resize(damaged->size() / 2);
    ++injected_;
    return MappedFile(part.name, damaged, *damaged);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    if (fires()) return failure();
    Result<std::vector<MappedFile>> bytes = road_->fetch_ranges(id, part, ranges, deadline);
    if (bytes.ok() && !bytes->empty() && fires()) {
      MappedFile& one = (*bytes)[random_() % bytes->size()];
      if (!one.bytes().empty()) one = with_flipped_bit(one, random_() % one.bytes().size());
    }
    return bytes;
  }
  [[nodiscard]] bool fetches_at_once() const override { return false; }
  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    if (fires()) return error(StatusCode::kIo, "injected failure of report");
    return road_->report(report, deadline);
  }

  [[nodiscard]] std::uint64_t injected() const { return injected_; }

 private:
  bool fires() {
    const bool now = std::uniform_real_distribution<>(0, 1)(random_) < rate_;
    injected_ += now ? 1 : 0;
    return now;
  }
  Status failure() {
    static constexpr StatusCode kCodes[] = {StatusCode::kIncomplete, StatusCode::kIo,
                                            StatusCode::kNotFound, StatusCode::kDeadlineExceeded,
                                            StatusCode::kCorrupt};
    return error(kCodes[random_() % std::size(kCodes)], "injected failure");
  }

  std::mt19937_64 random_;
  double rate_;
  std::uint64_t injected_ = 0;
};

}  // namespace driftless::testing
