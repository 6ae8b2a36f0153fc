// SPDX-License-Identifier: Apache-2.0
#include "sim/notified_engine.h"

#include <algorithm>
#include <utility>

#include "formats/flush_file.h"
#include "formats/safetensors.h"
#include "formats/tensor_patcher.h"
#include "formats/version_dir.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kUrl = "http://told";
constexpr double kTears = 0.1;  // this fraction of the loads

// Writes the values of a flush file over the present ones.
Status overwrite(FileSystem& fs, const std::string& path, const WeightLayout& layout,
                 std::uint64_t version, Weights& weights) {
  DRIFTLESS_ASSIGN_OR_RETURN(MappedFile mapped, fs.map(path));
  DRIFTLESS_ASSIGN_OR_RETURN(const FlushFile file,
                             FlushFile::open(fs, std::move(mapped), layout, version, "/"));
  const BucketView bucket = file.buckets().front();
  for (const BucketEntry& entry : bucket.entries) {
    std::vector<std::byte>& bytes = weights.at(layout[entry.tensor].name).bytes;
    EntryCursor cursor(layout, bucket, entry);
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView piece, cursor.next());
      if (piece.count() == 0) break;
      const std::size_t unit = piece.unit_bytes;
      for (std::size_t i = 0; i < piece.count(); ++i) {
        const std::uint64_t place = (piece.origin + piece.offsets[i]) * unit;
        std::ranges::copy(piece.value_bytes().subspan(i * unit, unit),
                          bytes.begin() + static_cast<std::ptrdiff_t>(place));
      }
    }
  }
  return {};
}

// Replaces every tensor completely.
Status replace_all(FileSystem& fs, const std::string& path, Weights& weights) {
  DRIFTLESS_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(fs, path));
  for (const SafetensorsEntry& entry : file.header().tensors) {
    const std::span<const std::byte> bytes = file.bytes(entry);
    weights.at(entry.spec.name).bytes.assign(bytes.begin(), bytes.end());
  }
  return {};
}

// Applies the compressed deltas of an hf_delta version.
Status patch_all(FileSystem& fs, const VersionDirectory& version, Weights& weights) {
  const WeightLayout layout = layout_of(weights);
  for (const std::string& name : version.payload_files) {
    DRIFTLESS_ASSIGN_OR_RETURN(const SafetensorsFile file,
                               SafetensorsFile::open(fs, concat(version.path, "/", name)));
    for (const SafetensorsEntry& entry : file.header().tensors) {
      const TensorSpec& tensor = layout[*layout.find(entry.spec.name)];
      auto made = version.encoding == Encoding::kXor
                      ? make_xor_patcher(tensor, file.bytes(entry))
                      : make_overwrite_patcher(tensor, file.bytes(entry));
      DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<TensorPatcher> patcher, std::move(made));
      DRIFTLESS_RETURN_IF_ERROR(patcher->patch(0, weights.at(entry.spec.name).bytes));
      DRIFTLESS_RETURN_IF_ERROR(patcher->finish());
    }
  }
  return {};
}

}  // namespace

void NotifiedEngine::start_server(const Weights& base) {
  checkpoint_ = {base, 0, {}};
  restart_server(base);
}

void NotifiedEngine::restart_server(const Weights& base) {
  if (server_ != nullptr) world_.simulation.kill(*server_);
  const Weights& served = pulls() ? checkpoint_.weights : base;
  life_ = std::make_shared<Server>();
  life_->base = life_->memory = served;
  queue_ = std::make_shared<CallQueue>();
  server_ = world_.simulation.start("told-server", [this](Process& process) {
    while (!process.dead && !world_.ending) world_.simulation.sleep(milliseconds(500));
    world_.simulation.kill(process);
  });
}

