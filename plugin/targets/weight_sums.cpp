// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/weight_sums.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "kernels/host_kernels.h"

namespace driftless {
namespace {

constexpr std::uint64_t kSourceTaskBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kConvertUnits = std::uint64_t{1} << 14;  // at a time
// A thread for fewer changed units takes longer to start than it saves.
constexpr std::uint64_t kSummedPerThread = 32768;

// Bytes of a tensor on the host, from unit `first` on, that are added to a sum.
struct Stretch {
  std::size_t sum = 0;             // index of the sum
  const WeightMap* map = nullptr;  // sums only this map's units; null: all
  const DigestTensorKey* key = nullptr;
  unsigned unit_bytes = 1;
  std::uint64_t first = 0;
  std::span<const std::byte> bytes;
};

// Splits the rest into tasks of a few megabytes.
void add_stretches(Stretch rest, std::vector<Stretch>& to) {
  while (!rest.bytes.empty()) {
    Stretch some = rest;
    some.bytes = rest.bytes.first(std::min<std::uint64_t>(kSourceTaskBytes, rest.bytes.size()));
    to.push_back(some);
    rest.bytes = rest.bytes.subspan(some.bytes.size());
    rest.first += some.bytes.size() / rest.unit_bytes;
  }
}

enum class SumType { kTensor, kPlace };

// kPlace: the values in the type of the map's target. kTensor: the tensor's values as they would be
// read back from there: the same bits, except that F16ToF32 makes signalling NaNs quiet.
std::span<const std::byte> converted(const WeightMap& map, SumType type,
                                     std::span<const std::byte> values,
                                     std::vector<std::byte>& scratch) {
  const std::uint64_t count = values.size() / source_bytes(map.cast, map.unit_bytes);
  if (type == SumType::kPlace && map.cast != ValueCast::kNone) {
    scratch.resize(count * map.unit_bytes);
    convert_values(map.cast, map.unit_bytes, values.data(), count, scratch.data());
    return scratch;
  }
  if (map.cast != ValueCast::kF16ToF32) return values;
  scratch.assign(values.begin(), values.end());
  for (std::uint64_t at = 0; at < scratch.size(); at += sizeof(std::uint16_t)) {
    std::uint16_t value = 0;
    std::memcpy(&value, scratch.data() + at, sizeof(value));
    static_cast<void>(undo_cast<F16ToF32>(f32_of_f16(value), value));
    std::memcpy(scratch.data() + at, &value, sizeof(value));
  }
  return scratch;
}

Digest sum_stretch(const Stretch& stretch, SumType type) {
  const unsigned width = stretch.unit_bytes;
  if (stretch.map == nullptr) {
    return host_kernels().digest(*stretch.key, stretch.first * width, stretch.bytes);
  }
  const WeightMap& map = *stretch.map;
  const auto [begin, end] = map.range(stretch.first, stretch.bytes.size() / width);
  std::vector<std::byte> scratch;
  Digest sum;
  for (std::uint64_t at = begin; at < end;) {
    const StridedMap::Run run = map.map.run_at(at);
    std::uint64_t last = std::min(run.end, end);
    if (run.target != StridedMap::kOutside) {
      if (map.cast != ValueCast::kNone) last = std::min(last, at + kConvertUnits);
      const auto values = stretch.bytes.subspan((at - stretch.first) * width, (last - at) * width);
      const std::uint64_t offset = at * (type == SumType::kPlace ? map.unit_bytes : width);
      sum += host_kernels().digest(*stretch.key, offset, converted(map, type, values, scratch));
    }
    at = last;
  }
  return sum;
}

// Adds the digest of each stretch to its sum.
Status sum_stretches(const std::vector<Stretch>& stretches, SumType type, unsigned threads,
                     std::vector<Digest>& sums) {
  std::vector<Digest> found(stretches.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(stretches.size(), threads, [&](std::size_t i, unsigned) -> Status {
        found[i] = sum_stretch(stretches[i], type);
        return {};
      }));
  for (std::size_t i = 0; i < found.size(); ++i) sums[stretches[i].sum] += found[i];
  return {};
}

// The changes of one part that its map has, in the tensor's own width.
struct PlainChanges {
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> old_values, new_values;
};

template <typename Cast>
void collect_plain(const ChangePart& part, PlainChanges& plain) {
  using From = typename Cast::From;
  plain.offsets.clear();
  plain.old_values.resize(std::size_t{part.count} * sizeof(From));
  plain.new_values.resize(plain.old_values.size());
  for (std::uint32_t k = 0; k < part.count; ++k) {
    const std::uint32_t offset = part.offsets()[k];
    if (part.map->map.target_of(part.piece->origin + offset) == StridedMap::kOutside) continue;
    typename Cast::To there;
    From before, after;
    std::memcpy(&there, part.old_values + std::size_t{k} * sizeof(there), sizeof(there));
    std::memcpy(&after, part.values() + std::size_t{k} * sizeof(after), sizeof(after));
    static_cast<void>(undo_cast<Cast>(there, before));
    static_cast<void>(undo_cast<Cast>(Cast::apply(after), after));
    std::memcpy(plain.old_values.data() + plain.offsets.size() * sizeof(From), &before,
                sizeof(From));
    std::memcpy(plain.new_values.data() + plain.offsets.size() * sizeof(From), &after,
                sizeof(From));
    plain.offsets.push_back(offset);
  }
}

Digest change_of(const ChangePart& part, const DigestTensorKey& key, PlainChanges& scratch) {
  const WeightMap& map = *part.map;
  const unsigned width = source_bytes(map.cast, map.unit_bytes);
  if (map.cast == ValueCast::kNone && map.map.solid()) {
    return host_kernels().digest_change(key, width, part.piece->origin, part.offsets(), part.count,
                                        part.old_values, part.values());
  }
  switch (map.cast) {
    case ValueCast::kBF16ToF32: collect_plain<BF16ToF32>(part, scratch); break;
    case ValueCast::kF16ToF32: collect_plain<F16ToF32>(part, scratch); break;
    default:
      with_cast(ValueCast::kNone, width,
                [&](auto same) { collect_plain<decltype(same)>(part, scratch); });
  }
  return host_kernels().digest_change(key, width, part.piece->origin, scratch.offsets.data(),
                                      scratch.offsets.size(), scratch.old_values.data(),
                                      scratch.new_values.data());
}

// Digests what each map holds; zero if a map cannot be read back.
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
    const MappedWeights::Tensor& mapped = weights.tensors[share.tensor];
    for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
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
                   " values to which no value of the tensor's type converts: other code wrote into "
                   "the weights; send a full version, or reload them");
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
               ". Other code wrote into the weights, or the memory is bad; send a full version, "
               "or reload them");
}

