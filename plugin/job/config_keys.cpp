// SPDX-License-Identifier: Apache-2.0
// The table of keys.
#include <algorithm>
#include <array>

#include "plugin/job/config_key_makers.h"

namespace driftless {
namespace {

using namespace config_key;

constexpr std::array kModes = {Choice<UpdateMode>{"delta", UpdateMode::kDelta},
                               Choice<UpdateMode>{"full", UpdateMode::kFull}};
constexpr std::array kRendezvous = {Choice<RendezvousKind>{"mpi", RendezvousKind::kMpi},
                                    Choice<RendezvousKind>{"tcp", RendezvousKind::kTcp},
                                    Choice<RendezvousKind>{"file", RendezvousKind::kFile}};
constexpr std::array kLandings = {Choice<MemoryKind>{"host", MemoryKind::kHost},
                                  Choice<MemoryKind>{"device", MemoryKind::kDevice}};
constexpr std::array kResumes = {Choice<ResumeMode>{"auto", ResumeMode::kAuto},
                                 Choice<ResumeMode>{"never", ResumeMode::kNever},
                                 Choice<ResumeMode>{"require", ResumeMode::kRequire}};
constexpr std::array kTargets = {Choice<TargetKind>{"memory", TargetKind::kMemory},
                                 Choice<TargetKind>{"checkpoint", TargetKind::kCheckpoint},
                                 Choice<TargetKind>{"device", TargetKind::kDevice}};
constexpr std::array kHandOvers = {Choice<HandOver>{"host_shm", HandOver::kHostShm},
                                   Choice<HandOver>{"checkpoint", HandOver::kCheckpoint}};
constexpr std::array kEngineKinds = {Choice<EngineKind>{"vllm", EngineKind::kVllm},
                                     Choice<EngineKind>{"sglang", EngineKind::kSglang}};
constexpr std::array kActions = {
    Choice<EngineAction>{"pull_weights", EngineAction::kPullWeights},
    Choice<EngineAction>{"update_weights_from_disk", EngineAction::kUpdateFromDisk},
    Choice<EngineAction>{"flush", EngineAction::kUpdateFlush}};

Status apply_layout(Config& config, std::size_t, std::string_view value) {
  config.layout_auto = value == kAuto;
  if (config.layout_auto) return {};
  const Result<DirectoryLayout> layout = parse_directory_layout(value);
  if (!layout.ok()) return not_one_of("auto, flush, hf_delta, hdf5 or frames", value);
  config.publisher.layout = *layout;
  return {};
}

Status apply_encoding(Config& config, std::size_t, std::string_view value) {
  config.encoding_auto = value == kAuto;
  if (config.encoding_auto) return {};
  const Result<Encoding> encoding = parse_encoding(value);
  if (!encoding.ok() || *encoding == Encoding::kFull) {
    return not_one_of(
        "auto, indices, deltas, deltas_zstd, xor or overwrite (whole versions are mode: full)",
        value);
  }
  config.publisher.encoding = *encoding;
  return {};
}

Status apply_checksum(Config& config, std::size_t, std::string_view value) {
  const Result<ChecksumKind> kind = parse_checksum_kind(value);
  if (!kind.ok()) return not_one_of("xxh3-128, blake3 or adler32", value);
  config.publisher.checksum = *kind;
  return {};
}

Status apply_snapshot(Config& config, std::size_t, std::string_view value) {
  for (const SnapshotPlace place :
       {SnapshotPlace::kHost, SnapshotPlace::kPinned, SnapshotPlace::kDevice}) {
    if (value != to_string(place)) continue;
    config.gpu.snapshot = place;
    return {};
  }
  return not_one_of("host, pinned or device", value);
}

Status apply_gpu_device(Config& config, std::size_t, std::string_view value) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t number, parse_count(value, 0, 1024));
  config.gpu.device = static_cast<int>(number);
  return {};
}

Status apply_threads(Config& config, std::size_t, std::string_view value) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t count, parse_count(value, 0, 1024));
  config.publisher.threads = config.receiver.threads = static_cast<unsigned>(count);
  return {};
}

