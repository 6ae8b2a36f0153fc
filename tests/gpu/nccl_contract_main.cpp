// SPDX-License-Identifier: Apache-2.0
// The contract suite of roads over NCCL itself: a process for each publisher rank and receiver, on
// one GPU or several.
//
//   mpirun -n 6 gpu_nccl_contract [--rendezvous=file|mpi]
#include <cstdlib>
#include <cstring>
#include <string>

#include "collectives/hub/mpi_hub.h"
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/nccl/nccl_road.h"
#include "kernels/device_hash.h"
#include "mpi/remote_world.h"
#include "support/shared_receive_road.h"

namespace driftless::testing {
namespace {

// More would only make a GPU that they share slower.
constexpr unsigned kReceivers = 2;

bool by_mpi = false;  // set by main() before any test

// What a worker's ends live in.
struct Home {
  std::shared_ptr<nccl::Fabric> fabric;
  std::shared_ptr<ReceiveRoad> receiver;
  MPI_Comm group = MPI_COMM_NULL;
  ~Home() {
    receiver.reset();
    if (group != MPI_COMM_NULL) MPI_Comm_free(&group);
  }
};

NcclOptions options_of(const RemoteWorldOptions& remote, unsigned receivers) {
  NcclOptions options;
  options.patience = remote.patience;
  options.ring_bytes = remote.ring_bytes;
  options.ring_versions = remote.ring_versions;
  options.receivers = receivers;
  options.hash = device_xxh3_128;
  return options;
}

Result<std::unique_ptr<hub::Hub>> make_hub(MPI_Comm workers, const std::string& meet) {
  return by_mpi ? hub::make_mpi_hub(workers) : hub::make_file_hub(meet);
}
Result<hub::Connector> make_connector(MPI_Comm workers, const std::string& meet) {
  return by_mpi ? hub::make_mpi_connector(workers, 0) : hub::make_file_connector(meet);
}

Status make_sender(MPI_Comm workers, unsigned rank, const RemoteWorldOptions& remote,
                   const NcclOptions& options, Home& home, RoadEnds& ends) {
  const std::string& meet = remote.directory;
  DRIFTLESS_ASSIGN_OR_RETURN(ends.group, make_mpi_group(home.group));
  if (rank == 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<hub::Hub> hub, make_hub(workers, meet));
    DRIFTLESS_ASSIGN_OR_RETURN(
        ends.sender, nccl::make_leading_sender(options, remote.ranks, home.fabric, std::move(hub)));
    return {};
  }
  DRIFTLESS_ASSIGN_OR_RETURN(hub::Connector connector, make_connector(workers, meet));
  ends.sender =
      nccl::make_other_sender(options, rank, remote.ranks, home.fabric, std::move(connector));
  return {};
}

Result<RoadEnds> make_ends(MPI_Comm workers, const RemoteWorldOptions& remote) {
  int place = 0;
  int size = 0;
  MPI_Comm_rank(workers, &place);
  MPI_Comm_size(workers, &size);
  const auto rank = static_cast<unsigned>(place);
  const unsigned receivers = std::min(kReceivers, static_cast<unsigned>(size) - remote.ranks);
  const NcclOptions options = options_of(remote, receivers);
  auto home = std::make_shared<Home>();
  const bool publishes = rank < remote.ranks;
  MPI_Comm_split(workers, publishes ? 0 : MPI_UNDEFINED, place, &home->group);
  RoadEnds ends;
  ends.world = home;
  DRIFTLESS_ASSIGN_OR_RETURN(home->fabric, make_nccl_fabric(options));
  if (publishes) {
    DRIFTLESS_RETURN_IF_ERROR(make_sender(workers, rank, remote, options, *home, ends));
    return ends;
  }
  if (rank >= remote.ranks + receivers) return ends;
  const std::string& meet = remote.directory;
  DRIFTLESS_ASSIGN_OR_RETURN(hub::Connector connector, make_connector(workers, meet));
  DRIFTLESS_ASSIGN_OR_RETURN(home->receiver,
                             nccl::make_receiver(options, home->fabric, std::move(connector)));
  ends.receiver = [home = home.get()]() -> Result<std::unique_ptr<ReceiveRoad>> {
    return std::unique_ptr<ReceiveRoad>(std::make_unique<SharedReceiveRoad>(home->receiver));
  };
  return ends;
}

const RoadCase kNccl{.name = "nccl",
                     .make =
                         [](const WorldOptions& options) {
                           return make_remote_world(options, {.receiver = {}, .directory = true});
                         },
                     .ring = true};
INSTANTIATE_TEST_SUITE_P(Gpu, RoadContractTest, ::testing::Values(kNccl), road_case_name);

}  // namespace
}  // namespace driftless::testing

int main(int argc, char** argv) {
  // Several ranks on one GPU: NCCL takes them for different hosts.
  const char* place = std::getenv("OMPI_COMM_WORLD_RANK");
  ::setenv("NCCL_HOSTID", (std::string("driftless-") + (place != nullptr ? place : "0")).c_str(),
           1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rendezvous=mpi") == 0) driftless::testing::by_mpi = true;
  }
  return driftless::testing::run_remote_contract(argc, argv, 6, MPI_THREAD_MULTIPLE,
                                                 driftless::testing::make_ends);
}
