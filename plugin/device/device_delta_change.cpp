// stage_device_deltas(): buckets on the device, their positions proven; commit and undo.
#include <algorithm>
#include <cstring>
#include <optional>

#include "core/stopwatch.h"
#include "plugin/device/device_change.h"

namespace driftless {
namespace {

constexpr std::uint64_t kDeltaSumsBytes = cuda::kDigestSums * sizeof(std::uint64_t);
constexpr std::uintptr_t kStreamAlignment = 8;  // frames have it, in memory that has it

bool in_place(const SourceBucket& bucket) {
  const auto address = reinterpret_cast<std::uintptr_t>(bucket.view.positions.data()) |
                       reinterpret_cast<std::uintptr_t>(bucket.view.values.data());
  return bucket.memory == MemoryKind::kDevice && address % kStreamAlignment == 0;
}

// One bucket, of the tensors that are held. Offsets are into the room.
struct Step {
  std::size_t version = 0;  // in the chain
  SourceBucket bucket;
  std::vector<cuda::Patch::Tensor> tensors;  // until the patch is made
  std::uint64_t positions_at = 0, values_at = 0, old_at = 0, work_dev_at = 0, work_host_at = 0;
  cuda::WorkspaceSize work;
  std::uint64_t units = 0;
  // On the device.
  const std::byte* positions_dev = nullptr;
  const std::byte* values_dev = nullptr;
  std::byte* old_dev = nullptr;
  std::optional<cuda::Patch> patch;
};

class DeviceDeltaChange final : public StagedChange {
 public:
  DeviceDeltaChange(std::shared_ptr<DeviceWeights> weights, std::vector<VersionSource> chain)
      : weights_(std::move(weights)),
        sources_(std::move(chain)),
        before_(weights_->state),
        after_(weights_->state),
        room_(weights_) {
    for (const VersionSource& source : sources_) versions_.push_back(source.version());
    after_.id = versions_.back().manifest->id;
    name_ = versions_.size() == 1
                ? versions_.back().path
                : concat(versions_.front().path, " to ", versions_.back().version);
  }

  Status prepare() {
    plan();
    DRIFTLESS_RETURN_IF_ERROR(place().with_context(name_));
    return prove();
  }