std::unique_ptr<EngineNotifier> NotifiedEngine::notifier(const Hash128& run) {
  NotifyOptions options;
  EngineEndpoint& engine = options.engines.emplace_back();
  engine.url = kUrl;
  engine.action = action_;
  if (pulls()) engine.local_checkpoint_dir = "/local";
  options.timeout = milliseconds(2'000);
  options.retries = 1;
  options.retry_wait = milliseconds(200);
  auto made = EngineNotifier::create(
      options, [this, run](const HttpCall& call, milliseconds timeout, const std::atomic<bool>*) {
        return http(call, timeout, run);
      });
  return std::move(*made);
}

HttpAnswer NotifiedEngine::http(const HttpCall& call, milliseconds timeout, const Hash128& run) {
  const std::string path = call.url.substr(kUrl.size());
  const std::shared_ptr<Server> life = life_;
  const std::shared_ptr<Process> server = server_;
  if (call.same_server && life != connected_.lock()) {
    return {error(StatusCode::kIncomplete, call.url, ": the connection is gone"), 0, "", false};
  }
  connected_.reset();
  const Result<std::string> text = call_server(world_, server, queue_, call.url, timeout,
                                               [this, life, server, path, run, body = call.body] {
                                                 return answer(*life, *server, path, body, run);
                                               });
  if (!text.ok()) return {text.status(), 0, "", true};
  connected_ = life;
  return {{}, 200, *text, false, true};
}

Result<std::string> NotifiedEngine::answer(Server& life, Process& process, const std::string& path,
                                           const std::string& body, const Hash128& run) {
  if (path == "/model_info") return nlohmann::json{{"weight_version", life.label}}.dump();
  for (const char* const other : {"/pause_generation", "/flush_cache", "/continue_generation"}) {
    if (path != other) continue;
    life.paused = path == "/pause_generation" || (life.paused && path == "/flush_cache");
    return std::string("{}");
  }
  if (path.ends_with("_weight_update")) return std::string(R"({"success":true})");  // one rank
  const auto request = nlohmann::json::parse(body);
  Status done;
  if (path == "/update_weight_version") {
    life.run = run;
    life.label = request.at("new_version");
  } else if (path == "/pull_weights") {
    SimFileSystem fs(world_.simulation, world_.disk, process);
    done = pull(fs, request.at("target_version"));
  } else if (pulls()) {
    done = take(life, checkpoint_.weights, request.at("weight_version"), checkpoint_.run);
  } else {
    SimFileSystem fs(world_.simulation, world_.disk, process);
    done = load(life, fs, request);
  }
  world_.simulation.trace(concat("told-server ", path, " ", body, ": ", done.to_string()));
  return nlohmann::json{{"success", done.ok()}, {"message", done.to_string()}}.dump();
}

// Loads all of a directory, or nothing if a file cannot be read or was damaged.
Status NotifiedEngine::load(Server& life, FileSystem& fs, const nlohmann::json& request) {
  const std::string dir = request.at("model_path");
  const std::string label = request.at("weight_version");
  const std::uint64_t version = std::stoull(label);
  DRIFTLESS_ASSIGN_OR_RETURN(const VersionDirectory found, open_version(fs, kRoad, version));
  DRIFTLESS_RETURN_IF_ERROR(check_file_hashes(fs, found, 1));
  Weights weights = life.memory;
  const WeightLayout layout = layout_of(weights);
  const bool delta = request.contains("load_format");
  if (delta) {
    for (const std::string name : request.at("files")) {
      DRIFTLESS_RETURN_IF_ERROR(overwrite(fs, concat(dir, "/", name), layout, version, weights));
    }
  } else {
    for (const std::string& name : found.payload_files) {
      DRIFTLESS_RETURN_IF_ERROR(replace_all(fs, concat(dir, "/", name), weights));
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(world_.simulation.step());
  return take(life, std::move(weights), label, found.manifest ? found.manifest->id.run : life.run);
}

// A server that was restarted after the pause serves whatever is loaded, so no load of it may fail.
// A server that loads twice, because its first reply was late, has the version all the same.
Status NotifiedEngine::take(Server& life, Weights weights, const std::string& label,
                            const Hash128& run) {
  const bool fails = life.paused && !world_.calm && world_.random.chance(kTears);
  if (fails) {
    life.torn = life.torn || !same(life.memory, weights);
    life.memory.begin()->second = weights.begin()->second;
    return error(StatusCode::kIo, "the load ended in the middle");
  }
  life.memory = std::move(weights);
  life.torn = false;
  life.label = label;
  life.run = run;
  return {};
}

// Applies all versions up to the target, or none: each is written through a journal.
Status NotifiedEngine::pull(FileSystem& fs, std::uint64_t target) {
  std::vector<VersionDirectory> missed;
  for (std::uint64_t number = target; number > checkpoint_.version;) {
    DRIFTLESS_ASSIGN_OR_RETURN(VersionDirectory found, open_version(fs, kRoad, number));
    DRIFTLESS_RETURN_IF_ERROR(check_file_hashes(fs, found, 1));
    number = found.full() ? 0 : found.base_version;
    missed.insert(missed.begin(), std::move(found));
  }
  if (!missed.empty() && !missed.front().full() &&
      missed.front().base_version != checkpoint_.version) {
    return error(StatusCode::kWrongBase, "the checkpoint is at version ", checkpoint_.version);
  }
  for (const VersionDirectory& version : missed) {
    Checkpoint next = checkpoint_;
    if (version.full()) {
      for (const std::string& name : version.payload_files) {
        DRIFTLESS_RETURN_IF_ERROR(replace_all(fs, concat(version.path, "/", name), next.weights));
      }
    } else {
      DRIFTLESS_RETURN_IF_ERROR(patch_all(fs, version, next.weights));
    }
    next.version = version.version;
    if (version.manifest) next.run = version.manifest->id.run;
    DRIFTLESS_RETURN_IF_ERROR(world_.simulation.step());
    checkpoint_ = std::move(next);
  }
  return {};
}

std::string NotifiedEngine::check() const {
  if (!alive()) return {};
  if (life_->torn) return life_->paused ? "" : "told serves parts of two versions";
  if (life_->label == "default") {
    return same(life_->memory, life_->base) ? "" : "told serves what is not the base it began with";
  }
  if (life_->label == "unproven") {  // about to be loaded for the first time
    return same(life_->memory, life_->base) ? "" : "told is unproven, and not the base";
  }
  const std::vector<KnownWeights>& known = world_.truth.of(life_->run, std::stoull(life_->label));
  if (std::ranges::any_of(known, [&](const KnownWeights& version) {
        return same(version.weights, life_->memory);
      })) {
    return {};
  }
  return concat("told is labelled version ", life_->label, " and holds other weights");
}

bool NotifiedEngine::serves(const VersionId& id) const {
  return alive() && !life_->paused && !life_->torn && life_->label == std::to_string(id.version) &&
         life_->run == id.run && check().empty();
}

}  // namespace driftless::testing
