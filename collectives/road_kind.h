// SPDX-License-Identifier: Apache-2.0
// RoadKind: what a road is to a job before it is opened: its settings with help and checks, and
// what it can do. RoadOpener: how a process of a job opens it. Each road's folder has both:
// keys.cpp, which is always linked, so that a configuration names the settings also where the
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

// A bystander is a process of the trainer that publishes nothing: it joins and closes with the
// others, and has neither a group nor a road.
enum class JobRole : unsigned char { kTrainer, kRollout, kBystander };

// The options of one road: a copy of its own struct.
using RoadOptions = std::any;
using RoadKey = SettingKey<RoadOptions>;
// `Options` is what the road's kind makes.
template <typename Options>
[[nodiscard]] Options& options_in(RoadOptions& options) {
  return *std::any_cast<Options>(&options);
}
template <typename Options>
[[nodiscard]] const Options& options_in(const RoadOptions& options) {
  return *std::any_cast<Options>(&options);
}

// For a check: how the job uses the road.
struct RoadUse {
  bool chosen = false;    // road.kind names it
  bool fallback = false;  // it is the fallback of the road that road.kind names
  bool anchors = false;   // a setting asks for anchors
};

struct RoadKind {
  std::string_view name;  // road.kind
  RoadOptions (*defaults)() = nullptr;
  // Named "road.<name>.<key>". Rows of several roads, or of the job, that have the same name are
  // one key, which sets all of them: "road.patience".
  std::span<const RoadKey> keys;
  // What follows may be empty.
  // Refuses settings that cannot be together; names the keys.
  Status (*check)(const RoadOptions& options, const RoadUse& use) = nullptr;
  // The variant of the road that the settings ask for, as the table of roads names it after a
  // slash: "tcp" of "nccl/tcp". `layout` is road.layout.
  std::string_view (*variant)(const RoadOptions& options, std::string_view layout) = nullptr;
  // A directory in which others read the files of a version, in any layout; null: the road carries
  // frames alone.
  std::string (*directory)(const RoadOptions& options) = nullptr;
  // Frames reach a rollout in the memory of its GPU.
  bool (*on_device)(const RoadOptions& options) = nullptr;
  // The road that takes over from this one, by the setting `fallback_key`; empty: none.
  std::string (*fallback)(const RoadOptions& options) = nullptr;
  std::string_view fallback_key = {};    // "road.peer.fallback"
  std::string_view fallback_label = {};  // how the line about it begins: "[P2P]"
  bool keeps = false;     // holds versions until they are pruned; else a bounded number of them
  bool one_host = false;  // joins processes of one host: an agent offers it
};

// The parts that a manifest names, for `what`: a road does not read manifests itself.
using ReadParts = std::function<Result<std::vector<PartReceipt>>(std::string_view manifest,
                                                                 std::string_view what)>;
// xxh3-128 of each stretch of device memory, as many as there are stretches. Called from any
// thread, one call at a time for a road; returns once they are known.
using DeviceHash =
    std::function<Result<std::vector<Hash128>>(std::span<const std::span<const std::byte>>)>;

// Where a process stands among those that use the road, and what the job lends the road.
struct RoadPlace {
  JobRole role = JobRole::kTrainer;
  unsigned rank = 0;  // among those of its role
  unsigned trainers = 1;
  unsigned rollouts = 0;
  std::uint64_t anchor_bytes = 0;  // of the rank that needs most, if the configuration leaves it
  const MpiComms* mpi = nullptr;   // null: the process knows of no other
  std::string_view layout = {};    // road.layout
  ReadParts read_parts = {};
  std::string leader_host = {};  // of rank 0 of the trainers, by the launcher; empty: not known
  std::uint64_t start = 0;  // of this start of the trainers, the same on all ranks; 0: not known
  DeviceHash hash = {};     // empty: bytes are brought to the host to be hashed
  std::shared_ptr<hub::Port> port = {};  // of the run's hub; null: a road that needs it makes one
};

