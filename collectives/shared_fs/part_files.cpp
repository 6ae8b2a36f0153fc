// SPDX-License-Identifier: Apache-2.0
#include "collectives/open_part.h"
#include "collectives/part_ranges.h"
#include "collectives/shared_fs/part_container.h"

namespace driftless {
namespace {

// Bytes between two checks of the deadline.
constexpr std::uint64_t kReadPieceBytes = std::uint64_t{8} << 20;
// Limit for memory of read parts that is kept for the next version.
constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;

class FilePart final : public HashedPart {
 public:
  FilePart(FileSystem& fs, const std::string& directory, std::string name,
           std::unique_ptr<File> file)
      : HashedPart(directory, std::move(name), {}),
        fs_(&fs),
        path_(file->path()),
        file_(std::move(file)) {}

 protected:
  Status store(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return file_->pwrite(offset, bytes);
  }
  Status read(std::uint64_t offset, std::span<std::byte> bytes) override {
    return file_->pread(offset, bytes);
  }
  // After a failure the caller does not retry: the kernel may have dropped data that it could not
  // write.
  Status sync() override { return file_->sync(); }
  void file_closed(bool) override { file_.reset(); }

  Status complete(PartReceipt& receipt, const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs_->info(path_));
    if (info.size_bytes != receipt.size_bytes) {
      return error(StatusCode::kIo, path_, ": ", receipt.size_bytes, " bytes were written, ",
                   info.size_bytes, " are there; does another process write here?");
    }
    if (!known_hash().has_value()) {  // must be read back
      DRIFTLESS_ASSIGN_OR_RETURN(file_, fs_->open_to_read(path_));
    }
    Status hashed = HashedPart::complete(receipt, deadline);
    file_.reset();
    return hashed;
  }

 private:
  FileSystem* fs_;
  const std::string path_;
  std::unique_ptr<File> file_;  // null once it is closed
};

class PartFilesSink final : public PartSink {
 public:
  explicit PartFilesSink(FileSystem& fs) : fs_(&fs) {}

  Status begin(const std::string& directory, const Deadline&) override {
    directory_ = directory;
    parts_.clear();
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                               fs_->create(join_path(directory_, name)));
    parts_.push_back(std::make_shared<FilePart>(*fs_, directory_, name, std::move(file)));
    return make_part_file(parts_.back());
  }
  [[nodiscard]] bool writes_at_once() const override { return true; }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    std::vector<PartReceipt> receipts;
    for (const auto& part : parts_) {
      DRIFTLESS_ASSIGN_OR_RETURN(receipts.emplace_back(), part->finish(0, deadline));
    }
    return receipts;
  }

  Status abort() override {
    parts_.clear();
    return {};
  }

 private:
  FileSystem* fs_;
  std::string directory_;
  std::vector<std::shared_ptr<FilePart>> parts_;
};

// The place of a part's bytes.
struct PartPlace {
  std::string path;
  std::optional<std::uint64_t> label;  // offset of its label in a pack; empty: the file is the part

  [[nodiscard]] std::uint64_t begin() const { return label ? *label + sizeof(PackLabel) : 0; }
};

PartPlace place_of(const std::string& directory, const PartReceipt& part) {
  const std::uint64_t pack = part.locator >> kPackOffsetBits;
  if (pack == 0) return {join_path(directory, part.name), std::nullopt};
  return {join_path(directory, pack_name(static_cast<unsigned>(pack - 1))),
          part.locator & ((std::uint64_t{1} << kPackOffsetBits) - 1)};
}

Status check_part(FileSystem& fs, const PartPlace& place, const PartReceipt& part) {
  const Result<FileInfo> info = fs.info(place.path);
  if (!info.ok()) {
    return info.status().code() == StatusCode::kNotFound
               ? error(StatusCode::kIncomplete, place.path, ": the part is not there (yet)")
               : info.status();
  }
  if (info->kind != FileKind::kFile) {
    return error(StatusCode::kCorrupt, place.path, ": not a regular file");
  }
  const std::uint64_t there = info->size_bytes - std::min(place.begin(), info->size_bytes);
  const bool shorter = there < part.size_bytes;
  if (!shorter && (place.label || there == part.size_bytes)) return {};
  return error(shorter ? StatusCode::kIncomplete : StatusCode::kCorrupt, place.path, ": ", there,
               " bytes", shorter ? " so far, " : ", ", part.size_bytes, " were expected");
}

