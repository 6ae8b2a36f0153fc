// SPDX-License-Identifier: Apache-2.0
// The configuration of a job: the settings of every component, read from one YAML file.
//
// One table of keys (config_keys) drives reading, `--set key=value`, `driftless info`,
// `driftless config check` and docs/operate/configuration.md. Defaults are those of the components'
// own structs. Errors name the file and line (or "--set"), the key, what was expected and what was
// found. YAML is read in config.cpp and nowhere else; its exceptions do not leave that file.
#pragma once

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/mpi_rma/mpi_rma_options.h"
#include "collectives/nccl/nccl_options.h"
#include "collectives/object_store/object_store_options.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/engines/engine_notifier.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"

namespace driftless {

enum class TargetKind : unsigned char { kMemory, kCheckpoint, kDevice };

// How versions get from the agent to the engines of its host.
enum class HandOver : unsigned char {
  kHostShm,     // to receivers inside the engines' workers, through shared memory
  kCheckpoint,  // into a checkpoint directory, which engines read again
};

enum class EngineKind : unsigned char { kVllm, kSglang };

struct AgentEngine {
  std::string url;
  EngineKind kind = EngineKind::kVllm;
  std::string token_file;  // empty, or it holds a bearer token
};

struct AgentOptions {
  HandOver hand_over = HandOver::kHostShm;
  std::string checkpoint_dir;  // of kCheckpoint; "{rank}" stands for the agent's number
  std::vector<AgentEngine> engines;
  unsigned workers = 0;  // receivers on host_shm that must be there at the end
  unsigned read_workers = 4;
  std::uint64_t read_bytes = std::uint64_t{1} << 30;
  std::chrono::milliseconds stage_timeout{60'000};  // of an engine's workers, for one version
  std::chrono::milliseconds call_timeout{120'000};  // of one call
  unsigned retries = 3;                             // of one update
  std::chrono::milliseconds retry_wait{500};        // before the first of them; then twice as long
  // The loader inside SGLang, as --custom-weight-loader names it.
  std::string sglang_loader = "driftless.engines.sglang.load";
  Hash128 take_over = {};  // the run that may take engines over from another; zero: none
};

// Roads with settings of their own below; plugin/job/roads.cpp lists all there are.
inline constexpr std::string_view kMpiRma = "mpi_rma", kSharedFs = "shared_fs", kNccl = "nccl",
                                  kHostShm = "host_shm", kObjectStore = "object_store";

struct EngineConfig {
  EngineEndpoint endpoint;  // without its token
  std::string token_file;   // holds it
};

struct Config {
  Config() { gpu.snapshot = SnapshotPlace::kHost; }

  // Once parsed, what "auto" stands for is filled in.
  PublisherOptions publisher;
  ReceiverOptions receiver;   // without its id
  std::string road{kMpiRma};  // road.kind: the name of a road
  SharedFsOptions shared_fs;
  MpiRmaOptions mpi_rma;
  HostShmOptions host_shm;
  ObjectStoreOptions object_store;
  NcclOptions nccl;              // without its hash
  RendezvousOptions rendezvous;  // of nccl
  bool layout_auto = true;
  bool trl = false;  // road.layout: trl: publisher.layout is flush, and TRL's files lie beside it
  bool encoding_auto = true;
  bool keep_auto = true;            // publisher.keep_versions
  bool first_anchor_auto = true;    // publisher.first_anchor
  bool anchor_every_auto = true;    // publisher.anchor_every
  bool anchor_by_size_auto = true;  // publisher.anchor_by_size
  bool anchor_auto = true;  // mpi_rma.anchor_bytes: as much as the base takes, where anchors are on
  std::chrono::milliseconds connect_deadline{120'000};  // until the other side is there
  std::string receiver_id;                              // empty: by the process' place in the job
  TargetKind target = TargetKind::kMemory;
  std::string checkpoint_dir;  // "{rank}" in it stands for the rollout's number
  std::vector<EngineConfig> engines;
  NotifyOptions notify;  // without its engines
  AgentOptions agent;
  DeviceOptions gpu;         // of the publisher; snapshot kHost: none
  std::string metrics_file;  // "{role}" and "{rank}" as above; empty: none

  // The road's row in the table of roads: its name, and after a slash the variant that
  // road.layout or road.nccl.rendezvous choose.
  [[nodiscard]] std::string road_row() const;
  // Frames reach a rollout in the memory of its GPU.
  [[nodiscard]] bool frames_on_device() const {
    return road == kNccl && nccl.arrival == MemoryKind::kDevice;
  }
  // Whether any setting asks for anchors.
  [[nodiscard]] bool anchors() const {
    return publisher.first_anchor || publisher.anchor_every > 0 || publisher.anchor_by_size;
  }
};

// A row of the table. Keys of a list's items are named "engines[].url".
struct ConfigKey {
  std::string_view name;          // "road.dir"
  std::string_view expected;      // "a size such as 64MiB": for errors and the documentation
  std::string_view default_text;  // empty: text() of a Config{}
  std::string_view help;
  // Sets it; the error says only what is wrong with the value. `item` counts within a list.
  Status (*apply)(Config& config, std::size_t item, std::string_view value);
  // As it could stand in the file.
  std::string (*text)(const Config& config, std::size_t item);

  [[nodiscard]] bool in_list() const { return name.find("[]") != std::string_view::npos; }
  // "engines" of "engines[].url".
  [[nodiscard]] std::string_view list() const { return name.substr(0, name.find("[]")); }
  [[nodiscard]] std::string default_value() const;
};
[[nodiscard]] std::span<const ConfigKey> config_keys();
// The lists, how many items one has, and one more of them.
[[nodiscard]] std::span<const std::string_view> config_lists();
[[nodiscard]] std::size_t list_items(const Config& config, std::string_view list);
void add_list_item(Config& config, std::string_view list);
// The key's row; null if there is none.
[[nodiscard]] const ConfigKey* find_config_key(std::string_view name);
// The name that `name` was probably meant to be; empty if none is near.
[[nodiscard]] std::string_view nearest_config_key(std::string_view name);

inline constexpr std::uint64_t kMaxConfigBytes = 256 << 10;

// `overrides` are "key=value", as on the command line; a list's items are "engines[0].url=...".
// They come after the file. kInvalidArgument for what is wrong with the text or an override.
[[nodiscard]] Result<Config> load_config(FileSystem& fs, const std::string& path,
                                         std::span<const std::string> overrides);
[[nodiscard]] Result<Config> parse_config(std::string_view text, std::string_view what,
                                          std::span<const std::string> overrides);

// Fills in what "auto" stands for and refuses what cannot be together; names both keys. Part of
// parsing; to be called for a Config made by hand.
[[nodiscard]] Status complete_config(Config& config);

// Every setting as (key, value), in the order of the table, items of lists as "engines[0].url".
[[nodiscard]] std::vector<std::pair<std::string, std::string>> effective_settings(
    const Config& config);

}  // namespace driftless
