// SPDX-License-Identifier: Apache-2.0
// TensorPatcher turns the old bytes of one tensor into the new ones, chunk by chunk, for any
// encoding of the delta. This header also has the writers and readers of hf_delta payloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/delta_view.h"
#include "core/layout.h"
#include "core/status.h"
#include "formats/bucket.h"
#include "formats/zstd_stream.h"

namespace driftless {

// Call patch() with ascending, adjoining chunks that cover the whole tensor, then finish(). Use the
// new bytes only once finish() has returned ok: it finds damage that patch() does not. Memory does
// not depend on the tensor's size. One thread at a time.
class TensorPatcher {
 public:
  virtual ~TensorPatcher() = default;
  // `chunk` holds the old bytes from `byte_offset` on, and receives the new ones. Its length is a
  // multiple of 8, except for the last chunk. After a failure the chunk's content is undefined, and
  // every further call returns the same failure.
  [[nodiscard]] Status patch(std::uint64_t byte_offset, std::span<std::byte> chunk);
  // Ok only if the whole delta was used.
  [[nodiscard]] Status finish();

 protected:
  explicit TensorPatcher(const TensorSpec& tensor)
      : name_(tensor.name), size_bytes_(tensor.size_bytes) {}

 private:
  // Patches a chunk that adjoins the one before. Errors need not name the tensor.
  [[nodiscard]] virtual Status apply(std::uint64_t byte_offset, std::span<std::byte> chunk) = 0;
  // Called after the last chunk: checks that the whole delta was used.
  [[nodiscard]] virtual Status end() { return {}; }
  [[nodiscard]] Status kept(const Status& status);

  std::string name_;
  std::uint64_t size_bytes_;
  std::uint64_t next_ = 0;  // where the next chunk begins
  Status failure_;
};

// `payload`: one zstd frame of new ^ old, of exactly the tensor's size. It must outlive the
// patcher.
[[nodiscard]] Result<std::unique_ptr<TensorPatcher>> make_xor_patcher(
    const TensorSpec& tensor, std::span<const std::byte> payload);

// `payload`: one zstd frame of u32 count, u32 byte positions[count] ascending, u8 values[count].
[[nodiscard]] Result<std::unique_ptr<TensorPatcher>> make_overwrite_patcher(
    const TensorSpec& tensor, std::span<const std::byte> payload);

// Pieces of one tensor in several buckets. The pieces of one block are in ascending order of their
// positions. Everything that the buckets and the layout point to must outlive the patcher.
struct BucketPiece {
  BucketView bucket;
  BucketEntry entry;
};
[[nodiscard]] Result<std::unique_ptr<TensorPatcher>> make_bucket_patcher(
    const WeightLayout& layout, std::uint32_t tensor, const std::vector<BucketPiece>& pieces);

// Writes the `xor` payload of a tensor: the XOR of both sides, which have the same size, in chunks
// through one zstd frame. Without workers a sparse XOR takes a quarter less space and half the time
// (ZstdContent::kMostlyZero). `workers` as for ZstdWriter.
[[nodiscard]] Status encode_xor(std::span<const std::byte> old_bytes,
                                std::span<const std::byte> new_bytes, unsigned workers,
                                const ByteSink& sink);
// The same for a tensor of `size_bytes` whose XOR the caller computes: `fill` gets zeroed chunks of
// it, ascending, and the offset of each, a multiple of 8.
using XorFill = std::function<void(std::uint64_t byte_offset, std::span<std::byte> chunk)>;
[[nodiscard]] Status encode_xor(std::uint64_t size_bytes, const XorFill& fill, unsigned workers,
                                const ByteSink& sink);

// Writes the `overwrite` payload front to back, so that memory stays bounded: the caller states the
// number of changed bytes first, then adds all positions, then all values. One thread at a time.
class OverwriteEncoder {
 public:
  // kUnsupported, naming the tensor, if the tensor is larger than 4 GiB.
  [[nodiscard]] static Result<OverwriteEncoder> create(const TensorSpec& tensor,
                                                       std::uint64_t changed_bytes,
                                                       unsigned workers, ByteSink sink);
  // Takes deltas of unit_bytes 1, ascending: all of them through add_positions(), then all of them
  // again through add_values(). kInvalidArgument for anything else.
  [[nodiscard]] Status add_positions(const DeltaView& delta);
  [[nodiscard]] Status add_values(const DeltaView& delta);
  [[nodiscard]] Status finish();

 private:
  OverwriteEncoder(const TensorSpec& tensor, std::uint64_t count, ZstdWriter writer)
      : tensor_(tensor.name),
        tensor_bytes_(tensor.size_bytes),
        count_(count),
        writer_(std::move(writer)) {}
  std::string tensor_;  // its name
  std::uint64_t tensor_bytes_;
  std::uint64_t count_;
  ZstdWriter writer_;
  std::uint64_t positions_ = 0, values_ = 0;  // added so far
  std::uint64_t next_position_ = 0;           // least allowed next position
};

}  // namespace driftless
