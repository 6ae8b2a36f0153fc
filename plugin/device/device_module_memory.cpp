#include "plugin/device/device_module_memory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "kernels/cuda/operations.h"
#include "plugin/device/device_change.h"
#include "plugin/device/piece_places.h"

namespace driftless {
namespace {

constexpr std::array<unsigned, 4> kWidths{1, 2, 4, 8};
constexpr std::uint32_t kNone = ~std::uint32_t{0};

// What the memory and the parts placed in it share.
struct Gpu {
  int device = 0;
  DeviceStream stream;
  Uploader uploader;
  DeviceRoom room;  // empty while placed parts have it
};

// Placed parts whose targets have one width. Offsets are into the room.
struct Group {
  unsigned width = 1;
  std::vector<std::size_t> numbers;  // of the parts
  std::vector<cuda::StridedPatch::Part> parts;
  std::uint64_t old_units = 0;
  std::uint64_t old_at = 0, work_at = 0, work_host_at = 0, differs_at = 0, differs_host_at = 0;
  cuda::WorkspaceSize work;
  std::optional<cuda::StridedPatch> patch;
};

class DeviceParts final : public PlacedParts {
 public:
  explicit DeviceParts(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {
    std::swap(room_, gpu_->room);
  }
  DeviceParts(const DeviceParts&) = delete;
  DeviceParts& operator=(const DeviceParts&) = delete;
  ~DeviceParts() override {
    // Where even waiting fails the device is lost, and with it what worked there.
    const OnDevice on(gpu_->device);
    static_cast<void>(on.status().ok() && gpu_->stream.wait().ok());
    if (room_.dev.size() >= gpu_->room.dev.size()) std::swap(room_, gpu_->room);
  }

  Status place(std::span<const ModulePart> parts) {
    lay_out(parts);
    DRIFTLESS_RETURN_IF_ERROR(
        room_.dev.reserve(std::max<std::uint64_t>(1, dev_plan_.used()), MemoryKind::kDevice)
            .with_context("staging a delta"));
    DRIFTLESS_RETURN_IF_ERROR(
        room_.host.reserve(std::max<std::uint64_t>(1, host_plan_.used()), MemoryKind::kHost)
            .with_context("staging a delta"));
    DRIFTLESS_RETURN_IF_ERROR(
        pieces_.upload(dev(offsets_at_), dev(values_at_), gpu_->uploader, gpu_->stream));
    for (Group& group : groups_) DRIFTLESS_RETURN_IF_ERROR(make_patch(group));
    for (const Group& group : groups_) DRIFTLESS_RETURN_IF_ERROR(fetch_old(group, parts));
    pieces_.clear();
    return gpu_->stream.wait();
  }

  Result<std::optional<std::size_t>> write() override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    for (const Group& group : groups_) DRIFTLESS_RETURN_IF_ERROR(queue_exchange(group));
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    for (const Group& group : groups_) {
      std::uint32_t differs = kNone;
      std::memcpy(&differs, room_.host.data() + group.differs_host_at, sizeof(differs));
      if (differs == kNone) continue;
      DRIFTLESS_RETURN_IF_ERROR(take_back());
      return std::optional<std::size_t>(group.numbers[differs]);
    }
    return std::optional<std::size_t>();
  }

  Status take_back() override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    for (const Group& group : groups_) {
      DRIFTLESS_RETURN_IF_ERROR(
          group.patch->scatter_strided(dev(group.old_at), true, gpu_->stream.get()));
    }
    return gpu_->stream.wait();
  }

 private:
  [[nodiscard]] std::byte* dev(std::uint64_t at) const { return room_.dev.data() + at; }

  // What lies where in the room. Pieces that go through several maps are there once.
  void lay_out(std::span<const ModulePart> parts) {
    std::map<const DeltaPiece*, std::size_t> known;
    std::array<Group, kWidths.size()> groups;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ModulePart& part = parts[i];
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
      group.differs_at = dev_plan_.take(sizeof(std::uint32_t));
      group.differs_host_at = host_plan_.take(sizeof(std::uint32_t));
      groups_.push_back(std::move(group));
    }
  }

  Status make_patch(Group& group) {
    const cuda::Workspace workspace{dev(group.work_at), group.work.dev_bytes,
                                    room_.host.data() + group.work_host_at, group.work.host_bytes};
    DRIFTLESS_ASSIGN_OR_RETURN(
        group.patch,
        cuda::StridedPatch::make(group.parts, group.width,
                                 reinterpret_cast<const std::uint32_t*>(dev(offsets_at_)),
                                 workspace, gpu_->stream.get()));
    return group.patch->gather_strided(dev(group.old_at), gpu_->stream.get());
  }

  // To the host, where digests are proven. Maps of one piece share its room there: only what a map
  // has may be written.
  Status fetch_old(const Group& group, std::span<const ModulePart> parts) {
    std::vector<std::byte> old(group.old_units * group.width);
    DRIFTLESS_RETURN_IF_ERROR(gpu_->uploader.read(old, dev(group.old_at), gpu_->stream));
    for (std::size_t i = 0; i < group.parts.size(); ++i) {
      const ModulePart& part = parts[group.numbers[i]];
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
    std::byte* const host = room_.host.data() + group.differs_host_at;
    std::memcpy(host, &kNone, sizeof(kNone));
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.copy(dev(group.differs_at), host, sizeof(kNone)));
    DRIFTLESS_RETURN_IF_ERROR(group.patch->exchange_strided(
        dev(values_at_), dev(group.old_at), reinterpret_cast<std::uint32_t*>(dev(group.differs_at)),
        gpu_->stream.get()));
    return gpu_->stream.copy(host, dev(group.differs_at), sizeof(kNone));
  }

