// SPDX-License-Identifier: Apache-2.0
#include "core/digest.h"

namespace driftless {
namespace {

constexpr DigestPlaceKeys make_place_keys() {
  DigestPlaceKeys keys{};
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    for (std::size_t place = 0; place < kDigestBlockWords; ++place) {
      const std::uint64_t halves = digest_place_halves(lane, place);
      keys.low[lane][place] = static_cast<std::uint32_t>(halves);
      keys.high[lane][place] = static_cast<std::uint32_t>(halves >> 32);
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

const DigestPlaceKeys& digest_place_keys() { return kPlaceKeys; }

}  // namespace driftless
