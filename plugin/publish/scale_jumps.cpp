// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/scale_jumps.h"

#include <cstring>

#include "plugin/checkpoint/quantization.h"

namespace driftless {
namespace {

constexpr std::size_t kNamedJumps = 8;
constexpr std::uint64_t kLeastJump = 8;

std::uint64_t count_differing(const std::byte* before, const std::byte* now, std::uint64_t scales) {
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < scales; ++i) {
    const std::uint64_t at = i * sizeof(float);
    count += std::memcmp(before + at, now + at, sizeof(float)) != 0 ? 1 : 0;
  }
  return count;
}

}  // namespace

void ScaleJumps::add(std::uint32_t tensor, std::uint64_t changed, std::uint64_t of_blocks) {
  Blocks& blocks = of_[tensor];
  blocks.changed += changed;
  blocks.all += of_blocks;
}

bool ScaleJumps::is_jump(std::uint64_t changed, std::uint64_t of_blocks) const {
  return changed >= kLeastJump &&
         static_cast<double>(changed) > above_ * static_cast<double>(of_blocks);
}

std::optional<std::string> ScaleJumps::note(const WeightLayout& layout, unsigned rank,
                                            std::string_view then) const {
  std::string names;
  std::size_t jumped = 0;
  for (const auto& [tensor, blocks] : of_) {
    if (!is_jump(blocks.changed, blocks.all)) continue;
    if (++jumped <= kNamedJumps)
      names += concat(jumped > 1 ? ", '" : "'", layout[tensor].name, "'");
  }
  if (jumped == 0) return std::nullopt;
  if (jumped > kNamedJumps) names += concat(" and ", jumped - kNamedJumps, " more");
  return concat("publisher rank ", rank, ": many scales changed in ", names, then);
}

void add_scale_changes(const WeightStore& snapshot, std::span<const PairedTensor> batch,
                       ScaleJumps& jumps) {
  if (snapshot.memory_kind() == MemoryKind::kDevice) return;
  for (const auto& [number, now, memory] : batch) {
    const std::string_view name = snapshot.spec(number).name;
    if (memory == MemoryKind::kDevice || !name.ends_with(kScaleSuffix)) continue;
    const auto codes = snapshot.layout().find(name.substr(0, name.size() - kScaleSuffix.size()));
    if (!codes) continue;
    const std::uint64_t scales = snapshot.size_bytes(number) / sizeof(float);
    jumps.add(*codes, count_differing(snapshot.data(number), now, scales), scales);
  }
}

}  // namespace driftless
