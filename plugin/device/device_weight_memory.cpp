// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_factories.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/device_hash.h"
#include "plugin/device/gpu_context.h"

namespace driftless {
namespace {

constexpr std::uint64_t kWidestUnit = 8;

// The offset of a patch's table, behind so many values.
std::uint64_t table_at(std::uint64_t count) { return device_aligned(count * kWidestUnit); }

cuda::WorkspaceSize table_size(std::uint64_t count) {
  cuda::StridedPatch::Part part;
  part.count = count;
  return cuda::StridedPatch::workspace_size(std::span(&part, 1));
}

constexpr std::uint64_t kSumsBytes = cuda::kDigestSums * sizeof(std::uint64_t);
constexpr std::uint64_t kSumsPlace = 256;  // keeps what follows aligned
constexpr std::uint64_t kChunkBytes = std::uint64_t{32} << 20;
constexpr std::size_t kChunkPieces = 4096;  // small tensors: bounds their table, too

// Sums pieces in device memory; waits for the result.
class DeviceSum {
 public:
  DeviceSum(GpuContext& gpu, DeviceWorkspace& workspace) : gpu_(gpu), workspace_(workspace) {}

  // Reserves room for the sums of such pieces, after `before` bytes of device memory.
  Status reserve(std::span<const cuda::DigestPiece> pieces, std::uint64_t before) {
    const cuda::WorkspaceSize size = cuda::digest_workspace_size(pieces);
    at_ = before;
    return gpu_.reserve(workspace_, before + kSumsPlace + size.dev_bytes,
                        kSumsPlace + size.host_bytes, "summing the weights");
  }

  Status add(std::span<const cuda::DigestPiece> pieces) {
    if (pieces.empty()) return {};
    const std::span<std::byte> dev =
        std::span(workspace_.dev.data(), workspace_.dev.size()).subspan(at_);
    const std::span<std::byte> host(workspace_.host.data(), workspace_.host.size());
    const cuda::Workspace work{dev.data() + kSumsPlace, dev.size() - kSumsPlace,
                               host.data() + kSumsPlace, host.size() - kSumsPlace};
    DRIFTLESS_RETURN_IF_ERROR(cuda::digest(
        pieces, work, reinterpret_cast<std::uint64_t*>(dev.data()), gpu_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.copy(host.data(), dev.data(), kSumsBytes));
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.wait());
    std::uint64_t sums[cuda::kDigestSums];
    std::memcpy(sums, host.data(), kSumsBytes);
    sum_ += cuda::digest_from_sums(sums);
    return {};
  }
  [[nodiscard]] const Digest& sum() const { return sum_; }

 private:
  GpuContext& gpu_;
  DeviceWorkspace& workspace_;
  std::uint64_t at_ = 0;
  Digest sum_;
};

// Sums bytes on the host by way of a chunk at the beginning of the workspace.
class HostSweep {
 public:
  HostSweep(GpuContext& gpu, DeviceWorkspace& workspace, DeviceSum& sum)
      : gpu_(gpu), workspace_(workspace), sum_(sum) {}

  Status reserve() {
    // An upper bound for any pieces of a chunk: a row for each 128 KiB of a piece, and two more.
    const std::vector<cuda::DigestPiece> most(
        kChunkPieces, cuda::DigestPiece{nullptr, (std::uint64_t{2} << 17) + 1, 0, {}});
    return sum_.reserve(most, kChunkBytes);
  }

  Status add(const TensorBytes& bytes) {
    DensePiece rest = bytes.piece;
    while (!rest.bytes.empty()) {
      // Keeps the tensor's alignment within 16 bytes, which is the fast case of the sweep.
      const std::uint64_t at = (used_ + 15) / 16 * 16 + rest.byte_offset % 16;
      if (pieces_.size() == kChunkPieces || at >= kChunkBytes) {
        DRIFTLESS_RETURN_IF_ERROR(flush());
        continue;
      }
      const auto some =
          rest.bytes.first(std::min<std::uint64_t>(rest.bytes.size(), kChunkBytes - at));
      std::byte* const there = workspace_.dev.data() + at;
      DRIFTLESS_RETURN_IF_ERROR(gpu_.uploader.copy(there, some, gpu_.stream));
      pieces_.push_back({there, some.size(), rest.byte_offset, *bytes.key});
      used_ = at + some.size();
      rest.byte_offset += some.size();
      rest.bytes = rest.bytes.subspan(some.size());
    }
    return {};
  }

  Status flush() {
    DRIFTLESS_RETURN_IF_ERROR(sum_.add(pieces_));
    pieces_.clear();
    used_ = 0;
    return {};
  }

