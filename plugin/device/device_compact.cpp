// SPDX-License-Identifier: Apache-2.0
// decode_compact_on_device(): decodes blocks of `compact` with the old units on the device. The
// changes are copied to the host, where versions are folded.
#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/cuda/compact.h"
#include "plugin/device/gpu_context.h"

namespace driftless {
namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{256} << 20;  // device memory, roughly
constexpr std::uint64_t kBlockSumsBytes = cuda::kDigestSums * sizeof(std::uint64_t);
constexpr std::uint64_t kIntLimit = std::uint64_t{1} << 31;

// Where the tensor's unit 0 would lie, if one plain map has the whole block; else null.
const std::byte* plain_data(const CompactUnits& block) {
  if (block.place.units == 0) return nullptr;
  const std::uint64_t begin = block.place.at(0), end = block.place.at(block.place.units - 1) + 1;
  for (const WeightMap* map : block.maps) {
    if (map->plain() && map->map.source_offset <= begin && map->map.source_end >= end) {
      return map->at(begin) - begin * map->unit_bytes;
    }
  }
  return nullptr;
}

// How many units of the tensor lie between the block's first and last one, inclusive.
std::uint64_t span_of(const CompactUnits& block) {
  if (block.place.units == 0) return 0;
  return block.place.at(block.place.units - 1) + 1 - block.place.at(0);
}

// Blocks of one type that are decoded together.
class CompactBatch {
 public:
  CompactBatch(GpuContext& gpu, DeviceWorkspace& workspace, std::span<CompactUnits> blocks)
      : gpu_(gpu), workspace_(workspace), blocks_(blocks) {}

  Status run() {
    lay_out();
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_.reserve(workspace_, dev_.used(), host_.used(), "decoding a version in compact"));
    for (std::size_t i = 0; i < blocks_.size(); ++i) DRIFTLESS_RETURN_IF_ERROR(bring(i));
    DRIFTLESS_ASSIGN_OR_RETURN(
        cuda::CompactDecode decode,
        cuda::CompactDecode::make(coded_, tables_, tiles_, work(decode_at_, decode_host_at_, size_),
                                  gpu_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(decode.run(dev(streams_at_), dev(positions_at_), dev(values_at_),
                                         dev(old_at_), gpu_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.wait());
    const Status good = decode.check();
    if (!good.ok()) return good.with_context(blocks_[decode.bad_block()].name);
    DRIFTLESS_RETURN_IF_ERROR(sum_up());
    return fetch();
  }

 private:
  [[nodiscard]] std::byte* dev(std::uint64_t at) const { return workspace_.dev.data() + at; }
  [[nodiscard]] cuda::Workspace work(std::uint64_t at, std::uint64_t host_at,
                                     const cuda::WorkspaceSize& size) const {
    return {dev(at), size.dev_bytes, workspace_.host.data() + host_at, size.host_bytes};
  }

  void lay_out() {
    width_ = blocks_.front().table->fields.unit_bytes;
    std::uint64_t changes = 0, positions = 0, streams = 0;
    for (const CompactUnits& block : blocks_) {
      cuda::CompactBlock coded;
      coded.place = block.place;
      coded.entry.count = block.positions.size();
      coded.entry.value_begin = changes;
      coded.entry.position_begin = positions;
      coded.entry.position_bytes = block.place.units <= kIntLimit ? 4 : 8;
      const auto [known, fresh] = known_tables_.try_emplace(block.table, tables_.size());
      if (fresh) tables_.push_back(*block.table);
      coded.table = static_cast<std::uint32_t>(known->second);
      coded.stream_begin = streams;
      changes += block.positions.size();
      positions = (positions + coded.entry.count * coded.entry.position_bytes + 7) / 8 * 8;
      streams += block.streams.size();
      tiles_.insert(tiles_.end(), block.tiles.begin(), block.tiles.end());
      gathered_at_.push_back(plain_data(block) == nullptr ? dev_.take(span_of(block) * width_) : 0);
      coded_.push_back(coded);
    }
    streams_at_ = dev_.take((streams + 3) / 4 * 4);
    positions_at_ = dev_.take(positions);
    values_at_ = dev_.take(changes * width_);
    old_at_ = dev_.take(changes * width_);
    size_ = cuda::CompactDecode::workspace_size(coded_, tables_);
    decode_at_ = dev_.take(size_.dev_bytes);
    decode_host_at_ = host_.take(size_.host_bytes);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      patched_.push_back(
          {nullptr, blocks_[i].place.units, coded_[i].entry, blocks_[i].key, blocks_[i].place});
    }
    patch_size_ = cuda::Patch::workspace_size(patched_);
    patch_at_ = dev_.take(patch_size_.dev_bytes);
    patch_host_at_ = host_.take(patch_size_.host_bytes);
    sums_at_ = dev_.take(blocks_.size() * kBlockSumsBytes);
    sums_host_at_ = host_.take(blocks_.size() * kBlockSumsBytes);
    for (const CompactUnits& block : blocks_) {
      if (plain_data(block) == nullptr) longest_ = std::max(longest_, span_of(block));
    }
    cuda::StridedPatch::Part longest;
    longest.count = longest_;
    gather_size_ = cuda::StridedPatch::workspace_size(std::span(&longest, 1));
    gather_at_ = dev_.take(gather_size_.dev_bytes);
    gather_host_at_ = host_.take(gather_size_.host_bytes);
  }

  // Copies the streams; gathers the old units unless one plain map has all of them.
  Status bring(std::size_t i) {
    const CompactUnits& block = blocks_[i];
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_.copy(dev(streams_at_ + coded_[i].stream_begin), block.streams, MemoryKind::kHost));
    coded_[i].old_dev = plain_data(block);
    if (coded_[i].old_dev != nullptr || block.place.units == 0) return {};
    std::byte* const gathered = dev(gathered_at_[i]);
    const std::uint64_t first = block.place.at(0);
    for (const WeightMap* map : block.maps) {
      cuda::StridedPatch::Part part;
      part.map = map->map;
      part.data_dev = map->data;
      part.origin = first;
      part.count = span_of(block);
      DRIFTLESS_ASSIGN_OR_RETURN(
          const cuda::StridedPatch patch,
          cuda::StridedPatch::make(std::span(&part, 1), width_, nullptr,
                                   work(gather_at_, gather_host_at_, gather_size_),
                                   gpu_.stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(patch.gather_strided(gathered, gpu_.stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.wait());  // the table is reused
    }
    coded_[i].old_dev = gathered - first * width_;
    return {};
  }

  // Computes what each block adds to the digest.
  Status sum_up() {
    DRIFTLESS_ASSIGN_OR_RETURN(
        const cuda::Patch patch,
        cuda::Patch::make(patched_, width_, cuda::PositionCoding::kIndices, dev(positions_at_),
                          work(patch_at_, patch_host_at_, patch_size_), gpu_.stream.get()));
    DRIFTLESS_RETURN_IF_ERROR(patch.digest_changes(dev(old_at_), dev(values_at_),
                                                   reinterpret_cast<std::uint64_t*>(dev(sums_at_)),
                                                   gpu_.stream.get()));
    std::byte* const sums = workspace_.host.data() + sums_host_at_;
    DRIFTLESS_RETURN_IF_ERROR(
        gpu_.stream.copy(sums, dev(sums_at_), blocks_.size() * kBlockSumsBytes));
    DRIFTLESS_RETURN_IF_ERROR(gpu_.stream.wait());
    DRIFTLESS_RETURN_IF_ERROR(patch.check());
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      std::uint64_t block_sums[cuda::kDigestSums];
      std::memcpy(block_sums, sums + i * kBlockSumsBytes, kBlockSumsBytes);
      blocks_[i].change = cuda::digest_from_sums(block_sums);
    }
    return {};
  }

  Status fetch() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const CompactUnits& block = blocks_[i];
      const cuda::StreamEntry& entry = coded_[i].entry;
      if (entry.count == 0) continue;
      DRIFTLESS_RETURN_IF_ERROR(gpu_.uploader.read({block.values, entry.count * width_},
                                                   dev(values_at_) + entry.value_begin * width_,
                                                   gpu_.stream));
      std::vector<std::byte> bytes(entry.count * entry.position_bytes);
      DRIFTLESS_RETURN_IF_ERROR(
          gpu_.uploader.read(bytes, dev(positions_at_) + entry.position_begin, gpu_.stream));
      for (std::uint64_t k = 0; k < entry.count; ++k) {
        std::uint64_t position = 0;  // little-endian
        std::memcpy(&position, bytes.data() + k * entry.position_bytes, entry.position_bytes);
        block.positions[k] = block.place.at(position);
      }
    }
    return {};
  }

