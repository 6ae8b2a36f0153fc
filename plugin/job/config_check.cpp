// SPDX-License-Identifier: Apache-2.0
// Checks which settings may be combined.
#include "core/line_log.h"
#include "core/setting_values.h"
#include "plugin/interchange/layouts.h"
#include "plugin/job/config.h"
#include "plugin/observe/http_server.h"

namespace driftless {
namespace {

template <typename... Parts>
Status refuse(const Parts&... parts) {
  return error(StatusCode::kInvalidArgument, parts...);
}

void complete_layout(Config& config) {
  if (config.layout_auto) {
    config.publisher.layout =
        config.kind().directory != nullptr ? DirectoryLayout::kFlush : DirectoryLayout::kFrames;
  }
  if (!config.encoding_auto) return;
  const PublicationFormat& format = publication_format(config.publisher.layout);
  config.publisher.encoding = config.trl ? Encoding::kDeltas : format.usual;
  config.publisher.encoding_auto = format.takes_blocks;
}

// Replaces `auto` in the keys of anchors and pruning. On roads of files and objects old versions
// pile up, and one can be removed only if an anchor is newer. So with deltas an anchor is made as
// soon as the versions since the last anchor are larger than it. A single full version is as large
// as an anchor, so with mode: full anchors are made by number instead.
void complete_pruning(Config& config) {
  constexpr std::uint64_t kKeptDeltas = 16;
  constexpr std::uint64_t kKeptWhole = 2;
  constexpr std::uint64_t kTrlEvery = 10;  // TRL's workers can start only from an anchor
  PublisherOptions& publisher = config.publisher;
  const bool files = config.kind().keeps || !config.fallback().empty();
  const bool whole = publisher.mode == UpdateMode::kFull;
  if (config.trl && config.first_anchor_auto) publisher.first_anchor = true;
  if (config.trl && config.anchor_every_auto) publisher.anchor_every = kTrlEvery;
  if (config.keep_auto) publisher.keep_versions = !files ? 0 : whole ? kKeptWhole : kKeptDeltas;
  const bool prunes = files && publisher.keep_versions > 0 && publisher.anchor_every == 0;
  if (config.anchor_by_size_auto) publisher.anchor_by_size = prunes && !whole;
  if (prunes && whole && !publisher.anchor_by_size) {
    publisher.anchor_every = 2 * publisher.keep_versions;
  }
}

// The flag --update-weight-local-checkpoint-dir, or receiver.checkpoint_dir, also sets the
// directory of the engines.
void complete_engines(Config& config) {
  if (config.checkpoint_dir.find('{') != std::string::npos) return;
  for (EngineEndpoint& engine : config.engines) {
    if (!engine.action || engine.action == EngineAction::kUpdateFlush) continue;
    if (engine.local_checkpoint_dir.empty()) engine.local_checkpoint_dir = config.checkpoint_dir;
  }
}

Status check_polls(const Config& config) {
  const ConfigKey* const keys[] = {config.table->find("road.poll_first"),
                                   config.table->find("road.poll_longest")};
  if (keys[0] == nullptr || keys[1] == nullptr) return {};
  const std::string first = keys[0]->text(config, 0), longest = keys[1]->text(config, 0);
  if (*parse_duration(first) <= *parse_duration(longest)) return {};
  return refuse("road.poll_first: ", first, " is longer than road.poll_longest: ", longest);
}

// The fallback must keep what was published there: a run continues there after a restart.
Status check_fallback(const Config& config) {
  const std::string name = config.fallback();
  if (name.empty()) return {};
  const auto kinds = config.table->kinds();
  const auto at = std::ranges::find(kinds, name, &RoadKind::name);
  if (at != kinds.end() && (*at)->keeps && name != config.road) return {};
  std::string names;
  for (const RoadKind* kind : kinds) {
    if (kind->keeps) names += concat(names.empty() ? "" : " or ", kind->name);
  }
  return refuse(config.kind().fallback_key, ": expected ", names,
                ", a road that keeps its versions, found '", name, "'");
}

Status check_road(const Config& config) {
  const std::string_view layout = config.trl ? "trl" : to_string(config.publisher.layout);
  const PublicationFormat& format = publication_format(config.publisher.layout);
  if (config.kind().directory == nullptr && format.in_directory) {
    return refuse("road.layout: ", layout, " has files, and road.kind is ", config.road,
                  ", which carries frames: leave road.layout out, or set "
                  "road.kind: shared_fs");
  }
  const EncodingInfo& encoding = info(config.publisher.encoding);
  if (!format.carries(encoding.encoding)) {
    return refuse("encoding: ", encoding.name, " cannot be in road.layout: ", layout,
                  "; that takes ", format.encodings);
  }
  if (config.trl && config.publisher.encoding == Encoding::kDeltasZstd) {
    return refuse(
        "encoding: deltas_zstd cannot be in road.layout: trl; that takes indices or deltas");
  }
  if (!config.publisher.assets_dir.empty() && !format.carries_assets()) {
    return refuse("road.assets_dir: ", config.publisher.assets_dir,
                  " is for road.layout: hf_delta or flush, and this is ", layout);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_polls(config));
  DRIFTLESS_RETURN_IF_ERROR(check_fallback(config));
  for (std::size_t i = 0; i < config.roads.size(); ++i) {
    const RoadKind& kind = *config.table->kinds()[i];
    const RoadUse use{.chosen = kind.name == config.road,
                      .fallback = kind.name == config.fallback(),
                      .anchors = config.anchors()};
    if (kind.check != nullptr) DRIFTLESS_RETURN_IF_ERROR(kind.check(config.roads[i], use));
  }
  return {};
}

Status check_snapshot(const Config& config) {
  const DirectoryLayout layout = config.publisher.layout;
  const bool on_device = config.gpu.snapshot == SnapshotPlace::kDevice;
  if (!on_device || publication_format(layout).takes_blocks) return {};
  return refuse("snapshot: device does not work with road.layout: ", to_string(layout),
                ", which is made from tensors in host memory: set snapshot: pinned");
}

Status check_receiver(const Config& config) {
  if (config.target == TargetKind::kCheckpoint && config.checkpoint_dir.empty()) {
    return refuse(
        "receiver.checkpoint_dir is missing: receiver.target: checkpoint needs the "
        "directory to patch");
  }
  if (config.target != TargetKind::kCheckpoint && !config.checkpoint_dir.empty()) {
    return refuse("receiver.checkpoint_dir: ", config.checkpoint_dir,
                  " has no use with receiver.target: ",
                  config.table->find("receiver.target")->text(config, 0),
                  "; set receiver.target: checkpoint");
  }
  const DirectoryLayout layout = config.publisher.layout;
  if (config.target == TargetKind::kDevice && publication_format(layout).delta_shards) {
    return refuse("receiver.target: device does not work with road.layout: ", to_string(layout),
                  ", whose encodings are decoded in host memory: set receiver.target: memory, or "
                  "another layout");
  }
  return {};
}

Status check_engine(const Config& config, std::size_t item) {
  const EngineEndpoint& engine = config.engines[item];
  const std::string name = concat("engines[", item, "]");
  if (!engine.url.starts_with("http://") && !engine.url.starts_with("https://")) {
    return refuse(name, ".url: expected http://host:port or https://host:port, found '",
                  without_users(engine.url.substr(engine.url.rfind('@') + 1)), "'");
  }
  if (engine.kind.has_value() == engine.action.has_value()) {
    return refuse(
        name, engine.kind ? " has both kind and action" : " has neither kind nor action",
        ": an engine has a kind (vllm or sglang), and the agent of its host drives it, or "
        "an action (pull_weights, update_weights_from_disk or flush), and the trainer notifies it");
  }
  if (engine.kind) {
    if (engine.local_checkpoint_dir.empty()) return {};
    return refuse(name, ".local_checkpoint_dir has no use with ", name,
                  ".kind: an agent patches agent.checkpoint_dir");
  }
  const std::string action = config.table->find("engines[].action")->text(config, item);
  const DirectoryLayout wanted = layout_read_by(*engine.action);
  if (config.kind().directory == nullptr || config.publisher.layout != wanted) {
    return refuse(name, ".action: ", action, " reads road.layout: ", to_string(wanted),
                  " on road.kind: shared_fs, and this is ", to_string(config.publisher.layout),
                  " on ", config.road);
  }
  if ((engine.action == EngineAction::kUpdateFlush) != engine.local_checkpoint_dir.empty()) {
    return refuse(name, ".local_checkpoint_dir ",
                  engine.local_checkpoint_dir.empty() ? "is missing" : "has no use", " with ", name,
                  ".action: ", action);
  }
  return {};
}

Status check_engines(const Config& config) {
  for (std::size_t item = 0; item < config.engines.size(); ++item) {
    DRIFTLESS_RETURN_IF_ERROR(check_engine(config, item));
  }
  if (config.notify.cleanup && config.notified_engines().empty()) {
    return refuse(
        "notify.cleanup: true waits for engines that the trainer notifies, and engines has none "
        "with an action");
  }
  return {};
}

Status check_agent(const Config& config) {
  const AgentOptions& agent = config.agent;
  const bool files = agent.hand_over == HandOver::kCheckpoint;
  if (agent.hand_over == HandOver::kWorkers && agent.workers > 0) {
    return refuse(
        "agent.workers: ", agent.workers,
        " has no use with agent.hand_over: workers: the agent hands nothing over, and the "
        "engines report for their workers; leave it out");
  }
  if (files != agent.checkpoint_dir.empty()) return {};
  return refuse("agent.checkpoint_dir ",
                files ? "is missing: agent.hand_over: checkpoint needs the directory to patch"
                      : "has no use without agent.hand_over: checkpoint");
}

Status check_monitor(const MonitorOptions& monitor) {
  if (monitor.address.empty()) {
    return monitor.token_file.empty() ? Status()
                                      : refuse("monitor.token_file: ", monitor.token_file,
                                               " has no use without monitor.address");
  }
  const Result<HttpAddress> address = parse_http_address(monitor.address);
  if (!address.ok()) return address.status().with_context("monitor.address");
  if (is_loopback(address->host) || !monitor.token_file.empty()) return {};
  return refuse("monitor.address: ", monitor.address,
                " is open to other hosts, and monitor.token_file is empty: set it, or use "
                "127.0.0.1:",
                address->port);
}

}  // namespace

Status complete_config(Config& config) {
  complete_layout(config);
  complete_pruning(config);
  complete_engines(config);
  DRIFTLESS_RETURN_IF_ERROR(check_road(config));
  DRIFTLESS_RETURN_IF_ERROR(check_snapshot(config));
  DRIFTLESS_RETURN_IF_ERROR(check_receiver(config));
  DRIFTLESS_RETURN_IF_ERROR(check_engines(config));
  DRIFTLESS_RETURN_IF_ERROR(check_monitor(config.monitor));
  if (config.hub_group) {
    DRIFTLESS_RETURN_IF_ERROR(hub::check_token_file(config.hub).with_context("hub.group: true"));
  }
  return check_agent(config);
}

}  // namespace driftless