// Checks that the label is that of this part.
Status check_label(File& file, const PartPlace& place, const PartReceipt& part) {
  if (!place.label) return {};
  PackLabel found;
  const Status read = file.pread(*place.label, std::as_writable_bytes(std::span(&found, 1)));
  if (read.code() == StatusCode::kCorrupt) return error(StatusCode::kIncomplete, read.message());
  DRIFTLESS_RETURN_IF_ERROR(read);
  if (found == pack_label(part.name, part.size_bytes)) return {};
  return error(StatusCode::kCorrupt, place.path, ": part '", part.name, "' of ", part.size_bytes,
               " bytes was expected at offset ", *place.label,
               "; its label is not there, or that of another part");
}

// The returned files have the part's name, as on every road.
Result<std::vector<MappedFile>> map_ranges(FileSystem& fs, const PartPlace& place,
                                           const PartReceipt& part,
                                           std::span<const ByteRange> ranges) {
  DRIFTLESS_ASSIGN_OR_RETURN(MappedFile mapped, fs.map(place.path));
  const std::uint64_t size = mapped.bytes().size();
  if (size < place.begin() || size - place.begin() < part.size_bytes) {
    return error(StatusCode::kIncomplete, place.path, ": its size is changing");
  }
  auto owner = std::make_shared<const MappedFile>(std::move(mapped));
  const std::span<const std::byte> bytes = owner->bytes().subspan(place.begin(), part.size_bytes);
  return slices(MappedFile(part.name, std::move(owner), bytes), ranges);
}

Status read_range(File& file, std::uint64_t offset, std::span<std::byte> into,
                  const Deadline& deadline) {
  for (std::uint64_t done = 0; done < into.size(); done += kReadPieceBytes) {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", file.path())));
    const std::uint64_t size = std::min<std::uint64_t>(kReadPieceBytes, into.size() - done);
    const Status read = file.pread(offset + done, into.subspan(done, size));
    if (read.code() == StatusCode::kCorrupt) {
      return error(StatusCode::kIncomplete, read.message());  // shorter than a moment ago
    }
    DRIFTLESS_RETURN_IF_ERROR(read);
  }
  return {};
}

Result<std::vector<MappedFile>> read_ranges(FileSystem& fs, std::uint64_t map_above_bytes,
                                            const std::string& directory, const PartReceipt& part,
                                            std::span<const ByteRange> ranges,
                                            const Deadline& deadline, KeptMemory& kept) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
  const PartPlace place = place_of(directory, part);
  DRIFTLESS_RETURN_IF_ERROR(check_part(fs, place, part));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.open_to_read(place.path));
  DRIFTLESS_RETURN_IF_ERROR(check_label(*file, place, part));
  const RangePlaces places(ranges);
  if (places.total_bytes() > map_above_bytes) return map_ranges(fs, place, part, ranges);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory,
                             allocate_ranges(places, place.path, &kept));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    DRIFTLESS_RETURN_IF_ERROR(
        read_range(*file, place.begin() + ranges[i].offset, places.of(i, memory.get()), deadline));
  }
  return places.files(part.name, memory, memory.get());
}

}  // namespace

std::unique_ptr<PartSink> make_part_files_sink(FileSystem& fs) {
  return std::make_unique<PartFilesSink>(fs);
}

PartReader make_part_files_reader(FileSystem& fs, std::uint64_t map_above_bytes) {
  const auto kept = std::make_shared<KeptMemory>(kKeptBytes);
  return [&fs, map_above_bytes, kept](const std::string& directory, const PartReceipt& part,
                                      std::span<const ByteRange> ranges, const Deadline& deadline) {
    return read_ranges(fs, map_above_bytes, directory, part, ranges, deadline, *kept);
  };
}

}  // namespace driftless