Status apply_ring_size(Config& config, std::size_t, std::string_view value) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t size, parse_size(value));
  DRIFTLESS_RETURN_IF_ERROR(check_within(size, std::uint64_t{64} << 10, std::uint64_t{16} << 40));
  config.mpi_rma.ring_bytes = config.loopback.ring_bytes = config.nccl.ring_bytes = size;
  return {};
}

Status apply_ring_versions(Config& config, std::size_t, std::string_view value) {
  if (value == kAuto) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t count, parse_count(value, 1, 65'536));
  config.mpi_rma.ring_versions = static_cast<unsigned>(count);
  config.loopback.ring_versions = config.nccl.ring_versions = config.mpi_rma.ring_versions;
  return {};
}

std::string ring_versions_text(const Config& config, std::size_t) {
  if (config.road == kLoopback) return std::to_string(config.loopback.ring_versions);
  if (config.road == kNccl) return std::to_string(config.nccl.ring_versions);
  if (config.road == kHostShm) return std::to_string(config.host_shm.versions);
  return std::to_string(config.mpi_rma.ring_versions);
}

Status apply_anchor_size(Config& config, std::size_t, std::string_view value) {
  config.anchor_auto = value == kAuto;
  if (config.anchor_auto) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t size, parse_size(value));
  DRIFTLESS_RETURN_IF_ERROR(check_within(size, 0, std::uint64_t{16} << 40));
  config.mpi_rma.anchor_bytes = size;
  return {};
}

Status apply_anchor_by_size(Config& config, std::size_t, std::string_view value) {
  config.anchor_by_size_auto = value == kAuto;
  if (config.anchor_by_size_auto) return {};
  if (!parse_bool(value).ok()) return not_one_of("true, false or auto", value);
  config.publisher.anchor_by_size = *parse_bool(value);
  return {};
}

Status apply_keep_versions(Config& config, std::size_t, std::string_view value) {
  config.keep_auto = value == kAuto;
  if (config.keep_auto) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(config.publisher.keep_versions, parse_count(value, 0, kMost));
  return {};
}

Status apply_patience(Config& config, std::size_t, std::string_view value) {
  if (value == kAuto) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const Milliseconds wait, parse_wait(value));
  config.mpi_rma.patience = config.shared_fs.patience = config.loopback.patience = wait;
  config.nccl.patience = config.host_shm.patience = wait;
  return {};
}

std::string patience_text(const Config& config, std::size_t) {
  if (config.road == kSharedFs) return duration_text(config.shared_fs.patience);
  if (config.road == kLoopback) return duration_text(config.loopback.patience);
  if (config.road == kNccl) return duration_text(config.nccl.patience);
  if (config.road == kHostShm) return duration_text(config.host_shm.patience);
  return duration_text(config.mpi_rma.patience);
}

Status apply_device(Config& config, std::size_t, std::string_view value) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t number, parse_count(value, 0, 1023));
  config.nccl.device = static_cast<int>(number);
  return {};
}

constexpr ConfigKey device_key() {
  return {"road.nccl.device",
          kNumber,
          "",
          "The GPU, among those that the process may use",
          apply_device,
          [](const Config& config, std::size_t) { return std::to_string(config.nccl.device); }};
}

Status apply_host_shm_name(Config& config, std::size_t, std::string_view value) {
  HostShmOptions named;
  named.name = value;
  DRIFTLESS_RETURN_IF_ERROR(check_host_shm(named));
  config.host_shm.name = named.name;
  return {};
}

Status apply_density(Config& config, std::size_t, std::string_view value) {
  DRIFTLESS_ASSIGN_OR_RETURN(config.publisher.full_above_density, parse_number(value, 0, 1));
  return {};
}

Status apply_receiver_id(Config& config, std::size_t, std::string_view value) {
  if (value == kAuto) {
    config.receiver_id.clear();
    return {};
  }
  if (!check_file_name(value).ok() || value.starts_with('.') || value.size() > 128) {
    return error(StatusCode::kInvalidArgument,
                 "expected auto or a plain file name of at most 128 bytes, found ", shown(value));
  }
  config.receiver_id = value;
  return {};
}

constexpr std::array<std::string_view, 2> kLists = {"engines", "agent.engines"};