 private:
  GpuContext& gpu_;
  DeviceWorkspace& workspace_;
  DeviceSum& sum_;
  std::uint64_t used_ = 0;
  std::vector<cuda::DigestPiece> pieces_;
};

// WeightMemory::digest(): bytes on the host are copied through a chunk of device memory.
Result<Digest> sum_on_device(const std::shared_ptr<GpuContext>& gpu,
                             std::span<const TensorBytes> bytes) {
  std::vector<cuda::DigestPiece> there;
  for (const auto& [piece, key] : bytes) {
    if (piece.memory != MemoryKind::kDevice) continue;
    there.push_back({piece.bytes.data(), piece.bytes.size(), piece.byte_offset, *key});
  }
  WorkspaceLease workspace(gpu);
  DeviceSum sum(*gpu, *workspace);
  if (!there.empty()) {
    DRIFTLESS_RETURN_IF_ERROR(sum.reserve(there, 0));
    DRIFTLESS_RETURN_IF_ERROR(sum.add(there));
  }
  if (there.size() == bytes.size()) return sum.sum();
  HostSweep sweep(*gpu, *workspace, sum);
  DRIFTLESS_RETURN_IF_ERROR(sweep.reserve());
  for (const TensorBytes& each : bytes) {
    if (each.piece.memory == MemoryKind::kHost) DRIFTLESS_RETURN_IF_ERROR(sweep.add(each));
  }
  DRIFTLESS_RETURN_IF_ERROR(sweep.flush());
  return sum.sum();
}

// Maps of one width and one conversion, their indices, and the memory that a sweep of them needs.
struct MapGroup {
  unsigned unit_bytes = 1;
  std::vector<cuda::DigestMap> maps;
  std::vector<std::size_t> numbers;
  // Offsets in the workspace, in both memories: the sums of each map, then the sweep's own data.
  std::uint64_t sums_at = 0;
  std::optional<cuda::MapSweep> sweep;
};

std::vector<MapGroup> grouped(std::span<const MapToSum> maps) {
  std::map<std::pair<unsigned, ValueCast>, MapGroup> groups;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const WeightMap& map = *maps[i].map;
    MapGroup& group = groups[{map.unit_bytes, map.cast}];
    group.unit_bytes = map.unit_bytes;
    const auto slot = static_cast<std::uint32_t>(group.maps.size());
    group.maps.push_back({map.map, map.data, map.cast, *maps[i].key, slot});
    group.numbers.push_back(i);
  }
  std::vector<MapGroup> found;
  for (auto& [kind, group] : groups) found.push_back(std::move(group));
  return found;
}

// Whether the groups were made from exactly these maps.
bool made_of(const std::vector<MapGroup>& groups, std::span<const MapToSum> maps) {
  std::size_t count = 0;
  for (const MapGroup& group : groups) {
    count += group.maps.size();
    if (!group.sweep || count > maps.size()) return false;
    for (std::size_t i = 0; i < group.maps.size(); ++i) {
      const cuda::DigestMap& mapped = group.maps[i];
      const auto& [map, key] = maps[group.numbers[i]];
      if (mapped.data_dev != map->data || group.unit_bytes != map->unit_bytes ||
          mapped.cast != map->cast || !(mapped.key == *key) || !(mapped.map == map->map)) {
        return false;
      }
    }
  }
  return count == maps.size();
}

constexpr std::uint64_t kMapSumsBytes = cuda::kDigestMapSums * sizeof(std::uint64_t);

Status prepare_sweeps(const GpuContext& gpu, DeviceWorkspace& workspace,
                      std::vector<MapGroup>& groups) {
  std::uint64_t used = 0;
  std::vector<std::pair<std::uint64_t, cuda::WorkspaceSize>>
      sweep_spaces;  // of each sweep: place, size
  for (MapGroup& group : groups) {
    const cuda::WorkspaceSize size = cuda::MapSweep::workspace_size(group.maps, group.unit_bytes);
    group.sums_at = used;
    used += device_aligned(group.maps.size() * kMapSumsBytes);
    sweep_spaces.emplace_back(used, size);
    used += device_aligned(std::max(size.dev_bytes, size.host_bytes));
  }
  DRIFTLESS_RETURN_IF_ERROR(workspace.dev.reserve(used, MemoryKind::kDevice));
  DRIFTLESS_RETURN_IF_ERROR(workspace.host.reserve(used, MemoryKind::kHost));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& [at, size] = sweep_spaces[i];
    const cuda::Workspace work{workspace.dev.data() + at, size.dev_bytes,
                               workspace.host.data() + at, size.host_bytes};
    DRIFTLESS_ASSIGN_OR_RETURN(
        groups[i].sweep,
        cuda::MapSweep::make(groups[i].maps, groups[i].unit_bytes, work, gpu.stream.get()));
  }
  return {};
}

