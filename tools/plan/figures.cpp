// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/figures.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/strict_json.h"

namespace driftless {
namespace {

// Headings of docs/operate/numbers.md.
constexpr const char* kKernels = "Kernels: `tests/gpu/run.sh`";
constexpr const char* kOverNccl = "From `publish()` to committed, over NCCL: `gpu_publish_bench`";
constexpr const char* kNcclAlone = "The road alone: `nccl_bench`";
constexpr const char* kMegatron = "A step of Megatron: `tests/bench/megatron_bench.py`";
constexpr const char* kModule = "An engine's module: `tests/bench/module_bench.py --device cuda`";
constexpr const char* kPublishing = "Publishing and committing: `publish_bench`, `rma_bench`";
constexpr const char* kRma = "mpi_rma against raw gets: `mpirun -n 9 rma_bench`";
constexpr const char* kRanks = "Many publishing ranks: `mpirun -n 65 --oversubscribe fan_in_bench`";
constexpr const char* kStore = "object_store beside `rclone copy`: `tests/bench/object_store.py`";
constexpr const char* kReceivers = "Receivers on one machine: `tests/bench/receivers.py`";
constexpr const char* kTrace = "Bytes of a recorded RL run: `driftless bench --trace DIR`";
constexpr const char* kTwoHosts = "Between two hosts: `tests/bench/two_hosts.py`";
constexpr const char* kDemo = "Directories of versions: `driftless demo`";
constexpr const char* kBench = "Comparing and encoding on a CPU: `driftless bench`";
constexpr const char* kFp8 = "Bytes of the same run in FP8 blocks: `tests/bench/fp8_trace.py`";
constexpr const char* kFp8Gpu = "FP8 blocks: `gpu_bench --only quantize`";
constexpr const char* kPeer = "The road peer between two processes: `peer_bench`";
constexpr const char* kPolling = "docs/operate/configuration.md, half of `road.poll_longest`";

constexpr double kLeastFigure = 1e-18, kMostFigure = 1e18;  // outside, times would not be finite
constexpr double kAbsent = -1;                              // not available on this device

struct Row {
  const char* name;
  const char* unit;
  double gpu;
  const char* gpu_source;
  double cpu;
  const char* cpu_source;
};

// Each value is computed from the measurement in its row of the page. GPU: 1.6 G weights (16 M
// changes), 1.06 G (20.5 M) for a module, 1.04 G (16.1 M) for a Megatron step. CPU: 500 M (5 M),
// and 250 M (4.25 M) for the demonstration. For a GPU's xor and overwrite, the processor does the
// encoding.
constexpr Row kRows[] = {
    // Bytes per changed weight, at 1.5 % changed, with the whole version directory.
    {"bytes.indices", "B", 48.47 / 8, kTrace, 48.47 / 8, kTrace},
    {"bytes.deltas", "B", 32.47 / 8, kTrace, 32.47 / 8, kTrace},
    {"bytes.deltas_zstd", "B", 23.38 / 8, kTrace, 23.38 / 8, kTrace},
    {"bytes.compact", "B", 6.82 / 8, kTrace, 6.82 / 8, kTrace},
    {"bytes.xor", "B", 16.25 / 8, kTrace, 16.25 / 8, kTrace},
    {"bytes.overwrite", "B", 34.34 / 8, kTrace, 34.34 / 8, kTrace},
    // The same run in FP8 blocks: changed codes per changed weight, and bytes per changed code.
    {"fp8.changed", "", 0.0878, kFp8, 0.0878, kFp8},
    {"fp8.bytes.indices", "B", 40.07 / 8, kFp8, 40.07 / 8, kFp8},
    {"fp8.bytes.deltas", "B", 24.07 / 8, kFp8, 24.07 / 8, kFp8},
    {"fp8.bytes.deltas_zstd", "B", 19.82 / 8, kFp8, 19.82 / 8, kFp8},
    {"fp8.bytes.compact", "B", 9.88 / 8, kFp8, 9.88 / 8, kFp8},
    {"fp8.bytes.xor", "B", 19.26 / 8, kFp8, 19.26 / 8, kFp8},
    {"fp8.bytes.overwrite", "B", 32.93 / 8, kFp8, 32.93 / 8, kFp8},
    // Weight bytes compared per second, by the place of the old values.
    {"compare.none", "B/s", 3.2e9 / 2.576e-3, kKernels, kAbsent, ""},
    {"compare.device", "B/s", 3.2e9 / 1.556e-3, kKernels, kAbsent, ""},
    {"compare.pinned", "B/s", 3.2e9 / 59.90e-3, kKernels, kAbsent, ""},
    {"compare.host", "B/s", 1e9 / 53e-3, kPublishing, 1e9 / 53e-3, kPublishing},
    // Quantizing and comparing, per weight that becomes a code.
    {"quantize.device", "s", 2.135e-3 / 1.6e9, kFp8Gpu, kAbsent, ""},
    {"quantize", "s", 1.15e-9, kFp8, 1.15e-9, kFp8},
    // Time beyond the comparison: per changed weight for indices, deltas and deltas_zstd, per
    // weight for the others.
    {"encode.captured", "s", 30e-3 / 16.1e6, kMegatron, kAbsent, ""},
    {"encode.full", "s", 2 / 55.2e9, kKernels, 3.6e-3 / 10e6, kPublishing},
    {"encode.indices", "s", 3.5e-3 / 16e6, kOverNccl, 21e-3 / 5e6, kPublishing},
    {"encode.deltas", "s", 3.5e-3 / 16e6, kOverNccl, 21e-3 / 5e6, kPublishing},
    {"encode.deltas_zstd", "s", 0.1 / 12.75e6, kDemo, 21e-3 / 5e6 + 0.1 / 12.75e6, kDemo},
    {"encode.compact", "s", 4.0e-3 / 1.6e9, kKernels, 0.447 / 5e8, kTwoHosts},
    {"encode.xor", "s", 0.37 / 250e6, kDemo, 0.37 / 250e6, kDemo},
    {"encode.overwrite", "s", 0.37 / 250e6, kDemo, 0.37 / 250e6, kDemo},
    // The same on the processor of a trainer that quantizes for engines on GPUs.
    {"host.encode.full", "s", 3.6e-3 / 10e6, kPublishing, kAbsent, ""},
    {"host.encode.indices", "s", 21e-3 / 5e6, kPublishing, kAbsent, ""},
    {"host.encode.deltas", "s", 21e-3 / 5e6, kPublishing, kAbsent, ""},
    {"host.encode.deltas_zstd", "s", 21e-3 / 5e6 + 0.1 / 12.75e6, kDemo, kAbsent, ""},
    {"host.encode.compact", "s", 0.447 / 5e8, kTwoHosts, kAbsent, ""},
    {"host.encode.xor", "s", 0.37 / 250e6, kDemo, kAbsent, ""},
    {"host.encode.overwrite", "s", 0.37 / 250e6, kDemo, kAbsent, ""},
    // Roads. A version in files takes 7 syncs. Rates of files and stores are per host, all others
    // per process.
    {"bus", "B/s", 3.2e9 / 57.64e-3, kKernels, kAbsent, ""},
    {"link.payload", "", 0.94, kTwoHosts, 0.94, kTwoHosts},
    {"mpi_rma.put", "B/s", 20e6 / 3.6e-3, kPublishing, kAbsent, ""},
    {"mpi_rma.get", "B/s", 15.8e9, kPublishing, 15.8e9, kPublishing},
    {"mpi_rma.get_tcp", "B/s", 0.72e9, kRma, 0.72e9, kRma},
    {"peer.get_tcp", "B/s", 1.18e9, kPeer, 1.18e9, kPeer},
    {"nccl.hash", "B/s", 107e9, kNcclAlone, kAbsent, ""},
    {"nccl.broadcast_tcp", "B/s", 4.1e9, kNcclAlone, kAbsent, ""},
    {"nccl.acknowledge", "B/s", 268e6 / 9.3e-3, kNcclAlone, kAbsent, ""},
    {"shared_fs.write", "B/s", 1.4e9, kMegatron, 1.4e9, kMegatron},
    {"shared_fs.read", "B/s", 83 * 1.048576e6 / 12e-3, kModule, 79 * 1.048576e6 / 75e-3, kModule},
    {"shared_fs.sync", "s", 1.1e-3 / 7, kReceivers, 1.1e-3 / 7, kReceivers},
    {"object_store.write", "B/s", 1.073741824e9 / 12.3, kStore, 1.073741824e9 / 12.3, kStore},
    {"object_store.read", "B/s", 1.073741824e9 / 10.7, kStore, 1.073741824e9 / 10.7, kStore},
    {"seal.rank", "s", 8.9e-3 / 60, kRanks, 8.9e-3 / 60, kRanks},
    {"wait.mpi_rma", "s", 25e-3, kPolling, 25e-3, kPolling},
    {"wait.nccl", "s", 0, "pushed: no receiver polls", 0, "pushed: no receiver polls"},
    {"wait.peer", "s", 25e-3, kPolling, 25e-3, kPolling},
    {"wait.shared_fs", "s", 0.5, kPolling, 0.5, kPolling},
    {"wait.object_store", "s", 1, kPolling, 1, kPolling},
    {"wait.host_shm", "s", 25e-3, kPolling, 25e-3, kPolling},
    // Receivers. hash: of received bytes, one thread. Times are per change or per weight as above.
    {"hash", "B/s", 8.9e9, kPublishing, 8.9e9, kPublishing},
    {"hand_over.read", "B/s", 83 * 1.048576e6 / 12e-3, kModule, 79 * 1.048576e6 / 75e-3, kModule},
    {"hand_over.inflate", "s", 9e-3 / 20.5e6, kModule, 102e-3 / 20.5e6, kModule},
    {"decode.full", "s", 2 / 55.2e9, kKernels, 2 / 7.6e9, kBench},
    {"decode.indices", "s", 12e-3 / 20.5e6, kModule, 50e-3 / 5.25e6, kTwoHosts},
    {"decode.deltas", "s", 12e-3 / 20.5e6, kModule, 50e-3 / 5.25e6, kTwoHosts},
    {"decode.deltas_zstd", "s", 21e-3 / 20.5e6, kModule, 63e-3 / 5.25e6, kTwoHosts},
    {"decode.compact", "s", 3.670e-3 / 1.6e9, kKernels, 0.39 / 5e8, kTwoHosts},
    {"decode.xor", "s", 0.53 / 250e6, kDemo, 0.53 / 250e6, kDemo},
    {"decode.overwrite", "s", 0.53 / 250e6, kDemo, 0.53 / 250e6, kDemo},
    {"sweep", "s", 0.656e-3 / 1.06e9, kKernels, 2 / 7.6e9, kBench},
    {"apply.fixed", "s", 0.3e-3, kModule, 0, kPublishing},
    {"apply.change", "s", 0.66e-3 / 20.5e6, kModule, 3.7e-3 / 5e5, kPublishing},
    {"apply.full", "s", 2 / 55.2e9, kKernels, 2 / 18.4e9, kBench},
};

bool may_be_zero(std::string_view name) {
  return name.starts_with("wait.") || name.starts_with("encode.") || name.starts_with("decode.") ||
         name == "apply.fixed" || name == "shared_fs.sync";
}

}  // namespace

Figures Figures::built_in(Device device) {
  Figures figures;
  for (const Row& row : kRows) {
    const bool gpu = device == Device::kGpu;
    if ((gpu ? row.gpu : row.cpu) == kAbsent) continue;
    figures.figures_.push_back(
        {row.name, row.unit, gpu ? row.gpu : row.cpu, gpu ? row.gpu_source : row.cpu_source});
  }
  return figures;
}

Status Figures::set(std::string_view name, double value, std::string_view source) {
  const auto found = std::ranges::find(figures_, name, &Figure::name);
  if (found == figures_.end()) {
    const auto nearest = std::ranges::min_element(
        figures_, {}, [&](const Figure& each) { return edit_distance(each.name, name); });
    return error(StatusCode::kInvalidArgument, source, ": there is no figure ", shown(name),
                 "; the nearest is '", nearest->name, "'");
  }
  const bool plausible = value >= kLeastFigure && value <= kMostFigure;
  if (!plausible && (value != 0 || !may_be_zero(name))) {
    return error(StatusCode::kInvalidArgument, source, ": figure '", found->name,
                 "': expected a positive number, from 1e-18 to 1e18");
  }
  found->value = value;
  found->source = source;
  return {};
}

Status Figures::set_all(std::string_view json, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json object, parse_json(json, what));
  if (!object.is_object()) return error(StatusCode::kCorrupt, what, ": expected a JSON object");
  for (const auto& [name, value] : object.items()) {
    if (!value.is_number()) {
      return error(StatusCode::kCorrupt, what, ": ", shown(name), ": expected a number");
    }
    DRIFTLESS_RETURN_IF_ERROR(set(name, value.get<double>(), what));
  }
  return {};
}

Status Figures::set_option(std::string_view text) {
  const std::size_t sign = text.find('=');
  if (sign == std::string_view::npos) {
    return error(StatusCode::kInvalidArgument, "--figure ", shown(text), ": expected NAME=VALUE");
  }
  const Result<double> value = parse_number(text.substr(sign + 1), 0, 1e18);
  if (!value.ok()) return value.status().with_context(concat("--figure ", shown(text)));
  return set(text.substr(0, sign), *value, "--figure");
}

const Figure& Figures::at(std::string_view name) const {
  return *std::ranges::find(figures_, name, &Figure::name);
}

bool Figures::has(std::string_view name) const {
  return std::ranges::find(figures_, name, &Figure::name) != figures_.end();
}

Term Figures::term(std::string_view name) const {
  const Figure& figure = at(name);
  return {name, figure.value, figure.unit};
}

}  // namespace driftless
