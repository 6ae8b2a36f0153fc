// SPDX-License-Identifier: Apache-2.0
// The GPU's kernels behind the table of the host's: every call copies there and back.
#include "support/kernels_under_test.h"

#include <algorithm>

#include "gpu/captured.h"
#include "gpu/device.h"
#include "kernels/cuda/compact.h"
#include "kernels/cuda/quantize.h"

namespace driftless::testing {
namespace {

// On the device a unit lies at a multiple of its size; the host's address says which one.
std::uint64_t shift_of(const void* host, unsigned unit_bytes) {
  return reinterpret_cast<std::uintptr_t>(host) % 16 / unit_bytes * unit_bytes;
}

DeviceBytes place(const void* host, std::uint64_t bytes, unsigned unit_bytes) {
  return DeviceBytes({static_cast<const std::byte*>(host), bytes}, shift_of(host, unit_bytes));
}

std::uint32_t diff(const void* old_units, const void* new_units, std::uint32_t count,
                   unsigned unit_bytes, std::uint32_t* offsets, void* values, void* old_values) {
  const std::uint64_t bytes = std::uint64_t{count} * unit_bytes;
  const DeviceBytes before = place(old_units, bytes, unit_bytes);
  const DeviceBytes after = place(new_units, bytes, unit_bytes);
  const std::uint64_t units[] = {count};
  const WorkMemory work(cuda::DiffBatch::workspace_size(units, unit_bytes, count));
  auto batch = cuda::DiffBatch::make(units, unit_bytes, count, work.get(), nullptr);
  must(batch.status());
  const DeviceBytes positions(std::uint64_t{count} * 4), found(bytes);
  const cuda::DiffBatch::Tensor tensor{before.data(), after.data()};
  must(batch->run(std::span(&tensor, 1), cuda::PositionCoding::kIndices, positions.data(),
                  found.data(), nullptr));
  must(cudaDeviceSynchronize());
  const auto results = batch->results();
  EXPECT_TRUE(positions.intact() && found.intact() && work.intact());
  EXPECT_EQ(results.entries[0].count, results.changed);
  must(cudaMemcpy(offsets, positions.data(), results.changed * 4, cudaMemcpyDeviceToHost));
  must(cudaMemcpy(values, found.data(), results.changed * unit_bytes, cudaMemcpyDeviceToHost));
  const auto* const old_bytes = static_cast<const std::byte*>(old_units);
  for (std::uint64_t k = 0; old_values != nullptr && k < results.changed; ++k) {
    std::memcpy(static_cast<std::byte*>(old_values) + k * unit_bytes,
                old_bytes + std::uint64_t{offsets[k]} * unit_bytes, unit_bytes);
  }
  return static_cast<std::uint32_t>(results.changed);
}

std::uint32_t diff_cast(const void* old_units, const void* new_values, std::uint32_t count,
                        ValueCast cast, std::uint32_t* offsets, void* values, void* old_values) {
  const unsigned from = source_bytes(cast, 2);
  const DeviceBytes before = place(old_units, std::uint64_t{count} * 2, 2);
  const DeviceBytes after = place(new_values, std::uint64_t{count} * from, from);
  const Captured found = capture(before, after, count, 2, cast, count);
  std::ranges::copy(found.positions, offsets);
  std::ranges::copy(found.values, static_cast<std::byte*>(values));
  if (old_values != nullptr) {
    std::ranges::copy(found.old_values, static_cast<std::byte*>(old_values));
  }
  return static_cast<std::uint32_t>(found.positions.size());
}

// A patch of one tensor whose positions are `origin` + offsets, as 64-bit ones.
struct OnePatch {
  OnePatch(std::byte* data, std::uint64_t units, unsigned unit_bytes, std::uint64_t origin,
           const std::uint32_t* offsets, std::uint64_t count, const DigestTensorKey& key)
      : positions(widened(origin, offsets, count)),
        tensor{data, units, {count, 0, 0, 8, 0}, key},
        work(cuda::Patch::workspace_size(std::span(&tensor, 1))),
        patch(cuda::Patch::make(std::span(&tensor, 1), unit_bytes, cuda::PositionCoding::kIndices,
                                positions.data(), work.get(), nullptr)) {
    must(patch.status());
    must(cudaDeviceSynchronize());
    must(patch->check());
  }
  static DeviceBytes widened(std::uint64_t origin, const std::uint32_t* offsets,
                             std::uint64_t count) {
    std::vector<std::uint64_t> wide(count);
    std::transform(offsets, offsets + count, wide.begin(),
                   [&](std::uint32_t offset) { return origin + offset; });
    return DeviceBytes(std::as_bytes(std::span(wide)));
  }

