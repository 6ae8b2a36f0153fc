// SPDX-License-Identifier: Apache-2.0
// place_on_device() and place_parts_on_device(): changes that go through maps, on the device:
// decoded on the host and uploaded, or buckets as they arrived. One launch writes a whole group.
#include <algorithm>
#include <cstring>
#include <map>

#include "plugin/device/gpu_context.h"

namespace driftless {
namespace {

using Verdict = std::array<std::uint32_t, 2>;
constexpr Verdict kNoPartDiffers{~std::uint32_t{0}, ~std::uint32_t{0}};
constexpr std::uint64_t kPartSumsBytes = cuda::kDigestSums * sizeof(std::uint64_t);
constexpr std::uint64_t kEndsBytes = 2 * sizeof(std::uint64_t);

// Placed parts whose targets have the same width, and whose positions have the same coding. Offsets
// are into the workspace.
struct Group {
  unsigned width = 1;
  std::vector<std::size_t> numbers;  // indices of the parts
  std::vector<cuda::StridedPatch::Part> parts;
  std::vector<cuda::Patch::Tensor> tensors;  // for buckets: the parts' positions
  Encoding coding = Encoding::kIndices;      // of these
  bool measured = true;                      // whether the parts are measured
  std::uint64_t old_units = 0;
  const std::byte* values_dev = nullptr;
  // differs_at: first the part whose old value differed, then the one whose written value differs.
  std::uint64_t old_at = 0, work_at = 0, work_host_at = 0, differs_at = 0, differs_host_at = 0;
  // What each part adds to the digest; for buckets, also the first and last position of each part.
  std::uint64_t sums_at = 0, sums_host_at = 0, ends_at = 0, ends_host_at = 0;
  cuda::WorkspaceSize work;
  std::optional<cuda::StridedPatch> patch;
};

// The streams of a bucket in the workspace. Positions and values count from its beginning, so that
// a group, and a launch, can have many buckets.
struct PlacedStreams {
  bool used = false;  // a part belongs to the bucket
  std::uint64_t positions_at = 0, values_at = 0;
};

cuda::Patch::Tensor positions_of(const BucketPart& part, const PlacedStreams& streams) {
  const BucketEntry& entry = *part.entry;
  cuda::Patch::Tensor tensor;
  tensor.units = part.tensor_units;
  if (entry.block != nullptr) {
    tensor.units = entry.block->place.units;
    tensor.place = entry.block->place;
  }
  tensor.entry.count = entry.count();
  tensor.entry.value_begin = entry.value_begin;
  tensor.entry.position_begin = streams.positions_at + entry.position_begin;
  tensor.entry.position_bytes = entry.position_bytes;
  return tensor;
}

cuda::StridedPatch::Part patch_part(const BucketPart& part, const PlacedStreams& streams,
                                    std::uint64_t old_begin) {
  cuda::StridedPatch::Part made;
  made.map = part.map->map;
  made.data_dev = part.map->data;
  made.cast = part.map->cast;
  made.count = part.entry->count();
  made.value_begin = streams.values_at +
                     part.entry->value_begin * source_bytes(part.map->cast, part.map->unit_bytes);
  made.old_begin = old_begin;
  made.key = *part.key;
  return made;
}

// Checks that the entries of a block ascend: none may begin before the previous one ends.
class BlockOrder {
 public:
  // Adds the positions of one entry, in the block.
  Status add(const BucketPart& part, std::uint64_t first, std::uint64_t last,
             const std::string& source) {
    for (auto& [block, end] : ends_[part.map->tensor]) {
      const TensorBlock* const entry_block = part.entry->block;
      const bool same = block == entry_block || (block != nullptr && entry_block != nullptr &&
                                                 block->box == entry_block->box);
      if (!same) continue;
      if (first <= end) {
        return error(StatusCode::kCorrupt, source, ": position ", first, " comes after position ",
                     end, "; fetch the version again");
      }
      end = last;
      return {};
    }
    ends_[part.map->tensor].emplace_back(part.entry->block, last);
    return {};
  }

 private:
  std::map<std::uint32_t, std::vector<std::pair<const TensorBlock*, std::uint64_t>>> ends_;
};

class ChangesOnDevice final : public PlacedChanges {
 public:
  explicit ChangesOnDevice(std::shared_ptr<GpuContext> gpu)
      : gpu_(std::move(gpu)), workspace_(gpu_) {}