  GpuContext& gpu_;
  DeviceWorkspace& workspace_;
  std::span<CompactUnits> blocks_;
  unsigned width_ = 1;
  PlacePlan dev_, host_;
  std::vector<cuda::CompactBlock> coded_;
  std::vector<CompactTable> tables_;
  std::map<const CompactTable*, std::size_t> known_tables_;
  std::vector<CompactTile> tiles_;
  std::vector<cuda::Patch::Tensor> patched_;
  std::vector<std::uint64_t> gathered_at_;  // of each block; 0 if not gathered
  std::uint64_t longest_ = 0;
  std::uint64_t streams_at_ = 0, positions_at_ = 0, values_at_ = 0, old_at_ = 0;
  cuda::WorkspaceSize size_, patch_size_, gather_size_;
  std::uint64_t decode_at_ = 0, decode_host_at_ = 0, patch_at_ = 0, patch_host_at_ = 0;
  std::uint64_t gather_at_ = 0, gather_host_at_ = 0, sums_at_ = 0, sums_host_at_ = 0;
};

// The device memory that a block takes, roughly.
std::uint64_t room_for(const CompactUnits& block) {
  const unsigned width = block.table->fields.unit_bytes;
  const std::uint64_t gathered = plain_data(block) == nullptr ? span_of(block) * width : 0;
  return gathered + block.streams.size() + block.positions.size() * (12 + 2 * width) +
         block.tiles.size() * 2112 + 100'000;
}

}  // namespace

Status decode_compact_on_device(const std::shared_ptr<GpuContext>& gpu,
                                std::span<CompactUnits> blocks) {
  WorkspaceLease workspace(gpu);
  while (!blocks.empty()) {
    std::size_t count = 0;
    for (std::uint64_t room = 0; count < blocks.size(); ++count) {
      room += room_for(blocks[count]);
      const bool same = blocks[count].table->fields == blocks.front().table->fields;
      if (count > 0 && (!same || room > kBatchBytes)) break;
    }
    DRIFTLESS_RETURN_IF_ERROR(CompactBatch(*gpu, *workspace, blocks.first(count)).run());
    blocks = blocks.subspan(count);
  }
  return {};
}

}  // namespace driftless
