// SPDX-License-Identifier: Apache-2.0
// Input: coding (1 byte), dtype (1), number of entries (1), entries of 40 bytes as in BucketEntry
// (u32 tensor, u32 width, four u64), size of the positions (u16), positions, values. Accepted
// positions must lie within the tensor, ascend, and have the number that the table states.
#include <cstdint>
#include <cstdlib>

#include "formats/tensor_patcher.h"
#include "support/delta_model.h"

namespace {

using namespace driftless;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    const auto taken = take(sizeof(T));
    if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
    return value;
  }
  std::span<const std::byte> take(std::size_t count) {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
};

void walk(const WeightLayout& layout, const BucketView& bucket, const BucketEntry& entry) {
  EntryCursor cursor(layout, bucket, entry);
  std::uint64_t count = 0, next = 0;
  while (true) {
    const Result<DeltaView> piece = cursor.next();
    if (!piece.ok()) return;
    if (piece->count() == 0) break;
    for (const std::uint32_t offset : piece->offsets) {
      const std::uint64_t position = piece->origin + offset;
      if (position < next || position >= layout[entry.tensor].units()) std::abort();
      next = position + 1;
    }
    const std::byte* const end = bucket.values.data() + bucket.values.size();
    if (piece->value_bytes().data() + piece->value_bytes().size() > end) std::abort();
    count += piece->count();
  }
  if (count != entry.count()) std::abort();
}

void patch(const WeightLayout& layout, const BucketView& bucket, const BucketEntry& entry) {
  testing::Bytes bytes(layout[entry.tensor].size_bytes);
  auto patcher = make_bucket_patcher(layout, entry.tensor, {{bucket, entry}, {bucket, entry}});
  if (!patcher.ok()) std::abort();  // the entry was checked already
  for (std::size_t at = 0; at < bytes.size(); at += 64) {
    const auto chunk = std::span(bytes).subspan(at, std::min<std::size_t>(64, bytes.size() - at));
    if (!(*patcher)->patch(at, chunk).ok()) return;
  }
  if ((*patcher)->finish().ok()) std::abort();  // both pieces are the same: they overlap
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Reader reader(std::as_bytes(std::span(data, size)));
  const Encoding coding =
      reader.get<std::uint8_t>() % 2 == 0 ? Encoding::kIndices : Encoding::kDeltas;
  const auto dtype = static_cast<DType>(reader.get<std::uint8_t>() % all_dtypes().size());
  std::vector<BucketEntry> entries(reader.get<std::uint8_t>());
  for (BucketEntry& entry : entries) {
    entry.tensor = reader.get<std::uint32_t>();
    entry.position_bytes = reader.get<std::uint32_t>();
    entry.position_begin = reader.get<std::uint64_t>();
    entry.position_end = reader.get<std::uint64_t>();
    entry.value_begin = reader.get<std::uint64_t>();
    entry.value_end = reader.get<std::uint64_t>();
  }
  const auto positions = reader.take(reader.get<std::uint16_t>());
  const auto values = reader.take(size);
  const WeightLayout layout =
      testing::layout_of({testing::spec("a", dtype, {100, 8}), testing::spec("b", dtype, {8}),
                          testing::spec("c", dtype, {1ULL << 50})});
  const BucketView bucket{coding, dtype, entries, positions, values};
  if (!check_bucket(layout, bucket).ok()) return 0;
  for (const BucketEntry& entry : entries) {
    walk(layout, bucket, entry);
    if (entry.tensor < 2) patch(layout, bucket, entry);
  }
  return 0;
}
