// SPDX-License-Identifier: Apache-2.0
// The `xor` payload.
#include <algorithm>
#include <cstring>

#include "formats/tensor_patcher.h"

namespace driftless {
namespace {

// Size of a chunk, which stays in the L2 cache between the XOR and the compressor.
constexpr std::size_t kEncodeBytes = std::size_t{256} << 10;
constexpr std::size_t kDecodeBytes = std::size_t{128} << 10;

// out = a ^ b, eight bytes at a time; the compiler vectorizes it. `out` may be `a`.
void xor_bytes(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) {
  std::size_t k = 0;
  for (; k + 8 <= count; k += 8) {
    std::uint64_t left, right;
    std::memcpy(&left, a + k, 8);
    std::memcpy(&right, b + k, 8);
    left ^= right;
    std::memcpy(out + k, &left, 8);
  }
  for (; k < count; ++k) out[k] = a[k] ^ b[k];
}

class XorPatcher final : public TensorPatcher {
 public:
  XorPatcher(const TensorSpec& tensor, ZstdReader reader)
      : TensorPatcher(tensor),
        reader_(std::move(reader)),
        buffer_(std::min<std::uint64_t>(kDecodeBytes, tensor.size_bytes)) {}

 private:
  Status apply(std::uint64_t /*byte_offset*/, std::span<std::byte> chunk) override {
    while (!chunk.empty()) {
      const auto mask = std::span(buffer_).first(std::min(chunk.size(), buffer_.size()));
      DRIFTLESS_RETURN_IF_ERROR(reader_.read(mask));
      xor_bytes(chunk.data(), chunk.data(), mask.data(), mask.size());
      chunk = chunk.subspan(mask.size());
    }
    return {};
  }

  Status end() override { return reader_.finish(); }

  ZstdReader reader_;
  std::vector<std::byte> buffer_;
};

// make(at, chunk) fills each chunk of the XOR.
template <typename Make>
Status encode_chunks(std::size_t size_bytes, const Make& make, unsigned workers,
                     const ByteSink& sink) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      ZstdWriter writer, ZstdWriter::create(size_bytes, workers, sink, ZstdContent::kMostlyZero));
  std::vector<std::byte> buffer(std::min(kEncodeBytes, size_bytes));
  for (std::size_t at = 0; at < size_bytes; at += buffer.size()) {
    const std::size_t count = std::min(buffer.size(), size_bytes - at);
    const std::span<std::byte> chunk = std::span(buffer).first(count);
    make(at, chunk);
    DRIFTLESS_RETURN_IF_ERROR(writer.write(chunk));
  }
  return writer.finish();
}

}  // namespace

Result<std::unique_ptr<TensorPatcher>> make_xor_patcher(const TensorSpec& tensor,
                                                        std::span<const std::byte> payload) {
  Result<ZstdReader> reader = ZstdReader::open(payload);
  if (!reader.ok()) return reader.status().with_context(concat("tensor '", tensor.name, "'"));
  if (reader->content_bytes() != tensor.size_bytes) {
    return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': an xor payload of ",
                 reader->content_bytes(), " bytes, expected ", tensor.size_bytes);
  }
  return std::unique_ptr<TensorPatcher>(
      std::make_unique<XorPatcher>(tensor, std::move(reader.value())));
}

Status encode_xor(std::span<const std::byte> old_bytes, std::span<const std::byte> new_bytes,
                  unsigned workers, const ByteSink& sink) {
  if (old_bytes.size() != new_bytes.size()) {
    return error(StatusCode::kInvalidArgument, "xor of ", old_bytes.size(), " old and ",
                 new_bytes.size(), " new bytes");
  }
  return encode_chunks(
      new_bytes.size(),
      [&](std::size_t at, std::span<std::byte> chunk) {
        xor_bytes(chunk.data(), old_bytes.data() + at, new_bytes.data() + at, chunk.size());
      },
      workers, sink);
}

Status encode_xor(std::uint64_t size_bytes, const XorFill& fill, unsigned workers,
                  const ByteSink& sink) {
  return encode_chunks(
      size_bytes,
      [&](std::size_t at, std::span<std::byte> chunk) {
        std::ranges::fill(chunk, std::byte{0});
        fill(at, chunk);
      },
      workers, sink);
}

}  // namespace driftless
