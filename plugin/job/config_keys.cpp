// SPDX-License-Identifier: Apache-2.0
// The table of keys.
#include <array>
#include <iterator>

#include "plugin/job/config.h"
#include "plugin/job/road_rows.h"

namespace driftless {
namespace {

using namespace setting;
using Job = Rows<Config>;

// A build without any backend, as argument of road_rows.h: the keys are the same in every build, so
// reading them links no road.
struct NotAsked {
  static constexpr bool kHere = false, kMpi = false, kHdf5 = false, kNccl = false, kTcp = false,
                        kStore = false;
  static constexpr Availability kMpiAt{}, kHdf5At{}, kNcclAt{}, kTcpAt{}, kStoreAt{};
};

constexpr Choice<UpdateMode> kModes[] = {{"delta", UpdateMode::kDelta},
                                         {"full", UpdateMode::kFull}};
constexpr Choice<ResumeMode> kResumes[] = {
    {"auto", ResumeMode::kAuto}, {"never", ResumeMode::kNever}, {"require", ResumeMode::kRequire}};
constexpr Choice<TargetKind> kTargets[] = {{"memory", TargetKind::kMemory},
                                           {"checkpoint", TargetKind::kCheckpoint},
                                           {"device", TargetKind::kDevice}};
constexpr Choice<HandOver> kHandOvers[] = {{"host_shm", HandOver::kHostShm},
                                           {"checkpoint", HandOver::kCheckpoint},
                                           {"workers", HandOver::kWorkers}};
constexpr Choice<EngineKind> kEngineKinds[] = {{"vllm", EngineKind::kVllm},
                                               {"sglang", EngineKind::kSglang}};
constexpr Choice<EngineAction> kActions[] = {
    {"pull_weights", EngineAction::kPullWeights},
    {"update_weights_from_disk", EngineAction::kUpdateFromDisk},
    {"flush", EngineAction::kUpdateFlush}};

constexpr Choice<QuantizeScheme> kSchemes[] = {{"auto", QuantizeScheme::kAuto},
                                               {"none", QuantizeScheme::kNone},
                                               {"fp8_block", QuantizeScheme::kFp8Block},
                                               {"int4_group", QuantizeScheme::kInt4Group}};

constexpr std::string_view kLayouts = "auto, flush, hf_delta, hdf5, frames or trl";
constexpr std::string_view kChecksums = "xxh3-128, blake3 or adler32";
constexpr std::string_view kRules = "linear, linear_div or ue8m0";
constexpr std::string_view kSnapshots = "host, pinned, device or none";

struct EncodingName {
  static Result<Encoding> parse(std::string_view value) {
    Result<Encoding> encoding = parse_encoding(value);
    if (encoding.ok() && *encoding != Encoding::kFull) return encoding;
    return not_one_of(
        "auto, indices, deltas, deltas_zstd, compact, xor or overwrite (whole versions are mode: "
        "full)",
        value);
  }
  static std::string text(Encoding value) { return std::string(info(value).name); }
};

struct SwitchOrAuto : Switch {
  static Result<bool> parse(std::string_view value) {
    Result<bool> parsed = parse_bool(value);
    if (!parsed.ok()) return not_one_of("true, false or auto", value);
    return parsed;
  }
};

// "staged", "always", or the number of versions between two sweeps.
struct ProofName {
  static Result<ProofRule> parse(std::string_view value) {
    if (value == "staged" || value == "always") return ProofRule{value == "always", 1};
    const Result<std::uint64_t> every = parse_count(value, 1, kMost);
    if (!every.ok()) return not_one_of("staged, always or a whole number", value);
    return ProofRule{false, *every};
  }
  static std::string text(const ProofRule& rule) {
    if (rule.always) return "always";
    return rule.every == 1 ? "staged" : std::to_string(rule.every);
  }
};

// Empty: not chosen.
template <typename Kind>
struct Maybe {
  using Value = std::optional<typename Kind::Value>;
  static Result<Value> parse(std::string_view value) {
    if (value.empty()) return Value();
    DRIFTLESS_ASSIGN_OR_RETURN(const auto parsed, Kind::parse(value));
    return Value(parsed);
  }
  static std::string text(const Value& value) { return value ? Kind::text(*value) : ""; }
};

struct ReceiverId {
  static Result<std::string> parse(std::string_view value) {
    if (value == kAuto) return std::string();
    if (check_file_name(value).ok() && !value.starts_with('.') && value.size() <= 128) {
      return std::string(value);
    }
    return error(StatusCode::kInvalidArgument,
                 "expected auto or a plain file name of at most 128 bytes, found ", shown(value));
  }
  static std::string text(const std::string& value) {
    return value.empty() ? std::string(kAuto) : value;
  }
};

constexpr std::string_view kTrl = "trl";

Status set_layout(Config& config, std::size_t, std::string_view value) {
  config.layout_auto = value == kAuto;
  config.trl = value == kTrl;
  if (config.layout_auto) return {};
  if (config.trl) {
    config.publisher.layout = DirectoryLayout::kFlush;
    return {};
  }
  DRIFTLESS_ASSIGN_OR_RETURN(config.publisher.layout,
                             (Named<parse_directory_layout, kLayouts>::parse(value)));
  return {};
}
std::string layout_text(const Config& config, std::size_t) {
  return std::string(config.trl ? kTrl : to_string(config.publisher.layout));
}

Status set_gpu_device(Config& config, std::size_t, std::string_view value) {
  config.gpu_device_auto = value == kAuto;
  DRIFTLESS_ASSIGN_OR_RETURN(const auto device, GpuNumber::parse(value));
  config.gpu.device = static_cast<int>(device);
  return {};
}
std::string gpu_device_text(const Config& config, std::size_t) {
  return config.gpu_device_auto ? std::string(kAuto) : std::to_string(config.gpu.device);
}

#define DRIFTLESS_FIELD(field) [](auto& config, std::size_t) -> auto& { return config.field; }
#define DRIFTLESS_ENGINE(field) \
  [](auto& config, std::size_t item) -> auto& { return config.engines[item].field; }

constexpr std::array kKeys = {
    Job::key<OneOf<kModes>, DRIFTLESS_FIELD(publisher.mode)>(
        "mode", "delta or full", "What a version carries: what changed, or all weights"),
    Job::chosen_key<EncodingName, DRIFTLESS_FIELD(encoding_auto),
                    DRIFTLESS_FIELD(publisher.encoding), DRIFTLESS_FIELD(publisher.encoding_auto)>(
        "encoding", "auto, indices, deltas, deltas_zstd, compact, xor or overwrite",
        "How changes are written. auto: xor for hf_delta, deltas_zstd for flush, otherwise the "
        "encoding that should arrive first"),
    Job::key<Named<parse_checksum_kind, kChecksums>, DRIFTLESS_FIELD(publisher.checksum)>(
        "checksum", "Checksum of every changed tensor, in the layouts that carry them"),
    Job::key<OneOf<kSchemes>, DRIFTLESS_FIELD(quantize.scheme)>(
        "quantize.scheme", "auto, none, fp8_block or int4_group",
        "How bfloat16 weights are quantized to the types of the base checkpoint. auto: as its "
        "quantization_config and its scales require; fp8_block, int4_group: the same, but a base "
        "of another scheme is refused"),
    Job::key<Named<parse_quantize_rule, kRules>, DRIFTLESS_FIELD(quantize.rule)>(
        "quantize.rule",
        "The arithmetic that computes codes and scales (docs/operate/quantized.md)"),
    Job::key<Size<64 * kKiB, 16 * kGiB>, DRIFTLESS_FIELD(publisher.buffer_bytes)>(
        "buffer_size", "Bytes of a bucket: small buckets take less memory, and add overhead"),
    Job::key<Named<parse_snapshot, kSnapshots>, DRIFTLESS_FIELD(gpu.snapshot)>(
        "snapshot",
        "Where the publisher keeps what the receivers have. pinned, device: compared on the GPU. "
        "none: changes are captured as the trainer writes them"),
    SettingKey<Config>{
        "gpu.device", GpuNumber::kExpected, kAuto,
        "Number of this process' GPU, as CUDA counts. auto: the GPU of its tensors, or torch's "
        "current one; else 0",
        set_gpu_device, gpu_device_text},
    Job::key<Size<kMiB, 16 * kGiB>, DRIFTLESS_FIELD(gpu.slice_bytes)>(
        "gpu.slice_size", "Weights compared at a time on the GPU: bounds the memory taken there"),
    Job::key<Size<kMiB, 1024 * kGiB>, DRIFTLESS_FIELD(publisher.capture_bytes)>(
        "capture.size",
        "snapshot: none: memory for captured changes, at most; a tensor whose changes do not fit "
        "is sent whole"),
    Job::key<Count<0, 1'000'000>, DRIFTLESS_FIELD(publisher.sweep_every)>(
        "capture.sweep_every",
        "snapshot: none: a sweep proves the captured changes with every Nth version, N being this "
        "number; 0: only if changes may be missing. compact and hf_delta sweep with every version"),
    Job::key<Count<0, 1024>, DRIFTLESS_FIELD(publisher.threads), DRIFTLESS_FIELD(receiver.threads)>(
        "threads", "Threads of one process; 0: all cores"),
    Job::key<Text, DRIFTLESS_FIELD(road)>(
        "road.kind", "mpi_rma, nccl, peer, shared_fs, object_store or host_shm",
        "What carries versions"),
    SettingKey<Config>{
        "road.layout", kLayouts, kAuto,
        "Files of a version on shared_fs. auto: flush there, frames on other roads; trl: "
        "flush, and TRL's anchors and deltas beside it",
        set_layout, layout_text},
    Job::key<Text, DRIFTLESS_FIELD(publisher.assets_dir)>(
        "road.assets_dir", kPath,
        "road.layout: hf_delta or flush: full versions carry the other files of this checkpoint, "
        "its configuration and tokenizer; empty: those of the base and of what is published, if "
        "these are checkpoints"),
    Job::key<Text, DRIFTLESS_FIELD(hub.address)>(
        "hub.address", "host:port",
        "The leading trainer listens there for all other processes. Empty: on port 27315 of the "
        "host of rank 0, if the launcher names it")
        .once("road.nccl.address"),
    Job::key<Text, DRIFTLESS_FIELD(hub.token_file)>(
        "hub.token_file", kPath,
        "File with the run's secret, at least 16 bytes, readable by its owner alone")
        .once("road.nccl.token_file"),
    Job::key<Switch, DRIFTLESS_FIELD(hub_group)>(
        "hub.group",
        "Trainer ranks that were started without MPI form their group over the hub, without "
        "torch.distributed"),
    Job::auto_key<SwitchOrAuto, DRIFTLESS_FIELD(first_anchor_auto),
                  DRIFTLESS_FIELD(publisher.first_anchor)>(
        "anchors.first", "true, false or auto",
        "Publish an anchor of version 0, for rollouts that have no base. auto: true with "
        "road.layout: trl, whose workers begin with an anchor, else false"),
    Job::auto_key<Count<>, DRIFTLESS_FIELD(anchor_every_auto),
                  DRIFTLESS_FIELD(publisher.anchor_every)>(
        "anchors.every", kNumberOrAuto,
        "Publish an anchor beside every version whose number is a multiple of this. 0: not by "
        "number, "
        "or 2 * keep_versions with mode: full, if versions are removed and anchors.by_size is "
        "false. "
        "auto: 10 with road.layout: trl, else 0"),
    Job::auto_key<SwitchOrAuto, DRIFTLESS_FIELD(anchor_by_size_auto),
                  DRIFTLESS_FIELD(publisher.anchor_by_size)>(
        "anchors.by_size", "true, false or auto",
        "Publish another anchor once the versions since the last one are larger than it. auto: "
        "true "
        "with mode: delta on shared_fs, object_store and peer with a fallback, unless "
        "keep_versions "
        "is 0 or anchors.every is set"),
    Job::key<Switch, DRIFTLESS_FIELD(publisher.cut_for_receivers)>(
        "cut_for_receivers",
        "Cut tensors to the slices that rollouts hold, so that each fetches only its own"),
    Job::key<Share, DRIFTLESS_FIELD(publisher.full_above_density)>(
        "full_above_density", "A version is sent whole if a larger share of the weights changed"),
    Job::auto_key<Count<>, DRIFTLESS_FIELD(keep_auto), DRIFTLESS_FIELD(publisher.keep_versions)>(
        "keep_versions", kNumberOrAuto,
        "Newest versions to keep beside those that a rollout needs; those after the newest anchor "
        "are always kept. 0: all. auto: 16 on shared_fs, object_store and peer with a fallback (2 "
        "with "
        "mode: full), 0 on other roads, which are bounded"),
    Job::key<OneOf<kResumes>, DRIFTLESS_FIELD(publisher.resume)>(
        "resume", "auto, never or require",
        "What a trainer does with a run that the road already holds. auto: continues it; never: "
        "refuses it; require: continues it, and refuses an empty road"),
    Job::key<Duration, DRIFTLESS_FIELD(publisher.deadline)>("deadlines.publish",
                                                            "For publishing one version"),
    Job::key<Duration, DRIFTLESS_FIELD(receiver.fetch_deadline)>(
        "deadlines.fetch", "For fetching and preparing one version"),
    Job::key<Duration, DRIFTLESS_FIELD(connect_deadline)>(
        "deadlines.connect", "For waiting for the other side, at the start and at the end"),
    Job::key<ReceiverId, DRIFTLESS_FIELD(receiver_id)>(
        "receiver.id", "a plain file name, or auto",
        "A rollout's name, unique on the road. auto: by rank, or host and process; a second "
        "receiver of a process gets the suffix _2"),
    Job::key<OneOf<kTargets>, DRIFTLESS_FIELD(target)>(
        "receiver.target", "memory, checkpoint or device", "Where a rollout keeps the weights"),
    Job::key<Text, DRIFTLESS_FIELD(checkpoint_dir)>(
        "receiver.checkpoint_dir", kPath,
        "Target checkpoint: the directory to patch; {rank} stands for the rollout's number"),
    Job::key<Size<64 * kKiB, 16 * kTiB>, DRIFTLESS_FIELD(receiver.chunk_bytes)>(
        "receiver.chunk_size",
        "The most bytes of full-shape tensors that an engine's own loader gets at a time, if its "
        "parameters cannot be written in place"),
    Job::key<Size<kMiB, 16 * kTiB>, DRIFTLESS_FIELD(receiver.fold_bytes)>(
        "receiver.fold_size",
        "The most bytes of versions that one commit folds; compact counts as decoded"),
    Job::key<Count<1, 256>, DRIFTLESS_FIELD(receiver.read_workers)>(
        "receiver.read_workers",
        "Parts or ranges of a version that a rollout fetches at a time; parts that an agent "
        "fetches and decodes")
        .once("agent.read_workers"),
    Job::key<ProofName, DRIFTLESS_FIELD(receiver.proof)>(
        "receiver.prove", "staged, always or a whole number",
        "When a rollout reads all of its weights and proves their digest. staged: while it stages "
        "the next version; the pause proves only what changes. A number N: the same, with every "
        "Nth "
        "version. always: in every pause, after the writing")
        .once("receiver.prove.every"),
    Job::key<Text, DRIFTLESS_ENGINE(url)>(
        "engines[].url", "http://host:port",
        "An engine. If it has a kind, an agent drives it; if it has an action, the trainer "
        "notifies it"),
    Job::key<Maybe<OneOf<kEngineKinds>>, DRIFTLESS_ENGINE(kind)>(
        "engines[].kind", "vllm or sglang",
        "The engine's software, if the agent of its host drives it"),
    Job::key<Maybe<OneOf<kActions>>, DRIFTLESS_ENGINE(action)>(
        "engines[].action", "pull_weights, update_weights_from_disk or flush",
        "The call by which the trainer notifies it of every version"),
    Job::key<Text, DRIFTLESS_ENGINE(local_checkpoint_dir)>(
        "engines[].local_checkpoint_dir", kPath,
        "With an action: the checkpoint on its host that it loads; empty: "
        "receiver.checkpoint_dir"),
    Job::key<Text, DRIFTLESS_ENGINE(token_file)>("engines[].token_file", kPath,
                                                 "File with its bearer token"),
    Job::key<Duration, DRIFTLESS_FIELD(engine_calls.timeout)>("engine_calls.timeout",
                                                              "For one call to an engine")
        .once("notify.timeout agent.call_timeout"),
    Job::key<Count<0, 10>, DRIFTLESS_FIELD(engine_calls.retries)>(
        "engine_calls.retries", "Retries of a call of the trainer, or of an update by an agent")
        .once("notify.retries agent.retries"),
    Job::key<Duration, DRIFTLESS_FIELD(engine_calls.retry_wait)>(
        "engine_calls.retry_wait",
        "Wait before the first retry; each further wait is twice as long")
        .once("notify.retry_wait agent.retry_wait"),
    Job::key<Switch, DRIFTLESS_FIELD(notify.pause)>(
        "notify.pause",
        "Pause generation and flush the cache while an engine loads, as slime does"),
    Job::key<Switch, DRIFTLESS_FIELD(notify.cleanup)>(
        "notify.cleanup",
        "Remove a version once every engine has acknowledged it, and no rollout needs it"),
    Job::key<OneOf<kHandOvers>, DRIFTLESS_FIELD(agent.hand_over)>(
        "agent.hand_over", "host_shm, checkpoint or workers",
        "How driftless agent hands versions over: to receivers in the engines' workers "
        "(road.host_shm.*), or as a checkpoint that they read again. workers: each worker reads "
        "the road itself, by the configuration that the engine was started with"),
    Job::key<Text, DRIFTLESS_FIELD(agent.checkpoint_dir)>(
        "agent.checkpoint_dir", kPath,
        "Hand-over checkpoint: the directory to patch; {rank} stands for the agent's number"),
    Job::key<Count<>, DRIFTLESS_FIELD(agent.workers)>(
        "agent.workers",
        "Workers on host_shm that must have the last version at the end. Once this many have "
        "announced what they hold, the agent fetches only that; 0: after road.host_shm.versions "
        "versions without a new announcement"),
    Job::key<Size<kMiB, 16 * kTiB>, DRIFTLESS_FIELD(agent.read_bytes)>(
        "agent.read_memory", "Memory that parts hold while an agent reads them, at most"),
    Job::key<Duration, DRIFTLESS_FIELD(agent.stage_timeout)>(
        "agent.stage_timeout", "For the workers of an engine to make a version ready"),
    Job::key<RunId, DRIFTLESS_FIELD(agent.take_over)>(
        "agent.take_over",
        "The id of a run that may take over engines and agent.checkpoint_dir from another run: "
        "once, with a full version that has every tensor which the other run wrote; empty: none"),
    Job::key<Text, DRIFTLESS_FIELD(agent.sglang_loader)>(
        "agent.sglang_loader", "a Python name",
        "Hand-over host_shm to SGLang: the loader that its --custom-weight-loader names"),
    Job::key<Count<>, DRIFTLESS_FIELD(agent.max_lag)>(
        "agent.max_lag",
        "Versions that an engine may be behind while its agent's /ready answers 200"),
    Job::key<Duration, DRIFTLESS_FIELD(agent.engine_look)>(
        "agent.engine_look", "How often an agent asks an idle engine what it serves"),
    Job::key<Text, DRIFTLESS_FIELD(monitor.address)>(
        "monitor.address", "host:port, :port or port",
        "The leading trainer and each agent show their state over HTTP there; without a host on "
        "127.0.0.1; port 0: any, and the process prints it; empty: nowhere"),
    Job::key<Text, DRIFTLESS_FIELD(monitor.token_file)>(
        "monitor.token_file", kPath,
        "File of mode 600 with the token that each request needs; other hosts cannot be served "
        "without one; empty: none"),
    Job::key<Text, DRIFTLESS_FIELD(metrics_file)>(
        "metrics.file", kPath,
        "JSON lines, one per version and process; {role} and {rank} are filled in; empty: none"),
    Job::key<Text, DRIFTLESS_FIELD(monitor.spans_file)>(
        "monitor.spans_file", kPath,
        "Spans of every version as lines of OTLP/JSON; {role} and {rank} are filled in; empty: "
        "none"),
};

#undef DRIFTLESS_FIELD
#undef DRIFTLESS_ENGINE

}  // namespace

Config::Config(const ConfigTable& roads_of) : table(&roads_of) {
  gpu.snapshot = SnapshotPlace::kHost;
  for (const RoadKind* const kind : table->kinds()) roads.push_back(kind->defaults());
}

const RoadKind& Config::kind() const {
  static constexpr RoadKind kNone{};
  const auto at = std::ranges::find(table->kinds(), road, &RoadKind::name);
  return at == table->kinds().end() ? kNone : **at;
}

const RoadOptions& Config::road_options() const {
  static const RoadOptions kNone;
  const auto at = std::ranges::find(table->kinds(), road, &RoadKind::name);
  return at == table->kinds().end() ? kNone
                                    : roads[static_cast<std::size_t>(at - table->kinds().begin())];
}

Config Config::of_fallback() const {
  Config other = *this;
  other.road = fallback();
  return other;
}

void Config::use_gpu(int device) {
  if (!gpu_device_auto) return;
  // Sets it for the roads that have this key, too. A number that the key refuses is not a GPU.
  static_cast<void>(table->find("gpu.device")->apply(*this, 0, std::to_string(device)));
  gpu_device_auto = true;
}

std::vector<EngineEndpoint> Config::driven_engines() const {
  std::vector<EngineEndpoint> driven;
  std::ranges::copy_if(engines, std::back_inserter(driven),
                       [](const EngineEndpoint& engine) { return engine.kind.has_value(); });
  return driven;
}

std::vector<EngineEndpoint> Config::notified_engines() const {
  std::vector<EngineEndpoint> notified;
  std::ranges::copy_if(engines, std::back_inserter(notified),
                       [](const EngineEndpoint& engine) { return engine.action.has_value(); });
  return notified;
}

std::string Config::road_row() const {
  if (kind().variant == nullptr) return road;
  const std::string_view variant = kind().variant(road_options(), to_string(publisher.layout));
  return variant.empty() ? road : concat(road, "/", variant);
}

Status ConfigKey::apply(Config& config, std::size_t item, std::string_view value) const {
  if (config_key_ != nullptr) DRIFTLESS_RETURN_IF_ERROR(config_key_->apply(config, item, value));
  for (const auto& [kind, row] : roads_) {
    DRIFTLESS_RETURN_IF_ERROR(row->apply(config.roads[kind], item, value));
  }
  return {};
}

std::string ConfigKey::text(const Config& config, std::size_t item) const {
  if (config_key_ != nullptr) return config_key_->text(config, item);
  auto at = std::ranges::find_if(roads_, [&](const auto& each) {
    return config.table->kinds()[each.first]->name == config.road;
  });
  if (at == roads_.end()) at = roads_.begin();
  return at->second->text(config.roads[at->first], item);
}

std::string ConfigKey::default_value() const {
  if (!default_text.empty()) return std::string(default_text);
  Config defaults(*table_);
  if (in_list()) defaults.engines.emplace_back();
  return text(defaults, 0);
}

std::span<const RoadKind* const> road_kinds() {
  static const std::vector<const RoadKind*> kinds = [] {
    std::vector<const RoadKind*> found;
    for (const Road& row : RoadRows<NotAsked>::kRows) {
      if (row.kind != nullptr) found.push_back(row.kind);
    }
    return found;
  }();
  return kinds;
}

const ConfigTable& config_table() {
  static const ConfigTable table(road_kinds());
  return table;
}

template <typename Settings>
ConfigKey& ConfigTable::row(const SettingKey<Settings>& row) {
  auto at = std::ranges::find(keys_, row.name, &ConfigKey::name);
  if (at == keys_.end()) {
    // The roads' keys follow the job's own "road." keys.
    const auto last = std::ranges::find_if(keys_.rbegin(), keys_.rend(), [](const ConfigKey& key) {
      return key.name.starts_with("road.");
    });
    const bool among = row.name.starts_with("road.") && last != keys_.rend();
    at = keys_.emplace(among ? last.base() : keys_.end());
    at->table_ = this;
    at->name = row.name;
    at->expected = row.expected;
    at->default_text = row.default_text;
    at->help = row.help;
  }
  for (std::string_view names = row.former; !names.empty();) {
    const std::size_t end = std::min(names.find(' '), names.size());
    at->former.push_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return *at;
}

ConfigTable::ConfigTable(std::span<const RoadKind* const> kinds) : kinds_(kinds) {
  for (const SettingKey<Config>& key : kKeys) row(key).config_key_ = &key;
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    for (const RoadKey& key : kinds[kind]->keys) row(key).roads_.emplace_back(kind, &key);
  }
}

const ConfigKey* ConfigTable::find(std::string_view name) const {
  const auto at = std::ranges::find(keys_, name, &ConfigKey::name);
  return at == keys_.end() ? nullptr : &*at;
}

const ConfigKey* ConfigTable::find_former(std::string_view name) const {
  const auto at = std::ranges::find_if(keys_, [&](const ConfigKey& key) {
    return std::ranges::find(key.former, name) != key.former.end();
  });
  return at == keys_.end() ? nullptr : &*at;
}

std::string_view ConfigTable::nearest(std::string_view name) const {
  if (name.size() > 128) return {};
  std::string_view nearest;
  std::size_t least = name.size() / 2 + 2;  // a key further away would not help
  const auto last_word = [](std::string_view text) { return text.substr(text.rfind('.') + 1); };
  for (const ConfigKey& key : keys_) {
    // A key with the wrong section ("dir" for "road.dir") counts as similar, too.
    const std::size_t distance = std::min(edit_distance(name, key.name),
                                          edit_distance(last_word(name), last_word(key.name)) + 1);
    if (distance >= least) continue;
    least = distance;
    nearest = key.name;
  }
  return nearest;
}

}  // namespace driftless
