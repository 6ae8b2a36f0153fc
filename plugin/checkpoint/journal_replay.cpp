// SPDX-License-Identifier: Apache-2.0
// Writing a journal out into the checkpoint's files.

#include <algorithm>
#include <functional>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "plugin/checkpoint/journal.h"

namespace driftless {
namespace {

// A stretch that is read, changed and written at once. Changes further apart than kMaxGapBytes go
// into stretches of their own, so that what is written stays O(changed).
constexpr std::uint64_t kMaxStretchBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxGapBytes = 16384;
constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 40;

// Patches one file through one thread's buffer. Stretches begin and end with a changed unit, so
// threads that work on different units of one file never write each other's bytes.
class StretchWriter {
 public:
  Status write(File& file, std::uint64_t tensor_offset, const DeltaView& delta) {
    std::size_t begin = 0;
    while (begin < delta.offsets.size()) {
      std::size_t end = begin + 1;
      while (end < delta.offsets.size() && joins(delta, begin, end)) ++end;
      DRIFTLESS_RETURN_IF_ERROR(write_stretch(file, tensor_offset, delta, begin, end));
      begin = end;
    }
    return {};
  }

 private:
  static bool joins(const DeltaView& delta, std::size_t begin, std::size_t next) {
    const std::uint64_t gap = delta.offsets[next] - delta.offsets[next - 1];
    const std::uint64_t length = std::uint64_t{delta.offsets[next]} - delta.offsets[begin] + 1;
    return gap * delta.unit_bytes <= kMaxGapBytes && length * delta.unit_bytes <= kMaxStretchBytes;
  }

  Status write_stretch(File& file, std::uint64_t tensor_offset, const DeltaView& delta,
                       std::size_t begin, std::size_t end) {
    const unsigned width = delta.unit_bytes;
    const std::uint32_t first = delta.offsets[begin];
    const std::size_t count = end - begin;
    buffer_.resize((std::uint64_t{delta.offsets[end - 1]} - first + 1) * width);
    offsets_.resize(count);
    for (std::size_t i = 0; i < count; ++i) offsets_[i] = delta.offsets[begin + i] - first;
    const std::uint64_t at = tensor_offset + (delta.origin + first) * width;
    if (buffer_.size() > width) DRIFTLESS_RETURN_IF_ERROR(file.pread(at, buffer_));
    host_kernels().scatter(buffer_.data(), width, offsets_.data(), count,
                           delta.values + begin * width);
    return file.pwrite(at, buffer_);
  }

  std::vector<std::byte> buffer_;
  std::vector<std::uint32_t> offsets_;
};

// Every piece of a frame, with the tensor that it is of.
Status visit_frame(const Frame& frame, const Checkpoint& checkpoint,
                   const std::function<Status(std::uint32_t tensor, const DeltaView&)>& visit) {
  const BucketView bucket = frame.bucket();
  for (const BucketEntry& entry : bucket.entries) {
    EntryCursor cursor(checkpoint.layout(), bucket, entry);
    while (true) {
      DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView delta, cursor.next());
      if (delta.offsets.empty()) break;
      DRIFTLESS_RETURN_IF_ERROR(visit(entry.tensor, delta));
    }
  }
  return {};
}

// The files by their paths. Compared once they are open: what is written into is what is mapped.
Result<std::vector<std::unique_ptr<File>>> open_files(FileSystem& fs,
                                                      const Checkpoint& checkpoint) {
  std::vector<std::unique_ptr<File>> files;
  for (const SafetensorsFile& file : checkpoint.files()) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, fs.open(file.file().path()));
    files.push_back(std::move(opened));
  }
  DRIFTLESS_RETURN_IF_ERROR(check_same_files(fs, checkpoint));
  return files;
}

}  // namespace