#define DRIFTLESS_FIELD(field) [](auto& config, std::size_t) -> auto& { return config.field; }
#define DRIFTLESS_ENGINE(field) \
  [](auto& config, std::size_t item) -> auto& { return config.engines[item].field; }
#define DRIFTLESS_AGENT_ENGINE(field) \
  [](auto& config, std::size_t item) -> auto& { return config.agent.engines[item].field; }
#define DRIFTLESS_OPTION(field) [](auto& options) -> auto& { return options.field; }

constexpr std::array kKeys = {
    choice_key<DRIFTLESS_FIELD(publisher.mode), kModes>(
        "mode", "delta or full", "What a version carries: what changed, or all weights"),
    ConfigKey{"encoding", "auto, indices, deltas, deltas_zstd, xor or overwrite", kAuto,
              "How changes are written. auto: xor for hf_delta, deltas_zstd for flush, else deltas",
              apply_encoding,
              [](const Config& config, std::size_t) {
                return std::string(info(config.publisher.encoding).name);
              }},
    ConfigKey{"checksum", "xxh3-128, blake3 or adler32", "",
              "Checksum of every changed tensor, in the layouts that carry them", apply_checksum,
              [](const Config& config, std::size_t) {
                return std::string(to_string(config.publisher.checksum));
              }},
    size_key<DRIFTLESS_FIELD(publisher.buffer_bytes), (std::uint64_t{64} << 10),
             (std::uint64_t{16} << 30)>("buffer_size",
                                        "Bytes of a bucket: memory against overhead per part"),
    ConfigKey{
        "snapshot", "host, pinned or device", "",
        "Where the publisher keeps what the receivers have. pinned, device: compared on the GPU",
        apply_snapshot,
        [](const Config& config, std::size_t) {
          return std::string(to_string(config.gpu.snapshot));
        }},
    ConfigKey{"gpu.device", kNumber, "", "Number of this process' GPU, as CUDA counts",
              apply_gpu_device,
              [](const Config& config, std::size_t) { return std::to_string(config.gpu.device); }},
    size_key<DRIFTLESS_FIELD(gpu.slice_bytes), (std::uint64_t{1} << 20), (std::uint64_t{16} << 30)>(
        "gpu.slice_size", "Weights compared at a time on the GPU: bounds the memory taken there"),
    ConfigKey{
        "threads", kNumber, "", "Threads of one process; 0: all cores", apply_threads,
        [](const Config& config, std::size_t) { return std::to_string(config.publisher.threads); }},
    text_key<DRIFTLESS_FIELD(road)>("road.kind", "mpi_rma, nccl, shared_fs, host_shm or loopback",
                                    "What carries versions"),
    text_key<DRIFTLESS_FIELD(shared_fs.dir)>("road.dir", kPath,
                                             "shared_fs: the directory that both sides see"),
    ConfigKey{"road.layout", "auto, flush, hf_delta, hdf5 or frames", kAuto,
              "Files of a version on shared_fs. auto: flush there, frames on other roads",
              apply_layout,
              [](const Config& config, std::size_t) {
                return std::string(to_string(config.publisher.layout));
              }},
    ConfigKey{
        "road.ring_size", kSize, "",
        "mpi_rma, loopback: memory for versions on each trainer rank; nccl: on each rollout's GPU, "
        "of each trainer rank",
        apply_ring_size,
        [](const Config& config, std::size_t) { return size_text(config.mpi_rma.ring_bytes); }},
    ConfigKey{"road.ring_versions", "a whole number, or auto", kAuto,
              "mpi_rma, loopback, nccl: versions kept at most. auto: 64, on loopback and nccl 32",
              apply_ring_versions, ring_versions_text},
    ConfigKey{
        "road.anchor_size", kSizeOrAuto, kAuto,
        "mpi_rma: memory for an anchor on each trainer rank. auto: what the base takes, where "
        "anchors are on",
        apply_anchor_size,
        [](const Config& config, std::size_t) {
          return config.anchor_auto ? std::string(kAuto) : size_text(config.mpi_rma.anchor_bytes);
        }},
    switch_key<DRIFTLESS_FIELD(mpi_rma.progress_thread)>(
        "road.progress_thread", "mpi_rma: a thread that answers gets on networks without RDMA"),
    choice_key<DRIFTLESS_FIELD(rendezvous.kind), kRendezvous>(
        "road.nccl.rendezvous", "mpi, tcp or file",
        "How processes find each other: in one mpirun job, at an address, or in a directory"),
    text_key<DRIFTLESS_FIELD(rendezvous.address)>(
        "road.nccl.address", "host:port",
        "tcp: where the leading trainer listens, and the others go"),
    text_key<DRIFTLESS_FIELD(rendezvous.token_file)>(
        "road.nccl.token_file", kPath,
        "tcp: file with the run's secret, at least 16 bytes, readable by its owner alone"),
    text_key<DRIFTLESS_FIELD(rendezvous.dir)>(
        "road.nccl.dir", kPath, "file: a directory that all see, closed to other users"),
    device_key(),
    choice_key<DRIFTLESS_FIELD(nccl.landing), kLandings>(
        "road.nccl.landing", "host or device", "Where a rollout finds the frames that arrived"),
    count_key<DRIFTLESS_FIELD(nccl.receivers)>(
        "road.nccl.receivers",
        "The first version waits until so many rollouts have joined; 0: those of the mpirun job"),
    duration_key<DRIFTLESS_FIELD(nccl.silence)>(
        "road.nccl.silence", "A rollout of which nothing was heard for so long is gone"),
    ConfigKey{"road.host_shm.name", "a plain name", "",
              "Name of the agent's shared memory: the same for the agent and its workers",
              apply_host_shm_name,
              [](const Config& config, std::size_t) { return config.host_shm.name; }},
    text_key<DRIFTLESS_FIELD(host_shm.dir)>("road.host_shm.dir", kPath,
                                            "A file system in memory that it lies in"),
    size_key<DRIFTLESS_FIELD(host_shm.size_bytes), (std::uint64_t{64} << 10),
             (std::uint64_t{16} << 40)>("road.host_shm.size",
                                        "Memory for versions and an anchor, at most"),
    count_key<DRIFTLESS_FIELD(host_shm.versions), 1, 65'536>("road.host_shm.versions",
                                                             "Versions kept at most"),
    text_key<DRIFTLESS_FIELD(shared_fs.after_publish)>(
        "road.after_publish", "a shell command",
        "shared_fs: run by the leading trainer once a version is there"),
    text_key<DRIFTLESS_FIELD(shared_fs.before_read)>("road.before_read", "a shell command",
                                                     "shared_fs: run by a rollout before it looks"),
    duration_key<DRIFTLESS_FIELD(shared_fs.hook_timeout)>("road.hook_timeout",
                                                          "shared_fs: for either command"),
    road_duration_key<DRIFTLESS_OPTION(poll_first)>(
        "road.poll_first",
        "A rollout's first wait between two looks; doubles. auto: 5ms, on mpi_rma and host_shm "
        "1ms"),
    road_duration_key<DRIFTLESS_OPTION(poll_longest)>(
        "road.poll_longest", "Its longest. auto: 1s, on mpi_rma and host_shm 50ms"),
    ConfigKey{"road.patience", kDurationOrAuto, kAuto,
              "How long a silent rollout counts as there. auto: 10min, on loopback 1min",
              apply_patience, patience_text},
    switch_key<DRIFTLESS_FIELD(publisher.first_anchor)>(
        "anchors.first", "Publish version 0 whole, for rollouts that have no base"),
    count_key<DRIFTLESS_FIELD(publisher.anchor_every)>(
        "anchors.every", "A whole version beside every so many; 0: not by number"),
    ConfigKey{"anchors.by_size", "true, false or auto", kAuto,
              "Another anchor once the versions since the last outgrow it. auto: true on "
              "shared_fs, unless keep_versions is 0 or anchors.every is set",
              apply_anchor_by_size,
              [](const Config& config, std::size_t) -> std::string {
                return config.publisher.anchor_by_size ? "true" : "false";
              }},
    ConfigKey{"full_above_density", "a number from 0 to 1", "",
              "A version of which a larger share changed is sent whole", apply_density,
              [](const Config& config, std::size_t) {
                return number_text(config.publisher.full_above_density);
              }},
    ConfigKey{"keep_versions", "a whole number, or auto", kAuto,
              "Versions to keep beside those that a rollout needs, and behind an anchor; 0: all. "
              "auto: 16 on shared_fs (2 with mode: full), 0 on other roads, which are bounded",
              apply_keep_versions,
              [](const Config& config, std::size_t) {
                return std::to_string(config.publisher.keep_versions);
              }},
    choice_key<DRIFTLESS_FIELD(publisher.resume), kResumes>(
        "resume", "auto, never or require",
        "A road that holds versions: go on, refuse it, or refuse an empty one"),
    duration_key<DRIFTLESS_FIELD(publisher.deadline)>("deadlines.publish",
                                                      "For publishing one version"),
    duration_key<DRIFTLESS_FIELD(receiver.fetch_deadline)>(
        "deadlines.fetch", "For fetching and preparing what is there"),
    duration_key<DRIFTLESS_FIELD(connect_deadline)>(
        "deadlines.connect", "Until the other side is there, at the start and at the end"),
    ConfigKey{"receiver.id", "a plain file name, or auto", kAuto,
              "A rollout's name, unique on the road. auto: by rank, or host and process",
              apply_receiver_id,
              [](const Config& config, std::size_t) {
                return config.receiver_id.empty() ? std::string(kAuto) : config.receiver_id;
              }},
    choice_key<DRIFTLESS_FIELD(target), kTargets>("receiver.target", "memory, checkpoint or device",
                                                  "Where a rollout keeps the weights"),
    text_key<DRIFTLESS_FIELD(checkpoint_dir)>(
        "receiver.checkpoint_dir", kPath,
        "Target checkpoint: the directory to patch; {rank} stands for the rollout's number"),
    size_key<DRIFTLESS_FIELD(receiver.chunk_bytes), (std::uint64_t{1} << 16),
             (std::uint64_t{16} << 40)>(
        "receiver.chunk_size",
        "the most of full-shape tensors that an engine's own loader is given at a time, where its "
        "parameters cannot be written in place"),
    size_key<DRIFTLESS_FIELD(receiver.fold_bytes), (std::uint64_t{1} << 20),
             (std::uint64_t{16} << 40)>("receiver.fold_size",
                                        "Versions folded into one commit, in bytes at most"),
    text_key<DRIFTLESS_ENGINE(endpoint.url)>("engines[].url", "http://host:port",
                                             "An engine to tell about every version"),
    choice_key<DRIFTLESS_ENGINE(endpoint.action), kActions>(
        "engines[].action", "pull_weights, update_weights_from_disk or flush",
        "What it is asked to do"),
    text_key<DRIFTLESS_ENGINE(endpoint.local_checkpoint_dir)>(
        "engines[].local_checkpoint_dir", kPath,
        "The checkpoint on its host that it patches; empty: receiver.checkpoint_dir"),
    text_key<DRIFTLESS_ENGINE(token_file)>("engines[].token_file", kPath,
                                           "File with its bearer token"),
    duration_key<DRIFTLESS_FIELD(notify.timeout)>("notify.timeout", "For one call to an engine"),
    count_key<DRIFTLESS_FIELD(notify.retries), 0, 10>("notify.retries", "Further tries"),
    duration_key<DRIFTLESS_FIELD(notify.retry_wait)>(
        "notify.retry_wait", "Before the first of them; then twice as long each time"),
    switch_key<DRIFTLESS_FIELD(notify.cleanup)>(
        "notify.cleanup",
        "Remove a version once every engine has acknowledged it, and no rollout needs it"),
    choice_key<DRIFTLESS_FIELD(agent.hand_over), kHandOvers>(
        "agent.hand_over", "host_shm or checkpoint",
        "How driftless agent hands versions over: to receivers in the engines' workers "
        "(road.host_shm.*), or as a checkpoint that they read again"),
    text_key<DRIFTLESS_FIELD(agent.checkpoint_dir)>(
        "agent.checkpoint_dir", kPath,
        "Hand-over checkpoint: the directory to patch; {rank} stands for the agent's number"),
    text_key<DRIFTLESS_AGENT_ENGINE(url)>("agent.engines[].url", "http://host:port",
                                          "An engine of the host, which the agent drives"),
    choice_key<DRIFTLESS_AGENT_ENGINE(kind), kEngineKinds>("agent.engines[].kind", "vllm or sglang",
                                                           "What it is"),
    text_key<DRIFTLESS_AGENT_ENGINE(token_file)>("agent.engines[].token_file", kPath,
                                                 "File with its bearer token"),
    count_key<DRIFTLESS_FIELD(agent.workers)>(
        "agent.workers", "Workers on host_shm that must have the last version at the end"),
    count_key<DRIFTLESS_FIELD(agent.read_workers), 1, 256>(
        "agent.read_workers", "Parts that are fetched and decoded at a time"),
    size_key<DRIFTLESS_FIELD(agent.read_bytes), (std::uint64_t{1} << 20),
             (std::uint64_t{16} << 40)>("agent.read_memory", "Memory that they hold, at most"),
    duration_key<DRIFTLESS_FIELD(agent.stage_timeout)>(
        "agent.stage_timeout", "For the workers of an engine to make a version ready"),
    duration_key<DRIFTLESS_FIELD(agent.call_timeout)>("agent.call_timeout",
                                                      "For one call to an engine"),
    count_key<DRIFTLESS_FIELD(agent.retries), 0, 10>("agent.retries",
                                                     "Further tries of an engine's update"),
    duration_key<DRIFTLESS_FIELD(agent.retry_wait)>(
        "agent.retry_wait", "Before the first of them; then twice as long each time"),
    text_key<DRIFTLESS_FIELD(agent.sglang_loader)>(
        "agent.sglang_loader", "a Python name",
        "Hand-over host_shm to SGLang: the loader that its --custom-weight-loader names"),
    text_key<DRIFTLESS_FIELD(metrics_file)>(
        "metrics.file", kPath,
        "JSON lines, one per version and process; {role} and {rank} are filled in; empty: none"),
};

