// SPDX-License-Identifier: Apache-2.0
// Replays the corpus of one target without libFuzzer: every file as it is, cut at every byte (files
// up to 4 KiB; longer ones at 4096 seeded places), and with seeded random flips. A crash or a
// sanitizer report fails the test.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "fuzz/fuzz_targets.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

// A copy of exact size on the heap, so that a sanitizer sees a read past the end.
void feed(FuzzFunction function, const Bytes& bytes, std::size_t size) {
  const Bytes exact(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
  function(exact.data(), exact.size());
}

std::size_t replay(FuzzFunction function, const Bytes& seed) {
  constexpr std::size_t kCuts = 4096;
  constexpr std::size_t kFlips = 2000;
  std::mt19937_64 random(seed.size());
  feed(function, seed, seed.size());
  for (std::size_t cut = 0; cut < std::min(kCuts, seed.size()); ++cut) {
    feed(function, seed, seed.size() <= kCuts ? cut : random() % seed.size());
  }
  for (std::size_t round = 0; round < kFlips && !seed.empty(); ++round) {
    Bytes mutated = seed;
    for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      mutated[random() % mutated.size()] ^= static_cast<std::uint8_t>(1U << (random() % 8));
    }
    feed(function, mutated, mutated.size());
  }
  return 1 + std::min(kCuts, seed.size()) + kFlips;
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<const FuzzTarget> targets = fuzz_targets();
  const std::string_view name = argc == 3 ? argv[1] : "";
  const auto target = std::ranges::find(targets, name, &FuzzTarget::name);
  if (target == targets.end() || !std::filesystem::is_directory(argv[2])) {
    std::fprintf(stderr, "usage: %s TARGET CORPUS_DIRECTORY\n", argv[0]);
    return 2;
  }
  std::size_t inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2])) {
    std::ifstream file(entry.path(), std::ios::binary);
    const Bytes seed{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    inputs += replay(target->function, seed);
  }
  std::printf("%zu inputs survived\n", inputs);
  return inputs > 0 ? 0 : 1;
}
