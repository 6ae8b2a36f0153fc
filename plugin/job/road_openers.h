// SPDX-License-Identifier: Apache-2.0
// What the rows of the table of roads open (roads.h). Each is built where its library is; only the
// table knows which are.
#pragma once

#include "collectives/nccl/nccl_road.h"
#include "plugin/job/roads.h"

namespace driftless {

// file_roads.cpp
[[nodiscard]] Result<OpenRoad> open_host_shm_road(const Config& config, const RoadPlace& place);
[[nodiscard]] Result<OpenRoad> open_shared_fs_road(const Config& config, const RoadPlace& place);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> shared_fs_history(const Config& config);
[[nodiscard]] Status withdraw_shared_fs_end(const Config& config);
[[nodiscard]] Status tell_shared_fs_end(const Config& config, std::string_view text);
[[nodiscard]] Result<std::optional<std::string>> hear_shared_fs_end(const Config& config);

// mpi_job.cpp; the second is a JoinMpi.
[[nodiscard]] Result<OpenRoad> open_mpi_rma_road(const Config& config, const RoadPlace& place);
[[nodiscard]] Result<std::unique_ptr<JobProcess>> join_mpi_job(const Config& config,
                                                               const Road& road, JobRole role,
                                                               const LateHandler& late);
// hdf5_roads.cpp
[[nodiscard]] Result<OpenRoad> open_hdf5_road(const Config& config, const RoadPlace& place);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> hdf5_history(const Config& config);

// object_store_roads.cpp
[[nodiscard]] Result<OpenRoad> open_object_store_road(const Config& config, const RoadPlace& place);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> object_store_history(const Config& config);
[[nodiscard]] Status withdraw_object_store_end(const Config& config);
[[nodiscard]] Status tell_object_store_end(const Config& config, std::string_view text);
[[nodiscard]] Result<std::string> share_object_store_road(const Config& config,
                                                          std::chrono::seconds valid);

// nccl_roads.cpp, nccl_tcp_roads.cpp, nccl_mpi_roads.cpp: by the way that processes meet.
[[nodiscard]] Result<OpenRoad> open_nccl_road(const Config& config, const RoadPlace& place);
[[nodiscard]] Result<OpenRoad> open_nccl_tcp_road(const Config& config, const RoadPlace& place);
[[nodiscard]] Result<OpenRoad> open_nccl_mpi_road(const Config& config, const RoadPlace& place);

// What these have in common.
// How the processes find each other.
struct NcclMeeting {
  std::function<Result<std::unique_ptr<nccl::Hub>>()> hub;
  std::function<Result<nccl::Connector>()> connector;
};

// Hashes are computed on the device.
[[nodiscard]] OpenRoad nccl_road(const NcclOptions& options, const RoadPlace& place,
                                 const NcclMeeting& meeting);

}  // namespace driftless
