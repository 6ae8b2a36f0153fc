// SPDX-License-Identifier: Apache-2.0
// Input: 'a' or 'd', then an anchor or a delta as TRL writes it. What is made of a delta are flush
// files whose changes lie within their tensors; of an anchor, a file for every tensor.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "formats/flush_file.h"
#include "plugin/interchange/trl_directory.h"
#include "support/golden_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace driftless;
  if (size == 0) return 0;
  static const WeightLayout layout = testing::layout_of(
      {testing::spec("a.weight", DType::kBF16, {4, 5}), testing::spec("b.bias", DType::kF32, {6})});
  static const std::vector<std::byte> zeros(64);
  VersionDirectory version;
  version.version = 7;
  version.base_version = 6;
  const bool anchor = data[0] == 'a';
  version.encoding = anchor ? Encoding::kFull : Encoding::kIndices;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  const std::shared_ptr<const void> unowned(data, [](const void*) {});
  const auto step = read_trl_step(
      MappedFile("input", unowned, bytes), layout,
      [&](std::size_t tensor) { return std::span(zeros).first(layout[tensor].size_bytes); },
      version);
  if (!step.ok()) return 0;
  if (step->parts.size() != version.payload_files.size()) std::abort();
  for (std::uint32_t tensor = 0; anchor && tensor < layout.size(); ++tensor) {
    if (!version.weight_map.contains(layout[tensor].name)) std::abort();
  }
  for (const MappedFile& part : step->parts) {
    if (anchor) continue;
    const auto file = FlushFile::open(posix_file_system(), part, layout, 7, "/tmp");
    if (!file.ok()) std::abort();
    for (const BucketView& bucket : file->buckets()) {
      if (!testing::decode_all(layout, bucket).ok()) std::abort();
    }
  }
  return 0;
}