  std::shared_ptr<Gpu> gpu_;
  DeviceRoom room_;
  PlacePlan dev_plan_, host_plan_;
  PiecePlaces pieces_;
  std::vector<Group> groups_;
  std::uint64_t offsets_at_ = 0, values_at_ = 0;
};

class DeviceModuleMemory final : public ModuleMemory {
 public:
  explicit DeviceModuleMemory(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}

  [[nodiscard]] MemoryKind kind() const override { return MemoryKind::kDevice; }

  Result<std::unique_ptr<PlacedParts>> place(std::span<const ModulePart> parts,
                                             unsigned /*threads*/) override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    auto placed = std::make_unique<DeviceParts>(gpu_);
    DRIFTLESS_RETURN_IF_ERROR(placed->place(parts));
    return std::unique_ptr<PlacedParts>(std::move(placed));
  }

  Status read(std::span<const ModuleMap* const> maps, std::uint64_t origin, std::uint64_t count,
              std::byte* values) override {
    if (maps.empty() || count == 0) return {};
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    const unsigned width = maps.front()->unit_bytes;
    DRIFTLESS_RETURN_IF_ERROR(reserve(count));
    for (const ModuleMap* map : maps) {
      DRIFTLESS_ASSIGN_OR_RETURN(const cuda::StridedPatch patch, dense(*map, origin, count));
      DRIFTLESS_RETURN_IF_ERROR(patch.gather_strided(room_.dev.data(), gpu_->stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    }
    return gpu_->uploader.read({values, count * width}, room_.dev.data(), gpu_->stream);
  }

  Status write(std::span<const ModuleMap* const> maps, std::uint64_t origin, std::uint64_t count,
               const std::byte* values) override {
    if (maps.empty() || count == 0) return {};
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    const unsigned width = source_bytes(maps.front()->cast, maps.front()->unit_bytes);
    DRIFTLESS_RETURN_IF_ERROR(reserve(count));
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_->uploader.copy(room_.dev.data(), {values, count * width}, gpu_->stream));
    for (const ModuleMap* map : maps) {
      DRIFTLESS_ASSIGN_OR_RETURN(const cuda::StridedPatch patch, dense(*map, origin, count));
      DRIFTLESS_RETURN_IF_ERROR(patch.scatter_strided(room_.dev.data(), false, gpu_->stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());  // the table is used again
    }
    return {};
  }

  Status settle() override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    return gpu_->stream.wait();
  }
  [[nodiscard]] unsigned threads(unsigned /*wanted*/) const override { return 1; }

 private:
  static constexpr std::uint64_t kUnitBytes = 8;  // the widest

  [[nodiscard]] static std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + 255) / 256 * 256;
  }
  [[nodiscard]] static cuda::WorkspaceSize table(std::uint64_t count) {
    cuda::StridedPatch::Part part;
    part.count = count;
    return cuda::StridedPatch::workspace_size(std::span(&part, 1));
  }
  Status reserve(std::uint64_t count) {
    const cuda::WorkspaceSize work = table(count);
    DRIFTLESS_RETURN_IF_ERROR(
        room_.dev.reserve(aligned(count * kUnitBytes) + work.dev_bytes, MemoryKind::kDevice));
    return room_.host.reserve(work.host_bytes, MemoryKind::kHost);
  }
  // Every unit of [origin, origin + count) that the map has; its values are at the room's begin.
  Result<cuda::StridedPatch> dense(const ModuleMap& map, std::uint64_t origin,
                                   std::uint64_t count) {
    cuda::StridedPatch::Part part;
    part.map = map.map;
    part.data_dev = map.data;
    part.cast = map.cast;
    part.origin = origin;
    part.count = count;
    const cuda::WorkspaceSize work = table(count);
    const cuda::Workspace workspace{room_.dev.data() + aligned(count * kUnitBytes), work.dev_bytes,
                                    room_.host.data(), work.host_bytes};
    return cuda::StridedPatch::make(std::span(&part, 1), map.unit_bytes, nullptr, workspace,
                                    gpu_->stream.get());
  }

  std::shared_ptr<Gpu> gpu_;
  DeviceRoom room_;  // for read() and write()
};

}  // namespace

Result<std::shared_ptr<ModuleMemory>> make_device_module_memory(int device) {
  const OnDevice on(device);
  DRIFTLESS_RETURN_IF_ERROR(on.status());
  auto gpu = std::make_shared<Gpu>();
  gpu->device = device;
  DRIFTLESS_ASSIGN_OR_RETURN(gpu->stream, DeviceStream::make());
  DRIFTLESS_ASSIGN_OR_RETURN(gpu->uploader, Uploader::make());
  DRIFTLESS_RETURN_IF_ERROR(load_patch_kernels(gpu->stream));
  return std::shared_ptr<ModuleMemory>(std::make_shared<DeviceModuleMemory>(std::move(gpu)));
}

}  // namespace driftless
