// SPDX-License-Identifier: Apache-2.0
#include "formats/zero_runs.h"

#ifdef DRIFTLESS_HAS_ZSTD_SEQUENCES
#define ZSTD_STATIC_LINKING_ONLY  // the hook is not in the stable part of the API: CMake looks for
                                  // it
#endif
#include <zstd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace driftless {

#ifdef DRIFTLESS_HAS_ZSTD_SEQUENCES
namespace {

constexpr std::size_t kLeastRun = 5;  // shorter ones cost more than their literals

std::size_t end_of_zeros(const unsigned char* bytes, std::size_t at, std::size_t size) {
  for (; at + 8 <= size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof(word));
    if (word != 0) return at + (static_cast<std::size_t>(__builtin_ctzll(word)) >> 3);
  }
  while (at < size && bytes[at] == 0) ++at;
  return at;
}

// zstd's hook: the sequences of one block. A run of zeros is one literal zero and a match that
// repeats it.
std::size_t find_runs(void* /*state*/, ZSTD_Sequence* out, std::size_t capacity, const void* source,
                      std::size_t size, const void* /*dictionary*/, std::size_t /*dictionary_size*/,
                      int /*level*/, std::size_t /*window*/) {
  const auto* const bytes = static_cast<const unsigned char*>(source);
  std::size_t count = 0;
  std::size_t literals = 0;  // where those of the next sequence begin
  std::size_t zeros = 0;
  for (std::size_t at = 0; at < size;) {
    if (bytes[at] != 0) {
      ++at;
      continue;
    }
    const std::size_t end = end_of_zeros(bytes, at, size);
    if (end - at >= kLeastRun) {
      if (count + 1 >= capacity) return ZSTD_SEQUENCE_PRODUCER_ERROR;
      out[count++] = {1, static_cast<unsigned>(at + 1 - literals),
                      static_cast<unsigned>(end - at - 1), 0};
      zeros += end - at;
      literals = end;
    }
    at = end;
  }
  if (zeros < size / 2) return ZSTD_SEQUENCE_PRODUCER_ERROR;  // zstd does better by itself
  out[count++] = {0, static_cast<unsigned>(size - literals), 0, 0};
  return count;
}

}  // namespace

void look_for_zero_runs(ZSTD_CCtx_s* context) {
  if (ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_enableSeqProducerFallback, 1))) return;
  ZSTD_registerSequenceProducer(context, nullptr, find_runs);
}
#else
void look_for_zero_runs(ZSTD_CCtx_s* /*context*/) {}
#endif

}  // namespace driftless
