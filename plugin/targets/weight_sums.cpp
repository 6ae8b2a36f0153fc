// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/weight_sums.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

constexpr std::uint64_t kSourceTaskBytes = std::uint64_t{4} << 20;
// Below this many changed units starting threads takes longer than the work.
constexpr std::uint64_t kSummedPerThread = 32768;

// The digest of values that F16ToF32 widens and undo_cast() brings back: a signalling NaN is quiet.
Digest quiet_sum(const DigestTensorKey& key, std::uint64_t first,
                 std::span<const std::byte> bytes) {
  std::vector<std::uint16_t> values(bytes.size() / sizeof(std::uint16_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  for (std::uint16_t& value : values) {
    static_cast<void>(undo_cast<F16ToF32>(f32_of_f16(value), value));
  }
  return host_kernels().digest(key, first * sizeof(std::uint16_t),
                               std::as_bytes(std::span(values)));
}

// Changes of one part that its map has, in the tensor's own width.
struct OwnChanges {
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> old_values, new_values;
};

template <typename Cast>
void collect_own(const ChangePart& part, OwnChanges& own) {
  using From = typename Cast::From;
  own.offsets.clear();
  own.old_values.resize(std::size_t{part.count} * sizeof(From));
  own.new_values.resize(own.old_values.size());
  for (std::uint32_t k = 0; k < part.count; ++k) {
    const std::uint32_t offset = part.offsets()[k];
    if (part.map->map.target_of(part.piece->origin + offset) == StridedMap::kOutside) continue;
    typename Cast::To there;
    From before, after;
    std::memcpy(&there, part.old_values + std::size_t{k} * sizeof(there), sizeof(there));
    std::memcpy(&after, part.values() + std::size_t{k} * sizeof(after), sizeof(after));
    static_cast<void>(undo_cast<Cast>(there, before));
    static_cast<void>(undo_cast<Cast>(Cast::apply(after), after));
    std::memcpy(own.old_values.data() + own.offsets.size() * sizeof(From), &before, sizeof(From));
    std::memcpy(own.new_values.data() + own.offsets.size() * sizeof(From), &after, sizeof(From));
    own.offsets.push_back(offset);
  }
}

Digest change_of(const ChangePart& part, const DigestTensorKey& key, OwnChanges& scratch) {
  const WeightMap& map = *part.map;
  const unsigned width = source_bytes(map.cast, map.unit_bytes);
  if (map.cast == ValueCast::kNone && map.map.solid()) {
    return host_kernels().digest_change(key, width, part.piece->origin, part.offsets(), part.count,
                                        part.old_values, part.values());
  }
  switch (map.cast) {
    case ValueCast::kBF16ToF32: collect_own<BF16ToF32>(part, scratch); break;
    case ValueCast::kF16ToF32: collect_own<F16ToF32>(part, scratch); break;
    default:
      with_cast(ValueCast::kNone, width,
                [&](auto same) { collect_own<decltype(same)>(part, scratch); });
  }
  return host_kernels().digest_change(key, width, part.piece->origin, scratch.offsets.data(),
                                      scratch.offsets.size(), scratch.old_values.data(),
                                      scratch.new_values.data());
}

// Adds the digests of tasks, each of one item, to the items'.
template <typename Task, typename Item, typename Sum>
Status add_tasks(const std::vector<Task>& tasks, unsigned threads, std::vector<Digest>& sums,
                 const Item& item, const Sum& sum) {
  std::vector<Digest> found(tasks.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(tasks.size(), threads, [&](std::size_t i, unsigned) -> Status {
        found[i] = sum(tasks[i]);
        return {};
      }));
  for (std::size_t i = 0; i < tasks.size(); ++i) sums[item(tasks[i])] += found[i];
  return {};
}

// Stretches of a full version's tensor, of a few megabytes each: use(first unit, bytes).
template <typename Use>
void each_stretch(const MappedWeights& weights, const VersionSource& version,
                  const TensorChange& change, const Use& use) {
  const unsigned width = unit_bytes(weights.layout[change.tensor].dtype);
  for (const DensePiece& piece : version.dense(change)) {
    for (std::uint64_t at = 0; at < piece.bytes.size(); at += kSourceTaskBytes) {
      const std::uint64_t size = std::min<std::uint64_t>(kSourceTaskBytes, piece.bytes.size() - at);
      use((piece.byte_offset + at) / width, piece.bytes.subspan(at, size));
    }
  }
}

// What each map holds; nothing of one that cannot be read back.
Result<std::vector<StridedSum>> read_maps(const MappedWeights& weights) {
  std::vector<MapToSum> readable;
  for (const WeightMap& map : weights.maps) {
    if (reversible(map.cast)) readable.push_back({&map, &weights.tensors[map.tensor].key});
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<StridedSum> found,
                             weights.memory->sum_maps(readable, weights.threads));
  std::vector<StridedSum> all(weights.maps.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    all[static_cast<std::size_t>(readable[i].map - weights.maps.data())] = found[i];
  }
  return all;
}

}  // namespace

std::string name_of(const MappedWeights& weights, const WeightMap& map) {
  std::string name = concat("tensor '", weights.layout[map.tensor].name, "'");
  if (!map.parameter.empty()) name = concat("parameter '", map.parameter, "' (", name, ")");
  return weights.rank ? concat("rank ", *weights.rank, ": ", name) : name;
}

std::shared_ptr<const WeightSums> make_sums(const MappedWeights& weights,
                                            std::vector<Digest> maps) {
  auto sums = std::make_shared<WeightSums>();
  sums->shares = weights.no_shares;
  for (TensorShare& share : sums->shares.tensors) {
    const MappedWeights::Tensor& own = weights.tensors[share.tensor];
    for (std::uint32_t m = own.first_map; m < own.first_map + own.maps; ++m) {
      if (weights.in_share[m]) share.digest += maps[m];
    }
  }
  sums->maps = std::move(maps);
  return sums;
}

Result<std::vector<Digest>> read_sums(const MappedWeights& weights) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<StridedSum> found, read_maps(weights));
  std::vector<Digest> sums(found.size());
  for (std::size_t m = 0; m < found.size(); ++m) {
    if (found[m].foreign != 0) {
      return error(StatusCode::kMismatch, name_of(weights, weights.maps[m]), " holds ",
                   found[m].foreign,
                   " values that nothing of the tensor's type converts to: somebody else wrote "
                   "into the weights; send a full version, or reload them");
    }
    sums[m] = found[m].digest;
  }
  return sums;
}

