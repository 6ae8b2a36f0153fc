// SPDX-License-Identifier: Apache-2.0
// place_buckets_on_device(): buckets on the device. Their positions are proven there, and the
// values that they replace are kept beside them.
#include <algorithm>
#include <cstring>
#include <map>

#include "plugin/device/gpu_context.h"

namespace driftless {
namespace {

constexpr std::uint64_t kTensorSumsBytes = cuda::kDigestSums * sizeof(std::uint64_t);

// Either adjoining buckets of one version that are copied to the workspace, or one bucket that is
// used where it lies. Tensors that are not held are left out. Offsets are into the workspace.
struct PlacedBuckets {
  struct Source {
    SourceBucket bucket;
    std::uint64_t positions_at = 0, values_at = 0;  // offsets from the first source's
    std::size_t tensors_end = 0;                    // one past its last tensor
  };
  std::size_t version = 0;  // in the chain
  bool in_place = false;
  Encoding coding = Encoding::kIndices;
  unsigned unit_bytes = 1;
  std::vector<Source> sources;
  std::uint64_t positions_bytes = 0, values_bytes = 0;
  std::vector<cuda::Patch::Tensor> tensors;  // until the patch is made
  std::vector<std::size_t> places;           // index in measured_tensors_ of each tensor's changes
  std::uint64_t positions_at = 0, values_at = 0, old_at = 0, read_at = 0, work_dev_at = 0,
                work_host_at = 0;
  std::uint64_t first_sum = 0;  // the first of its tensors' sums
  cuda::WorkspaceSize work;
  // On the device.
  const std::byte* positions_dev = nullptr;
  const std::byte* values_dev = nullptr;
  std::byte* old_dev = nullptr;
  std::optional<cuda::Patch> patch;

  // The bucket that has this tensor of the patch.
  [[nodiscard]] const std::string& name_of(std::size_t tensor) const {
    return std::ranges::upper_bound(sources, tensor, {}, &Source::tensors_end)->bucket.name;
  }
};

class DeviceBuckets final : public PlacedChanges {
 public:
  DeviceBuckets(std::shared_ptr<GpuContext> gpu, std::vector<VersionSource> chain)
      : gpu_(std::move(gpu)),
        sources_(std::move(chain)),
        versions_(sources_.size()),
        workspace_(gpu_) {}

  Status place(std::span<const ContiguousTensor> tensors) {
    plan(tensors);
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_->reserve(*workspace_, dev_plan_.used(), host_plan_.used(), "staging a delta"));
    bool on_device = false;
    std::vector<Uploader::Stretch> uploads;
    for (PlacedBuckets& each : buckets_) {
      DRIFTLESS_RETURN_IF_ERROR(place_streams(each, uploads));
    }
    DRIFTLESS_RETURN_IF_ERROR(gpu_->uploader.copy(uploads, gpu_->stream));
    for (PlacedBuckets& each : buckets_) {
      DRIFTLESS_RETURN_IF_ERROR(make_patch(each));
      on_device = on_device || each.sources.front().bucket.memory == MemoryKind::kDevice;
    }
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    for (const PlacedBuckets& each : buckets_) {
      const std::optional<std::size_t> bad = each.patch->first_bad();
      if (bad) return each.patch->check().with_context(each.name_of(*bad));
    }
    if (!on_device) sources_.clear();  // host buckets were copied
    // Measures the first version: the weights are read, not written.
    for (std::size_t i = 0; i < buckets_.size() && buckets_[i].version == 0; ++i) {
      DRIFTLESS_RETURN_IF_ERROR(queue_reading(i));
    }
    return measure(1);
  }
  [[nodiscard]] std::uint64_t units() const { return units_; }

