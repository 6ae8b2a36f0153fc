// SPDX-License-Identifier: Apache-2.0
#include "formats/zstd_stream.h"

#ifdef DRIFTLESS_HAS_ZSTD_SEQUENCES
#define ZSTD_STATIC_LINKING_ONLY  // the sequence hook is not in the stable API
#endif
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace driftless {
namespace {

constexpr int kLevel = 1;
// Up to this size one thread is faster than starting others. Only the size decides, so that the
// bytes do not depend on the machine.
constexpr std::uint64_t kSerialBytes = std::uint64_t{1} << 20;
// Fixed, because zstd would otherwise choose it from the number of workers.
constexpr int kJobBytes = 2 << 20;
// Deltas repeat within a block or not at all, so a larger window would only make offsets longer.
constexpr int kWindowLog = 17;
// The smallest block with content takes 4 bytes and yields at most 128 KiB.
constexpr std::uint64_t kLeastBlockBytes = 4;
constexpr std::uint64_t kMostBlockContent = std::uint64_t{128} << 10;

constexpr std::array<std::uint8_t, 4> kMagic{0x28, 0xb5, 0x2f, 0xfd};

Status out_of_memory() {
  return error(StatusCode::kNoSpace, "zstd: not enough memory for a (de)compression context");
}

Status damaged(std::string_view what) { return error(StatusCode::kCorrupt, "zstd frame: ", what); }

// The size of the window that a decoder must keep, from the frame's header (RFC 8878, 3.1.1.1). The
// caller has checked that the header is whole.
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

// Compresses content that is mostly zero: XORs of weights. zstd's own match search spends time and
// bits on matches that a sparse XOR does not have. Only zeros repeat in it, so we pass the runs of
// zeros to zstd, which writes an ordinary frame from them. On a recorded RL run the frames are a
// quarter smaller and made twice as fast.
#ifdef DRIFTLESS_HAS_ZSTD_SEQUENCES
constexpr std::size_t kLeastRun = 5;  // shorter ones cost more than their literals

std::size_t end_of_zeros(const unsigned char* bytes, std::size_t at, std::size_t size) {
  for (; at + 8 <= size; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof(word));
    if (word != 0) return at + (static_cast<std::size_t>(__builtin_ctzll(word)) >> 3);
  }
  while (at < size && bytes[at] == 0) ++at;
  return at;
}

// zstd's hook: finds the sequences of one block. A run of zeros becomes one literal zero and a
// match that repeats it.
std::size_t find_runs(void* /*state*/, ZSTD_Sequence* out, std::size_t capacity, const void* source,
                      std::size_t size, const void* /*dictionary*/, std::size_t /*dictionary_size*/,
                      int /*level*/, std::size_t /*window*/) {
  const auto* const bytes = static_cast<const unsigned char*>(source);
  std::size_t count = 0;
  std::size_t literals = 0;  // start of the next sequence's literals
  std::size_t zeros = 0;
  for (std::size_t at = 0; at < size;) {
    if (bytes[at] != 0) {
      ++at;
      continue;
    }
    const std::size_t end = end_of_zeros(bytes, at, size);
    if (end - at >= kLeastRun) {
      if (count + 1 >= capacity) return ZSTD_SEQUENCE_PRODUCER_ERROR;
      out[count++] = {1, static_cast<unsigned>(at + 1 - literals),
                      static_cast<unsigned>(end - at - 1), 0};
      zeros += end - at;
      literals = end;
    }
    at = end;
  }
  if (zeros < size / 2) return ZSTD_SEQUENCE_PRODUCER_ERROR;  // zstd's own search does better
  out[count++] = {0, static_cast<unsigned>(size - literals), 0, 0};
  return count;
}

#endif

// Makes this context look only for runs of zeros; zstd's own search handles blocks that are not
// mostly zero. Does nothing if libzstd has no such hook (before 1.5.4). Not for use with worker
// threads.
void look_for_zero_runs([[maybe_unused]] ZSTD_CCtx* context) {
#ifdef DRIFTLESS_HAS_ZSTD_SEQUENCES
  if (ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_enableSeqProducerFallback, 1))) return;
  ZSTD_registerSequenceProducer(context, nullptr, find_runs);
