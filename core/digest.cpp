#include "core/digest.h"

namespace driftless {
namespace {

// The finalizer of SplitMix64: a bijection of 64 bits in which every input bit reaches every output
// bit.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

constexpr DigestPlaceKeys make_place_keys() {
  constexpr std::uint32_t kMask28 = (1U << 28) - 1;
  DigestPlaceKeys keys{};
  std::uint64_t counter = 0;
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    for (std::size_t place = 0; place < kDigestBlockWords; ++place) {
      const std::uint64_t bits = mix(++counter * kGolden);
      keys.low[lane][place] = static_cast<std::uint32_t>(bits) & kMask28;
      keys.high[lane][place] = static_cast<std::uint32_t>(bits >> 32) & kMask28;
    }
  }
  return keys;
}

constexpr DigestPlaceKeys kPlaceKeys = make_place_keys();

}  // namespace

Digest& Digest::operator+=(const Digest& other) {
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    lanes[lane] = digest_add(lanes[lane], other.lanes[lane]);
  }
  return *this;
}

Digest& Digest::operator-=(const Digest& other) {
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    lanes[lane] = digest_subtract(lanes[lane], other.lanes[lane]);
  }
  return *this;
}

std::string to_hex(const Digest& digest) {
  return to_hex(Hash128{digest.lanes[0], digest.lanes[1]});
}

Result<Digest> digest_from_hex(std::string_view text) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Hash128 halves, hash128_from_hex(text));
  if (halves.high >= kDigestPrime || halves.low >= kDigestPrime) {
    return error(StatusCode::kCorrupt, "'", text,
                 "' is not a digest: a lane is not below 2^61 - 1");
  }
  return Digest{{halves.high, halves.low}};
}

DigestTensorKey digest_tensor_key(std::string_view tensor_name) { return {xxh3_128(tensor_name)}; }

std::uint64_t digest_block_key(const DigestTensorKey& tensor, std::uint64_t block,
                               std::size_t lane) {
  const std::uint64_t half = lane == 0 ? tensor.name_hash.high : tensor.name_hash.low;
  return digest_fold(mix(mix(half + (block + 1) * kGolden) ^ (lane + 1)));
}

const DigestPlaceKeys& digest_place_keys() { return kPlaceKeys; }

}  // namespace driftless