Result<std::vector<Frame>> decode_journal(const Journal& journal, const WeightLayout& layout,
                                          unsigned threads) {
  std::vector<Frame> frames(journal.frames().size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(frames.size(), threads, [&](std::size_t task, unsigned) -> Status {
        DRIFTLESS_ASSIGN_OR_RETURN(frames[task],
                                   Frame::decode(journal.frames()[task], layout, kMaxFrameBytes));
        if (frames[task].dense()) return error(StatusCode::kCorrupt, "a full frame in a journal");
        return {};
      }));
  return frames;
}

Status replay_journal(FileSystem& fs, std::span<const Frame> frames, const Checkpoint& checkpoint,
                      unsigned threads) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<File>> files,
                             open_files(fs, checkpoint));
  std::vector<StretchWriter> writers(std::max(1U, threads));
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(frames.size(), threads, [&](std::size_t task, unsigned worker) {
        return visit_frame(
            frames[task], checkpoint, [&](std::uint32_t tensor, const DeltaView& delta) {
              const TensorLocation& location = checkpoint.location(tensor);
              return writers[worker].write(*files[location.file], location.file_offset, delta);
            });
      }));
  return parallel_for(files.size(), threads,
                      [&](std::size_t file, unsigned) { return files[file]->sync(); });
}

Result<Digest> journal_change(std::span<const Frame> frames, const Checkpoint& checkpoint,
                              unsigned threads) {
  std::vector<Digest> sums(std::max(1U, threads));
  std::vector<std::vector<std::byte>> values(sums.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(frames.size(), threads, [&](std::size_t task, unsigned worker) {
        return visit_frame(
            frames[task], checkpoint, [&](std::uint32_t tensor, const DeltaView& delta) -> Status {
              const HostKernels& kernels = host_kernels();
              const TensorView now = checkpoint.tensor(tensor);
              values[worker].resize(delta.offsets.size() * delta.unit_bytes);
              kernels.gather(now.data + delta.origin * delta.unit_bytes, delta.unit_bytes,
                             delta.offsets.data(), delta.offsets.size(), values[worker].data());
              sums[worker] += kernels.digest_change(
                  digest_tensor_key(now.spec->name), delta.unit_bytes, delta.origin,
                  delta.offsets.data(), delta.offsets.size(), values[worker].data(), delta.values);
              return {};
            });
      }));
  Digest change;
  for (const Digest& sum : sums) change += sum;
  return change;
}

Status check_same_files(FileSystem& fs, const Checkpoint& checkpoint) {
  for (const SafetensorsFile& safetensors : checkpoint.files()) {
    const MappedFile& mapped = safetensors.file();
    const Result<FileInfo> now = fs.info(mapped.path());
    const bool gone = now.status().code() == StatusCode::kNotFound;
    if (!now.ok() && !gone) return now.status();
    if (!gone && now->identity == mapped.identity() && now->size_bytes == mapped.bytes().size()) {
      continue;
    }
    return error(StatusCode::kMismatch, mapped.path(), ": ",
                 gone ? std::string("was removed")
                      : concat("was replaced by another file, or changed its size from ",
                               mapped.bytes().size(), " to ", now->size_bytes, " bytes,"),
                 " since this process opened it. Nothing was written into it; if the new files are "
                 "meant to stay, remove the checkpoint's .weight_sync directory, then start again");
  }
  return {};
}

Status check_patchable(FileSystem& fs, const Checkpoint& checkpoint) {
  for (const SafetensorsFile& file : checkpoint.files()) {
    const std::string& path = file.file().path();
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs.info(path));
    if (info.kind != FileKind::kFile) {
      return error(
          StatusCode::kInvalidArgument, path,
          ": not a regular file, so it is not patched in place; copy the checkpoint (cp -rL)");
    }
    if (info.hard_links > 1) {
      return error(StatusCode::kInvalidArgument, path, ": the file has ", info.hard_links,
                   " names (hard links), and patching it would change every one; copy the "
                   "checkpoint instead of linking it");
    }
  }
  const Result<std::vector<std::unique_ptr<File>>> files = open_files(fs, checkpoint);
  return files.ok() ? Status() : files.status();
}

}  // namespace driftless
