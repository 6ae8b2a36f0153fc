// SPDX-License-Identifier: Apache-2.0
// Runs the contract suite on the logic of the nccl road without a GPU: HostFabric replaces NCCL.
#include "support/host_nccl_world.h"
#include "support/nccl_farewell.h"

namespace driftless::testing {
namespace {

constexpr unsigned kReceivers = 3;

// A world and its rendezvous directory.
class FileWorld final : public RoadWorld {
 public:
  explicit FileWorld(const WorldOptions& options)
      : world_(options, file_rendezvous(dir_.file("meet")), kReceivers) {}
  [[nodiscard]] unsigned ranks() const override { return world_.ranks(); }
  [[nodiscard]] SendRoad& sender(unsigned rank) override { return world_.sender(rank); }
  [[nodiscard]] Group& group(unsigned rank) override { return world_.group(rank); }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override { return world_.receiver(); }

 private:
  TempDir dir_{TempDir::Where::kMemory};
  HostNcclWorld world_;
};

const RoadCase kNcclFiles{
    .name = "nccl_files",
    .make = [](const WorldOptions& options) { return std::make_unique<FileWorld>(options); },
    .ring = true};
INSTANTIATE_TEST_SUITE_P(Nccl, RoadContractTest, ::testing::Values(kNcclFiles), road_case_name);

const FarewellCase kFiles{
    .name = "files", .meet = [](const TempDir& dir) { return file_rendezvous(dir.file("meet")); }};
INSTANTIATE_TEST_SUITE_P(Nccl, NcclFarewellTest, ::testing::Values(kFiles), farewell_case_name);

}  // namespace
}  // namespace driftless::testing