  Result<CommitReport> commit() override {
    if (used_ || weights_->state != before_) {
      return error(StatusCode::kWrongBase, name_,
                   ": the weights are not those that it was staged for; stage it again");
    }
    used_ = true;
    const OnDevice on(weights_->options.device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    Stopwatch watch;
    if (const Status status = write(); !status.ok()) {
      if (const Status back = take_back(); !back.ok()) {
        weights_->state.valid = false;
        return status.with_context(concat("the weights could not be restored (", back.message(),
                                          "), and hold no version; send a full one"));
      }
      return status;
    }
    weights_->state = after_;
    committed_ = true;
    std::uint64_t units = 0;
    for (const Step& step : steps_) units += step.units;
    return CommitReport{after_.id.version, after_.digest, units, watch.lap_ms()};
  }

  Status undo() override {
    if (!committed_ || weights_->state != after_) {
      return error(StatusCode::kInvalidArgument, name_,
                   ": only the last committed change can be taken back, and only once");
    }
    const OnDevice on(weights_->options.device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    committed_ = false;
    if (const Status status = take_back(); !status.ok()) {
      weights_->state.valid = false;
      return status.with_context(concat(name_, ": could not be taken back; send a full version"));
    }
    weights_->state = before_;
    return {};
  }

 private:
  // What lies where in the room.
  void plan() {
    for (std::size_t version = 0; version < sources_.size(); ++version) {
      for (const SourceBucket& bucket : sources_[version].buckets()) {
        Step step;
        step.version = version;
        step.bucket = bucket;
        add_tensors(step);
        if (step.tensors.empty()) continue;
        if (!in_place(bucket)) {
          step.positions_at = dev_plan_.take(bucket.view.positions.size());
          step.values_at = dev_plan_.take(bucket.view.values.size());
        }
        step.old_at = dev_plan_.take(bucket.view.values.size());
        step.work = cuda::Patch::workspace_size(step.tensors);
        step.work_dev_at = dev_plan_.take(step.work.dev_bytes);
        step.work_host_at = host_plan_.take(step.work.host_bytes);
        steps_.push_back(std::move(step));
      }
    }
    sums_dev_at_ = dev_plan_.take(steps_.size() * kDeltaSumsBytes);
    sums_host_at_ = host_plan_.take(steps_.size() * kDeltaSumsBytes);
  }

  void add_tensors(Step& step) const {
    for (const BucketEntry& entry : step.bucket.view.entries) {
      if (!weights_->holds(entry.tensor)) continue;
      cuda::Patch::Tensor tensor;
      tensor.data_dev = weights_->data[entry.tensor];
      tensor.units = weights_->layout[entry.tensor].units();
      tensor.entry.count = entry.count();
      tensor.entry.value_begin = entry.value_begin;
      tensor.entry.position_begin = entry.position_begin;
      tensor.entry.position_bytes = entry.position_bytes;
      tensor.key = weights_->keys[entry.tensor];
      step.units += entry.count();
      step.tensors.push_back(tensor);
    }
  }

  // The streams brought to the device, and their positions read there.
  Status place() {
    DRIFTLESS_RETURN_IF_ERROR(
        weights_->reserve(*room_, dev_plan_.used(), host_plan_.used(), "staging a delta"));
    bool on_device = false;
    for (Step& step : steps_) {
      DRIFTLESS_RETURN_IF_ERROR(place_streams(step));
      DRIFTLESS_RETURN_IF_ERROR(make_patch(step));
      on_device = on_device || step.bucket.memory == MemoryKind::kDevice;
    }
    DRIFTLESS_RETURN_IF_ERROR(weights_->stream.wait());
    for (const Step& step : steps_) {
      DRIFTLESS_RETURN_IF_ERROR(
          step.patch->check().with_context(step.bucket.name).with_context(version_of(step).path));
    }
    if (!on_device) sources_.clear();  // what was on the host has a copy
    return {};
  }

  Status place_streams(Step& step) {
    const BucketView& view = step.bucket.view;
    step.old_dev = room_->dev.data() + step.old_at;
    step.positions_dev = view.positions.data();
    step.values_dev = view.values.data();
    if (in_place(step.bucket)) return {};
    std::byte* const positions = room_->dev.data() + step.positions_at;
    std::byte* const values = room_->dev.data() + step.values_at;
    DRIFTLESS_RETURN_IF_ERROR(bring(positions, view.positions, step.bucket.memory));
    DRIFTLESS_RETURN_IF_ERROR(bring(values, view.values, step.bucket.memory));
    step.positions_dev = positions;
    step.values_dev = values;
    return {};
  }

  Status bring(std::byte* to_dev, std::span<const std::byte> from, MemoryKind kind) {
    if (kind == MemoryKind::kDevice) {
      return weights_->stream.copy(to_dev, from.data(), from.size());
    }
    return weights_->uploader.copy(to_dev, from, weights_->stream);
  }

  Status make_patch(Step& step) {
    const cuda::Workspace workspace{room_->dev.data() + step.work_dev_at, step.work.dev_bytes,
                                    room_->host.data() + step.work_host_at, step.work.host_bytes};
    const auto coding = step.bucket.view.coding == Encoding::kIndices
                            ? cuda::PositionCoding::kIndices
                            : cuda::PositionCoding::kGaps;
    DRIFTLESS_ASSIGN_OR_RETURN(
        step.patch, cuda::Patch::make(step.tensors, unit_bytes(step.bucket.view.dtype), coding,
                                      step.positions_dev, workspace, weights_->stream.get()));
    std::vector<cuda::Patch::Tensor>().swap(step.tensors);
    return {};
  }

  // Of the first version: the weights are read, not written.
  Status prove() {
    for (std::size_t i = 0; i < steps_.size() && steps_[i].version == 0; ++i) {
      DRIFTLESS_RETURN_IF_ERROR(queue_reading(i));
    }
    DRIFTLESS_RETURN_IF_ERROR(fetch_sums());
    proven_ = change_of(0);
    const Manifest& manifest = *versions_.front().manifest;
    const Digest reached = before_.digest + proven_;
    if (before_.partial || reached == manifest.digest) return {};
    return mismatch(versions_.front(), reached,
                    "they are not what they were, or the delta is damaged. Nothing was changed");
  }

  // What a step would change in the digest, into its sums; and the values that it replaces.
  Status queue_reading(std::size_t i) {
    const Step& step = steps_[i];
    const cuda::Stream stream = weights_->stream.get();
    auto* const sums = reinterpret_cast<std::uint64_t*>(room_->dev.data() + sums_dev_at_);
    DRIFTLESS_RETURN_IF_ERROR(step.patch->gather(step.old_dev, stream));
    return step.patch->digest_change(step.old_dev, step.values_dev, sums + i * cuda::kDigestSums,
                                     stream);
  }

  // Waits for all that was queued.
  Status fetch_sums() {
    DRIFTLESS_RETURN_IF_ERROR(weights_->stream.copy(room_->host.data() + sums_host_at_,
                                                    room_->dev.data() + sums_dev_at_,
                                                    steps_.size() * kDeltaSumsBytes));
    return weights_->stream.wait();
  }

  // Of the sums that were fetched: what one version adds to the digest.
  [[nodiscard]] Digest change_of(std::size_t version) const {
    Digest change;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].version != version) continue;
      std::uint64_t sums[cuda::kDigestSums];
      std::memcpy(sums, room_->host.data() + sums_host_at_ + i * kDeltaSumsBytes, kDeltaSumsBytes);
      change += cuda::digest_from_sums(sums);
    }
    return change;
  }