Result<VersionSums> sums_of_version(const MappedWeights& weights, const VersionSource& version) {
  // Digests of the tensors, then of the maps.
  std::vector<Digest> sums(weights.layout.size() + weights.maps.size());
  const auto whole = [&](const WeightMap& map) {
    return map.map.units() == weights.layout[map.tensor].units() &&
           map.cast != ValueCast::kF16ToF32;
  };
  const bool on_device = weights.contiguous && weights.memory->kind() == MemoryKind::kDevice;
  std::vector<Stretch> stretches;
  for (const TensorChange& change : version.changes()) {
    const MappedWeights::Tensor& mapped = weights.tensors[change.tensor];
    const unsigned width = unit_bytes(weights.layout[change.tensor].dtype);
    const auto each = [&](const auto& use) {
      for (const DensePiece& piece : version.dense(change)) {
        const Status used = piece.each_stretch(width, [&](const DensePiece& stretch) {
          use(stretch);
          return Status();
        });
        static_cast<void>(used);  // nothing in it fails
      }
    };
    const auto add = [&](std::size_t sum, const WeightMap* map) {
      each([&](const DensePiece& piece) {
        add_stretches({sum, map, &mapped.key, width, piece.byte_offset / width, piece.bytes},
                      stretches);
      });
    };
    if (on_device) {
      std::vector<TensorBytes> bytes;
      each([&](const DensePiece& piece) { bytes.push_back({piece, &mapped.key}); });
      DRIFTLESS_ASSIGN_OR_RETURN(sums[change.tensor],
                                 weights.memory->digest(bytes, weights.threads));
    } else {
      add(change.tensor, nullptr);
    }
    for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
      const WeightMap& map = weights.maps[m];
      if (reversible(map.cast) && !whole(map)) add(weights.layout.size() + m, &map);
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(sum_stretches(stretches, SumType::kTensor, weights.threads, sums));
  const auto maps = sums.begin() + static_cast<std::ptrdiff_t>(weights.layout.size());
  VersionSums found{{sums.begin(), maps}, {maps, sums.end()}};
  for (std::size_t m = 0; m < weights.maps.size(); ++m) {
    const WeightMap& map = weights.maps[m];
    if (reversible(map.cast) && whole(map)) found.maps[m] = found.tensors[map.tensor];
  }
  return found;
}

Result<std::vector<bool>> hold_sources(std::span<const SourcedMap> maps, WeightMemory& memory,
                                       unsigned threads) {
  const DigestTensorKey key = digest_tensor_key("");
  std::vector<Stretch> stretches;
  std::vector<WeightMap> as_it_lies;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    const auto& [map, tensor] = maps[i];
    const unsigned width = source_bytes(map.cast, map.unit_bytes);
    if (map.map.source_end * width > tensor.size()) {
      return error(StatusCode::kInvalidArgument, "a map of more than the tensor's ", tensor.size(),
                   " bytes");
    }
    as_it_lies.push_back(map);
    as_it_lies.back().cast = ValueCast::kNone;
    add_stretches({i, &map, &key, width, 0, tensor.first(map.map.source_end * width)}, stretches);
  }
  std::vector<Digest> expected(maps.size());
  DRIFTLESS_RETURN_IF_ERROR(sum_stretches(stretches, SumType::kPlace, threads, expected));
  std::vector<MapToSum> there;
  for (const WeightMap& map : as_it_lies) there.push_back({&map, &key});
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<StridedSum> found, memory.sum_maps(there, threads));
  std::vector<bool> agree(maps.size());
  for (std::size_t i = 0; i < maps.size(); ++i) agree[i] = found[i].digest == expected[i];
  return agree;
}

Result<std::vector<Digest>> sums_after(const MappedWeights& weights, std::vector<Digest> before,
                                       std::span<const ChangePart> parts,
                                       std::span<const Digest> measured) {
  const auto sum_of = [&](const ChangePart& part) -> Digest& {
    return before[static_cast<std::size_t>(part.map - weights.maps.data())];
  };
  for (std::size_t i = 0; i < measured.size(); ++i) sum_of(parts[i]) += measured[i];
  if (!measured.empty()) return before;
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
  std::vector<PlainChanges> scratch(threads);
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(readable.size(), threads, [&](std::size_t i, unsigned worker) -> Status {
        const ChangePart& part = *readable[i];
        changes[i] = change_of(part, weights.tensors[part.map->tensor].key, scratch[worker]);
        return {};
      }));
  for (std::size_t i = 0; i < readable.size(); ++i) {
    sum_of(*readable[i]) += changes[i];
  }
  return before;
}

}  // namespace driftless
