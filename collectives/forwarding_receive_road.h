// SPDX-License-Identifier: Apache-2.0
// A ReceiveRoad that forwards every call to another road. Roads that change a few calls derive from
// it.
#pragma once

#include "collectives/road.h"

namespace driftless {

class ForwardingReceiveRoad : public ReceiveRoad {
 public:
  explicit ForwardingReceiveRoad(std::shared_ptr<ReceiveRoad> road) : road_(std::move(road)) {}
  // `road` must outlive this object.
  explicit ForwardingReceiveRoad(ReceiveRoad& road) : road_(std::shared_ptr<void>(), &road) {}

  [[nodiscard]] Result<std::string> run_info(const Deadline& deadline) override {
    return road_->run_info(deadline);
  }
  [[nodiscard]] Status check_held(std::uint64_t version, std::string_view digest,
                                  const Deadline& deadline) override {
    return road_->check_held(version, digest, deadline);
  }
  [[nodiscard]] Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    return road_->list(deadline);
  }
  [[nodiscard]] Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    return road_->wait_beyond(version, deadline);
  }
  [[nodiscard]] Result<std::string> fetch_manifest(const PublicationId& id,
                                                   const Deadline& deadline) override {
    return road_->fetch_manifest(id, deadline);
  }
  [[nodiscard]] Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                              const Deadline& deadline) override {
    return road_->fetch_part(id, part, deadline);
  }
  [[nodiscard]] Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id,
                                                             const PartReceipt& part,
                                                             std::span<const ByteRange> ranges,
                                                             const Deadline& deadline) override {
    return road_->fetch_ranges(id, part, ranges, deadline);
  }
  [[nodiscard]] bool fetches_to_device() const override { return road_->fetches_to_device(); }
  [[nodiscard]] Status fetch_to_device(const PublicationId& id, const PartReceipt& part,
                                       std::span<const DeviceRange> ranges,
                                       const DeviceSpace& space,
                                       const Deadline& deadline) override {
    return road_->fetch_to_device(id, part, ranges, space, deadline);
  }
  [[nodiscard]] bool fetches_at_once() const override { return road_->fetches_at_once(); }
  [[nodiscard]] bool batches_ranges() const override { return road_->batches_ranges(); }
  [[nodiscard]] Status report(const ReceiverReport& report, const Deadline& deadline) override {
    return road_->report(report, deadline);
  }
  [[nodiscard]] Status leave(const Deadline& deadline) override { return road_->leave(deadline); }
  [[nodiscard]] std::string carrier() const override { return road_->carrier(); }
  [[nodiscard]] bool serves_others() const override { return road_->serves_others(); }
  [[nodiscard]] Result<std::uint64_t> offer_part(const PublicationId& id, const PartReceipt& part,
                                                 std::span<const std::byte> bytes,
                                                 const Deadline& deadline) override {
    return road_->offer_part(id, part, bytes, deadline);
  }

 protected:
  std::shared_ptr<ReceiveRoad> road_;
};

}  // namespace driftless
