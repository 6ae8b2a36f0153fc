// SPDX-License-Identifier: Apache-2.0
// The table of roads. Only this file knows what was built. It is compiled separately for every
// library and program that lists roads, and contains nothing else.
#include "plugin/job/job_process.h"
#include "plugin/job/on_demand/loaded_library.h"
#include "plugin/job/road_rows.h"

namespace driftless {
namespace {

struct Built {
  static constexpr bool kHere = true, kMpi = DRIFTLESS_HAS_MPI, kHdf5 = DRIFTLESS_HAS_HDF5,
                        kNccl = DRIFTLESS_HAS_NCCL, kTcp = DRIFTLESS_HAS_OPENSSL,
                        kStore = DRIFTLESS_HAS_OBJECT_STORE, kMonitor = DRIFTLESS_HAS_HTTPLIB;
  static constexpr Availability kMpiAt{"MPI", DRIFTLESS_LIBRARY_MPI, DRIFTLESS_WHY_NOT_MPI},
      kHdf5At{"HDF5 with MPI", DRIFTLESS_LIBRARY_HDF5, DRIFTLESS_WHY_NOT_HDF5},
      kNcclAt{"NCCL", DRIFTLESS_LIBRARY_NCCL, DRIFTLESS_WHY_NOT_NCCL},
      kTcpAt{"libcrypto", DRIFTLESS_LIBRARY_OPENSSL, DRIFTLESS_WHY_NOT_OPENSSL},
      kStoreAt{"libcurl, libcrypto and pugixml", DRIFTLESS_LIBRARY_OBJECT_STORE,
               DRIFTLESS_WHY_NOT_OBJECT_STORE},
      kMonitorAt{"cpp-httplib", DRIFTLESS_LIBRARY_HTTPLIB, DRIFTLESS_WHY_NOT_HTTPLIB};
};

constexpr std::array kParts = {
    Part{"engines", "HTTP calls to engines through libcurl", DRIFTLESS_WHY_NOT_CURL},
    Part{"status_server", "the page, /status.json and /ready over HTTP", DRIFTLESS_WHY_NOT_HTTPLIB},
    Part{"prometheus", "metrics for Prometheus through prometheus-cpp",
         DRIFTLESS_WHY_NOT_PROMETHEUS},
    Part{"cuda", "work on elements on the GPU", DRIFTLESS_WHY_NOT_CUDA},
    Part{"python", "the module for Megatron", DRIFTLESS_WHY_NOT_PYTHON},
};

}  // namespace

const RoadTable& road_table() {
  static const MonitorTable monitor{build_text(), kIfLinked<Built::kMonitor, &start_http_server>,
                                    kIfLinked<Built::kMonitor, &make_prometheus_metrics>};
  static const RoadTable table{build_text(),
                               RoadRows<Built>::kRows,
                               kParts,
                               Built::kMpiAt,
                               kIfLinked<Built::kMpi, &join_mpi_job>,
                               Built::kMonitorAt,
                               Built::kMonitor ? &monitor : nullptr,
                               Built::kTcpAt,
                               kIfLinked<Built::kTcp, &hub::make_tcp_port>};
  return table;
}

}  // namespace driftless
