// SPDX-License-Identifier: Apache-2.0
// place_on_device(): changes that go through maps, uploaded; one launch writes all of a width.
#include <algorithm>
#include <cstring>

#include "plugin/device/gpu_context.h"

namespace driftless {
namespace {

constexpr std::array<unsigned, 4> kWidths{1, 2, 4, 8};
using Verdict = std::array<std::uint32_t, 2>;
constexpr Verdict kNoPartDiffers{~std::uint32_t{0}, ~std::uint32_t{0}};

// Placed parts whose targets have one width. Offsets are into the workspace.
struct Group {
  unsigned width = 1;
  std::vector<std::size_t> numbers;  // of the parts
  std::vector<cuda::StridedPatch::Part> parts;
  std::uint64_t old_units = 0;
  // Of the part that was not what it was, then of the one that does not hold what was written.
  std::uint64_t old_at = 0, work_at = 0, work_host_at = 0, differs_at = 0, differs_host_at = 0;
  cuda::WorkspaceSize work;
  std::optional<cuda::StridedPatch> patch;
};

class ChangesOnDevice final : public PlacedChanges {
 public:
  explicit ChangesOnDevice(std::shared_ptr<GpuContext> gpu)
      : gpu_(std::move(gpu)), workspace_(gpu_) {}

  Status place(std::span<const ChangePart> parts) {
    lay_out(parts);
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_->reserve(*workspace_, dev_plan_.used(), host_plan_.used(), "staging a delta"));
    DRIFTLESS_RETURN_IF_ERROR(
        pieces_.upload(dev(offsets_at_), dev(values_at_), gpu_->uploader, gpu_->stream));
    for (Group& group : groups_) DRIFTLESS_RETURN_IF_ERROR(make_patch(group));
    for (const Group& group : groups_) DRIFTLESS_RETURN_IF_ERROR(fetch_old(group, parts));
    pieces_.clear();
    return gpu_->stream.wait();
  }

  Result<std::optional<PartFault>> write() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    for (const Group& group : groups_) DRIFTLESS_RETURN_IF_ERROR(queue_exchange(group));
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    for (const bool written : {false, true}) {
      for (const Group& group : groups_) {
        Verdict verdict;
        std::memcpy(&verdict, workspace_->host.data() + group.differs_host_at, sizeof(verdict));
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

 private:
  [[nodiscard]] std::byte* dev(std::uint64_t at) const { return workspace_->dev.data() + at; }

  // What lies where in the workspace. Pieces that go through several maps are there once.
  void lay_out(std::span<const ChangePart> parts) {
    std::map<const DeltaPiece*, std::size_t> known;
    std::array<Group, kWidths.size()> groups;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ChangePart& part = parts[i];
      const unsigned value_bytes = source_bytes(part.map->cast, part.map->unit_bytes);
      const auto [found, fresh] = known.try_emplace(part.piece, 0);
      if (fresh) found->second = pieces_.add(*part.piece, value_bytes);
      Group& group = groups[static_cast<std::size_t>(
          std::find(kWidths.begin(), kWidths.end(), part.map->unit_bytes) - kWidths.begin())];
      group.width = part.map->unit_bytes;
      group.parts.push_back(pieces_.part(found->second, part, group.old_units));
      group.old_units += part.count;
      group.numbers.push_back(i);
    }
    offsets_at_ = dev_plan_.take(pieces_.offset_bytes());
    values_at_ = dev_plan_.take(pieces_.value_bytes());
    for (Group& group : groups) {
      if (group.parts.empty()) continue;
      group.old_at = dev_plan_.take(group.old_units * group.width);
      group.work = cuda::StridedPatch::workspace_size(group.parts);
      group.work_at = dev_plan_.take(group.work.dev_bytes);
      group.work_host_at = host_plan_.take(group.work.host_bytes);
      group.differs_at = dev_plan_.take(sizeof(Verdict));
      group.differs_host_at = host_plan_.take(sizeof(Verdict));
      groups_.push_back(std::move(group));
    }
  }

  Status make_patch(Group& group) {
    const cuda::Workspace workspace{dev(group.work_at), group.work.dev_bytes,
                                    workspace_->host.data() + group.work_host_at,
                                    group.work.host_bytes};
    DRIFTLESS_ASSIGN_OR_RETURN(
        group.patch,
        cuda::StridedPatch::make(group.parts, group.width,
                                 reinterpret_cast<const std::uint32_t*>(dev(offsets_at_)),
                                 workspace, gpu_->stream.get()));
    return group.patch->gather_strided(dev(group.old_at), gpu_->stream.get());
  }

  // To the host, where digests are proven. Maps of one piece share its old values there: only what
  // a map has may be written.
  Status fetch_old(const Group& group, std::span<const ChangePart> parts) {
    std::vector<std::byte> old(group.old_units * group.width);
    DRIFTLESS_RETURN_IF_ERROR(gpu_->uploader.read(old, dev(group.old_at), gpu_->stream));
    for (std::size_t i = 0; i < group.parts.size(); ++i) {
      const ChangePart& part = parts[group.numbers[i]];
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
    std::byte* const host = workspace_->host.data() + group.differs_host_at;
    std::memcpy(host, &kNoPartDiffers, sizeof(kNoPartDiffers));
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_->stream.copy(dev(group.differs_at), host, sizeof(kNoPartDiffers)));
    auto* const differs = reinterpret_cast<std::uint32_t*>(dev(group.differs_at));
    DRIFTLESS_RETURN_IF_ERROR(group.patch->exchange_strided(dev(values_at_), dev(group.old_at),
                                                            differs, gpu_->stream.get()));
    return gpu_->stream.copy(host, dev(group.differs_at), sizeof(kNoPartDiffers));
  }

  std::shared_ptr<GpuContext> gpu_;
  PlacePlan dev_plan_, host_plan_;
  PiecePlaces pieces_;
  std::vector<Group> groups_;
  std::uint64_t offsets_at_ = 0, values_at_ = 0;
  WorkspaceLease workspace_;  // goes first: it waits for what works in it
};

}  // namespace

Result<std::unique_ptr<PlacedChanges>> place_on_device(std::shared_ptr<GpuContext> gpu,
                                                       std::span<const ChangePart> parts) {
  auto placed = std::make_unique<ChangesOnDevice>(std::move(gpu));
  DRIFTLESS_RETURN_IF_ERROR(placed->place(parts));
  return std::unique_ptr<PlacedChanges>(std::move(placed));
}

}  // namespace driftless
