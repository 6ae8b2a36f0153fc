// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/hash_finish.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace driftless {
namespace {

// Below this size a copy to the host is faster.
constexpr std::uint64_t kShortBytes = 16 * kXxhBlockBytes;

static_assert(XXH_PRIME32_1 == kXxhScramblePrime);
static_assert(XXH_SECRET_DEFAULT_SIZE == kXxhSecretWords * 8);

}  // namespace

XxhSecret xxh_secret() {
  XxhSecret secret;
  std::memcpy(secret.words, XXH3_kSecret, sizeof(secret.words));
  return secret;
}

XxhAccumulators xxh_first_accumulators() {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XxhAccumulators accumulators;
  std::memcpy(accumulators.data(), state.acc, sizeof(accumulators));
  return accumulators;
}

std::uint64_t xxh_device_blocks(std::uint64_t bytes) {
  return bytes < kShortBytes ? 0 : (bytes - 1) / kXxhBlockBytes - 1;
}

Hash128 xxh_finish(const XxhAccumulators& accumulators, std::uint64_t blocks,
                   std::span<const std::byte> tail) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  if (blocks > 0) {
    // The library's state after whole blocks: an empty buffer and no stripe of a new block.
    std::memcpy(state.acc, accumulators.data(), sizeof(accumulators));
    state.totalLen = blocks * kXxhBlockBytes;
  }
  XXH3_128bits_update(&state, tail.data(), tail.size());
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return {hash.high64, hash.low64};
}

}  // namespace driftless