#endif
}

Status set_parameters(ZSTD_CCtx* context) {
  std::size_t code = 0;
  const auto set = [&](ZSTD_cParameter parameter, int value) {
    if (!ZSTD_isError(code)) code = ZSTD_CCtx_setParameter(context, parameter, value);
  };
  set(ZSTD_c_compressionLevel, kLevel);
  set(ZSTD_c_contentSizeFlag, 1);
  set(ZSTD_c_checksumFlag, 0);
  set(ZSTD_c_windowLog, kWindowLog);
  return ZSTD_isError(code) ? error(StatusCode::kInternal, "zstd: ", ZSTD_getErrorName(code))
                            : Status();
}

}  // namespace

void FreeZstd::operator()(ZSTD_CCtx_s* context) const { ZSTD_freeCCtx(context); }
void FreeZstd::operator()(ZSTD_DCtx_s* context) const { ZSTD_freeDCtx(context); }

Result<ZstdWriter> ZstdWriter::create(std::uint64_t content_bytes, unsigned workers, ByteSink sink,
                                      ZstdContent content) {
  ZstdWriter writer;
  writer.context_.reset(ZSTD_createCCtx());
  if (writer.context_ == nullptr) return out_of_memory();
  writer.sink_ = std::move(sink);
  writer.content_bytes_ = content_bytes;
  writer.out_bytes_ = ZSTD_CStreamOutSize();
  writer.out_ = std::make_unique_for_overwrite<std::byte[]>(writer.out_bytes_);
  DRIFTLESS_RETURN_IF_ERROR(writer.configure(workers, content));
  return writer;
}

Status ZstdWriter::configure(unsigned workers, ZstdContent content) {
  ZSTD_CCtx* const zstd = context_.get();
  DRIFTLESS_RETURN_IF_ERROR(set_parameters(zstd));
  std::size_t code = ZSTD_CCtx_setPledgedSrcSize(zstd, content_bytes_);
  if (workers == 0 || content_bytes_ <= kSerialBytes) {
    if (content == ZstdContent::kMostlyZero) look_for_zero_runs(zstd);
  } else if (!ZSTD_isError(
                 ZSTD_CCtx_setParameter(zstd, ZSTD_c_nbWorkers, static_cast<int>(workers)))) {
    code = ZSTD_CCtx_setParameter(zstd, ZSTD_c_jobSize, kJobBytes);
  }  // libzstd without threads refuses; the caller's thread then compresses
  return ZSTD_isError(code) ? error(StatusCode::kInternal, "zstd: ", ZSTD_getErrorName(code))
                            : Status();
}

Status ZstdWriter::feed(std::span<const std::byte> bytes, bool end) {
  ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
  while (true) {
    ZSTD_outBuffer output{out_.get(), out_bytes_, 0};
    const std::size_t left =
        ZSTD_compressStream2(context_.get(), &output, &input, end ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left)) {
      return error(StatusCode::kInternal, "zstd: ", ZSTD_getErrorName(left));
    }
    if (output.pos > 0) DRIFTLESS_RETURN_IF_ERROR(sink_(std::span(out_.get(), output.pos)));
    if (end ? left == 0 : input.pos == input.size) return {};
  }
}

Status ZstdWriter::write(std::span<const std::byte> bytes) {
  if (!failure_.ok() || bytes.empty()) return failure_;
  if (bytes.size() > content_bytes_ - written_) {
    return failure_ = error(StatusCode::kInternal, "zstd: more than the ", content_bytes_,
                            " bytes that were announced");
  }
  written_ += bytes.size();
  return failure_ = feed(bytes, false);
}

Status ZstdWriter::finish() {
  if (!failure_.ok()) return failure_;
  if (written_ != content_bytes_) {
    return failure_ = error(StatusCode::kInternal, "zstd: ", written_, " bytes came, ",
                            content_bytes_, " were announced");
  }
  return failure_ = feed({}, true);
}

