// A full version cut into stretches that threads take one after the other, and its digest. Part of
// the targets in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/digest.h"
#include "plugin/targets/version_source.h"

namespace driftless {

// Some of a tensor's bytes: whole units, at most 4 MiB.
struct DenseStretch {
  std::uint32_t tensor = 0;
  std::uint64_t byte_offset = 0;
  std::span<const std::byte> bytes;
};

// Appends `bytes`, which are the tensor's from `byte_offset` on.
void add_stretches(std::uint32_t tensor, std::uint64_t byte_offset,
                   std::span<const std::byte> bytes, std::vector<DenseStretch>& out);
// Of every tensor of a full version. They point into the source.
[[nodiscard]] std::vector<DenseStretch> stretches_of(const VersionSource& source);

struct DenseSums {
  Digest all, held;
};
// `key` and `held` are asked about tensors, by several threads.
[[nodiscard]] DenseSums sum_stretches(
    std::span<const DenseStretch> stretches, unsigned threads,
    const std::function<const DigestTensorKey&(std::uint32_t)>& key,
    const std::function<bool(std::uint32_t)>& held);

// kMismatch, with what to do, where the version is not what its manifest says.
[[nodiscard]] Status check_digest(const DenseSums& sums, const Manifest& manifest);

}  // namespace driftless