  Status place(std::span<const ChangePart> parts) {
    lay_out(parts);
    DRIFTLESS_RETURN_IF_ERROR(reserve());
    DRIFTLESS_RETURN_IF_ERROR(
        pieces_.upload(dev(offsets_at_), dev(values_at_), gpu_->uploader, gpu_->stream));
    for (Group& group : groups_) {
      group.values_dev = dev(values_at_);
      DRIFTLESS_ASSIGN_OR_RETURN(
          group.patch,
          cuda::StridedPatch::make(group.parts, group.width,
                                   reinterpret_cast<const std::uint32_t*>(dev(offsets_at_)),
                                   work_of(group), gpu_->stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(read_old(group));
    }
    for (const Group& group : groups_) DRIFTLESS_RETURN_IF_ERROR(fetch_old(group, parts));
    pieces_.clear();
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    take_sums(parts.size());
    return {};
  }

  Status place(std::span<const BucketPart> parts, std::span<const SourceBucket> buckets) {
    lay_out(parts, buckets);
    DRIFTLESS_RETURN_IF_ERROR(reserve());
    DRIFTLESS_RETURN_IF_ERROR(place_streams(buckets));
    for (Group& group : groups_) {
      group.values_dev = dev(0);
      const auto coding = group.coding == Encoding::kIndices ? cuda::PositionCoding::kIndices
                                                             : cuda::PositionCoding::kGaps;
      DRIFTLESS_ASSIGN_OR_RETURN(
          group.patch,
          cuda::StridedPatch::make(group.parts, group.width,
                                   cuda::StridedPatch::Streams{group.tensors, coding, dev(0)},
                                   work_of(group), gpu_->stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(find_ends(group));
      DRIFTLESS_RETURN_IF_ERROR(read_old(group));
    }
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    DRIFTLESS_RETURN_IF_ERROR(check_positions(parts, buckets));
    take_sums(parts.size());
    return {};
  }

  Result<std::optional<PartFault>> write() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    for (const Group& group : groups_) DRIFTLESS_RETURN_IF_ERROR(queue_exchange(group));
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    for (const bool written : {false, true}) {
      for (const Group& group : groups_) {
        Verdict verdict;
        std::memcpy(&verdict, host(group.differs_host_at), sizeof(verdict));
        if (verdict[written] == kNoPartDiffers[written]) continue;
        return std::optional(PartFault{group.numbers[verdict[written]], written});
      }
    }
    return std::optional<PartFault>();
  }

  Status take_back() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    for (const Group& group : groups_) {
      DRIFTLESS_RETURN_IF_ERROR(
          group.patch->scatter_strided(dev(group.old_at), true, gpu_->stream.get()));
    }
    return gpu_->stream.wait();
  }

  [[nodiscard]] std::span<const Digest> part_changes() const override { return changes_; }

 private:
  [[nodiscard]] std::byte* dev(std::uint64_t at) const { return workspace_->dev.data() + at; }
  [[nodiscard]] std::byte* host(std::uint64_t at) const { return workspace_->host.data() + at; }
  [[nodiscard]] cuda::Workspace work_of(const Group& group) const {
    return {dev(group.work_at), group.work.dev_bytes, host(group.work_host_at),
            group.work.host_bytes};
  }
  Status reserve() {
    return gpu_->reserve(*workspace_, dev_plan_.used(), host_plan_.used(), "staging a delta");
  }

  // Assigns offsets in the workspace. A piece that goes through several maps is stored once.
  void lay_out(std::span<const ChangePart> parts) {
    std::map<const DeltaPiece*, std::size_t> known;
    std::map<unsigned, Group> groups;  // by width
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ChangePart& part = parts[i];
      const unsigned value_bytes = source_bytes(part.map->cast, part.map->unit_bytes);
      const auto [found, fresh] = known.try_emplace(part.piece, 0);
      if (fresh) found->second = pieces_.add(*part.piece, value_bytes);
      Group& group = groups[part.map->unit_bytes];
      group.width = part.map->unit_bytes;
      group.measured = group.measured && part.key != nullptr;
      group.parts.push_back(pieces_.part(found->second, part, group.old_units));
      group.old_units += part.count;
      group.numbers.push_back(i);
    }
    offsets_at_ = dev_plan_.take(pieces_.offset_bytes());
    values_at_ = dev_plan_.take(pieces_.value_bytes());
    for (auto& [width, group] : groups) lay_out(std::move(group));
  }

  // Adjoining buckets of the same coding share a group for each width. The parts of a tensor keep
  // their order.
  void lay_out(std::span<const BucketPart> parts, std::span<const SourceBucket> buckets) {
    std::vector<std::size_t> run_of(buckets.size());  // of buckets of one coding
    for (std::size_t i = 1; i < buckets.size(); ++i) {
      run_of[i] = run_of[i - 1] + (buckets[i].view.coding != buckets[i - 1].view.coding ? 1 : 0);
    }
    std::map<std::pair<std::size_t, unsigned>, Group> groups;  // by run and width
    streams_.resize(buckets.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const BucketPart& part = parts[i];
      const BucketView& view = buckets[part.bucket].view;
      PlacedStreams& streams = streams_[part.bucket];
      if (!std::exchange(streams.used, true)) {
        streams.positions_at = dev_plan_.take(view.positions.size());
        streams.values_at = dev_plan_.take(view.values.size());
      }
      Group& group = groups[{run_of[part.bucket], part.map->unit_bytes}];
      group.width = part.map->unit_bytes;
      group.coding = view.coding;
      group.tensors.push_back(positions_of(part, streams));
      group.parts.push_back(patch_part(part, streams, group.old_units));
      group.old_units += part.entry->count();
      group.numbers.push_back(i);
    }
    for (auto& [key, group] : groups) {
      group.ends_at = dev_plan_.take(group.parts.size() * kEndsBytes);
      group.ends_host_at = host_plan_.take(group.parts.size() * kEndsBytes);
      lay_out(std::move(group));
    }
  }

  void lay_out(Group group) {
    group.old_at = dev_plan_.take(group.old_units * group.width);
    group.work = cuda::StridedPatch::workspace_size(group.parts, group.tensors);
    group.work_at = dev_plan_.take(group.work.dev_bytes);
    group.work_host_at = host_plan_.take(group.work.host_bytes);
    group.differs_at = dev_plan_.take(sizeof(Verdict));
    group.differs_host_at = host_plan_.take(sizeof(Verdict));
    group.sums_at = dev_plan_.take(group.parts.size() * kPartSumsBytes);
    group.sums_host_at = host_plan_.take(group.parts.size() * kPartSumsBytes);
    groups_.push_back(std::move(group));
  }

  // Frames on the device are copied, too, so that a commit writes exactly what was measured.
  Status place_streams(std::span<const SourceBucket> buckets) {
    std::vector<Uploader::Stretch> uploads;
    for (std::size_t number = 0; number < buckets.size(); ++number) {
      const PlacedStreams& streams = streams_[number];
      if (!streams.used) continue;
      DRIFTLESS_RETURN_IF_ERROR(
          gpu_->copy(dev(streams.positions_at), dev(streams.values_at), buckets[number], uploads));
    }
    return gpu_->uploader.copy(uploads, gpu_->stream);
  }

  Status find_ends(const Group& group) {
    auto* const ends = reinterpret_cast<std::uint64_t*>(dev(group.ends_at));
    DRIFTLESS_RETURN_IF_ERROR(group.patch->positions()->find_ends(ends, gpu_->stream.get()));
    return gpu_->stream.copy(host(group.ends_host_at), dev(group.ends_at),
                             group.parts.size() * kEndsBytes);
  }

  // Reads the old values, and measures what the changes add to the digest.
  Status read_old(const Group& group) {
    std::byte* const old = dev(group.old_at);
    DRIFTLESS_RETURN_IF_ERROR(group.patch->gather_strided(old, gpu_->stream.get()));
    if (!group.measured) return {};
    auto* const sums = reinterpret_cast<std::uint64_t*>(dev(group.sums_at));
    DRIFTLESS_RETURN_IF_ERROR(
        group.patch->digest_changes(old, group.values_dev, sums, gpu_->stream.get()));
    return gpu_->stream.copy(host(group.sums_host_at), dev(group.sums_at),
                             group.parts.size() * kPartSumsBytes);
  }

  void take_sums(std::size_t parts) {
    const auto measured = [](const Group& group) { return group.measured; };
    if (!std::all_of(groups_.begin(), groups_.end(), measured)) return;
    changes_.resize(parts);
    for (const Group& group : groups_) {
      for (std::size_t i = 0; i < group.parts.size(); ++i) {
        std::uint64_t sums[cuda::kDigestSums];
        std::memcpy(sums, host(group.sums_host_at) + i * kPartSumsBytes, kPartSumsBytes);
        changes_[group.numbers[i]] = cuda::digest_from_sums(sums);
      }
    }
  }

  Status check_positions(std::span<const BucketPart> parts,
                         std::span<const SourceBucket> buckets) const {
    BlockOrder order;
    std::map<const BucketEntry*, bool> seen;  // an entry may go through several maps
    for (const Group& group : groups_) {
      const auto name_of = [&](std::size_t i) -> const std::string& {
        return buckets[parts[group.numbers[i]].bucket].name;
      };
      if (const std::optional<std::size_t> bad = group.patch->positions()->first_bad()) {
        return group.patch->positions()->check().with_context(name_of(*bad));
      }
      for (std::size_t i = 0; i < group.parts.size(); ++i) {
        const BucketPart& part = parts[group.numbers[i]];
        if (part.entry->count() == 0 || !seen.try_emplace(part.entry, true).second) continue;
        std::uint64_t ends[2];
        std::memcpy(ends, host(group.ends_host_at) + i * kEndsBytes, kEndsBytes);
        DRIFTLESS_RETURN_IF_ERROR(order.add(part, ends[0], ends[1], name_of(i)));
      }
    }
    return {};
  }

  // Copies the old values to the host, if requested. All maps of a piece write into the same room
  // there, each only the units that it has.
  Status fetch_old(const Group& group, std::span<const ChangePart> parts) {
    const auto wanted = [&](std::size_t part) { return parts[part].old_values != nullptr; };
    if (std::none_of(group.numbers.begin(), group.numbers.end(), wanted)) return {};
    std::vector<std::byte> old(group.old_units * group.width);
    DRIFTLESS_RETURN_IF_ERROR(gpu_->uploader.read(old, dev(group.old_at), gpu_->stream));
    for (std::size_t i = 0; i < group.parts.size(); ++i) {
      const ChangePart& part = parts[group.numbers[i]];
      if (part.old_values == nullptr) continue;
      const std::byte* const from = old.data() + group.parts[i].old_begin * group.width;
      if (part.map->map.solid()) {
        std::memcpy(part.old_values, from, std::size_t{part.count} * group.width);
        continue;
      }
      for (std::uint32_t k = 0; k < part.count; ++k) {
        const std::uint64_t unit = part.piece->origin + part.offsets()[k];
        if (part.map->map.target_of(unit) == StridedMap::kOutside) continue;
        std::memcpy(part.old_values + std::size_t{k} * group.width,
                    from + std::size_t{k} * group.width, group.width);
      }
    }
    return {};
  }

  Status queue_exchange(const Group& group) {
    std::byte* const verdict = host(group.differs_host_at);
    std::memcpy(verdict, &kNoPartDiffers, sizeof(kNoPartDiffers));
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_->stream.copy(dev(group.differs_at), verdict, sizeof(kNoPartDiffers)));
    auto* const differs = reinterpret_cast<std::uint32_t*>(dev(group.differs_at));
    DRIFTLESS_RETURN_IF_ERROR(group.patch->exchange_strided(group.values_dev, dev(group.old_at),
                                                            differs, gpu_->stream.get()));
    return gpu_->stream.copy(verdict, dev(group.differs_at), sizeof(kNoPartDiffers));
  }

