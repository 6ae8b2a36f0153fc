// SPDX-License-Identifier: Apache-2.0
#include "formats/zstd_stream.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "formats/zero_runs.h"

namespace driftless {
namespace {

// Up to here one thread is quicker than starting others. The choice goes by size alone, so that the
// bytes do not depend on the machine.
constexpr std::uint64_t kSerialBytes = std::uint64_t{1} << 20;
// Fixed, because zstd would otherwise choose it from the number of workers.
constexpr int kJobBytes = 2 << 20;
// Deltas repeat themselves within a block or not at all: a larger window only makes offsets longer.
constexpr int kWindowLog = 17;
// A block, the least that yields content, takes 4 bytes and yields at most 128 KiB.
constexpr std::uint64_t kLeastBlockBytes = 4;
constexpr std::uint64_t kMostBlockContent = std::uint64_t{128} << 10;

constexpr std::array<std::uint8_t, 4> kMagic{0x28, 0xb5, 0x2f, 0xfd};

struct FreeCCtx {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
struct FreeDCtx {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

Status out_of_memory() {
  return error(StatusCode::kNoSpace, "zstd: not enough memory for a (de)compression context");
}

Status damaged(std::string_view what) { return error(StatusCode::kCorrupt, "zstd frame: ", what); }

// The window that a decoder has to keep, from the frame's header (RFC 8878, 3.1.1.1). The caller
// has checked that the header is whole.
std::uint64_t window_bytes(std::span<const std::byte> frame, std::uint64_t content_bytes) {
  const auto descriptor = static_cast<unsigned>(frame[4]);
  if ((descriptor & 0x20U) != 0) return content_bytes;  // single segment
  const auto window = static_cast<unsigned>(frame[5]);
  const std::uint64_t base = std::uint64_t{1} << (10 + (window >> 3));
  return base + base / 8 * (window & 7U);
}

Result<std::uint64_t> check_header(std::span<const std::byte> frame) {
  if (!is_zstd_frame(frame)) return damaged("it does not begin with zstd's magic");
  const unsigned long long content = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (content == ZSTD_CONTENTSIZE_ERROR) return damaged("the header is damaged or cut short");
  if (content == ZSTD_CONTENTSIZE_UNKNOWN) return damaged("the header has no content size");
  if (const unsigned dictionary = ZSTD_getDictID_fromFrame(frame.data(), frame.size());
      dictionary != 0) {
    return error(StatusCode::kCorrupt, "zstd frame: it needs dictionary ", dictionary,
                 ", none is expected");
  }
  if (const std::uint64_t window = window_bytes(frame, content);
      window > (std::uint64_t{1} << kMaxWindowLog)) {
    return error(StatusCode::kCorrupt, "zstd frame: a window of ", window, " bytes, at most 2^",
                 kMaxWindowLog, " are allowed");
  }
  if (content / kMostBlockContent > frame.size() / kLeastBlockBytes) {
    return error(StatusCode::kCorrupt, "zstd frame: ", frame.size(), " bytes cannot hold the ",
                 content, " bytes of content that the header states");
  }
  return std::uint64_t{content};
}

}  // namespace

struct ZstdWriter::State {
  std::unique_ptr<ZSTD_CCtx, FreeCCtx> context{ZSTD_createCCtx()};
  ByteSink sink;
  std::uint64_t content_bytes = 0;
  std::uint64_t written = 0;
  Status failure;  // of an earlier call; repeated by every later one
  std::size_t out_bytes = ZSTD_CStreamOutSize();
  std::unique_ptr<std::byte[]> out = std::make_unique_for_overwrite<std::byte[]>(out_bytes);