// Queues short launches; the sums are on the host once the stream is done.
Status queue_sweep(const GpuContext& gpu, const DeviceWorkspace& workspace, const MapGroup& group) {
  const std::uint64_t bytes = group.maps.size() * kMapSumsBytes;
  std::byte* const dev = workspace.dev.data() + group.sums_at;
  DRIFTLESS_RETURN_IF_ERROR(gpu.stream.clear(dev, bytes));
  DRIFTLESS_RETURN_IF_ERROR(
      group.sweep->sum(reinterpret_cast<std::uint64_t*>(dev), gpu.stream.get()));
  return gpu.stream.copy(workspace.host.data() + group.sums_at, dev, bytes);
}

void take_sums(const DeviceWorkspace& workspace, const MapGroup& group,
               std::vector<StridedSum>& sums) {
  const std::byte* const host = workspace.host.data() + group.sums_at;
  for (std::size_t i = 0; i < group.maps.size(); ++i) {
    std::uint64_t slot[cuda::kDigestMapSums];
    std::memcpy(slot, host + i * kMapSumsBytes, kMapSumsBytes);
    sums[group.numbers[i]] = {cuda::digest_from_sums(std::span(slot).first<cuda::kDigestSums>()),
                              slot[cuda::kDigestSums]};
  }
}

// Memory for blocks that a road fetches.
class DeviceArrivals final : public ArrivalMemory {
 public:
  explicit DeviceArrivals(std::shared_ptr<GpuContext> gpu) : gpu_(std::move(gpu)) {}

  Result<DeviceSpace> take(std::uint64_t bytes) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    const std::uint64_t limit = gpu_->max_staging_bytes;
    if (limit != 0 && bytes > limit) {
      return error(StatusCode::kNoSpace, "a version's blocks take ", bytes,
                   " bytes of the GPU's memory, at most ", limit, " are allowed");
    }
    const bool large = kept_.size() > std::max(kKeptBytes, 4 * bytes);
    if (kept_.size() < bytes || large || !used_.expired()) {
      kept_ = DeviceBuffer();
      DRIFTLESS_ASSIGN_OR_RETURN(kept_, DeviceBuffer::make(std::max<std::uint64_t>(bytes, 1)));
    }
    DeviceSpace space{.device = gpu_->device,
                      .allocation = kept_.memory(),
                      .allocation_bytes = kept_.size(),
                      .memory = std::shared_ptr<std::byte>(
                          kept_.data(), [memory = kept_.memory()](std::byte*) {}),
                      .copy = {}};
    space.copy = [gpu = gpu_](std::byte* to_dev, std::span<const std::byte> from) -> Status {
      DRIFTLESS_ASSIGN_OR_RETURN(const auto device, OnDevice::enter(gpu->device));
      DRIFTLESS_RETURN_IF_ERROR(gpu->uploader.copy(to_dev, from, gpu->stream));
      return gpu->stream.wait();
    };
    used_ = space.memory;
    return space;
  }

  Result<std::vector<Hash128>> hash(
      std::span<const std::span<const std::byte>> stretches) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    return device_xxh3_128(stretches);
  }

  [[nodiscard]] std::uint64_t held_bytes() const { return kept_.size(); }

 private:
  static constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;  // or 4x the need if larger

  std::shared_ptr<GpuContext> gpu_;
  DeviceBuffer kept_;
  std::weak_ptr<std::byte> used_;  // the version that uses kept_
};

class DeviceWeightMemory final : public WeightMemory, private BucketMemory {
 public:
  explicit DeviceWeightMemory(std::shared_ptr<GpuContext> gpu)
      : gpu_(std::move(gpu)), arrivals_(gpu_) {}

  [[nodiscard]] MemoryKind kind() const override { return MemoryKind::kDevice; }
  [[nodiscard]] unsigned threads(unsigned /*wanted*/) const override { return 1; }
  [[nodiscard]] ArrivalMemory* arrivals() override { return &arrivals_; }
  [[nodiscard]] StagingMemory staging_memory() const override {
    return {gpu_->staging.device_bytes + sweep_.dev.size() + arrivals_.held_bytes(),
            gpu_->staging.pinned_bytes + sweep_.host.size()};
  }
  [[nodiscard]] BucketMemory* buckets() override { return this; }
  [[nodiscard]] bool measures_parts() const override { return true; }