  std::shared_ptr<GpuContext> gpu_;
  PlacePlan dev_plan_, host_plan_;
  PiecePlaces pieces_;
  std::vector<Group> groups_;
  std::uint64_t offsets_at_ = 0, values_at_ = 0;
  std::vector<PlacedStreams> streams_;  // by bucket
  std::vector<Digest> changes_;         // by part
  WorkspaceLease workspace_;            // destroyed first: waits for work that uses it
};

}  // namespace

Result<std::unique_ptr<PlacedChanges>> place_on_device(std::shared_ptr<GpuContext> gpu,
                                                       std::span<const ChangePart> parts) {
  auto placed = std::make_unique<ChangesOnDevice>(std::move(gpu));
  DRIFTLESS_RETURN_IF_ERROR(placed->place(parts));
  return std::unique_ptr<PlacedChanges>(std::move(placed));
}

Result<std::unique_ptr<PlacedChanges>> place_parts_on_device(
    std::shared_ptr<GpuContext> gpu, std::span<const BucketPart> parts,
    std::span<const SourceBucket> buckets) {
  auto placed = std::make_unique<ChangesOnDevice>(std::move(gpu));
  DRIFTLESS_RETURN_IF_ERROR(placed->place(parts, buckets));
  return std::unique_ptr<PlacedChanges>(std::move(placed));
}

}  // namespace driftless