  // Everything is queued at once and looked at once: each step keeps what it replaces, so that what
  // turns out wrong is put back to the bit, whoever wrote it.
  Status write() {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      DRIFTLESS_RETURN_IF_ERROR(queue_reading(i));
      written_ = i + 1;
      DRIFTLESS_RETURN_IF_ERROR(
          steps_[i].patch->scatter(steps_[i].values_dev, weights_->stream.get()));
    }
    DRIFTLESS_RETURN_IF_ERROR(fetch_sums());
    Digest reached = before_.digest;
    for (std::size_t version = 0; version < versions_.size(); ++version) {
      const Digest change = change_of(version);
      reached += change;
      const bool right = before_.partial ? version > 0 || change == proven_
                                         : reached == versions_[version].manifest->digest;
      if (!right) {
        return mismatch(versions_[version], reached,
                        "somebody else writes into the weights, or the delta is damaged. All was "
                        "undone");
      }
    }
    after_.digest = reached;
    return {};
  }

  // The last first: versions may touch the same units.
  Status take_back() {
    while (written_ > 0) {
      const Step& step = steps_[--written_];
      DRIFTLESS_RETURN_IF_ERROR(step.patch->scatter(step.old_dev, weights_->stream.get()));
    }
    return weights_->stream.wait();
  }

  Status mismatch(const VersionDirectory& version, const Digest& reached, const char* why) const {
    return error(StatusCode::kMismatch, version.path, ": after it the weights would have digest ",
                 to_hex(reached), ", expected ", to_hex(version.manifest->digest), ": ", why,
                 "; send a full version");
  }
  [[nodiscard]] const VersionDirectory& version_of(const Step& step) const {
    return versions_[step.version];
  }

  std::shared_ptr<DeviceWeights> weights_;
  std::vector<VersionSource> sources_;  // where parts lie on the device; else empty
  std::vector<VersionDirectory> versions_;
  std::string name_;
  TargetState before_, after_;
  PlacePlan dev_plan_, host_plan_;
  std::vector<Step> steps_;
  std::uint64_t sums_dev_at_ = 0, sums_host_at_ = 0;
  Digest proven_;            // what the first version adds, as staged
  std::size_t written_ = 0;  // steps whose values are in the weights
  bool used_ = false;        // commit() was called
  bool committed_ = false;   // and is in effect
  mutable RoomLease room_;   // goes first: it waits for what works in it
};

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_device_deltas(std::shared_ptr<DeviceWeights> weights,
                                                          std::vector<VersionSource> chain) {
  for (const VersionSource& source : chain) {
    if (source.positional()) continue;
    return error(StatusCode::kUnsupported, source.version().path, ": is in '",
                 info(source.version().encoding).name,
                 "', which weights on a GPU do not take; publish indices, deltas or deltas_zstd, "
                 "or use receiver.target: memory");
  }
  auto change = std::make_unique<DeviceDeltaChange>(std::move(weights), std::move(chain));
  DRIFTLESS_RETURN_IF_ERROR(change->prepare());
  return std::unique_ptr<StagedChange>(std::move(change));
}

}  // namespace driftless