  // Queues everything at once and waits once. Each bucket keeps the values that it replaces, so
  // that after a failure take_back() restores them exactly, even foreign ones. The digest is
  // computed from the written values, read back.
  Result<std::optional<PartFault>> write() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      const PlacedBuckets& each = buckets_[i];
      const cuda::Stream stream = gpu_->stream.get();
      std::byte* const read = workspace_->dev.data() + each.read_at;
      DRIFTLESS_RETURN_IF_ERROR(each.patch->gather(each.old_dev, stream));
      written_ = i + 1;
      DRIFTLESS_RETURN_IF_ERROR(each.patch->scatter(each.values_dev, stream));
      DRIFTLESS_RETURN_IF_ERROR(each.patch->gather(read, stream));
      DRIFTLESS_RETURN_IF_ERROR(queue_sums(each, read));
    }
    DRIFTLESS_RETURN_IF_ERROR(measure(versions_));
    return std::optional<PartFault>();
  }

  // The last bucket first: versions may touch the same units.
  Status take_back() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    while (written_ > 0) {
      const PlacedBuckets& each = buckets_[--written_];
      DRIFTLESS_RETURN_IF_ERROR(each.patch->scatter(each.old_dev, gpu_->stream.get()));
    }
    return gpu_->stream.wait();
  }

  [[nodiscard]] std::span<const Digest> measured() const override { return measured_; }
  [[nodiscard]] std::span<const TensorDigest> measured_tensors() const override {
    return measured_tensors_;
  }

 private:
  // Assigns offsets in the workspace.
  void plan(std::span<const ContiguousTensor> tensors) {
    for (std::size_t version = 0; version < sources_.size(); ++version) {
      for (const SourceBucket& bucket : sources_[version].buckets()) {
        if (std::ranges::any_of(bucket.view.entries, [&](const BucketEntry& entry) {
              return tensors[entry.tensor].data != nullptr;
            })) {
          add_bucket(version, bucket, tensors);
        }
      }
    }
    for (PlacedBuckets& each : buckets_) {
      if (!each.in_place) {
        each.positions_at = dev_plan_.take(each.positions_bytes);
        each.values_at = dev_plan_.take(each.values_bytes);
      }
      each.old_at = dev_plan_.take(each.values_bytes);
      each.read_at = dev_plan_.take(each.values_bytes);
      each.work = cuda::Patch::workspace_size(each.tensors);
      each.work_dev_at = dev_plan_.take(each.work.dev_bytes);
      each.work_host_at = host_plan_.take(each.work.host_bytes);
      each.first_sum = sums_;
      sums_ += each.places.size();
    }
    sums_dev_at_ = dev_plan_.take(sums_ * kTensorSumsBytes);
    sums_host_at_ = host_plan_.take(sums_ * kTensorSumsBytes);
  }

  // Appends to the buckets before it, if they can share a patch.
  void add_bucket(std::size_t version, const SourceBucket& bucket,
                  std::span<const ContiguousTensor> tensors) {
    const unsigned width = unit_bytes(bucket.view.dtype);
    const bool in_place = usable_there(bucket);
    const PlacedBuckets* const last = buckets_.empty() ? nullptr : &buckets_.back();
    const bool joins = last != nullptr && !in_place && !last->in_place &&
                       last->version == version && last->coding == bucket.view.coding &&
                       last->unit_bytes == width &&
                       last->sources.front().bucket.memory == bucket.memory;
    if (!joins) {
      PlacedBuckets& made = buckets_.emplace_back();
      made.version = version;
      made.in_place = in_place;
      made.coding = bucket.view.coding;
      made.unit_bytes = width;
    }
    PlacedBuckets& joined = buckets_.back();
    joined.sources.push_back({bucket, joined.positions_bytes, joined.values_bytes, 0});
    add_tensors(joined, tensors);
    joined.positions_bytes += device_aligned(bucket.view.positions.size());
    joined.values_bytes += device_aligned(bucket.view.values.size());
    joined.sources.back().tensors_end = joined.tensors.size();
  }

  // Adds the tensors of the last source.
  void add_tensors(PlacedBuckets& bucket, std::span<const ContiguousTensor> tensors) {
    const PlacedBuckets::Source& last = bucket.sources.back();
    for (const BucketEntry& entry : last.bucket.view.entries) {
      const ContiguousTensor& source = tensors[entry.tensor];
      if (source.data == nullptr) continue;
      cuda::Patch::Tensor tensor;
      tensor.data_dev = source.data;
      tensor.units = source.units;
      if (entry.block != nullptr) {
        tensor.units = entry.block->place.units;
        tensor.place = entry.block->place;
      }
      tensor.entry.count = entry.count();
      tensor.entry.value_begin = last.values_at / bucket.unit_bytes + entry.value_begin;
      tensor.entry.position_begin = last.positions_at + entry.position_begin;
      tensor.entry.position_bytes = entry.position_bytes;
      tensor.key = *source.key;
      units_ += entry.count();
      bucket.tensors.push_back(tensor);
      const auto [place, fresh] = place_of_.try_emplace(entry.tensor, measured_tensors_.size());
      if (fresh) measured_tensors_.push_back({entry.tensor, Digest()});
      bucket.places.push_back(place->second);
    }
  }

  // Queues copies of streams on the device, and adds those on the host to `uploads`.
  Status place_streams(PlacedBuckets& each, std::vector<Uploader::Stretch>& uploads) {
    each.old_dev = workspace_->dev.data() + each.old_at;
    each.positions_dev = each.sources.front().bucket.view.positions.data();
    each.values_dev = each.sources.front().bucket.view.values.data();
    if (each.in_place) return {};
    std::byte* const positions = workspace_->dev.data() + each.positions_at;
    std::byte* const values = workspace_->dev.data() + each.values_at;
    for (const auto& [bucket, positions_at, values_at, tensors_end] : each.sources) {
      DRIFTLESS_RETURN_IF_ERROR(
          gpu_->copy(positions + positions_at, values + values_at, bucket, uploads));
    }
    each.positions_dev = positions;
    each.values_dev = values;
    return {};
  }

  // Makes the patch; its positions are read on the device.
  Status make_patch(PlacedBuckets& each) {
    const cuda::Workspace workspace{workspace_->dev.data() + each.work_dev_at, each.work.dev_bytes,
                                    workspace_->host.data() + each.work_host_at,
                                    each.work.host_bytes};
    const auto coding = each.coding == Encoding::kIndices ? cuda::PositionCoding::kIndices
                                                          : cuda::PositionCoding::kGaps;
    DRIFTLESS_ASSIGN_OR_RETURN(
        each.patch, cuda::Patch::make(each.tensors, each.unit_bytes, coding, each.positions_dev,
                                      workspace, gpu_->stream.get()));
    std::vector<cuda::Patch::Tensor>().swap(each.tensors);
    return {};
  }

  // Queues reading the values that a bucket replaces, and its change of the digest, into its sums.
  Status queue_reading(std::size_t i) {
    const PlacedBuckets& each = buckets_[i];
    DRIFTLESS_RETURN_IF_ERROR(each.patch->gather(each.old_dev, gpu_->stream.get()));
    return queue_sums(each, each.values_dev);
  }
  Status queue_sums(const PlacedBuckets& each, const std::byte* new_dev) {
    auto* const sums = reinterpret_cast<std::uint64_t*>(workspace_->dev.data() + sums_dev_at_);
    return each.patch->digest_changes(
        each.old_dev, new_dev, sums + each.first_sum * cuda::kDigestSums, gpu_->stream.get());
  }

  // Waits for all queued work, and adds up the changes of the digest by the first `versions`.
  Status measure(std::size_t versions) {
    std::byte* const host = workspace_->host.data() + sums_host_at_;
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_->stream.copy(host, workspace_->dev.data() + sums_dev_at_, sums_ * kTensorSumsBytes));
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    measured_.assign(versions, Digest());
    for (TensorDigest& each : measured_tensors_) each.digest = Digest();
    for (const PlacedBuckets& each : buckets_) {
      if (each.version >= versions) continue;
      for (std::size_t i = 0; i < each.places.size(); ++i) {
        std::uint64_t sums[cuda::kDigestSums];
        std::memcpy(sums, host + (each.first_sum + i) * kTensorSumsBytes, kTensorSumsBytes);
        const Digest change = cuda::digest_from_sums(sums);
        measured_[each.version] += change;
        measured_tensors_[each.places[i]].digest += change;
      }
    }
    return {};
  }

  std::shared_ptr<GpuContext> gpu_;
  std::vector<VersionSource> sources_;  // if parts lie on the device; else empty
  std::size_t versions_;
  PlacePlan dev_plan_, host_plan_;
  std::vector<PlacedBuckets> buckets_;
  std::uint64_t sums_ = 0;  // of all tensors in all buckets
  std::uint64_t sums_dev_at_ = 0, sums_host_at_ = 0;
  std::uint64_t units_ = 0;
  std::vector<Digest> measured_;  // per version
  std::vector<TensorDigest> measured_tensors_;
  std::map<std::uint32_t, std::size_t> place_of_;  // by tensor: index in measured_tensors_
  std::size_t written_ = 0;                        // of buckets_, that are written
  WorkspaceLease workspace_;                       // destroyed first: waits for work that uses it
};

}  // namespace

Result<BucketMemory::Placed> place_buckets_on_device(std::shared_ptr<GpuContext> gpu,
                                                     std::span<const ContiguousTensor> tensors,
                                                     std::vector<VersionSource> chain) {
  auto buckets = std::make_unique<DeviceBuckets>(std::move(gpu), std::move(chain));
  DRIFTLESS_RETURN_IF_ERROR(buckets->place(tensors));
  const std::uint64_t units = buckets->units();
  return BucketMemory::Placed{std::move(buckets), units};
}

}  // namespace driftless
