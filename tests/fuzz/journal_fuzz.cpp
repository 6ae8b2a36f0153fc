// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include "formats/frame.h"
#include "plugin/checkpoint/journal.h"

// A journal and all that is in it, read against the layout that the corpus was made for.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace driftless;
  static const WeightLayout layout =
      *WeightLayout::make({*TensorSpec::make("t", DType::kBF16, {100})});
  const auto journal = Journal::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!journal.ok()) return 0;
  for (const auto bytes : journal->frames()) {
    const auto frame = Frame::decode(bytes, layout, 1 << 20);
    if (!frame.ok()) continue;
    for (const BucketEntry& entry : frame->bucket().entries) {
      EntryCursor cursor(layout, frame->bucket(), entry);
      for (auto piece = cursor.next(); piece.ok() && !piece->offsets.empty();)
        piece = cursor.next();
    }
  }
  return 0;
}
