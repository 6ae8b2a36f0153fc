// SPDX-License-Identifier: Apache-2.0
// The table of keys.
#include <array>

#include "plugin/job/config_key_makers.h"

namespace driftless {
namespace {

using namespace config_key;

constexpr Choice<UpdateMode> kModes[] = {{"delta", UpdateMode::kDelta},
                                         {"full", UpdateMode::kFull}};
constexpr Choice<RendezvousKind> kRendezvous[] = {
    {"mpi", RendezvousKind::kMpi}, {"tcp", RendezvousKind::kTcp}, {"file", RendezvousKind::kFile}};
constexpr Choice<MemoryKind> kArrivals[] = {{"host", MemoryKind::kHost},
                                            {"device", MemoryKind::kDevice}};
constexpr Choice<ResumeMode> kResumes[] = {
    {"auto", ResumeMode::kAuto}, {"never", ResumeMode::kNever}, {"require", ResumeMode::kRequire}};
constexpr Choice<TargetKind> kTargets[] = {{"memory", TargetKind::kMemory},
                                           {"checkpoint", TargetKind::kCheckpoint},
                                           {"device", TargetKind::kDevice}};
constexpr Choice<bool> kProofs[] = {{"staged", false}, {"always", true}};
constexpr Choice<HandOver> kHandOvers[] = {{"host_shm", HandOver::kHostShm},
                                           {"checkpoint", HandOver::kCheckpoint}};
constexpr Choice<EngineKind> kEngineKinds[] = {{"vllm", EngineKind::kVllm},
                                               {"sglang", EngineKind::kSglang}};
constexpr Choice<EngineAction> kActions[] = {
    {"pull_weights", EngineAction::kPullWeights},
    {"update_weights_from_disk", EngineAction::kUpdateFromDisk},
    {"flush", EngineAction::kUpdateFlush}};

constexpr std::string_view kLayouts = "auto, flush, hf_delta, hdf5, frames or trl";
constexpr std::string_view kChecksums = "xxh3-128, blake3 or adler32";
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

struct HostShmName : Text {
  static Result<std::string> parse(std::string_view value) {
    HostShmOptions named;
    named.name = value;
    DRIFTLESS_RETURN_IF_ERROR(check_host_shm(named));
    return named.name;
  }
};

struct StoreUrl : Text {
  // What was refused is not shown: it may be a secret.
  static Result<std::string> parse(std::string_view value) {
    const auto scheme = value.find("://");
    const std::string_view rest =
        scheme == std::string_view::npos ? value : value.substr(scheme + 3);
    const bool query = value.starts_with("s3://") && rest.find('?') != std::string_view::npos;
    if (!query && rest.substr(0, rest.find_first_of("/?")).find('@') == std::string_view::npos) {
      return Text::parse(value);
    }
    return error(StatusCode::kInvalidArgument,
                 "expected s3://bucket/prefix or http(s)://host/path, without a user or a key: "
                 "credentials come from the environment, the shared file or the instance's role");
  }
  // A signed URL's query is a secret.
  static std::string text(const std::string& value) {
    const auto question = value.find('?');
    return question == std::string::npos ? value : value.substr(0, question) + "?(not shown)";
  }
};

struct StoreEndpoint : Text {
  static Result<std::string> parse(std::string_view value) {
    const bool known =
        value.empty() || value.starts_with("http://") || value.starts_with("https://");
    if (known && value.find_first_of("@?") == std::string_view::npos) return Text::parse(value);
    return error(StatusCode::kInvalidArgument,
                 "expected http://host:port or https://host:port, without a user or a query");
  }
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
constexpr std::array<std::string_view, 2> kLists = {"engines", "agent.engines"};

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

#define DRIFTLESS_FIELD(field) [](auto& config, std::size_t) -> auto& { return config.field; }
#define DRIFTLESS_ENGINE(field) \
  [](auto& config, std::size_t item) -> auto& { return config.engines[item].field; }
#define DRIFTLESS_AGENT_ENGINE(field) \
  [](auto& config, std::size_t item) -> auto& { return config.agent.engines[item].field; }

constexpr std::array kKeys = {
    key<OneOf<kModes>, DRIFTLESS_FIELD(publisher.mode)>(
        "mode", "delta or full", "What a version carries: what changed, or all weights"),
    chosen_key<EncodingName, DRIFTLESS_FIELD(encoding_auto), DRIFTLESS_FIELD(publisher.encoding),
               DRIFTLESS_FIELD(publisher.encoding_auto)>(
        "encoding", "auto, indices, deltas, deltas_zstd, compact, xor or overwrite",
        "How changes are written. auto: xor for hf_delta, deltas_zstd for flush, else what ends "
        "soonest "
        "on the link"),
    key<Named<parse_checksum_kind, kChecksums>, DRIFTLESS_FIELD(publisher.checksum)>(
        "checksum", "Checksum of every changed tensor, in the layouts that carry them"),
    key<Size<64 * kKiB, 16 * kGiB>, DRIFTLESS_FIELD(publisher.buffer_bytes)>(
        "buffer_size", "Bytes of a bucket: memory against overhead per part"),
    key<Named<parse_snapshot, kSnapshots>, DRIFTLESS_FIELD(gpu.snapshot)>(
        "snapshot",
        "Where the publisher keeps what the receivers have. pinned, device: compared on the GPU. "
        "none: changes are captured as the trainer writes them"),
    key<Count<0, 1024>, DRIFTLESS_FIELD(gpu.device)>("gpu.device",
                                                     "Number of this process' GPU, as CUDA counts"),
    key<Size<kMiB, 16 * kGiB>, DRIFTLESS_FIELD(gpu.slice_bytes)>(
        "gpu.slice_size", "Weights compared at a time on the GPU: bounds the memory taken there"),
    key<Size<kMiB, 1024 * kGiB>, DRIFTLESS_FIELD(publisher.capture_bytes)>(
        "capture.size",
        "snapshot: none: captured changes that are kept; a tensor with more goes out whole"),
    key<Count<0, 1'000'000>, DRIFTLESS_FIELD(publisher.sweep_every)>(
        "capture.sweep_every",
        "snapshot: none: versions from one sweep that proves the captured changes to the next; 0: "
        "only if changes may be missing. compact, hf_delta: every version"),
    key<Count<0, 1024>, DRIFTLESS_FIELD(publisher.threads), DRIFTLESS_FIELD(receiver.threads)>(
        "threads", "Threads of one process; 0: all cores"),
    key<Text, DRIFTLESS_FIELD(road)>("road.kind",
                                     "mpi_rma, nccl, shared_fs, object_store, host_shm or loopback",
                                     "What carries versions"),
    key<Text, DRIFTLESS_FIELD(shared_fs.dir)>("road.dir", kPath,
                                              "shared_fs: the directory that both sides see"),
    key<Text, DRIFTLESS_FIELD(shared_fs.foreign_base)>(
        "road.foreign_base", kPath,
        "shared_fs, of rollouts and agents: slime or miles writes road.dir, and started from this "
        "checkpoint"),
    key<StoreUrl, DRIFTLESS_FIELD(object_store.url)>(
        "road.url",
        "s3://bucket/prefix, hf://user/bucket/prefix, or for rollouts http(s)://host/path",
        "object_store: where versions are. What follows a '?' is sent with every request, and not "
        "shown"),
    key<StoreEndpoint, DRIFTLESS_FIELD(object_store.endpoint)>(
        "road.endpoint", "http(s)://host:port",
        "object_store: the server of an S3 store that is not AWS's; empty: AWS's of the region"),
    key<Text, DRIFTLESS_FIELD(object_store.region)>("road.region", "a name",
                                                    "object_store: the region to sign for"),
    key<Text, DRIFTLESS_FIELD(object_store.ca_file)>(
        "road.ca_file", kPath,
        "object_store: certificates of those that https is believed; empty: the system's"),
    key<DurationOrNone, DRIFTLESS_FIELD(object_store.presign)>(
        "road.presign",
        "object_store, of trainers: index.json holds presigned links for rollouts without "
        "credentials, which are valid for so long"),
    key<Count<1, 256>, DRIFTLESS_FIELD(object_store.streams)>(
        "road.streams", "object_store: uploads or downloads at a time, of 8 MiB each"),
    key<Text, DRIFTLESS_FIELD(object_store.spool_dir)>(
        "road.spool_dir", kPath,
        "object_store: where parts of more than 8 MiB lie meanwhile; empty: TMPDIR, or /tmp"),
    ConfigKey{"road.layout", kLayouts, kAuto,
              "Files of a version on shared_fs. auto: flush there, frames on other roads; trl: "
              "flush, and TRL's anchors and deltas beside it",
              set_layout, layout_text},
    key<Size<64 * kKiB, 16 * kTiB>, DRIFTLESS_FIELD(mpi_rma.ring_bytes),
        DRIFTLESS_FIELD(nccl.ring_bytes)>(
        "road.ring_size",
        "mpi_rma: memory for versions on each trainer rank; nccl: on each rollout's GPU, of each "
        "trainer rank"),
    road_key<Count<1, 65'536>, OfRoad<kMpiRma, DRIFTLESS_FIELD(mpi_rma.ring_versions)>,
             OfRoad<kNccl, DRIFTLESS_FIELD(nccl.ring_versions)>,
             OfRoad<kHostShm, DRIFTLESS_FIELD(host_shm.versions), false>>(
        "road.ring_versions", kNumberOrAuto,
        "mpi_rma, nccl: versions kept at most. auto: 64, on nccl 32"),
    auto_key<Size<0, 16 * kTiB>, DRIFTLESS_FIELD(anchor_auto),
             DRIFTLESS_FIELD(mpi_rma.anchor_bytes), true>(
        "road.anchor_size", kSizeOrAuto,
        "mpi_rma: memory for an anchor on each trainer rank. auto: what the base takes, if "
        "anchors are on"),
    key<Switch, DRIFTLESS_FIELD(mpi_rma.progress_thread)>(
        "road.progress_thread", "mpi_rma: a thread that answers gets on networks without RDMA"),
    key<OneOf<kRendezvous>, DRIFTLESS_FIELD(rendezvous.kind)>(
        "road.nccl.rendezvous", "mpi, tcp or file",
        "How processes find each other: in one mpirun job, at an address, or in a directory"),
    key<Text, DRIFTLESS_FIELD(rendezvous.address)>(
        "road.nccl.address", "host:port",
        "tcp: where the leading trainer listens, and the others go"),
    key<Text, DRIFTLESS_FIELD(rendezvous.token_file)>(
        "road.nccl.token_file", kPath,
        "tcp: file with the run's secret, at least 16 bytes, readable by its owner alone"),
    key<Text, DRIFTLESS_FIELD(rendezvous.dir)>(
        "road.nccl.dir", kPath, "file: a directory that all see, closed to other users"),
    key<Count<0, 1023>, DRIFTLESS_FIELD(nccl.device)>(
        "road.nccl.device", "The GPU, among those that the process may use"),
    key<OneOf<kArrivals>, DRIFTLESS_FIELD(nccl.arrival)>(
        "road.nccl.arrival", "host or device", "Where a rollout finds the frames that arrived"),
    key<Count<>, DRIFTLESS_FIELD(nccl.receivers)>(
        "road.nccl.receivers",
        "The first version waits until so many rollouts have joined; 0: those of the mpirun job"),
    key<Duration, DRIFTLESS_FIELD(nccl.silence)>(
        "road.nccl.silence", "A rollout of which nothing was heard for so long is gone"),
    key<HostShmName, DRIFTLESS_FIELD(host_shm.name)>(
        "road.host_shm.name", "a plain name",
        "Name of the agent's shared memory: the same for the agent and its workers"),
    key<Text, DRIFTLESS_FIELD(host_shm.dir)>("road.host_shm.dir", kPath,
                                             "A file system in memory that it lies in"),
    key<Size<64 * kKiB, 16 * kTiB>, DRIFTLESS_FIELD(host_shm.size_bytes)>(
        "road.host_shm.size", "Memory for versions and an anchor, at most"),
    key<Count<1, 65'536>, DRIFTLESS_FIELD(host_shm.versions)>("road.host_shm.versions",
                                                              "Versions kept at most"),
    key<Text, DRIFTLESS_FIELD(shared_fs.before_visible)>(
        "road.before_visible", "a shell command",
        "shared_fs: run by every trainer rank that publishes, once its files of a version are "
        "written and before any process can see the version"),
    key<Text, DRIFTLESS_FIELD(publisher.assets_dir)>(
        "road.assets_dir", kPath,
        "shared_fs with road.layout: hf_delta or flush: whole versions carry the other files of "
        "this checkpoint, its configuration and tokenizer; empty: of the one that is published, if "
        "it is a checkpoint"),
    key<Text, DRIFTLESS_FIELD(shared_fs.after_publish)>(
        "road.after_publish", "a shell command",
        "shared_fs: run by the leading trainer once a version is there"),
    key<Text, DRIFTLESS_FIELD(shared_fs.before_read)>(
        "road.before_read", "a shell command", "shared_fs: run by a rollout before it looks"),
    key<Duration, DRIFTLESS_FIELD(shared_fs.hook_timeout)>("road.hook_timeout",
                                                           "shared_fs: for either command"),
    key<Count<1, kMostPacks>, DRIFTLESS_FIELD(shared_fs.part_files)>(
        "road.part_files",
        "shared_fs with road.layout: frames: if more trainers than this publish, several write "
        "into one file, and a version has at most so many"),
    road_key<Duration, OfRoad<kMpiRma, DRIFTLESS_FIELD(mpi_rma.poll_first)>,
             OfRoad<kSharedFs, DRIFTLESS_FIELD(shared_fs.poll_first)>,
             OfRoad<kObjectStore, DRIFTLESS_FIELD(object_store.poll_first)>,
             OfRoad<kHostShm, DRIFTLESS_FIELD(host_shm.poll_first)>>(
        "road.poll_first", kDurationOrAuto,
        "A rollout's first wait between two looks; doubles. auto: 5ms, on mpi_rma and host_shm "
        "1ms, on object_store 50ms"),
    road_key<Duration, OfRoad<kMpiRma, DRIFTLESS_FIELD(mpi_rma.poll_longest)>,
             OfRoad<kSharedFs, DRIFTLESS_FIELD(shared_fs.poll_longest)>,
             OfRoad<kObjectStore, DRIFTLESS_FIELD(object_store.poll_longest)>,
             OfRoad<kHostShm, DRIFTLESS_FIELD(host_shm.poll_longest)>>(
        "road.poll_longest", kDurationOrAuto,
        "Its longest. auto: 1s, on mpi_rma and host_shm 50ms, on object_store 2s"),
    road_key<Duration, OfRoad<kMpiRma, DRIFTLESS_FIELD(mpi_rma.patience)>,
             OfRoad<kSharedFs, DRIFTLESS_FIELD(shared_fs.patience)>,
             OfRoad<kNccl, DRIFTLESS_FIELD(nccl.patience)>,
             OfRoad<kObjectStore, DRIFTLESS_FIELD(object_store.patience)>,
             OfRoad<kHostShm, DRIFTLESS_FIELD(host_shm.patience)>>(
        "road.patience", kDurationOrAuto, "How long a silent rollout counts as there. auto: 10min"),
    auto_key<SwitchOrAuto, DRIFTLESS_FIELD(first_anchor_auto),
             DRIFTLESS_FIELD(publisher.first_anchor)>(
        "anchors.first", "true, false or auto",
        "Publish version 0 whole, for rollouts that have no base. auto: true with road.layout: "
        "trl, whose workers begin with an anchor, else false"),
    auto_key<Count<>, DRIFTLESS_FIELD(anchor_every_auto), DRIFTLESS_FIELD(publisher.anchor_every)>(
        "anchors.every", kNumberOrAuto,
        "A whole version beside every so many; 0: not by number. auto: 10 with road.layout: trl, "
        "else 0"),
    auto_key<SwitchOrAuto, DRIFTLESS_FIELD(anchor_by_size_auto),
             DRIFTLESS_FIELD(publisher.anchor_by_size)>(
        "anchors.by_size", "true, false or auto",
        "Another anchor once the versions since the last outgrow it. auto: true on "
        "shared_fs and object_store, unless keep_versions is 0 or anchors.every is set"),
    key<Switch, DRIFTLESS_FIELD(publisher.cut_for_receivers)>(
        "cut_for_receivers",
        "Cut tensors to the slices that rollouts hold, so that each fetches its own alone"),
    key<Share, DRIFTLESS_FIELD(publisher.full_above_density)>(
        "full_above_density", "A version of which a larger share changed is sent whole"),
    auto_key<Count<>, DRIFTLESS_FIELD(keep_auto), DRIFTLESS_FIELD(publisher.keep_versions)>(
        "keep_versions", kNumberOrAuto,
        "Versions to keep beside those that a rollout needs, and behind an anchor; 0: all. "
        "auto: 16 on shared_fs and object_store (2 with mode: full), 0 on other roads, which are "
        "bounded"),
    key<OneOf<kResumes>, DRIFTLESS_FIELD(publisher.resume)>(
        "resume", "auto, never or require",
        "A road that holds versions: go on, refuse it, or refuse an empty one"),
    key<Duration, DRIFTLESS_FIELD(publisher.deadline)>("deadlines.publish",
                                                       "For publishing one version"),
    key<Duration, DRIFTLESS_FIELD(receiver.fetch_deadline)>(
        "deadlines.fetch", "For fetching and preparing what is there"),
    key<Duration, DRIFTLESS_FIELD(connect_deadline)>(
        "deadlines.connect", "Until the other side is there, at the start and at the end"),
    key<ReceiverId, DRIFTLESS_FIELD(receiver_id)>(
        "receiver.id", "a plain file name, or auto",
        "A rollout's name, unique on the road. auto: by rank, or host and process; a second "
        "receiver of a process gets _2 behind it"),
    key<OneOf<kTargets>, DRIFTLESS_FIELD(target)>("receiver.target", "memory, checkpoint or device",
                                                  "Where a rollout keeps the weights"),
    key<Text, DRIFTLESS_FIELD(checkpoint_dir)>(
        "receiver.checkpoint_dir", kPath,
        "Target checkpoint: the directory to patch; {rank} stands for the rollout's number"),
    key<Size<64 * kKiB, 16 * kTiB>, DRIFTLESS_FIELD(receiver.chunk_bytes)>(
        "receiver.chunk_size",
        "the most of full-shape tensors that an engine's own loader is given at a time, if its "
        "parameters cannot be written in place"),
    key<Size<kMiB, 16 * kTiB>, DRIFTLESS_FIELD(receiver.fold_bytes)>(
        "receiver.fold_size",
        "Versions folded into one commit, in bytes at most; compact counts as decoded"),
    key<Count<1, 256>, DRIFTLESS_FIELD(receiver.read_workers)>(
        "receiver.read_workers", "Ranges of a version that a rollout fetches at a time"),
    key<OneOf<kProofs>, DRIFTLESS_FIELD(receiver.proof.always)>(
        "receiver.prove", "staged or always, or every: N below it",
        "When a rollout reads all of its weights, and compares them with what they should be. "
        "staged: while the next version is made ready; what a commit touches is "
        "compared and read back in the pause. always: in every pause, after the writing"),
    key<Count<1>, DRIFTLESS_FIELD(receiver.proof.every)>(
        "receiver.prove.every", "staged, but so many versions after the last time"),
    key<Text, DRIFTLESS_ENGINE(endpoint.url)>("engines[].url", "http://host:port",
                                              "An engine to tell about every version"),
    key<OneOf<kActions>, DRIFTLESS_ENGINE(endpoint.action)>(
        "engines[].action", "pull_weights, update_weights_from_disk or flush",
        "What it is asked to do"),
    key<Text, DRIFTLESS_ENGINE(endpoint.local_checkpoint_dir)>(
        "engines[].local_checkpoint_dir", kPath,
        "The checkpoint on its host that it patches; empty: receiver.checkpoint_dir"),
    key<Text, DRIFTLESS_ENGINE(token_file)>("engines[].token_file", kPath,
                                            "File with its bearer token"),
    key<Duration, DRIFTLESS_FIELD(notify.timeout)>("notify.timeout", "For one call to an engine"),
    key<Count<0, 10>, DRIFTLESS_FIELD(notify.retries)>("notify.retries", "Further tries"),
    key<Duration, DRIFTLESS_FIELD(notify.retry_wait)>(
        "notify.retry_wait", "Before the first of them; then twice as long each time"),
    key<Switch, DRIFTLESS_FIELD(notify.pause)>(
        "notify.pause",
        "Pause generation and flush the cache while an engine loads, as slime does"),
    key<Switch, DRIFTLESS_FIELD(notify.cleanup)>(
        "notify.cleanup",
        "Remove a version once every engine has acknowledged it, and no rollout needs it"),
    key<OneOf<kHandOvers>, DRIFTLESS_FIELD(agent.hand_over)>(
        "agent.hand_over", "host_shm or checkpoint",
        "How driftless agent hands versions over: to receivers in the engines' workers "
        "(road.host_shm.*), or as a checkpoint that they read again"),
    key<Text, DRIFTLESS_FIELD(agent.checkpoint_dir)>(
        "agent.checkpoint_dir", kPath,
        "Hand-over checkpoint: the directory to patch; {rank} stands for the agent's number"),
    key<Text, DRIFTLESS_AGENT_ENGINE(url)>("agent.engines[].url", "http://host:port",
                                           "An engine of the host, which the agent drives"),
    key<OneOf<kEngineKinds>, DRIFTLESS_AGENT_ENGINE(kind)>("agent.engines[].kind", "vllm or sglang",
                                                           "What it is"),
    key<Text, DRIFTLESS_AGENT_ENGINE(token_file)>("agent.engines[].token_file", kPath,
                                                  "File with its bearer token"),
    key<Count<>, DRIFTLESS_FIELD(agent.workers)>(
        "agent.workers",
        "Workers on host_shm that must have the last version at the end. Once so many have "
        "said what they hold, only that is fetched; 0: once road.host_shm.versions were handed "
        "over since a worker said anything new"),
    key<Count<1, 256>, DRIFTLESS_FIELD(agent.read_workers)>(
        "agent.read_workers", "Parts that are fetched and decoded at a time"),
    key<Size<kMiB, 16 * kTiB>, DRIFTLESS_FIELD(agent.read_bytes)>("agent.read_memory",
                                                                  "Memory that they hold, at most"),
    key<Duration, DRIFTLESS_FIELD(agent.stage_timeout)>(
        "agent.stage_timeout", "For the workers of an engine to make a version ready"),
    key<Duration, DRIFTLESS_FIELD(agent.call_timeout)>("agent.call_timeout",
                                                       "For one call to an engine"),
    key<Count<0, 10>, DRIFTLESS_FIELD(agent.retries)>("agent.retries",
                                                      "Further tries of an engine's update"),
    key<Duration, DRIFTLESS_FIELD(agent.retry_wait)>(
        "agent.retry_wait", "Before the first of them; then twice as long each time"),
    key<RunId, DRIFTLESS_FIELD(agent.take_over)>(
        "agent.take_over",
        "A run that engines, and agent.checkpoint_dir, which hold another run are handed to: once, "
        "by a full version of every tensor that they took from the other; empty: none"),
    key<Text, DRIFTLESS_FIELD(agent.sglang_loader)>(
        "agent.sglang_loader", "a Python name",
        "Hand-over host_shm to SGLang: the loader that its --custom-weight-loader names"),
    key<Text, DRIFTLESS_FIELD(metrics_file)>(
        "metrics.file", kPath,
        "JSON lines, one per version and process; {role} and {rank} are filled in; empty: none"),
};

#undef DRIFTLESS_FIELD
#undef DRIFTLESS_ENGINE
#undef DRIFTLESS_AGENT_ENGINE

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