  DeviceBytes positions;
  cuda::Patch::Tensor tensor;
  WorkMemory work;
  Result<cuda::Patch> patch;
};

std::uint64_t units_needed(const std::uint32_t* offsets, std::uint64_t count) {
  return count == 0 ? 0 : std::uint64_t{offsets[count - 1]} + 1;
}

void gather(const void* units, unsigned unit_bytes, const std::uint32_t* offsets,
            std::uint64_t count, void* values) {
  const std::uint64_t needed = units_needed(offsets, count);
  const DeviceBytes data = place(units, needed * unit_bytes, unit_bytes);
  const DeviceBytes out(count * unit_bytes, shift_of(values, unit_bytes));
  const OnePatch one(data.data(), needed, unit_bytes, 0, offsets, count, {});
  must(one.patch->gather(out.data(), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(out.intact());
  must(cudaMemcpy(values, out.data(), count * unit_bytes, cudaMemcpyDeviceToHost));
}

void scatter(void* units, unsigned unit_bytes, const std::uint32_t* offsets, std::uint64_t count,
             const void* values) {
  const std::uint64_t needed = units_needed(offsets, count);
  const DeviceBytes data = place(units, needed * unit_bytes, unit_bytes);
  const DeviceBytes given = place(values, count * unit_bytes, unit_bytes);
  const OnePatch one(data.data(), needed, unit_bytes, 0, offsets, count, {});
  must(one.patch->scatter(given.data(), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(data.intact());
  must(cudaMemcpy(units, data.data(), needed * unit_bytes, cudaMemcpyDeviceToHost));
}

std::uint64_t masked_overwrite(void* target, const void* source, std::uint64_t count,
                               unsigned unit_bytes, std::uint64_t sentinel) {
  const DeviceBytes to = place(target, count * unit_bytes, unit_bytes);
  const DeviceBytes from = place(source, count * unit_bytes, unit_bytes);
  const std::uint64_t none = 0;
  const DeviceBytes written(std::as_bytes(std::span(&none, 1)));
  must(cuda::masked_overwrite(to.data(), from.data(), count, unit_bytes, sentinel,
                              reinterpret_cast<std::uint64_t*>(written.data()), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(to.intact() && written.intact());
  must(cudaMemcpy(target, to.data(), count * unit_bytes, cudaMemcpyDeviceToHost));
  std::uint64_t result = 0;
  must(cudaMemcpy(&result, written.data(), sizeof(result), cudaMemcpyDeviceToHost));
  return result;
}

Digest fetch_digest(const DeviceBytes& sums) {
  std::uint64_t host[cuda::kDigestSums];
  must(cudaMemcpy(host, sums.data(), sizeof(host), cudaMemcpyDeviceToHost));
  EXPECT_TRUE(sums.intact());
  return cuda::digest_from_sums(host);
}

Digest digest(const DigestTensorKey& tensor, std::uint64_t byte_offset,
              std::span<const std::byte> bytes) {
  const DeviceBytes data(bytes, reinterpret_cast<std::uintptr_t>(bytes.data()) % 16);
  const cuda::DigestPiece piece{data.data(), bytes.size(), byte_offset, tensor};
  const WorkMemory work(cuda::digest_workspace_size(std::span(&piece, 1)));
  const DeviceBytes sums(cuda::kDigestSums * sizeof(std::uint64_t));
  must(cuda::digest(std::span(&piece, 1), work.get(), reinterpret_cast<std::uint64_t*>(sums.data()),
                    nullptr));
  must(cudaDeviceSynchronize());
  return fetch_digest(sums);
}

Digest digest_change(const DigestTensorKey& tensor, unsigned unit_bytes, std::uint64_t origin,
                     const std::uint32_t* offsets, std::uint64_t count, const void* old_values,
                     const void* new_values) {
  const DeviceBytes before = place(old_values, count * unit_bytes, unit_bytes);
  const DeviceBytes after = place(new_values, count * unit_bytes, unit_bytes);
  const OnePatch one(nullptr, origin + units_needed(offsets, count), unit_bytes, origin, offsets,
                     count, tensor);
  const DeviceBytes sums(cuda::kDigestSums * sizeof(std::uint64_t));
  must(one.patch->digest_changes(before.data(), after.data(),
                                 reinterpret_cast<std::uint64_t*>(sums.data()), nullptr));
  must(cudaDeviceSynchronize());
  return fetch_digest(sums);
}

// On the device two kernels one after the other: the old values are what the patch finds there.
Digest scatter_digested(const DigestTensorKey& tensor, unsigned unit_bytes, std::uint64_t origin,
                        const std::uint32_t* offsets, std::uint64_t count, const void* old_values,
                        const void* new_values, void* units) {
  const Digest change =
      digest_change(tensor, unit_bytes, origin, offsets, count, old_values, new_values);
  if (units != nullptr) scatter(units, unit_bytes, offsets, count, new_values);
  return change;
}

// A strided patch of one part, whose positions are origin + offsets.
struct OneStrided {
  OneStrided(const StridedMap& map, std::byte* data, unsigned unit_bytes, std::uint64_t origin,
             const std::uint32_t* given, std::uint64_t count, ValueCast cast)
      : offsets(std::as_bytes(std::span(given, count))),
        part{map, data, cast, origin, count, 0, 0, 0},
        work(cuda::StridedPatch::workspace_size(std::span(&part, 1))),
        patch(cuda::StridedPatch::make(std::span(&part, 1), unit_bytes,
                                       reinterpret_cast<const std::uint32_t*>(offsets.data()),
                                       work.get(), nullptr)) {
    must(patch.status());
  }
  // The device does not count.
  [[nodiscard]] static std::uint64_t inside(const StridedMap& map, std::uint64_t origin,
                                            const std::uint32_t* offsets, std::uint64_t count) {
    return static_cast<std::uint64_t>(
        std::count_if(offsets, offsets + count, [&](std::uint32_t offset) {
          return map.target_of(origin + offset) != StridedMap::kOutside;
        }));
  }

  DeviceBytes offsets;
  cuda::StridedPatch::Part part;
  WorkMemory work;
  Result<cuda::StridedPatch> patch;
};

std::uint64_t gather_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                             std::uint64_t origin, const std::uint32_t* offsets,
                             std::uint64_t count, void* values) {
  const DeviceBytes data = place(target, map.target_end * unit_bytes, unit_bytes);
  const DeviceBytes out = place(values, count * unit_bytes, unit_bytes);
  const OneStrided one(map, data.data(), unit_bytes, origin, offsets, count, ValueCast::kNone);
  must(one.patch->gather_strided(out.data(), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(out.intact() && data.intact());
  must(cudaMemcpy(values, out.data(), count * unit_bytes, cudaMemcpyDeviceToHost));
  return OneStrided::inside(map, origin, offsets, count);
}

// By scatter, and by an exchange on another copy, which must do the same and give the old values.
std::uint64_t scatter_strided(const StridedMap& map, void* target, unsigned unit_bytes,
                              std::uint64_t origin, const std::uint32_t* offsets,
                              std::uint64_t count, const void* values, ValueCast cast) {
  const std::uint64_t bytes = map.target_end * unit_bytes;
  const unsigned from = source_bytes(cast, unit_bytes);
  const DeviceBytes data = place(target, bytes, unit_bytes);
  const DeviceBytes other = place(target, bytes, unit_bytes);
  const DeviceBytes given = place(values, count * from, from);
  const DeviceBytes old(count * unit_bytes);
  const std::uint32_t none[2] = {~std::uint32_t{0}, ~std::uint32_t{0}};
  const DeviceBytes differs(std::as_bytes(std::span(none)));
  const OneStrided one(map, data.data(), unit_bytes, origin, offsets, count, cast);
  const OneStrided two(map, other.data(), unit_bytes, origin, offsets, count, cast);
  must(one.patch->scatter_strided(given.data(), false, nullptr));
  must(two.patch->gather_strided(old.data(), nullptr));
  auto* const verdict = reinterpret_cast<std::uint32_t*>(differs.data());
  must(two.patch->exchange_strided(given.data(), old.data(), verdict, nullptr));
  must(cudaDeviceSynchronize());
  std::uint32_t found[2] = {0, 0};
  must(cudaMemcpy(found, differs.data(), sizeof(found), cudaMemcpyDeviceToHost));
  EXPECT_EQ(found[0], none[0]) << "the old values were just read";
  EXPECT_EQ(found[1], none[1]) << "the new values were just written";
  EXPECT_TRUE(data.intact() && other.intact() && old.intact() && differs.intact());
  const std::vector<std::byte> before(static_cast<std::byte*>(target),
                                      static_cast<std::byte*>(target) + bytes);
  must(cudaMemcpy(target, data.data(), bytes, cudaMemcpyDeviceToHost));
  std::vector<std::byte> exchanged(bytes), taken_back(bytes);
  must(cudaMemcpy(exchanged.data(), other.data(), bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::memcmp(exchanged.data(), target, bytes), 0);
  must(two.patch->scatter_strided(old.data(), true, nullptr));
  must(cudaMemcpy(taken_back.data(), other.data(), bytes, cudaMemcpyDeviceToHost));
  EXPECT_EQ(taken_back, before);
  return OneStrided::inside(map, origin, offsets, count);
}

// The device has no window of units: the map is cut to it, a run at a time.
StridedSum digest_strided(const StridedMap& map, const void* target, unsigned unit_bytes,
                          ValueCast cast, const DigestTensorKey& tensor, std::uint64_t begin,
                          std::uint64_t end) {
  const DeviceBytes data = place(target, map.target_end * unit_bytes, unit_bytes);
  std::vector<cuda::DigestMap> parts;
  if (begin <= map.source_offset && end >= map.source_end) {
    if (map.units() > 0) parts.push_back({map, data.data(), cast, tensor, 1});
  } else {
    end = std::min(end, map.source_end);
    for (std::uint64_t at = std::max(begin, map.source_offset); at < end;) {
      const StridedMap::Run run = map.run_at(at);
      const std::uint64_t last = std::min(run.end, end), count = last - at;
      if (run.target != StridedMap::kOutside) {
        const StridedView source{at, {count}, {1}};
        const StridedView there{run.target + (at - run.begin) * run.step, {count}, {run.step}};
        parts.push_back(
            {*StridedMap::make(source, last, there, map.target_end), data.data(), cast, tensor, 1});
      }
      at = last;
    }
  }
  const std::vector<std::uint64_t> zeros(2 * cuda::kDigestMapSums);
  const DeviceBytes sums(std::as_bytes(std::span(zeros)));
  const WorkMemory work(cuda::MapSweep::workspace_size(parts, unit_bytes));
  const auto sweep = cuda::MapSweep::make(parts, unit_bytes, work.get(), nullptr);
  must(sweep.status());
  must(sweep->sum(reinterpret_cast<std::uint64_t*>(sums.data()), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(sums.intact() && work.intact());
  std::uint64_t host[2 * cuda::kDigestMapSums];
  must(cudaMemcpy(host, sums.data(), sizeof(host), cudaMemcpyDeviceToHost));
  const std::span<const std::uint64_t> slot = std::span(host).subspan(cuda::kDigestMapSums);
  return {cuda::digest_from_sums(slot.first<cuda::kDigestSums>()), slot[cuda::kDigestSums]};
}

// A tile as a block of its own, behind another one, so that nothing begins at 0.
struct OneTile {
  OneTile(const CompactTable& table, const void* old_units, std::uint32_t units,
          std::uint32_t count)
      : before(place(old_units, std::uint64_t{units} * table.fields.unit_bytes,
                     table.fields.unit_bytes)) {
    block.old_dev = before.data();
    block.place = BlockPlace::all(units);
    block.entry = {count, 3, 8, 4, 0};
  }
  DeviceBytes before;
  cuda::CompactBlock block;
};

std::uint32_t compact_encode(const CompactTable& table, const void* old_units, std::uint32_t units,
                             const std::uint32_t* offsets, std::uint32_t count, const void* values,
                             std::byte* stream) {
  const unsigned width = table.fields.unit_bytes;
  const OneTile one(table, old_units, units, count);
  const DeviceBytes positions(8 + std::uint64_t{count} * 4);
  const DeviceBytes given((3 + std::uint64_t{count}) * width);
  must(cudaMemcpy(positions.data() + 8, offsets, std::uint64_t{count} * 4, cudaMemcpyHostToDevice));
  must(cudaMemcpy(given.data() + 3 * width, values, std::uint64_t{count} * width,
                  cudaMemcpyHostToDevice));
  const std::span blocks(&one.block, 1);
  const WorkMemory work(cuda::CompactEncode::workspace_size(blocks, table.fields, 1));
  auto encode = cuda::CompactEncode::make(blocks, table.fields, 1, positions.data(), given.data(),
                                          work.get(), nullptr);
  must(encode.status());
  must(encode->size(std::span(&table, 1), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(work.intact());
  const auto tiles = encode->tiles();
  if (!tiles.ok()) return kCompactNotInTable;
  EXPECT_EQ(tiles->size(), 1U);
  EXPECT_EQ(tiles->front().changes, count);
  const std::uint32_t bytes = tiles->front().bytes;
  const DeviceBytes out(bytes);
  must(encode->run(out.data(), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(out.intact() && work.intact());
  must(cudaMemcpy(stream, out.data(), bytes, cudaMemcpyDeviceToHost));
  return bytes;
}

bool compact_decode(const CompactTable& table, const void* old_units, std::uint32_t units,
                    std::span<const std::byte> stream, std::uint32_t count, std::uint32_t* offsets,
                    void* values, void* old_values) {
  const unsigned width = table.fields.unit_bytes;
  OneTile one(table, old_units, units, count);
  one.block.stream_begin = 1 + count % 4;
  DeviceBytes bytes((one.block.stream_begin + stream.size() + 3) / 4 * 4);
  must(cudaMemcpy(bytes.data() + one.block.stream_begin, stream.data(), stream.size(),
                  cudaMemcpyHostToDevice));
  const std::span blocks(&one.block, 1);
  const CompactTile tile{count, static_cast<std::uint32_t>(stream.size())};
  const WorkMemory work(cuda::CompactDecode::workspace_size(blocks, std::span(&table, 1)));
  auto decode = cuda::CompactDecode::make(blocks, std::span(&table, 1), std::span(&tile, 1),
                                          work.get(), nullptr);
  if (!decode.ok()) return false;
  const DeviceBytes positions(8 + std::uint64_t{count} * 4);
  const DeviceBytes found((3 + std::uint64_t{count}) * width);
  const DeviceBytes old((3 + std::uint64_t{count}) * width);
  must(decode->run(bytes.data(), positions.data(), found.data(), old.data(), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(positions.intact() && found.intact() && old.intact() && work.intact());
  must(cudaMemcpy(offsets, positions.data() + 8, std::uint64_t{count} * 4, cudaMemcpyDeviceToHost));
  must(cudaMemcpy(values, found.data() + 3 * width, std::uint64_t{count} * width,
                  cudaMemcpyDeviceToHost));
  must(cudaMemcpy(old_values, old.data() + 3 * width, std::uint64_t{count} * width,
                  cudaMemcpyDeviceToHost));
  return decode->check().ok();
}

void quantize_part(QuantizeRule rule, const MatrixPart& part, const void* weights,
                   std::uint16_t* largest, void* codes) {
  const std::uint64_t blocks = part.blocks_high() * part.blocks_wide();
  if (blocks == 0) return;
  const std::uint64_t units = (part.rows - 1) * part.stride + part.columns;
  const DeviceBytes from = place(weights, units * 2, 2);
  const DeviceBytes known(std::as_bytes(std::span(largest, blocks)));
  std::optional<DeviceBytes> made;  // what lies between the rows stays
  if (codes != nullptr) made.emplace(place(codes, units, 1));
  const cuda::QuantizePart one{part, from.data(), reinterpret_cast<std::uint16_t*>(known.data()),
                               made ? made->data() : nullptr};
  const WorkMemory work(cuda::quantize_workspace_size({&one, 1}));
  must(cuda::quantize(rule, {&one, 1}, work.get(), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(from.intact() && known.intact() && work.intact() && (!made || made->intact()));
  must(cudaMemcpy(largest, known.data(), blocks * 2, cudaMemcpyDeviceToHost));
  if (made) must(cudaMemcpy(codes, made->data(), units, cudaMemcpyDeviceToHost));
}

// Rows adjoin: so the contract suite has them, and publishers, too.
void quantize_groups(unsigned group, std::uint64_t rows, std::uint64_t columns,
                     std::uint64_t stride, const void* weights, void* packed, void* scales) {
  EXPECT_EQ(stride, columns);
  const std::uint64_t units = rows * columns, groups = units / group;
  if (units == 0) return;
  const DeviceBytes from = place(weights, units * 2, 2);
  const DeviceBytes codes(units / 2), made_scales(groups * 2);
  must(
      cuda::quantize_groups(group, groups, from.data(), codes.data(), made_scales.data(), nullptr));
  must(cudaDeviceSynchronize());
  EXPECT_TRUE(from.intact() && codes.intact() && made_scales.intact());
  must(cudaMemcpy(packed, codes.data(), units / 2, cudaMemcpyDeviceToHost));
  must(cudaMemcpy(scales, made_scales.data(), groups * 2, cudaMemcpyDeviceToHost));
}

}  // namespace

std::vector<Quantizer> quantizers_under_test() {
  return {{"cuda", quantize_part, quantize_groups}};
}

std::vector<HostKernels> kernels_under_test() {
  HostKernels kernels{
      "cuda",           diff,           diff_cast,        gather,         scatter,
      masked_overwrite, digest,         scatter_digested, gather_strided, scatter_strided,
      digest_strided,   compact_encode, compact_decode};
  return {kernels};
}

}  // namespace driftless::testing