  Status configure(unsigned workers, ZstdContent content, int level) {
    ZSTD_CCtx* const zstd = context.get();
    std::size_t code = ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, level);
    if (!ZSTD_isError(code)) code = ZSTD_CCtx_setParameter(zstd, ZSTD_c_contentSizeFlag, 1);
    if (!ZSTD_isError(code)) code = ZSTD_CCtx_setParameter(zstd, ZSTD_c_checksumFlag, 0);
    if (!ZSTD_isError(code)) code = ZSTD_CCtx_setParameter(zstd, ZSTD_c_windowLog, kWindowLog);
    if (!ZSTD_isError(code)) code = ZSTD_CCtx_setPledgedSrcSize(zstd, content_bytes);
    if (ZSTD_isError(code)) {
      return error(StatusCode::kInvalidArgument, "zstd level ", level, ": ",
                   ZSTD_getErrorName(code));
    }
    if (workers == 0 || content_bytes <= kSerialBytes) {
      if (content == ZstdContent::kMostlyZero) look_for_zero_runs(zstd);
      return {};
    }
    // A libzstd built without threads refuses; the frame is then made on the caller's thread.
    if (!ZSTD_isError(ZSTD_CCtx_setParameter(zstd, ZSTD_c_nbWorkers, static_cast<int>(workers)))) {
      code = ZSTD_CCtx_setParameter(zstd, ZSTD_c_jobSize, kJobBytes);
      if (ZSTD_isError(code)) return error(StatusCode::kInternal, ZSTD_getErrorName(code));
    }
    return {};
  }

  // Feeds `bytes`; with ZSTD_e_end returns once the frame is complete.
  Status feed(std::span<const std::byte> bytes, ZSTD_EndDirective directive) {
    ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
    while (true) {
      ZSTD_outBuffer output{out.get(), out_bytes, 0};
      const std::size_t left = ZSTD_compressStream2(context.get(), &output, &input, directive);
      if (ZSTD_isError(left)) {
        return error(StatusCode::kInternal, "zstd: ", ZSTD_getErrorName(left));
      }
      if (output.pos > 0) DRIFTLESS_RETURN_IF_ERROR(sink(std::span(out.get(), output.pos)));
      if (directive == ZSTD_e_end ? left == 0 : input.pos == input.size) return {};
    }
  }
};

ZstdWriter::ZstdWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
ZstdWriter::ZstdWriter(ZstdWriter&&) noexcept = default;
ZstdWriter& ZstdWriter::operator=(ZstdWriter&&) noexcept = default;
ZstdWriter::~ZstdWriter() = default;

Result<ZstdWriter> ZstdWriter::create(std::uint64_t content_bytes, unsigned workers, ByteSink sink,
                                      ZstdContent content, int level) {
  auto state = std::make_unique<State>();
  if (state->context == nullptr) return out_of_memory();
  state->sink = std::move(sink);
  state->content_bytes = content_bytes;
  DRIFTLESS_RETURN_IF_ERROR(state->configure(workers, content, level));
  return ZstdWriter(std::move(state));
}

Status ZstdWriter::write(std::span<const std::byte> bytes) {
  if (!state_->failure.ok() || bytes.empty()) return state_->failure;
  if (bytes.size() > state_->content_bytes - state_->written) {
    state_->failure = error(StatusCode::kInternal, "zstd: more than the ", state_->content_bytes,
                            " bytes that were announced");
    return state_->failure;
  }
  state_->written += bytes.size();
  state_->failure = state_->feed(bytes, ZSTD_e_continue);
  return state_->failure;
}

Status ZstdWriter::finish() {
  if (!state_->failure.ok()) return state_->failure;
  if (state_->written != state_->content_bytes) {
    state_->failure = error(StatusCode::kInternal, "zstd: ", state_->written, " bytes came, ",
                            state_->content_bytes, " were announced");
    return state_->failure;
  }
  state_->failure = state_->feed({}, ZSTD_e_end);
  return state_->failure;
}

struct ZstdReader::State {
  std::unique_ptr<ZSTD_DCtx, FreeDCtx> context{ZSTD_createDCtx()};
  ZSTD_inBuffer input{};
  std::uint64_t content_bytes = 0;
  std::uint64_t done = 0;
  bool ended = false;  // the frame's last byte was read

