// SPDX-License-Identifier: Apache-2.0
#include "sim/rollout.h"

#include <algorithm>
#include <utility>

#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "sim/loader_target.h"
#include "sim/slice_worker.h"
#include "sim/step_road.h"

namespace driftless::testing {
namespace {

constexpr const char* kCheckpoint = "/checkpoint";
constexpr const char* kShard = "/checkpoint/model.safetensors";

}  // namespace

Rollout::Rollout(World& world, std::string name, Holds holds, unsigned part)
    : world_(world), name_(std::move(name)), holds_(holds), part_(part) {}

void Rollout::start(const Weights& base, StartsFrom from, StoredClaim claim) {
  process_ = world_.simulation.start(name_, [this, base, from, claim](Process& process) {
    Life life;
    life.process = &process;
    life_ = &life;
    const Status ended = run(life, base, from, claim);
    world_.simulation.trace(concat(name_, " ends: ", ended.to_string()));
    if (life_ == &life) life_ = nullptr;
  });
  if (holds_ != Holds::kCheckpoint) return;
  // The host may lose power with the process.
  process_->when_dead = [this, process = process_.get()] {
    if (world_.random.chance(0.5)) disk_.lose_unsynced(*process, 0.5, world_.random);
  };
}

Status Rollout::run(Life& life, const Weights& base, StartsFrom from, const StoredClaim& claim) {
  DRIFTLESS_RETURN_IF_ERROR(make_road(life));
  DRIFTLESS_RETURN_IF_ERROR(make_target(life, base, from, claim));
  ReceiverOptions options;
  options.id = name_;
  options.threads = 1;
  options.fetch_deadline = kFetchDeadline;
  options.report_deadline = kReportDeadline;
  options.pause = [this, &life] {
    life.serving = false;
    return world_.simulation.step();
  };
  options.resume = [this, &life] {
    DRIFTLESS_RETURN_IF_ERROR(world_.simulation.step());
    life.serving = true;
    return Status();
  };
  Status failed;
  world_.simulation.within(kConnectDeadline + kReportDeadline, "opening the receiver", [&] {
    auto opened =
        Receiver::open(options, *life.road, *life.target, Deadline::after(kConnectDeadline));
    failed = opened.status();
    if (opened.ok()) life.receiver = std::move(*opened);
  });
  DRIFTLESS_RETURN_IF_ERROR(failed);
  life.serving = life.receiver->state().valid;
  world_.simulation.trace(concat(name_, " follows from version ", life.receiver->state().id.version,
                                 life.serving ? "" : ", holding nothing"));
  return follow(life);
}

Status Rollout::make_road(Life& life) {
  life.road_fs = std::make_unique<SimFileSystem>(world_.simulation, world_.disk, *life.process);
  std::unique_ptr<ReceiveRoad> road;
  if (world_.hub != nullptr) {
    road = world_.hub->receiver();
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(road, make_shared_fs_receiver(*life.road_fs, world_.shared_fs));
  }
  life.road = std::make_unique<StepReceiveRoad>(world_.simulation, std::move(road),
                                                world_.receive_fault_rate);
  return {};
}

Status Rollout::make_target(Life& life, const Weights& base, StartsFrom from,
                            const StoredClaim& claim) {
  Weights there = from == StartsFrom::kAnotherBase ? trained_weights(base, 77) : base;
  if (from == StartsFrom::kClaim) there = claim.weights;
  const WeightLayout layout = layout_of(there);
  const bool nothing = from == StartsFrom::kNothing;
  if (holds_ == Holds::kCheckpoint) {
    if (from != StartsFrom::kWhatIsThere || !disk_.has(kShard)) write_base(disk_, there);
    life.disk_fs = std::make_unique<SimFileSystem>(world_.simulation, disk_, *life.process);
    DRIFTLESS_ASSIGN_OR_RETURN(life.target, make_checkpoint_target(*life.disk_fs, kCheckpoint, 1));
    return {};
  }
  const Digest digest = digest_of(there);
  life.memory = holds_ == Holds::kSlice ? half_of(there, part_) : std::move(there);
  if (holds_ == Holds::kSlice) {
    DRIFTLESS_ASSIGN_OR_RETURN(life.target,
                               make_slice_target(layout, life.memory, part_,
                                                 nothing ? std::nullopt : std::optional(digest)));
    return {};
  }
  if (holds_ == Holds::kLoader) {
    DRIFTLESS_ASSIGN_OR_RETURN(life.target,
                               make_loader_target(world_, layout, life.memory,
                                                  nothing ? std::nullopt : std::optional(digest)));
    return {};
  }
  std::vector<std::byte*> data = pointers(life.memory);
  static std::byte no_bytes;  // of a tensor without elements, which is held all the same
  for (std::byte*& each : data) each = each == nullptr ? &no_bytes : each;
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (holds_ == Holds::kSome && !has_tensor(i)) data[i] = nullptr;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(
      life.target, make_memory_target(layout, std::move(data),
                                      nothing ? std::nullopt : std::optional(claim.id), 1));
  return {};
}

Status Rollout::follow(Life& life) {
  Simulation& simulation = world_.simulation;
  unsigned failures = 0;
  while (!world_.ending && failures < 20) {
    DRIFTLESS_RETURN_IF_ERROR(simulation.step());
    Result<bool> staged = false;
    life.scribbled_since_staging = false;
    simulation.within(kStageWait + kFetchDeadline + kReportDeadline, "stage()",
                      [&] { staged = life.receiver->stage(Deadline::after(kStageWait)); });
    if (!staged.ok()) {
      const StatusCode code = staged.status().code();
      if (code == StatusCode::kWrongRun || code == StatusCode::kWrongLayout) return staged.status();
      simulation.trace(concat(name_, " stage: ", staged.status().to_string()));
      ++failures;
      simulation.sleep(std::chrono::milliseconds(100));
      continue;
    }
    if (*staged) {
      const Status committed = commit(life);
      if (!committed.ok()) ++failures;
      if (committed.ok() && world_.rolls_back && world_.random.chance(0.05)) {
        const Status back = roll_back(life);
        simulation.trace(concat(name_, " rollback: ", back.to_string()));
      }
    } else if (world_.random.chance(0.3)) {
      const Status ignored = life.receiver->report();
    }
  }
  return life.receiver->leave();
}

Status Rollout::commit(Life& life) {
  Simulation& simulation = world_.simulation;
  DRIFTLESS_RETURN_IF_ERROR(simulation.step());
  const bool restored = life.restored;
  life.committing = true;
  Result<UpdateReport> report = error(StatusCode::kInternal, "not called");
  simulation.within(kReportDeadline, "commit()", [&] { report = life.receiver->commit(); });
  life.committing = false;
  simulation.trace(concat(
      name_, " commit: ",
      report.ok() ? concat("version ", report->version, report->anchor ? " from an anchor" : "")
                  : report.status().to_string()));
  if (!report.ok()) return report.status();
  ++world_.commits;
  if (restored) life.restored = false;
  if (report->anchor && !life.scribbled_since_staging) life.scribbled = false;
  if (name_ == world_.liar && !life.memory.empty()) {
    life.memory.begin()->second.bytes[0] ^= std::byte{1};
  }
  return {};
}

// Takes the last version back: then the one before is served, or nothing.
Status Rollout::roll_back(Life& life) {
  life.committing = true;
  const Status back = life.receiver->rollback();
  life.committing = false;
  if (!life.receiver->state().valid) life.serving = false;
  return back;
}

std::optional<VersionId> Rollout::claim() const {
  if (life_ == nullptr || life_->process->dead || life_->receiver == nullptr || !life_->serving) {
    return std::nullopt;
  }
  TargetState state = life_->receiver->state();
  if (!state.valid) return VersionId{};                           // of no run
  if (!life_->receiver->unproven().empty()) return std::nullopt;  // and it reports that
  if (state.id.run.is_zero()) state.id.run = life_->receiver->run();
  return state.id;
}

std::string Rollout::check() {
  const std::optional<VersionId> id = claim();
  if (!id.has_value() || life_->scribbled || life_->restored) return {};
  if (id->run.is_zero()) return concat(name_, " serves, but holds no version");
  if (holds_ == Holds::kCheckpoint) {
    if (disk_.changes == checked_changes_ && checked_ == *id) return {};
    checked_changes_ = disk_.changes;
    checked_ = *id;
  }
  const TargetState state = life_->receiver->state();
  for (const KnownWeights& known : world_.truth.of(id->run, id->version)) {
    const std::optional<Digest> digest =
        state.partial ? state.version_digest : std::optional(state.digest);
    if (digest && known.digest != *digest) continue;
    if (holds_exactly(*life_, known.weights)) return {};
  }
  return concat(name_, " claims version ", id->version, " of run ", to_hex(id->run).substr(0, 6),
                " and holds other weights");
}

bool Rollout::holds_exactly(const Life& life, const Weights& weights) const {
  if (holds_ == Holds::kCheckpoint) {
    SimDisk& disk = const_cast<SimDisk&>(disk_);  // only read
    SimFileSystem quiet(disk);
    const auto checkpoint = Checkpoint::open(quiet, kCheckpoint);
    if (!checkpoint.ok() || checkpoint->layout().size() != weights.size()) return false;
    for (std::size_t i = 0; i < checkpoint->layout().size(); ++i) {
      const TensorView view = checkpoint->tensor(i);
      const auto known = weights.find(view.spec->name);
      if (known == weights.end() || !std::ranges::equal(view.bytes(), known->second.bytes)) {
        return false;
      }
    }
    return true;
  }
  const Weights expected = holds_ == Holds::kSlice ? half_of(weights, part_) : weights;
  std::size_t index = 0;
  for (const auto& [name, tensor] : expected) {
    const bool held = holds_ != Holds::kSome || has_tensor(index);
    ++index;
    if (!life.memory.contains(name)) return false;
    if (held && life.memory.at(name).bytes != tensor.bytes) return false;
  }
  return true;
}

bool Rollout::scribble() {
  if (life_ == nullptr || life_->committing || life_->receiver == nullptr) return false;
  if (holds_ == Holds::kCheckpoint) {
    life_->scribbled = life_->scribbled_since_staging = true;
    return disk_.damage(kShard, world_.random);
  }
  auto tensor = life_->memory.begin();
  std::advance(tensor, static_cast<std::ptrdiff_t>(world_.random.below(life_->memory.size())));
  std::vector<std::byte>& bytes = tensor->second.bytes;
  if (bytes.empty()) return false;
  bytes[world_.random.below(bytes.size())] ^= static_cast<std::byte>(1 + world_.random.below(255));
  life_->scribbled = life_->scribbled_since_staging = true;
  return true;
}

bool Rollout::restore_files(const Weights& weights) {
  if (holds_ != Holds::kCheckpoint || !disk_.has(kShard)) return false;
  if (life_ != nullptr && life_->committing) return false;
  if (life_ != nullptr) life_->restored = true;
  SimDisk made;
  write_base(made, weights);
  disk_.write(kShard, made.read(kShard));
  return true;
}

void Rollout::write_base(SimDisk& disk, const Weights& weights) {
  disk.remove(kCheckpoint);
  disk.write(concat(kCheckpoint, "/config.json"), {});
  SimFileSystem quiet(disk);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : weights) names.push_back(name);
  auto writer = SafetensorsWriter::create(
      quiet, kShard, SafetensorsWriter::header_bytes_for(names, 4, {{"format", "pt"}}));
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  ASSERT_TRUE(writer->add_metadata("format", "pt").ok());
  for (const auto& [name, tensor] : weights) {
    ASSERT_TRUE(writer->begin_tensor(name, tensor.dtype).ok());
    ASSERT_TRUE(writer->append(tensor.bytes).ok());
    ASSERT_TRUE(writer->end_tensor(tensor.shape).ok());
  }
  ASSERT_TRUE(writer->finish().ok());
}

}  // namespace driftless::testing
