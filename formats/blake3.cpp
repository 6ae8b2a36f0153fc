// SPDX-License-Identifier: Apache-2.0
// Written from the BLAKE3 specification (section 2: the compression function, chunks, the tree).
#include "formats/blake3.h"

#include <algorithm>
#include <cstring>

namespace driftless {
namespace {

constexpr std::size_t kBlockBytes = 64;
constexpr std::size_t kBlocksPerChunk = 16;
constexpr std::size_t kChunkBytes = kBlockBytes * kBlocksPerChunk;
constexpr std::size_t kLanes = 4;
constexpr std::size_t kRounds = 7;

constexpr std::uint32_t kChunkStart = 1;
constexpr std::uint32_t kChunkEnd = 2;
constexpr std::uint32_t kParent = 4;
constexpr std::uint32_t kRoot = 8;

constexpr std::array<std::uint32_t, 8> kIv = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// The message word at each place in each round: repeated applications of the permutation.
constexpr auto kSchedule = [] {
  constexpr std::array<std::uint8_t, 16> kPermutation = {2, 6,  3,  10, 7, 0,  4,  13,
                                                         1, 11, 12, 5,  9, 14, 15, 8};
  std::array<std::array<std::uint8_t, 16>, kRounds> schedule{};
  for (std::uint8_t i = 0; i < 16; ++i) schedule[0][i] = i;
  for (std::size_t round = 1; round < kRounds; ++round) {
    for (std::size_t i = 0; i < 16; ++i) schedule[round][i] = schedule[round - 1][kPermutation[i]];
  }
  return schedule;
}();

// A word of four chunks at once. GCC and Clang map it to SSE2, NEON or plain code.
using Lanes = std::uint32_t __attribute__((vector_size(4 * kLanes)));

// Word is std::uint32_t or Lanes: the same steps for one block or for four.
template <typename Word>
[[gnu::always_inline]] inline Word rotated(Word x, int bits) {
  return (x >> bits) | (x << (32 - bits));
}

template <typename Word>
[[gnu::always_inline]] inline void mix(Word& a, Word& b, Word& c, Word& d, Word x, Word y) {
  a = a + b + x;
  d = rotated(d ^ a, 16);
  c = c + d;
  b = rotated(b ^ c, 12);
  a = a + b + y;
  d = rotated(d ^ a, 8);
  c = c + d;
  b = rotated(b ^ c, 7);
}

template <std::size_t Round, typename Word>
[[gnu::always_inline]] inline void mix_all(std::array<Word, 16>& v, const std::array<Word, 16>& m) {
  const std::array<std::uint8_t, 16>& s = kSchedule[Round];
  mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
  mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
  mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
  mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
  mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
  mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
  mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
  mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
}

// The compression function, limited to the 8 words that a tree needs.
template <typename Word>
void compress(std::array<Word, 8>& value, const std::array<Word, 16>& message, Word counter_low,
              Word counter_high, std::uint32_t block_bytes, std::uint32_t flags) {
  const Word zero{};
  std::array<Word, 16> v;
  std::copy(value.begin(), value.end(), v.begin());
  for (std::size_t i = 0; i < 4; ++i) v[8 + i] = zero + kIv[i];
  v[12] = counter_low;
  v[13] = counter_high;
  v[14] = zero + block_bytes;
  v[15] = zero + flags;
  mix_all<0>(v, message);
  mix_all<1>(v, message);
  mix_all<2>(v, message);
  mix_all<3>(v, message);
  mix_all<4>(v, message);
  mix_all<5>(v, message);
  mix_all<6>(v, message);
  for (std::size_t i = 0; i < 8; ++i) value[i] = v[i] ^ v[8 + i];
}

using ChainingValue = std::array<std::uint32_t, 8>;
using Message = std::array<std::uint32_t, 16>;

void compress_block(ChainingValue& value, const std::byte* block, std::uint64_t counter,
                    std::size_t block_bytes, std::uint32_t flags) {
  Message message;
  std::memcpy(message.data(), block, kBlockBytes);
  compress<std::uint32_t>(value, message, static_cast<std::uint32_t>(counter),
                          static_cast<std::uint32_t>(counter >> 32),
                          static_cast<std::uint32_t>(block_bytes), flags);
}

ChainingValue parent(const ChainingValue& left, const ChainingValue& right, std::uint32_t flags) {
  Message message;
  std::copy(left.begin(), left.end(), message.begin());
  std::copy(right.begin(), right.end(), message.begin() + 8);
  ChainingValue value = kIv;
  compress<std::uint32_t>(value, message, 0, 0, kBlockBytes, kParent | flags);
  return value;
}

// The chaining values of kLanes consecutive whole chunks, none of them the last.
std::array<ChainingValue, kLanes> hash_chunks(const std::byte* chunks, std::uint64_t counter) {
  Lanes low{}, high{};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    low[lane] = static_cast<std::uint32_t>(counter + lane);
    high[lane] = static_cast<std::uint32_t>((counter + lane) >> 32);
  }
  std::array<Lanes, 8> value;
  for (std::size_t i = 0; i < 8; ++i) value[i] = Lanes{} + kIv[i];
  for (std::size_t block = 0; block < kBlocksPerChunk; ++block) {
    std::array<Message, kLanes> words;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      std::memcpy(words[lane].data(), chunks + lane * kChunkBytes + block * kBlockBytes,
                  kBlockBytes);
    }
    std::array<Lanes, 16> message;
    for (std::size_t i = 0; i < 16; ++i) {
      message[i] = Lanes{words[0][i], words[1][i], words[2][i], words[3][i]};
    }
    const std::uint32_t flags =
        (block == 0 ? kChunkStart : 0) | (block == kBlocksPerChunk - 1 ? kChunkEnd : 0);
    compress<Lanes>(value, message, low, high, kBlockBytes, flags);
  }
  std::array<ChainingValue, kLanes> values;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t i = 0; i < 8; ++i) values[lane][i] = value[i][lane];
  }
  return values;
}

}  // namespace

