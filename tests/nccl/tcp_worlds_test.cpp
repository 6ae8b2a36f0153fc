// SPDX-License-Identifier: Apache-2.0
// The same contract over the TCP rendezvous.
#include "support/nccl_farewell.h"
#include "support/tcp_hub.h"

namespace driftless::testing {
namespace {

class TcpWorld final : public RoadWorld {
 public:
  explicit TcpWorld(const WorldOptions& options)
      : world_(options, tcp_rendezvous(write_token(dir_.file("token"), "a secret of a test's run")),
               3) {}
  [[nodiscard]] unsigned ranks() const override { return world_.ranks(); }
  [[nodiscard]] SendRoad& sender(unsigned rank) override { return world_.sender(rank); }
  [[nodiscard]] Group& group(unsigned rank) override { return world_.group(rank); }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override { return world_.receiver(); }

 private:
  TempDir dir_;
  HostNcclWorld world_;
};

const RoadCase kNcclTcp{
    .name = "nccl_tcp",
    .make = [](const WorldOptions& options) { return std::make_unique<TcpWorld>(options); },
    .ring = true};
INSTANTIATE_TEST_SUITE_P(NcclTcp, RoadContractTest, ::testing::Values(kNcclTcp), road_case_name);

const FarewellCase kTcp{
    .name = "tcp", .meet = [](const TempDir& dir) {
      return tcp_rendezvous(write_token(dir.file("token"), "a secret of a test's run"));
    }};
INSTANTIATE_TEST_SUITE_P(NcclTcp, NcclFarewellTest, ::testing::Values(kTcp), farewell_case_name);

}  // namespace
}  // namespace driftless::testing