Result<LookedShares> look_at(const MappedWeights& weights) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<StridedSum> found, read_maps(weights));
  LookedShares looked;
  std::vector<Digest> sums(found.size());
  for (std::size_t m = 0; m < found.size(); ++m) {
    sums[m] = found[m].digest;
    const std::uint32_t tensor = weights.maps[m].tensor;
    const bool other = weights.sums && weights.sums->maps[m] != sums[m];
    const bool named = !looked.suspects.empty() && looked.suspects.back() == tensor;
    if ((other || found[m].foreign != 0) && !named) looked.suspects.push_back(tensor);
  }
  looked.shares = make_sums(weights, std::move(sums))->shares;
  return looked;
}

Status check_sums(const MappedWeights& weights, const WeightSums& expected) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> found, read_sums(weights));
  std::vector<std::size_t> different;
  for (std::size_t m = 0; m < found.size(); ++m) {
    if (found[m] != expected.maps[m]) different.push_back(m);
  }
  if (different.empty()) return {};
  const std::size_t first = different.front();
  const std::string others =
      different.size() == 1 ? "" : concat(" (and ", different.size() - 1, " other places)");
  return error(StatusCode::kMismatch, name_of(weights, weights.maps[first]), others,
               " is not what it should be: what it holds has digest ", to_hex(found[first]),
               ", expected ", to_hex(expected.maps[first]),
               ". Somebody else wrote into the weights, or the memory is bad; send a full version, "
               "or reload them");
}

Digest sum_source(const WeightMap& map, const DigestTensorKey& key, std::uint64_t first,
                  std::span<const std::byte> bytes) {
  const unsigned width = source_bytes(map.cast, map.unit_bytes);
  const auto [begin, end] = map.range(first, bytes.size() / width);
  Digest sum;
  for (std::uint64_t at = begin; at < end;) {
    const StridedMap::Run run = map.map.run_at(at);
    const std::uint64_t last = std::min(run.end, end);
    if (run.target != StridedMap::kOutside) {
      const auto units = bytes.subspan((at - first) * width, (last - at) * width);
      sum += map.cast == ValueCast::kF16ToF32 ? quiet_sum(key, at, units)
                                              : host_kernels().digest(key, at * width, units);
    }
    at = last;
  }
  return sum;
}

