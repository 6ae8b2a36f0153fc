// SPDX-License-Identifier: Apache-2.0
#include <new>

#include "collectives/open_part.h"
#include "collectives/shared_fs/part_container.h"

namespace driftless {
namespace {

// Between two looks at the deadline.
constexpr std::uint64_t kReadPieceBytes = std::uint64_t{8} << 20;

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
  // One that failed is not tried again: the kernel may have dropped what it could not write.
  Status sync() override { return file_->sync(); }
  void file_closed(bool) override { file_.reset(); }

  Status complete(PartReceipt& receipt, const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs_->info(path_));
    if (info.size_bytes != receipt.size_bytes) {
      return error(StatusCode::kIo, path_, ": ", receipt.size_bytes, " bytes were written, ",
                   info.size_bytes, " are there; does somebody else write here?");
    }
    if (!known_hash().has_value()) {  // to be read back
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

// Under the part's name, as on every road.
Result<MappedFile> map_part(FileSystem& fs, const std::string& path, const PartReceipt& part) {
  DRIFTLESS_ASSIGN_OR_RETURN(MappedFile mapped, fs.map(path));
  if (mapped.bytes().size() != part.size_bytes) {
    return error(StatusCode::kIncomplete, path, ": its size is changing");
  }
  auto owner = std::make_shared<const MappedFile>(std::move(mapped));
  const std::span<const std::byte> bytes = owner->bytes();
  return MappedFile(part.name, std::move(owner), bytes);
}

Result<MappedFile> read_part(FileSystem& fs, const std::string& path, const PartReceipt& part,
                             const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.open_to_read(path));
  const std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[part.size_bytes]);
  if (memory == nullptr) {
    return error(StatusCode::kNoSpace, path, ": no memory for ", part.size_bytes, " bytes");
  }
  const std::span<std::byte> bytes(memory.get(), part.size_bytes);
  for (std::uint64_t done = 0; done < bytes.size(); done += kReadPieceBytes) {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", path)));
    const std::uint64_t size = std::min<std::uint64_t>(kReadPieceBytes, bytes.size() - done);
    const Status read = file->pread(done, bytes.subspan(done, size));
    if (read.code() == StatusCode::kCorrupt) {
      return error(StatusCode::kIncomplete, read.message());  // shorter than it was a moment ago
    }
    DRIFTLESS_RETURN_IF_ERROR(read);
  }
  return MappedFile(part.name, memory, bytes);
}

Result<MappedFile> fetch_file(FileSystem& fs, std::uint64_t map_above_bytes,
                              const std::string& directory, const PartReceipt& part,
                              const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
  const std::string path = join_path(directory, part.name);
  const Result<FileInfo> info = fs.info(path);
  if (!info.ok()) {
    return info.status().code() == StatusCode::kNotFound
               ? error(StatusCode::kIncomplete, path, ": the part is not there (yet)")
               : info.status();
  }
  if (info->kind != FileKind::kFile) {
    return error(StatusCode::kCorrupt, path, ": not a regular file");
  }
  if (info->size_bytes != part.size_bytes) {
    const bool shorter = info->size_bytes < part.size_bytes;
    return error(shorter ? StatusCode::kIncomplete : StatusCode::kCorrupt, path, ": ",
                 info->size_bytes, " bytes", shorter ? " so far, " : ", ", part.size_bytes,
                 " were expected");
  }
  if (part.size_bytes > map_above_bytes) return map_part(fs, path, part);
  return read_part(fs, path, part, deadline);
}

}  // namespace

std::unique_ptr<PartSink> make_part_files_sink(FileSystem& fs) {
  return std::make_unique<PartFilesSink>(fs);
}

PartReader make_part_files_reader(FileSystem& fs, std::uint64_t map_above_bytes) {
  return [&fs, map_above_bytes](const std::string& directory, const PartReceipt& part,
                                const Deadline& deadline) {
    return fetch_file(fs, map_above_bytes, directory, part, deadline);
  };
}

}  // namespace driftless
