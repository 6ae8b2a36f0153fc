// SPDX-License-Identifier: Apache-2.0
// RoadKind describes a road to a job before the road is opened: its settings with help and checks,
// and its abilities. RoadOpener opens it in a process of a job. Each road's folder has both:
// keys.cpp, which is always linked, so that a configuration may name the settings even if the
// road's library is not built, and opener.cpp, which is linked or loaded with that library.
#pragma once

#include <any>
#include <functional>
#include <string_view>

#include "collectives/road.h"
#include "core/finding.h"
#include "core/setting_key.h"

namespace driftless {

struct MpiComms;  // collectives/mpi_rma/mpi_comms.h
namespace hub {
class Port;  // collectives/hub/port.h
}

// A bystander is a process of the trainer that publishes nothing. It joins and closes with the
// others, and has neither a group nor a road.
enum class JobRole : unsigned char { kTrainer, kRollout, kBystander };

// The options of one road: a copy of the road's own struct.
using RoadOptions = std::any;
using RoadKey = SettingKey<RoadOptions>;
// `Options` must be the type that the road's kind creates.
template <typename Options>
[[nodiscard]] Options& options_in(RoadOptions& options) {
  return *std::any_cast<Options>(&options);
}
template <typename Options>
[[nodiscard]] const Options& options_in(const RoadOptions& options) {
  return *std::any_cast<Options>(&options);
}

// How the job uses the road; for RoadKind::check.
struct RoadUse {
  bool chosen = false;    // road.kind names it
  bool fallback = false;  // it is the fallback of the road that road.kind names
  bool anchors = false;   // a setting asks for anchors
};

struct RoadKind {
  std::string_view name;  // road.kind
  RoadOptions (*defaults)() = nullptr;
  // Named "road.<name>.<key>". Rows of several roads, or of the job, with the same name are one
  // key, which sets all of them: "road.patience".
  std::span<const RoadKey> keys;
  // The members below may be empty. check() refuses settings that exclude each other, and names the
  // keys.
  Status (*check)(const RoadOptions& options, const RoadUse& use) = nullptr;
  // The variant of the road that the settings select, as the table of roads writes it after a
  // slash: "tcp" in "nccl/tcp". `layout` is road.layout.
  std::string_view (*variant)(const RoadOptions& options, std::string_view layout) = nullptr;
  // The directory of the road's files, which other software may read. A road with a directory can
  // carry every layout. Null: the road carries frames only.
  std::string (*directory)(const RoadOptions& options) = nullptr;
  // The key of that directory or, on a road without a directory, of the URL that holds a run.
  // `driftless status` reads such a place without a configuration. Empty: there is no such place.
  std::string_view place_key = {};
  // Whether frames arrive in the memory of a rollout's GPU.
  bool (*on_device)(const RoadOptions& options) = nullptr;
  std::string_view gpu_library = {};  // moves frames from GPU to GPU; empty: works without a GPU
  // The road that takes over from this one, as the setting `fallback_key` selects; empty: none.
  std::string (*fallback)(const RoadOptions& options) = nullptr;
  std::string_view fallback_key = {};    // "road.peer.fallback"
  std::string_view fallback_label = {};  // prefix of the line about it: "[P2P]"
  bool keeps = false;     // holds versions until they are pruned; otherwise a limited number
  bool one_host = false;  // connects processes of one host; agents offer it to engines
};

// Reads the parts from a manifest, because roads do not parse manifests themselves. Errors name
// `what`.
using ReadParts = std::function<Result<std::vector<PartReceipt>>(std::string_view manifest,
                                                                 std::string_view what)>;
// Returns the xxh3-128 of each stretch of device memory, in order. A road makes one call at a time,
// from any thread. Returns when the hashes are known.
using DeviceHash =
    std::function<Result<std::vector<Hash128>>(std::span<const std::span<const std::byte>>)>;

// The place of a process among those that use the road, and what the job provides to the road.
struct RoadPlace {
  JobRole role = JobRole::kTrainer;
  unsigned rank = 0;  // among those of its role
  unsigned trainers = 1;
  unsigned rollouts = 0;
  // Default size of each rank's memory for an anchor: the maximum of what the ranks need.
  std::uint64_t anchor_bytes = 0;
  const MpiComms* mpi = nullptr;  // null: the process was not started with MPI
  std::string_view layout = {};   // road.layout
  ReadParts read_parts = {};
  std::string leader_host = {};  // of trainer rank 0, from the launcher; empty: unknown
  std::uint64_t start = 0;       // id of this start of the trainers, equal on all ranks; 0: unknown
  DeviceHash hash = {};          // empty: bytes are copied to the host to be hashed
  std::shared_ptr<hub::Port> port = {};  // of the run's hub; null: the road makes its own if needed
};

// A road that one process has opened. It outlives the objects that its functions create.
struct OpenRoad {
  std::function<Result<std::unique_ptr<SendRoad>>()> sender;
  std::function<Result<std::unique_ptr<ReceiveRoad>>()> receiver;
  // Like RoadOpener::fetch_end, for a road that receives the end over a connection; may be empty.
  std::function<Result<std::optional<std::string>>()> fetch_end;
  std::function<Status(std::string_view text)>
      publish_end;                       // like RoadOpener::publish_end; may be empty
  std::function<Status()> withdraw_end;  // likewise
  // Returns the name of the road that this process uses instead of the configured one, or "" if it
  // uses the configured one. May be empty.
  std::function<std::string()> fallback;
  // Equal for all processes that have the job's secret, from which it is derived, and different for
  // others; it does not reveal the secret. Empty: the road has none, or it cannot be read.
  std::string job = {};
  std::function<Status()> close;  // collective, at an orderly end; may be empty
  bool threads = true;            // threads other than the opening one may use it
};

// The state of a road besides versions, for a process that neither publishes nor receives.
struct RoadSigns {
  struct Receiver {
    ReceiverReport report;
    bool readable = true;  // false: its report is damaged, and only the id is known
    // The time of its last report, by the road's clock.
    std::optional<std::chrono::system_clock::time_point> seen;
  };
  std::string publisher;      // the last that took the road: "process 4711 on trainer-0", or empty
  std::optional<bool> alive;  // whether that process is running; empty: it cannot be seen from here
  std::vector<Receiver> receivers;  // also receivers that are gone, and those of earlier runs
};

struct RoadOpener {
  // Opens the road in one process. Collective if the processes connect through MPI.
  Result<OpenRoad> (*open)(const RoadOptions& options, const RoadPlace& place) = nullptr;
  // The members below may be null. usable() checks whether a library that the road loads itself is
  // installed; kUnsupported names what to install.
  Status (*usable)() = nullptr;
  // Reads what the road held before this process started; null if the road keeps nothing.
  Result<std::unique_ptr<ReceiveRoad>> (*history)(const RoadOptions& options) = nullptr;
  // Withdraws, reports and reads the end of a run, for rollouts that mpirun did not start together
  // with the trainer.
  Status (*withdraw_end)(const RoadOptions& options) = nullptr;
  Status (*publish_end)(const RoadOptions& options, std::string_view text) = nullptr;
  Result<std::optional<std::string>> (*fetch_end)(const RoadOptions& options) = nullptr;
  // Reads the signs without writing or locking anything.
  Result<RoadSigns> (*signs)(const RoadOptions& options, const Deadline& deadline) = nullptr;
  // Returns a URL that opens the run, for the time `valid`, to rollouts without credentials.
  Result<std::string> (*share)(const RoadOptions& options, const ReadParts& read,
                               std::chrono::seconds valid) = nullptr;
  // Tests from this host whether the directory, store or memory has what the road needs. Changes
  // nothing that others see and leaves nothing behind. `space_bytes`: the space for the versions
  // and anchors that are kept; 0: unknown.
  std::vector<Finding> (*examine)(const RoadOptions& options, std::uint64_t space_bytes,
                                  const Deadline& deadline) = nullptr;
};

// Keys that several roads share, each with its own default.
namespace road_key {

using Rows = setting::Rows<RoadOptions>;

// For roads whose processes find each other through the hub (hub/hub.h). The job's own rows have
// the help text.
template <auto kAccess>
constexpr RoadKey hub_address() {
  return Rows::key<setting::Text, kAccess>("hub.address", "host:port", "");
}
template <auto kAccess>
constexpr RoadKey hub_token_file() {
  return Rows::key<setting::Text, kAccess>("hub.token_file", setting::kPath, "");
}

template <auto kAccess>
constexpr RoadKey poll_first() {
  return Rows::default_key<setting::Duration, kAccess>(
      "road.poll_first", setting::kDurationOrAuto,
      "How long a rollout first waits before it looks for a version again; each further wait is "
      "twice as long. auto: 5ms, on mpi_rma, peer and host_shm 1ms, on object_store 50ms");
}
template <auto kAccess>
constexpr RoadKey poll_longest() {
  return Rows::default_key<setting::Duration, kAccess>(
      "road.poll_longest", setting::kDurationOrAuto,
      "The longest of these waits. auto: 1s, on mpi_rma, peer and host_shm 50ms, on object_store "
      "2s");
}
template <auto kAccess>
constexpr RoadKey patience() {
  return Rows::default_key<setting::Duration, kAccess>(
      "road.patience", setting::kDurationOrAuto,
      "How long a rollout that sends no reports still counts. auto: 10min");
}
template <auto kAccess>
constexpr RoadKey ring_size() {
  return Rows::key<setting::Size<64 * setting::kKiB, 16 * setting::kTiB>, kAccess>(
      "road.ring_size",
      "mpi_rma, peer: memory for versions on each trainer rank; nccl: on each rollout's GPU, for "
      "each trainer rank");
}
template <auto kAccess>
constexpr RoadKey ring_versions() {
  return Rows::default_key<setting::Count<1, 65'536>, kAccess>(
      "road.ring_versions", setting::kNumberOrAuto,
      "mpi_rma, peer, nccl: versions kept at most. auto: 64, on nccl 32");
}

}  // namespace road_key

// Accesses the field `field` of the struct `Options`, for the rows of a road's keys.
#define DRIFTLESS_ROAD_FIELD(Options, field) \
  [](auto& options, std::size_t) -> auto& { return options_in<Options>(options).field; }

}  // namespace driftless