Blake3::Blake3() : chunk_value_(kIv) {}

std::uint64_t Blake3::chunk_bytes() const { return blocks_done_ * kBlockBytes + block_bytes_; }

// Adds a whole chunk's value to the tree, joining subtrees of equal size. Called only after more
// bytes have come, so that no join here is the root.
void Blake3::push_chunk(ChainingValue value) {
  ++chunks_done_;
  for (std::uint64_t rest = chunks_done_; rest % 2 == 0; rest /= 2) {
    value = parent(stack_[--stack_size_], value, 0);
  }
  stack_[stack_size_++] = value;
}

// Takes bytes into the current chunk until it is full or they are used up.
void Blake3::fill_chunk(std::span<const std::byte>& bytes) {
  while (!bytes.empty() && chunk_bytes() < kChunkBytes) {
    if (block_bytes_ == kBlockBytes) {
      const std::uint32_t flags = blocks_done_ == 0 ? kChunkStart : 0;
      compress_block(chunk_value_, block_.data(), chunks_done_, kBlockBytes, flags);
      ++blocks_done_;
      block_bytes_ = 0;
    }
    const std::size_t taken = std::min(bytes.size(), kBlockBytes - block_bytes_);
    std::memcpy(block_.data() + block_bytes_, bytes.data(), taken);
    block_bytes_ += taken;
    bytes = bytes.subspan(taken);
  }
}

void Blake3::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (chunk_bytes() == kChunkBytes) {
      const std::uint32_t flags = kChunkEnd | (blocks_done_ == 0 ? kChunkStart : 0);
      compress_block(chunk_value_, block_.data(), chunks_done_, kBlockBytes, flags);
      push_chunk(chunk_value_);
      chunk_value_ = kIv;
      blocks_done_ = 0;
      block_bytes_ = 0;
    }
    while (chunk_bytes() == 0 && bytes.size() > kLanes * kChunkBytes) {
      for (const ChainingValue& value : hash_chunks(bytes.data(), chunks_done_)) push_chunk(value);
      bytes = bytes.subspan(kLanes * kChunkBytes);
    }
    fill_chunk(bytes);
  }
}

std::array<std::byte, 32> Blake3::digest() const {
  std::array<std::byte, kBlockBytes> block{};
  std::memcpy(block.data(), block_.data(), block_bytes_);
  const std::uint32_t flags = kChunkEnd | (blocks_done_ == 0 ? kChunkStart : 0);
  ChainingValue value = chunk_value_;
  compress_block(value, block.data(), chunks_done_, block_bytes_,
                 flags | (stack_size_ == 0 ? kRoot : 0));
  for (std::size_t i = stack_size_; i > 0; --i) {
    value = parent(stack_[i - 1], value, i == 1 ? kRoot : 0);
  }
  std::array<std::byte, 32> bytes;
  std::memcpy(bytes.data(), value.data(), bytes.size());
  return bytes;
}

}  // namespace driftless