#undef DRIFTLESS_FIELD
#undef DRIFTLESS_ENGINE
#undef DRIFTLESS_AGENT_ENGINE
#undef DRIFTLESS_OPTION

}  // namespace

std::string Config::road_row() const {
  if (road == kSharedFs && publisher.layout == DirectoryLayout::kHdf5) return "shared_fs/hdf5";
  if (road == kNccl && rendezvous.kind == RendezvousKind::kTcp) return "nccl/tcp";
  if (road == kNccl && rendezvous.kind == RendezvousKind::kMpi) return "nccl/mpi";
  return road;
}

std::string ConfigKey::default_value() const {
  if (!default_text.empty()) return std::string(default_text);
  Config defaults;
  if (in_list()) add_list_item(defaults, list());
  return text(defaults, 0);
}

std::span<const ConfigKey> config_keys() { return kKeys; }

std::span<const std::string_view> config_lists() { return kLists; }

std::size_t list_items(const Config& config, std::string_view list) {
  return list == kLists[0] ? config.engines.size() : config.agent.engines.size();
}

void add_list_item(Config& config, std::string_view list) {
  if (list == kLists[0]) {
    config.engines.emplace_back();
  } else {
    config.agent.engines.emplace_back();
  }
}

const ConfigKey* find_config_key(std::string_view name) {
  const auto* const at =
      std::find_if(kKeys.begin(), kKeys.end(), [&](const auto& key) { return key.name == name; });
  return at == kKeys.end() ? nullptr : at;
}

std::string_view nearest_config_key(std::string_view name) {
  if (name.size() > 128) return {};
  std::string_view nearest;
  std::size_t least = name.size() / 2 + 2;  // further away it would only puzzle
  const auto last_word = [](std::string_view text) { return text.substr(text.rfind('.') + 1); };
  for (const ConfigKey& key : kKeys) {
    // A key that stands under the wrong name ("dir" for "road.dir") is near, too.
    const std::size_t distance = std::min(edit_distance(name, key.name),
                                          edit_distance(last_word(name), last_word(key.name)) + 1);
    if (distance >= least) continue;
    least = distance;
    nearest = key.name;
  }
  return nearest;
}

}  // namespace driftless
