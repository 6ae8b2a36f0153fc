// SPDX-License-Identifier: Apache-2.0
// Roads on which every call is a step of a simulation: a dead process reaches nobody, not even
// through a road in memory. Messages are lost, repeated or refused; parts are damaged.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/road.h"
#include "sim/simulation.h"
#include "support/damaged_bytes.h"

namespace driftless::testing {

class StepSendRoad final : public SendRoad {
 public:
  StepSendRoad(Simulation& simulation, std::unique_ptr<SendRoad> road)
      : simulation_(&simulation), road_(std::move(road)) {}

  Status announce(std::string_view run_info, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->announce(run_info, deadline);
  }
  Status begin(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->begin(id, deadline);
  }
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->create_part(name);
  }
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->flush(deadline);
  }
  Status seal(std::string_view manifest, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->seal(manifest, deadline);
  }
  Status abort() override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->abort();
  }
  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->published(id, deadline);
  }
  Result<std::vector<ReceiverReport>> receivers() override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->receivers();
  }
  Result<std::vector<PublicationId>> prune(std::uint64_t version) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->prune(version);
  }
  Result<std::uint64_t> highest_number() override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->highest_number();
  }
  [[nodiscard]] MemoryKind part_memory() const override { return road_->part_memory(); }
  void progress() override { road_->progress(); }

 private:
  Simulation* simulation_;
  std::unique_ptr<SendRoad> road_;
};

class StepReceiveRoad final : public ReceiveRoad {
 public:
  // `rate`: the fraction of calls that fail.
  StepReceiveRoad(Simulation& simulation, std::unique_ptr<ReceiveRoad> road, double rate = 0)
      : simulation_(&simulation), road_(std::move(road)), rate_(rate) {}

  Result<std::string> run_info(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->run_info(deadline);
  }
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(step());
    return road_->list(deadline);
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->wait_beyond(version, deadline);
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(step());
    return road_->fetch_manifest(id, deadline);
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(step());
    Result<MappedFile> bytes = road_->fetch_part(id, part, deadline);
    Random& random = simulation_->random_source();
    if (!bytes.ok() || bytes->bytes().empty() || !random.chance(rate_)) return bytes;
    return with_flipped_bit(*bytes, random.below(bytes->bytes().size()));
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(step());
    Result<std::vector<MappedFile>> bytes = road_->fetch_ranges(id, part, ranges, deadline);
    Random& random = simulation_->random_source();
    if (!bytes.ok() || bytes->empty() || !random.chance(rate_)) return bytes;
    MappedFile& one = (*bytes)[random.below(bytes->size())];
    if (!one.bytes().empty()) one = with_flipped_bit(one, random.below(one.bytes().size()));
    return bytes;
  }
  [[nodiscard]] bool fetches_at_once() const override { return false; }
  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(step());
    if (simulation_->random_source().chance(rate_)) return {};  // lost on the way
    if (simulation_->random_source().chance(rate_)) {
      const Status first = road_->report(report, deadline);
      DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    }
    return road_->report(report, deadline);
  }
  Status leave(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    return road_->leave(deadline);
  }

 private:
  Status step() {
    DRIFTLESS_RETURN_IF_ERROR(simulation_->step());
    Random& random = simulation_->random_source();
    if (!random.chance(rate_)) return {};
    constexpr std::array kCodes{StatusCode::kIncomplete, StatusCode::kIo, StatusCode::kNotFound,
                                StatusCode::kDeadlineExceeded, StatusCode::kCorrupt};
    return error(kCodes[random.below(kCodes.size())], "injected failure");
  }

  Simulation* simulation_;
  std::unique_ptr<ReceiveRoad> road_;
  double rate_;
};

}  // namespace driftless::testing
