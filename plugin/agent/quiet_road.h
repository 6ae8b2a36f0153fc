// SPDX-License-Identifier: Apache-2.0
// QuietRoad: a road on which a receiver's reports are not passed on, but kept: the agent speaks for
// its whole host, and says what the engines have, not what lies ready for them.
#pragma once

#include <string>
#include <vector>

#include "collectives/road.h"

namespace driftless {

class QuietRoad final : public ReceiveRoad {
 public:
  explicit QuietRoad(ReceiveRoad& road) : road_(&road) {}
  [[nodiscard]] const ReceiverReport& said() const { return said_; }

  [[nodiscard]] Result<std::string> run_info(const Deadline& deadline) override {
    return road_->run_info(deadline);
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
  [[nodiscard]] Status report(const ReceiverReport& report, const Deadline&) override {
    said_ = report;
    return {};
  }
  [[nodiscard]] Status leave(const Deadline&) override { return {}; }

 private:
  ReceiveRoad* road_;
  ReceiverReport said_;
};

}  // namespace driftless