  Result<std::unique_ptr<PlacedChanges>> place(std::span<const ChangePart> parts,
                                               unsigned /*threads*/) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    return place_on_device(gpu_, parts);
  }
  Result<Placed> place_buckets(std::span<const ContiguousTensor> tensors,
                               std::vector<VersionSource> chain) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    return place_buckets_on_device(gpu_, tensors, std::move(chain));
  }
  Result<std::unique_ptr<PlacedChanges>> place_parts(
      std::span<const BucketPart> parts, std::span<const SourceBucket> buckets) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    return place_parts_on_device(gpu_, parts, buckets);
  }
  Result<bool> decode_compact(std::span<CompactUnits> blocks) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    const Status decoded = decode_compact_on_device(gpu_, blocks);
    if (decoded.code() == StatusCode::kNoSpace) return false;  // the host does it
    DRIFTLESS_RETURN_IF_ERROR(decoded);
    return true;
  }
  Result<Digest> digest(std::span<const TensorBytes> bytes, unsigned /*threads*/) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    return sum_on_device(gpu_, bytes);
  }

  Result<std::vector<StridedSum>> sum_maps(std::span<const MapToSum> maps,
                                           unsigned /*threads*/) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    // The engine may be paused meanwhile: if the maps are the same, the tables are kept.
    if (!made_of(sweeps_, maps)) {
      sweeps_ = grouped(maps);
      DRIFTLESS_RETURN_IF_ERROR(prepare_sweeps(*gpu_, sweep_, sweeps_));
    }
    for (const MapGroup& group : sweeps_) {
      DRIFTLESS_RETURN_IF_ERROR(queue_sweep(*gpu_, sweep_, group));
    }
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    std::vector<StridedSum> sums(maps.size());
    for (const MapGroup& group : sweeps_) take_sums(sweep_, group, sums);
    return sums;
  }

  Status read(std::span<const WeightMap* const> maps, std::uint64_t origin, std::uint64_t count,
              std::byte* values) override {
    if (maps.empty() || count == 0) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    const unsigned width = maps.front()->unit_bytes;
    bool gathered = false;
    for (const WeightMap* map : maps) {
      if (map->plain()) continue;
      DRIFTLESS_RETURN_IF_ERROR(reserve(count));
      DRIFTLESS_ASSIGN_OR_RETURN(const cuda::StridedPatch patch, dense(*map, origin, count));
      DRIFTLESS_RETURN_IF_ERROR(patch.gather_strided(scratch_.dev.data(), gpu_->stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());  // the table is reused
      gathered = true;
    }
    if (gathered) {
      DRIFTLESS_RETURN_IF_ERROR(
          gpu_->uploader.read({values, count * width}, scratch_.dev.data(), gpu_->stream));
    }
    for (const WeightMap* map : maps) {
      const auto [begin, end] = map->range(origin, count);
      if (!map->plain() || begin >= end) continue;
      DRIFTLESS_RETURN_IF_ERROR(
          gpu_->uploader.read({values + (begin - origin) * width, (end - begin) * width},
                              map->at(begin), gpu_->stream));
    }
    return {};
  }

  Status write(std::span<const WeightMap* const> maps, std::uint64_t origin, std::uint64_t count,
               const std::byte* values, MemoryKind from) override {
    if (maps.empty() || count == 0) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    const unsigned width = source_bytes(maps.front()->cast, maps.front()->unit_bytes);
    bool copied = false;
    for (const WeightMap* map : maps) {
      if (map->plain()) {
        const auto [begin, end] = map->range(origin, count);
        if (begin >= end) continue;
        DRIFTLESS_RETURN_IF_ERROR(gpu_->copy(
            map->at(begin), {values + (begin - origin) * width, (end - begin) * width}, from));
        continue;
      }
      if (!copied) {
        DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());  // earlier contents may be in use
        DRIFTLESS_RETURN_IF_ERROR(reserve(count));
        DRIFTLESS_RETURN_IF_ERROR(gpu_->copy(scratch_.dev.data(), {values, count * width}, from));
        copied = true;
      }
      DRIFTLESS_ASSIGN_OR_RETURN(const cuda::StridedPatch patch, dense(*map, origin, count));
      DRIFTLESS_RETURN_IF_ERROR(
          patch.scatter_strided(scratch_.dev.data(), false, gpu_->stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());  // the table is reused
    }
    return {};
  }

  Result<bool> find_differing(std::span<const WeightMap* const> maps, std::uint64_t origin,
                              std::uint32_t count, const std::byte* values,
                              std::vector<std::uint32_t>& offsets) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    const Status found =
        find_differing_on_device(*gpu_, scratch_, maps, origin, count, values, offsets);
    if (found.code() == StatusCode::kNoSpace) return false;  // the host does it
    DRIFTLESS_RETURN_IF_ERROR(found);
    return true;
  }

  Status finish() override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    return gpu_->stream.wait();
  }

  Status fetch(std::span<std::byte> to, const std::byte* from) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    return gpu_->uploader.read(to, from, gpu_->stream);
  }

  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(gpu_->device));
    const Result<DeviceBuffer> made = DeviceBuffer::make(bytes);
    if (!made.ok()) return made.status().with_context("weights on the GPU");
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.clear(made->data(), bytes));
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    return made->memory();
  }

 private:
  Status reserve(std::uint64_t count) {
    const cuda::WorkspaceSize table = table_size(count);
    DRIFTLESS_RETURN_IF_ERROR(
        scratch_.dev.reserve(table_at(count) + table.dev_bytes, MemoryKind::kDevice));
    return scratch_.host.reserve(table.host_bytes, MemoryKind::kHost);
  }
  // All units of [origin, origin + count) that the map has; values are at the scratch's beginning.
  Result<cuda::StridedPatch> dense(const WeightMap& map, std::uint64_t origin,
                                   std::uint64_t count) {
    cuda::StridedPatch::Part part;
    part.map = map.map;
    part.data_dev = map.data;
    part.cast = map.cast;
    part.origin = origin;
    part.count = count;
    const cuda::WorkspaceSize table = table_size(count);
    const cuda::Workspace workspace{scratch_.dev.data() + table_at(count), table.dev_bytes,
                                    scratch_.host.data(), table.host_bytes};
    return cuda::StridedPatch::make(std::span(&part, 1), map.unit_bytes, nullptr, workspace,
                                    gpu_->stream.get());
  }

  std::shared_ptr<GpuContext> gpu_;
  DeviceWorkspace scratch_;       // for read(), write() and find_differing()
  DeviceWorkspace sweep_;         // separate, because a staged change may hold the context's
  std::vector<MapGroup> sweeps_;  // of the last sum_maps(), in sweep_
  DeviceArrivals arrivals_;
};

}  // namespace