Result<std::vector<Digest>> tensor_sums_of_version(const MappedWeights& weights,
                                                   const VersionSource& version) {
  std::vector<Digest> sums(weights.layout.size());
  if (weights.contiguous && weights.memory->kind() == MemoryKind::kDevice) {
    for (const TensorChange& change : version.changes()) {
      std::vector<TensorBytes> bytes;
      for (const DensePiece& piece : version.dense(change)) {
        bytes.push_back({piece, &weights.tensors[change.tensor].key});
      }
      DRIFTLESS_ASSIGN_OR_RETURN(sums[change.tensor],
                                 weights.memory->digest(bytes, weights.threads));
    }
    return sums;
  }
  struct Task {
    std::uint32_t tensor;
    std::uint64_t first;
    std::span<const std::byte> bytes;
  };
  std::vector<Task> tasks;
  for (const TensorChange& change : version.changes()) {
    each_stretch(weights, version, change, [&](std::uint64_t first, auto bytes) {
      tasks.push_back({change.tensor, first, bytes});
    });
  }
  DRIFTLESS_RETURN_IF_ERROR(add_tasks(
      tasks, weights.threads, sums, [](const Task& task) { return task.tensor; },
      [&](const Task& task) {
        return host_kernels().digest(weights.tensors[task.tensor].key,
                                     task.first * unit_bytes(weights.layout[task.tensor].dtype),
                                     task.bytes);
      }));
  return sums;
}

Result<std::vector<Digest>> sums_of_version(const MappedWeights& weights,
                                            const VersionSource& version,
                                            std::span<const Digest> tensors) {
  struct Task {
    std::size_t map;
    std::uint64_t first;
    std::span<const std::byte> bytes;
  };
  std::vector<Digest> sums(weights.maps.size());
  std::vector<Task> tasks;
  for (std::size_t m = 0; m < sums.size(); ++m) {
    const WeightMap& map = weights.maps[m];
    const TensorChange* const change = version.find(map.tensor);
    if (!reversible(map.cast) || change == nullptr) continue;
    if (map.map.units() == weights.layout[map.tensor].units() && map.cast != ValueCast::kF16ToF32) {
      sums[m] = tensors[map.tensor];
      continue;
    }
    each_stretch(weights, version, *change,
                 [&](std::uint64_t first, auto bytes) { tasks.push_back({m, first, bytes}); });
  }
  DRIFTLESS_RETURN_IF_ERROR(add_tasks(
      tasks, weights.threads, sums, [](const Task& task) { return task.map; },
      [&](const Task& task) {
        const WeightMap& map = weights.maps[task.map];
        return sum_source(map, weights.tensors[map.tensor].key, task.first, task.bytes);
      }));
  return sums;
}

Result<std::vector<Digest>> sums_after(const MappedWeights& weights, std::vector<Digest> before,
                                       std::span<const ChangePart> parts) {
  std::uint64_t units = 0;
  std::vector<const ChangePart*> readable;
  for (const ChangePart& part : parts) {
    if (!reversible(part.map->cast)) continue;
    readable.push_back(&part);
    units += part.count;
  }
  const auto threads = static_cast<unsigned>(
      std::clamp<std::uint64_t>(units / kSummedPerThread, 1, std::max(1U, weights.threads)));
  std::vector<Digest> changes(readable.size());
  std::vector<OwnChanges> scratch(threads);
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(readable.size(), threads, [&](std::size_t i, unsigned worker) -> Status {
        const ChangePart& part = *readable[i];
        changes[i] = change_of(part, weights.tensors[part.map->tensor].key, scratch[worker]);
        return {};
      }));
  for (std::size_t i = 0; i < readable.size(); ++i) {
    before[static_cast<std::size_t>(readable[i]->map - weights.maps.data())] += changes[i];
  }
  return before;
}

}  // namespace driftless