  // Decodes up to bytes.size() bytes and says how many.
  Result<std::size_t> decode(std::span<std::byte> bytes) {
    ZSTD_outBuffer output{bytes.data(), bytes.size(), 0};
    while (output.pos < output.size && !ended) {
      const std::size_t input_before = input.pos, output_before = output.pos;
      const std::size_t code = ZSTD_decompressStream(context.get(), &output, &input);
      if (ZSTD_isError(code)) {
        return error(StatusCode::kCorrupt, "zstd frame: damaged near byte ", input.pos, " of ",
                     input.size, " (", ZSTD_getErrorName(code), ")");
      }
      ended = code == 0;
      if (!ended && input.pos == input_before && output.pos == output_before) {
        return error(StatusCode::kCorrupt, "zstd frame: cut short after ", input.size, " bytes");
      }
    }
    return output.pos;
  }
};

ZstdReader::ZstdReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
ZstdReader::ZstdReader(ZstdReader&&) noexcept = default;
ZstdReader& ZstdReader::operator=(ZstdReader&&) noexcept = default;
ZstdReader::~ZstdReader() = default;

Result<ZstdReader> ZstdReader::open(std::span<const std::byte> frame) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t content_bytes, check_header(frame));
  auto state = std::make_unique<State>();
  if (state->context == nullptr) return out_of_memory();
  const std::size_t code =
      ZSTD_DCtx_setParameter(state->context.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  if (ZSTD_isError(code)) return error(StatusCode::kInternal, ZSTD_getErrorName(code));
  state->input = {frame.data(), frame.size(), 0};
  state->content_bytes = content_bytes;
  return ZstdReader(std::move(state));
}

std::uint64_t ZstdReader::content_bytes() const { return state_->content_bytes; }

Status ZstdReader::read(std::span<std::byte> bytes) {
  if (bytes.size() > state_->content_bytes - state_->done) {
    return error(StatusCode::kCorrupt, "zstd frame: the content ends at byte ",
                 state_->content_bytes, ", ", bytes.size(), " were expected from byte ",
                 state_->done);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t got, state_->decode(bytes));
  state_->done += got;
  if (got == bytes.size()) return {};
  return error(StatusCode::kCorrupt, "zstd frame: it ends after ", state_->done,
               " bytes of content, the header states ", state_->content_bytes);
}

Status ZstdReader::skip(std::uint64_t count) {
  std::vector<std::byte> dropped(std::min<std::uint64_t>(count, ZSTD_DStreamOutSize()));
  while (count > 0) {
    const std::uint64_t now = std::min<std::uint64_t>(count, dropped.size());
    DRIFTLESS_RETURN_IF_ERROR(read(std::span(dropped).first(now)));
    count -= now;
  }
  return {};
}

Status ZstdReader::finish() {
  if (state_->done != state_->content_bytes) {
    return error(StatusCode::kCorrupt, "zstd frame: ", state_->content_bytes - state_->done,
                 " bytes of content are left over");
  }
  if (!state_->ended) {
    std::byte beyond{};
    DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t got, state_->decode(std::span(&beyond, 1)));
    if (got != 0) return damaged("more content than the header states");
  }
  if (state_->input.pos != state_->input.size) {
    return error(StatusCode::kCorrupt, "zstd frame: it ends at byte ", state_->input.pos, ", but ",
                 state_->input.size - state_->input.pos, " more bytes follow");
  }
  return {};
}

Result<std::vector<std::byte>> zstd_compress(std::span<const std::byte> bytes, int level) {
  std::vector<std::byte> frame;
  const auto append = [&frame](std::span<const std::byte> piece) {
    frame.insert(frame.end(), piece.begin(), piece.end());
    return Status();
  };
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdWriter writer,
                             ZstdWriter::create(bytes.size(), 0, append, ZstdContent::kAny, level));
  DRIFTLESS_RETURN_IF_ERROR(writer.write(bytes));
  DRIFTLESS_RETURN_IF_ERROR(writer.finish());
  return frame;
}

Result<std::vector<std::byte>> zstd_decompress(std::span<const std::byte> frame,
                                               std::uint64_t max_bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdReader reader, ZstdReader::open(frame));
  if (reader.content_bytes() > max_bytes) {
    return error(StatusCode::kCorrupt, "zstd frame: ", reader.content_bytes(),
                 " bytes of content, at most ", max_bytes, " are expected");
  }
  std::vector<std::byte> content(reader.content_bytes());
  DRIFTLESS_RETURN_IF_ERROR(reader.read(content));
  DRIFTLESS_RETURN_IF_ERROR(reader.finish());
  return content;
}

bool is_zstd_frame(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() &&
         std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

}  // namespace driftless
