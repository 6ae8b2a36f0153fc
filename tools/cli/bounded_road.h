// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "collectives/forwarding_receive_road.h"

namespace driftless::cli {

// Ends every wait for the road at `until`, and once is_stopped() is true: deadlines of the
// configuration may be longer. leave() is not cut short, so that the trainer does not wait for a
// rollout that was stopped.
class BoundedRoad final : public ForwardingReceiveRoad {
 public:
  // `road` must outlive this object.
  BoundedRoad(ReceiveRoad& road, std::optional<Deadline> until, bool (*is_stopped)())
      : ForwardingReceiveRoad(road), until_(until), is_stopped_(is_stopped) {}

  Result<std::string> run_info(const Deadline& deadline) override {
    return road_->run_info(bounded(deadline));
  }
  Status check_held(std::uint64_t version, std::string_view digest,
                    const Deadline& deadline) override {
    return road_->check_held(version, digest, bounded(deadline));
  }
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    return road_->list(bounded(deadline));
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    return road_->wait_beyond(version, bounded(deadline));
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    return road_->fetch_manifest(id, bounded(deadline));
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    return road_->fetch_part(id, part, bounded(deadline));
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    return road_->fetch_ranges(id, part, ranges, bounded(deadline));
  }
  Status fetch_to_device(const PublicationId& id, const PartReceipt& part,
                         std::span<const DeviceRange> ranges, const DeviceSpace& space,
                         const Deadline& deadline) override {
    return road_->fetch_to_device(id, part, ranges, space, bounded(deadline));
  }
  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    return road_->report(report, bounded(deadline));
  }
  Result<std::uint64_t> offer_part(const PublicationId& id, const PartReceipt& part,
                                   std::span<const std::byte> bytes,
                                   const Deadline& deadline) override {
    return road_->offer_part(id, part, bytes, bounded(deadline));
  }

 private:
  [[nodiscard]] Deadline bounded(const Deadline& deadline) const {
    const Deadline sooner = until_ ? deadline.sooner(until_->remaining()) : deadline;
    return sooner.unless(is_stopped_);
  }

  const std::optional<Deadline> until_;
  bool (*const is_stopped_)();
};

}  // namespace driftless::cli
