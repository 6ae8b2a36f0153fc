// SPDX-License-Identifier: Apache-2.0
// Compares the values of a full version with the weights on the GPU. The new values are copied
// there once; only the offsets of differing units come back.
#include <algorithm>
#include <iterator>
#include <numeric>

#include "plugin/device/gpu_context.h"

namespace driftless {
namespace {

// There is room for one differing unit in kRoomShare; if more differ, all count as different.
constexpr std::uint64_t kRoomShare = 8;

class DeviceDifference {
 public:
  DeviceDifference(GpuContext& gpu, DeviceWorkspace& scratch, unsigned width, std::uint64_t origin,
                   std::uint32_t count)
      : gpu_(gpu), scratch_(scratch), width_(width), origin_(origin), count_(count) {
    cuda::StridedPatch::Part part;
    part.count = count;
    const std::uint64_t units = count;
    table_ = cuda::StridedPatch::workspace_size(std::span(&part, 1));
    diff_ = cuda::DiffBatch::workspace_size(std::span(&units, 1), width, room());
  }

  Status upload(const std::byte* values) {
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.wait());  // earlier contents may be in use
    PlacePlan dev, host;
    new_at_ = dev.take(bytes());
    old_at_ = dev.take(bytes());
    positions_at_ = dev.take(room() * sizeof(std::uint32_t));
    values_at_ = dev.take(room() * width_);
    table_at_ = dev.take(table_.dev_bytes);
    diff_at_ = dev.take(diff_.dev_bytes);
    static_cast<void>(host.take(table_.host_bytes));
    diff_host_at_ = host.take(diff_.host_bytes);
    DRIFTLESS_RETURN_IF_ERROR(scratch_.dev.reserve(dev.used(), MemoryKind::kDevice));
    DRIFTLESS_RETURN_IF_ERROR(scratch_.host.reserve(host.used(), MemoryKind::kHost));
    return gpu_.uploader.copy(at(new_at_), {values, bytes()}, gpu_.stream);
  }

  // Adds the units that differ in this map to `offsets`.
  Status add(const WeightMap& map, std::vector<std::uint32_t>& offsets) {
    const auto [begin, end] = map.range(origin_, count_);
    if (begin >= end) return {};
    const std::uint64_t skip = begin - origin_;
    const std::byte* old_dev = map.plain() ? map.at(begin) : at(old_at_) + skip * width_;
    if (!map.plain()) DRIFTLESS_RETURN_IF_ERROR(gather(map));
    DRIFTLESS_RETURN_IF_ERROR(compare(old_dev, at(new_at_) + skip * width_, end - begin));
    for (std::uint32_t& offset : found_) offset += static_cast<std::uint32_t>(skip);
    merged_.clear();
    std::set_union(offsets.begin(), offsets.end(), found_.begin(), found_.end(),
                   std::back_inserter(merged_));
    offsets.swap(merged_);
    return {};
  }

 private:
  [[nodiscard]] std::uint64_t bytes() const { return std::uint64_t{count_} * width_; }
  [[nodiscard]] std::uint64_t room() const { return count_ / kRoomShare + 1; }
  [[nodiscard]] std::byte* at(std::uint64_t place) const { return scratch_.dev.data() + place; }

  // Units that the map does not have keep the new values, and so count as equal.
  Status gather(const WeightMap& map) {
    cuda::StridedPatch::Part part;
    part.map = map.map;
    part.data_dev = map.data;
    part.origin = origin_;
    part.count = count_;
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.copy(at(old_at_), at(new_at_), bytes()));
    DRIFTLESS_ASSIGN_OR_RETURN(const cuda::StridedPatch patch,
                               cuda::StridedPatch::make(std::span(&part, 1), width_, nullptr,
                                                        {at(table_at_), table_.dev_bytes,
                                                         scratch_.host.data(), table_.host_bytes},
                                                        gpu_.stream.get()));
    return patch.gather_strided(at(old_at_), gpu_.stream.get());
  }

  // Sets found_ to the offsets of the units that differ, or of all.
  Status compare(const std::byte* old_dev, const std::byte* new_dev, std::uint64_t units) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        cuda::DiffBatch batch,
        cuda::DiffBatch::make(
            std::span(&units, 1), width_, room(),
            {at(diff_at_), diff_.dev_bytes, scratch_.host.data() + diff_host_at_, diff_.host_bytes},
            gpu_.stream.get()));
    const cuda::DiffBatch::Tensor tensor{.old_dev = old_dev, .new_dev = new_dev};
    DRIFTLESS_RETURN_IF_ERROR(batch.run(std::span(&tensor, 1), cuda::PositionCoding::kIndices,
                                        at(positions_at_), at(values_at_), gpu_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.wait());
    const std::uint64_t changed = batch.results().changed;
    if (changed > room()) {
      found_.resize(units);
      std::iota(found_.begin(), found_.end(), 0U);
      return {};
    }
    found_.resize(changed);
    return gpu_.uploader.read(std::as_writable_bytes(std::span(found_)), at(positions_at_),
                              gpu_.stream);
  }

  GpuContext& gpu_;
  DeviceWorkspace& scratch_;
  unsigned width_;
  std::uint64_t origin_;
  std::uint32_t count_;
  cuda::WorkspaceSize table_, diff_;
  // Places in `scratch_`.
  std::uint64_t new_at_ = 0, old_at_ = 0, positions_at_ = 0, values_at_ = 0;
  std::uint64_t table_at_ = 0, diff_at_ = 0, diff_host_at_ = 0;
  std::vector<std::uint32_t> found_, merged_;
};

}  // namespace

Status find_differing_on_device(GpuContext& gpu, DeviceWorkspace& scratch,
                                std::span<const WeightMap* const> maps, std::uint64_t origin,
                                std::uint32_t count, const std::byte* values,
                                std::vector<std::uint32_t>& offsets) {
  offsets.clear();
  if (maps.empty() || count == 0) return {};
  DeviceDifference difference(gpu, scratch, maps.front()->unit_bytes, origin, count);
  DRIFTLESS_RETURN_IF_ERROR(difference.upload(values));
  for (const WeightMap* map : maps) DRIFTLESS_RETURN_IF_ERROR(difference.add(*map, offsets));
  return {};
}

}  // namespace driftless
