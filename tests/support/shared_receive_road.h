// SPDX-License-Identifier: Apache-2.0
// A ReceiveRoad that stands for one which goes on after it: for roads whose receivers must have
// been there before what they fetch was published.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "collectives/road.h"

namespace driftless::testing {

class SharedReceiveRoad : public ReceiveRoad {
 public:
  explicit SharedReceiveRoad(
      std::shared_ptr<ReceiveRoad> road, std::function<void()> give_back = [] {})
      : road_(std::move(road)), give_back_(std::move(give_back)) {}
  SharedReceiveRoad(const SharedReceiveRoad&) = delete;
  SharedReceiveRoad& operator=(const SharedReceiveRoad&) = delete;
  ~SharedReceiveRoad() override { give_back_(); }

  Result<std::string> run_info(const Deadline& deadline) override {
    return road_->run_info(deadline);
  }
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    return road_->list(deadline);
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    return road_->wait_beyond(version, deadline);
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    return road_->fetch_manifest(id, deadline);
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    return road_->fetch_part(id, part, deadline);
  }
  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    return road_->report(report, deadline);
  }
  Status leave(const Deadline& deadline) override { return road_->leave(deadline); }

 private:
  std::shared_ptr<ReceiveRoad> road_;
  std::function<void()> give_back_;
};

}  // namespace driftless::testing
