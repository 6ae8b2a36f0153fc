// SPDX-License-Identifier: Apache-2.0
// hold_sources(): a map's target against the tensor that it was filled from. Compared by a digest
// in the target's own type, so that every conversion can be compared, also one that loses bits.
#include <algorithm>

#include "core/parallel.h"
#include "plugin/targets/weight_sums.h"

namespace driftless {
namespace {

constexpr std::uint64_t kConvertUnits = std::uint64_t{1} << 14;      // at a time
constexpr std::uint64_t kCompareTaskUnits = std::uint64_t{1} << 21;  // of one task

// The digest of the units [begin, end) of the tensor that the map has, as its target has them.
Digest sum_converted(const SourcedMap& given, const DigestTensorKey& key, std::uint64_t begin,
                     std::uint64_t end) {
  const WeightMap& map = given.map;
  const unsigned from = source_bytes(map.cast, map.unit_bytes);
  std::vector<std::byte> converted(kConvertUnits * map.unit_bytes);
  Digest sum;
  for (std::uint64_t at = begin; at < end;) {
    const StridedMap::Run run = map.map.run_at(at);
    std::uint64_t last = std::min(run.end, end);
    if (run.target == StridedMap::kOutside) {
      at = last;
      continue;
    }
    std::span<const std::byte> values = given.tensor.subspan(at * from, (last - at) * from);
    if (map.cast != ValueCast::kNone) {
      last = std::min(last, at + kConvertUnits);
      convert_values(map.cast, map.unit_bytes, values.data(), last - at, converted.data());
      values = std::span(converted).first((last - at) * map.unit_bytes);
    }
    sum += host_kernels().digest(key, at * map.unit_bytes, values);
    at = last;
  }
  return sum;
}

}  // namespace

Result<std::vector<bool>> hold_sources(std::span<const SourcedMap> maps, WeightMemory& memory,
                                       unsigned threads) {
  const DigestTensorKey key = digest_tensor_key("");
  struct Task {
    std::size_t map;
    std::uint64_t begin, end;
    Digest sum;
  };
  std::vector<Task> tasks;
  std::vector<WeightMap> as_it_lies;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const WeightMap& map = maps[i].map;
    if (map.map.source_end * source_bytes(map.cast, map.unit_bytes) > maps[i].tensor.size()) {
      return error(StatusCode::kInvalidArgument, "a map of more than the tensor's ",
                   maps[i].tensor.size(), " bytes");
    }
    as_it_lies.push_back(map);
    as_it_lies.back().cast = ValueCast::kNone;
    for (std::uint64_t at = map.map.source_offset; at < map.map.source_end;
         at += kCompareTaskUnits) {
      tasks.push_back({i, at, std::min(map.map.source_end, at + kCompareTaskUnits), {}});
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(tasks.size(), threads, [&](std::size_t i, unsigned) -> Status {
        tasks[i].sum = sum_converted(maps[tasks[i].map], key, tasks[i].begin, tasks[i].end);
        return {};
      }));
  std::vector<Digest> expected(maps.size());
  for (const Task& task : tasks) expected[task.map] += task.sum;
  std::vector<MapToSum> there;
  for (const WeightMap& map : as_it_lies) there.push_back({&map, &key});
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<StridedSum> found, memory.sum_maps(there, threads));
  std::vector<bool> agree(maps.size());
  for (std::size_t i = 0; i < maps.size(); ++i) agree[i] = found[i].digest == expected[i];
  return agree;
}

}  // namespace driftless
