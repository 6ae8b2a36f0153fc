// shared_fs with its parts in version.h5, held to the contract of roads: what one rank can show of
// it, in one process (tests/mpi/hdf5_test.cpp has the others).
#include <mpi.h>

#include "collectives/shared_fs/hdf5_container.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "support/road_contract.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

class Hdf5World : public RoadWorld {
 public:
  explicit Hdf5World(const WorldOptions& options) {
    options_.dir = dir_.file("road");
    options_.patience = options.patience;
    options_.poll_first = std::chrono::milliseconds(1);
    options_.poll_longest = std::chrono::milliseconds(5);
    auto sink = make_hdf5_sink(MPI_COMM_SELF, {});
    EXPECT_TRUE(is_ok(sink));
    auto sender = make_shared_fs_sender(posix_file_system(), options_, 0, 1, std::move(*sink));
    EXPECT_TRUE(is_ok(sender));
    sender_ = std::move(*sender);
  }
  [[nodiscard]] unsigned ranks() const override { return 1; }
  [[nodiscard]] SendRoad& sender(unsigned) override { return *sender_; }
  [[nodiscard]] Group& group(unsigned) override { return group_; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override {
    auto receiver = make_shared_fs_receiver(posix_file_system(), options_, make_hdf5_reader());
    EXPECT_TRUE(is_ok(receiver));
    return std::move(*receiver);
  }

 private:
  TempDir dir_{TempDir::Where::kMemory};
  SharedFsOptions options_;
  SoloGroup group_;
  std::unique_ptr<SendRoad> sender_;
};

const RoadCase kHdf5{.name = "hdf5",
                     .make = [](const WorldOptions& options) -> std::unique_ptr<RoadWorld> {
                       return std::make_unique<Hdf5World>(options);
                     },
                     .max_ranks = 1};

INSTANTIATE_TEST_SUITE_P(Roads, RoadContractTest, ::testing::Values(kHdf5), road_case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GroupContractTest);

}  // namespace
}  // namespace driftless::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  const int failed = RUN_ALL_TESTS();
  MPI_Finalize();
  return failed;
}
