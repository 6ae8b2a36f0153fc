// SPDX-License-Identifier: Apache-2.0
// A ReceiveRoad that refers to another one, which outlives it: for roads whose receivers must have
// joined before the versions that they fetch were published.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "collectives/forwarding_receive_road.h"

namespace driftless::testing {

class SharedReceiveRoad : public ForwardingReceiveRoad {
 public:
  explicit SharedReceiveRoad(
      std::shared_ptr<ReceiveRoad> road, std::function<void()> give_back = [] {})
      : ForwardingReceiveRoad(std::move(road)), give_back_(std::move(give_back)) {}
  SharedReceiveRoad(const SharedReceiveRoad&) = delete;
  SharedReceiveRoad& operator=(const SharedReceiveRoad&) = delete;
  ~SharedReceiveRoad() override { give_back_(); }

 private:
  std::function<void()> give_back_;
};

}  // namespace driftless::testing
