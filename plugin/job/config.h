// SPDX-License-Identifier: Apache-2.0
// The configuration of a job: the settings of every component, read from one YAML file.
//
// One table of keys (ConfigTable) drives reading, `--set key=value`, `driftless info`, `driftless
// config check` and docs/operate/configuration.md. It contains the keys of the job and of each road
// (collectives/road_kind.h). Defaults are those of the components' own structs. Errors name the
// file and line (or "--set"), the key, what was expected and what was found. Only config.cpp reads
// YAML, and the parser's exceptions do not leave it.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road_kind.h"
#include "core/quantize_rule.h"
#include "plugin/engines/engine_notifier.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"

namespace driftless {

enum class TargetKind : unsigned char { kMemory, kCheckpoint, kDevice };

// How versions get from the agent to the engines on its host.
enum class HandOver : unsigned char {
  kHostShm,     // to receivers in the engines' workers, through shared memory
  kCheckpoint,  // into a checkpoint directory that the engines load again
  kWorkers,  // the agent passes nothing on: the engines' workers receive from the road themselves
};

struct AgentOptions {
  HandOver hand_over = HandOver::kHostShm;
  std::string checkpoint_dir;  // for kCheckpoint; "{rank}" stands for the agent's number
  unsigned workers = 0;        // receivers on host_shm that must be present at the end
  std::uint64_t read_bytes = std::uint64_t{1} << 30;
  std::chrono::milliseconds stage_timeout{60'000};  // for an engine's workers to stage one version
  // The loader inside SGLang, as given to --custom-weight-loader.
  std::string sglang_loader = "driftless.engines.sglang.load";
  Hash128 take_over = {};     // the run that may take engines over from another run; zero: none
  std::uint64_t max_lag = 1;  // by how many versions the engines of a ready agent may be behind
  std::chrono::milliseconds engine_look{10'000};  // between two looks at an idle engine
};

// Where this process reports its state (docs/operate/status.md).
struct MonitorOptions {
  std::string address;     // "host:port"; empty: no status server
  std::string token_file;  // empty: any client that can connect may read
  std::string spans_file;  // "{role}" and "{rank}" as in metrics_file; empty: none
};

class ConfigTable;
// The table with all roads; the default below.
[[nodiscard]] const ConfigTable& config_table();

struct Config {
  // `roads` outlives it.
  explicit Config(const ConfigTable& roads = config_table());

  // After parsing, "auto" is replaced by the value it stands for.
  PublisherOptions publisher;
  ReceiverOptions receiver;      // without its id
  std::string road = "mpi_rma";  // road.kind: the name of a road
  const ConfigTable* table;
  std::vector<RoadOptions> roads;  // of each kind in the table
  bool layout_auto = true;
  // road.layout: trl: publisher.layout is flush, and TRL's files are written beside it
  bool trl = false;
  bool encoding_auto = true;
  bool keep_auto = true;                                // publisher.keep_versions
  bool first_anchor_auto = true;                        // publisher.first_anchor
  bool anchor_every_auto = true;                        // publisher.anchor_every
  bool anchor_by_size_auto = true;                      // publisher.anchor_by_size
  std::chrono::milliseconds connect_deadline{120'000};  // for the other side to appear
  std::string receiver_id;  // empty: derived from the process's place in the job
  TargetKind target = TargetKind::kMemory;
  std::string checkpoint_dir;           // "{rank}" stands for the rollout's number
  std::vector<EngineEndpoint> engines;  // without their tokens
  EngineCalls engine_calls;
  NotifyOptions notify;  // without its engines and calls
  AgentOptions agent;
  DeviceOptions gpu;            // for the publisher; snapshot kHost: it uses no GPU
  bool gpu_device_auto = true;  // gpu.device; use_gpu() fills it in
  QuantizeSettings quantize;
  MonitorOptions monitor;
  HubOptions hub;            // shared by all roads that use the hub
  bool hub_group = false;    // the hub forms the trainers' group
  std::string metrics_file;  // "{role}" and "{rank}" as above; empty: none

  // The kind and the options of the road that road.kind names; an empty kind, if the road has no
  // settings.
  [[nodiscard]] const RoadKind& kind() const;
  [[nodiscard]] const RoadOptions& road_options() const;
  // The options of a road by their type, chosen or not. chosen() returns null unless that road is
  // chosen.
  template <typename Options>
  [[nodiscard]] Options& of_road() {
    return const_cast<Options&>(std::as_const(*this).of_road<Options>());
  }
  template <typename Options>
  [[nodiscard]] const Options& of_road() const {
    const auto at = std::ranges::find_if(
        roads, [](const RoadOptions& each) { return std::any_cast<Options>(&each) != nullptr; });
    return options_in<Options>(*at);
  }
  template <typename Options>
  [[nodiscard]] const Options* chosen() const {
    return std::any_cast<Options>(&road_options());
  }
  // The name of the road's row in the table of roads; a variant that its settings or road.layout
  // choose follows after a slash.
  [[nodiscard]] std::string road_row() const;
  // The road that replaces this one if it fails; empty: none. Below: the configuration with that
  // road.
  [[nodiscard]] std::string fallback() const {
    return kind().fallback == nullptr ? std::string() : kind().fallback(road_options());
  }
  [[nodiscard]] Config of_fallback() const;
  // Whether frames reach a rollout in the memory of its GPU.
  [[nodiscard]] bool frames_on_device() const {
    return kind().on_device != nullptr && kind().on_device(road_options());
  }
  // Sets the GPU with which this process computes; used if gpu.device is "auto".
  void use_gpu(int device);
  // The engines that an agent drives, and the engines that the trainer notifies.
  [[nodiscard]] std::vector<EngineEndpoint> driven_engines() const;
  [[nodiscard]] std::vector<EngineEndpoint> notified_engines() const;
  // Whether any setting asks for anchors.
  [[nodiscard]] bool anchors() const {
    return publisher.first_anchor || publisher.anchor_every > 0 || publisher.anchor_by_size;
  }
};

// A key: the job's own row, rows of roads, or both. Keys of list items are named "engines[].url".
class ConfigKey {
 public:
  std::string_view name, expected, default_text, help;
  std::vector<std::string_view> former;  // names that it had in earlier releases

  // Sets the value. The error describes only the value. `item` is the index in a list.
  [[nodiscard]] Status apply(Config& config, std::size_t item, std::string_view value) const;
  // The value as it could be written in the file: the job's, the chosen road's, or the first
  // road's.
  [[nodiscard]] std::string text(const Config& config, std::size_t item) const;
  [[nodiscard]] bool in_list() const { return name.find("[]") != std::string_view::npos; }
  [[nodiscard]] std::string default_value() const;

 private:
  friend class ConfigTable;
  const ConfigTable* table_ = nullptr;
  const SettingKey<Config>* config_key_ = nullptr;
  std::vector<std::pair<std::size_t, const RoadKey*>> roads_;  // by the index of the road's kind
};

// The roads that have settings.
[[nodiscard]] std::span<const RoadKind* const> road_kinds();

class ConfigTable {
 public:
  // `kinds` outlive it.
  explicit ConfigTable(std::span<const RoadKind* const> kinds);
  ConfigTable(const ConfigTable&) = delete;
  ConfigTable& operator=(const ConfigTable&) = delete;
  [[nodiscard]] std::span<const RoadKind* const> kinds() const { return kinds_; }
  [[nodiscard]] std::span<const ConfigKey> keys() const { return keys_; }
  // The key with this name, and the key that had it in an earlier release; null if there is none.
  [[nodiscard]] const ConfigKey* find(std::string_view name) const;
  [[nodiscard]] const ConfigKey* find_former(std::string_view name) const;
  // The key that `name` probably misspells; empty if none is similar.
  [[nodiscard]] std::string_view nearest(std::string_view name) const;

 private:
  template <typename Settings>
  ConfigKey& row(const SettingKey<Settings>& row);

  std::span<const RoadKind* const> kinds_;
  std::vector<ConfigKey> keys_;
};

// The only list of the configuration: Config::engines.
inline constexpr std::string_view kConfigList = "engines";

inline constexpr std::uint64_t kMaxConfigBytes = 256 << 10;

// `overrides` are "key=value", as on the command line, with list items as "engines[0].url=...".
// They are applied after the file. kInvalidArgument if the text or an override is wrong.
[[nodiscard]] Result<Config> load_config(FileSystem& fs, const std::string& path,
                                         std::span<const std::string> overrides);
[[nodiscard]] Result<Config> parse_config(std::string_view text, std::string_view what,
                                          std::span<const std::string> overrides,
                                          const ConfigTable& table = config_table());

// Replaces "auto" by its value, and refuses settings that exclude each other, naming both keys.
// Parsing calls it; call it for a Config made by hand.
[[nodiscard]] Status complete_config(Config& config);

// Every setting as (key, value) in the order of the table, with list items as "engines[0].url".
[[nodiscard]] std::vector<std::pair<std::string, std::string>> effective_settings(
    const Config& config);

}  // namespace driftless