// A road that one process has opened. It outlives what its functions make.
struct OpenRoad {
  std::function<Result<std::unique_ptr<SendRoad>>()> sender;
  std::function<Result<std::unique_ptr<ReceiveRoad>>()> receiver;
  // As the opener's, for a road that keeps a connection to hear it by; may be empty.
  std::function<Result<std::optional<std::string>>()> hear_end;
  std::function<Status(std::string_view text)> tell_end;  // as the opener's; may be empty
  std::function<Status()> withdraw_end;                   // likewise
  // The road that this process uses in place of the one that was chosen; empty: none. May be empty.
  std::function<std::string()> fallback;
  std::function<Status()> close;  // collective, at an orderly end; may be empty
  bool threads = true;            // may be used by other threads than the one that opened it
};

// What lies on a road beside the versions, for a process that takes no part in it.
struct RoadSigns {
  struct Receiver {
    ReceiverReport report;
    bool readable = true;  // false: its report is damaged, and only the id is known
    std::optional<std::chrono::system_clock::time_point> seen;  // it reported last, by the road
  };
  std::string publisher;      // "process 4711 on trainer-0": the last that took the road, or empty
  std::optional<bool> alive;  // whether that process is; none: this cannot be seen from here
  std::vector<Receiver> receivers;  // also of receivers that are gone, and of earlier runs
};

struct RoadOpener {
  // Opens it for one process. Collective, if the processes meet by MPI.
  Result<OpenRoad> (*open)(const RoadOptions& options, const RoadPlace& place) = nullptr;
  // What follows may be null.
  // Whether a library that the road loads by itself is here: kUnsupported, with what to install.
  Status (*usable)() = nullptr;
  // Reads what the road held before this process; null: it forgets.
  Result<std::unique_ptr<ReceiveRoad>> (*history)(const RoadOptions& options) = nullptr;
  // The end of a run, for rollouts that mpirun did not start beside the trainer.
  Status (*withdraw_end)(const RoadOptions& options) = nullptr;
  Status (*tell_end)(const RoadOptions& options, std::string_view text) = nullptr;
  Result<std::optional<std::string>> (*hear_end)(const RoadOptions& options) = nullptr;
  // Reads only, and locks nothing.
  Result<RoadSigns> (*signs)(const RoadOptions& options, const Deadline& deadline) = nullptr;
  // A URL, for so long, that opens the run to rollouts without credentials.
  Result<std::string> (*share)(const RoadOptions& options, const ReadParts& read,
                               std::chrono::seconds valid) = nullptr;
  // What the road needs of its directory, store or memory, tried from this host. Changes nothing
  // that others see and leaves nothing behind. `space_bytes`: what the versions and anchors that
  // are kept will take; 0: not known.
  std::vector<Finding> (*examine)(const RoadOptions& options, std::uint64_t space_bytes,
                                  const Deadline& deadline) = nullptr;
};

// Keys that several roads have, each with a default of its own.
namespace road_key {

using Rows = setting::Rows<RoadOptions>;

// Of roads whose processes find each other by the hub (hub/hub.h). The job's own rows have the
// help.
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
      "A rollout's first wait between two looks; doubles. auto: 5ms, on mpi_rma, peer and host_shm "
      "1ms, on object_store 50ms");
}
template <auto kAccess>
constexpr RoadKey poll_longest() {
  return Rows::default_key<setting::Duration, kAccess>(
      "road.poll_longest", setting::kDurationOrAuto,
      "Its longest. auto: 1s, on mpi_rma, peer and host_shm 50ms, on object_store 2s");
}
template <auto kAccess>
constexpr RoadKey patience() {
  return Rows::default_key<setting::Duration, kAccess>(
      "road.patience", setting::kDurationOrAuto,
      "How long a silent rollout counts as there. auto: 10min");
}
template <auto kAccess>
constexpr RoadKey ring_size() {
  return Rows::key<setting::Size<64 * setting::kKiB, 16 * setting::kTiB>, kAccess>(
      "road.ring_size",
      "mpi_rma, peer: memory for versions on each trainer rank; nccl: on each rollout's GPU, of "
      "each trainer rank");
}
template <auto kAccess>
constexpr RoadKey ring_versions() {
  return Rows::default_key<setting::Count<1, 65'536>, kAccess>(
      "road.ring_versions", setting::kNumberOrAuto,
      "mpi_rma, peer, nccl: versions kept at most. auto: 64, on nccl 32");
}

}  // namespace road_key

// The field `field` of the struct `Options`, for the rows of a road's keys.
#define DRIFTLESS_ROAD_FIELD(Options, field) \
  [](auto& options, std::size_t) -> auto& { return options_in<Options>(options).field; }

}  // namespace driftless