Status GpuContext::reserve(DeviceWorkspace& held, std::uint64_t dev_bytes, std::uint64_t host_bytes,
                           const std::string& what) {
  if (max_staging_bytes != 0 && dev_bytes > max_staging_bytes) {
    return error(StatusCode::kNoSpace, what, " takes ", dev_bytes,
                 " bytes of the GPU's memory, at most ", max_staging_bytes,
                 " are allowed; publish smaller versions, or fold fewer of them");
  }
  dev_bytes = std::max<std::uint64_t>(1, dev_bytes);
  host_bytes = std::max<std::uint64_t>(1, host_bytes);
  DRIFTLESS_RETURN_IF_ERROR(held.dev.reserve(dev_bytes, MemoryKind::kDevice).with_context(what));
  DRIFTLESS_RETURN_IF_ERROR(held.host.reserve(host_bytes, MemoryKind::kHost).with_context(what));
  staging.device_bytes = held.dev.size();
  staging.pinned_bytes = held.host.size() + uploader.pinned_bytes();
  return {};
}

WorkspaceLease::WorkspaceLease(std::shared_ptr<GpuContext> gpu)
    : gpu_(std::move(gpu)), held_(std::move(gpu_->workspace)) {}

WorkspaceLease::~WorkspaceLease() {
  // If even waiting fails, the device is lost, and with it the work on it.
  const OnDevice on(gpu_->device);
  static_cast<void>(on.status().ok() && gpu_->stream.wait().ok());
  if (held_.dev.size() >= gpu_->workspace.dev.size()) gpu_->workspace = std::move(held_);
}

Result<std::shared_ptr<WeightMemory>> make_bounded_device_memory(int device,
                                                                 std::uint64_t max_staging_bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(device));
  auto gpu = std::make_shared<GpuContext>();
  gpu->device = device;
  gpu->max_staging_bytes = max_staging_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(gpu->stream, DeviceStream::make());
  DRIFTLESS_ASSIGN_OR_RETURN(gpu->uploader, Uploader::make());
  DRIFTLESS_RETURN_IF_ERROR(load_patch_kernels(gpu->stream));
  return std::shared_ptr<WeightMemory>(std::make_shared<DeviceWeightMemory>(std::move(gpu)));
}

Result<std::shared_ptr<WeightMemory>> make_device_memory(int device) {
  return make_bounded_device_memory(device, 0);
}

}  // namespace driftless
