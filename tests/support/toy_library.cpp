// SPDX-License-Identifier: Apache-2.0
// The library of the toy road, which a job loads when its configuration asks for the road. Its
// table has one row, whose opener is linked here (docs: adding a road).
#include "plugin/job/on_demand/loaded_library.h"
#include "plugin/job/roads.h"
#include "support/toy_kind.h"
#include "support/toy_road.h"

namespace driftless::testing {
namespace {

Result<OpenRoad> open_toy(const RoadOptions& options, const RoadPlace&) {
  static std::map<std::string, std::shared_ptr<ToyMedium>> maps;
  auto& medium = maps[options_in<ToyOptions>(options).map];
  if (medium == nullptr) medium = std::make_shared<ToyMedium>();
  OpenRoad road;
  road.sender = [medium]() -> Result<std::unique_ptr<SendRoad>> {
    return std::unique_ptr<SendRoad>(std::make_unique<ToySender>(medium));
  };
  road.receiver = [medium]() -> Result<std::unique_ptr<ReceiveRoad>> {
    return std::unique_ptr<ReceiveRoad>(std::make_unique<ToyReceiver>(medium));
  };
  return road;
}

constexpr RoadOpener kToyOpener{.open = open_toy};
constexpr Road kToyRow{"toy", "maps in memory", {}, &kToyOpener};

}  // namespace
}  // namespace driftless::testing

extern "C" __attribute__((visibility("default"))) const driftless::RoadTable*
driftless_road_table() {
  using namespace driftless;  // NOLINT(google-build-using-namespace)
  static const RoadTable table{build_text(), {&testing::kToyRow, 1}, {}, {}, nullptr};
  return &table;
}