Result<ZstdReader> ZstdReader::open(std::span<const std::byte> frame) {
  ZstdReader reader;
  DRIFTLESS_ASSIGN_OR_RETURN(reader.content_bytes_, check_header(frame));
  reader.context_.reset(ZSTD_createDCtx());
  if (reader.context_ == nullptr) return out_of_memory();
  const std::size_t code =
      ZSTD_DCtx_setParameter(reader.context_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  if (ZSTD_isError(code)) return error(StatusCode::kInternal, ZSTD_getErrorName(code));
  reader.frame_ = frame;
  return reader;
}

Result<std::size_t> ZstdReader::decode(std::span<std::byte> bytes) {
  ZSTD_inBuffer input{frame_.data(), frame_.size(), at_};
  ZSTD_outBuffer output{bytes.data(), bytes.size(), 0};
  while (output.pos < output.size && !ended_) {
    const std::size_t output_before = output.pos;
    const std::size_t code = ZSTD_decompressStream(context_.get(), &output, &input);
    if (ZSTD_isError(code)) {
      return error(StatusCode::kCorrupt, "zstd frame: damaged near byte ", input.pos, " of ",
                   input.size, " (", ZSTD_getErrorName(code), ")");
    }
    ended_ = code == 0;
    if (!ended_ && input.pos == at_ && output.pos == output_before) {
      return error(StatusCode::kCorrupt, "zstd frame: cut short after ", input.size, " bytes");
    }
    at_ = input.pos;
  }
  return output.pos;
}

Status ZstdReader::read(std::span<std::byte> bytes) {
  if (bytes.size() > content_bytes_ - done_) {
    return error(StatusCode::kCorrupt, "zstd frame: the content ends at byte ", content_bytes_,
                 ", ", bytes.size(), " were expected from byte ", done_);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t got, decode(bytes));
  done_ += got;
  if (got == bytes.size()) return {};
  return error(StatusCode::kCorrupt, "zstd frame: it ends after ", done_,
               " bytes of content, the header states ", content_bytes_);
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
  if (done_ != content_bytes_) {
    return error(StatusCode::kCorrupt, "zstd frame: ", content_bytes_ - done_,
                 " bytes of content are left over");
  }
  if (!ended_) {
    std::byte beyond{};
    DRIFTLESS_ASSIGN_OR_RETURN(const std::size_t got, decode(std::span(&beyond, 1)));
    if (got != 0) return damaged("more content than the header states");
  }
  if (at_ == frame_.size()) return {};
  return error(StatusCode::kCorrupt, "zstd frame: it ends at byte ", at_, ", but ",
               frame_.size() - at_, " more bytes follow");
}

Result<ZstdPacker> ZstdPacker::create() {
  ZstdPacker packer;
  packer.context_.reset(ZSTD_createCCtx());
  if (packer.context_ == nullptr) return out_of_memory();
  DRIFTLESS_RETURN_IF_ERROR(set_parameters(packer.context_.get()));
  return packer;
}

Status ZstdPacker::append(std::span<const std::byte> content, std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + ZSTD_compressBound(content.size()));
  const std::size_t size = ZSTD_compress2(context_.get(), out.data() + begin, out.size() - begin,
                                          content.data(), content.size());
  out.resize(ZSTD_isError(size) ? begin : begin + size);
  return ZSTD_isError(size) ? error(StatusCode::kInternal, "zstd: ", ZSTD_getErrorName(size))
                            : Status();
}

Status ZstdUnpacker::read(std::span<const std::byte> frame, std::span<std::byte> content) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t stated, check_header(frame));
  const std::size_t size = ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (stated != content.size() || ZSTD_isError(size) || size != frame.size()) {
    return error(StatusCode::kCorrupt, "zstd frame: ", frame.size(), " bytes that state ", stated,
                 " bytes of content, expected one frame with ", content.size());
  }
  if (context_ == nullptr) context_.reset(ZSTD_createDCtx());
  if (context_ == nullptr) return out_of_memory();
  const std::size_t read = ZSTD_decompressDCtx(context_.get(), content.data(), content.size(),
                                               frame.data(), frame.size());
  if (!ZSTD_isError(read) && read == content.size()) return {};
  return damaged(ZSTD_isError(read) ? ZSTD_getErrorName(read) : "its content is cut short");
}

Result<std::uint64_t> zstd_content_bytes(std::span<const std::byte> frame) {
  return check_header(frame);
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
