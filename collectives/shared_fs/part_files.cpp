// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/part_files.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "collectives/part_hash.h"

namespace driftless {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;  // between two looks at the deadline

// What the sink knows of a part; shared with its file, which other threads may use.
struct PartState {
  std::string name;
  PartHash hash;
  std::atomic<bool> synced = false;  // since the last write
  std::atomic<bool> failed = false;  // a write or sync did
  std::atomic<bool> open = true;
};

class PartFile final : public File {
 public:
  PartFile(std::unique_ptr<File> file, std::shared_ptr<PartState> state)
      : file_(std::move(file)), state_(std::move(state)) {}
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() override {
    file_.reset();
    state_->open = false;
  }

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    state_->synced = false;
    Status written = file_->pwrite(offset, bytes);
    if (written.ok()) {
      state_->hash.wrote(offset, bytes);
    } else {
      state_->failed = true;
    }
    return written;
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return file_->pread(offset, bytes);
  }
  Status sync() override {
    Status synced = file_->sync();
    state_->synced = synced.ok();
    if (!synced.ok()) state_->failed = true;  // the kernel may have dropped what it could not write
    return synced;
  }
  [[nodiscard]] const std::string& path() const override { return file_->path(); }

 private:
  std::unique_ptr<File> file_;
  std::shared_ptr<PartState> state_;
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
    auto state = std::make_shared<PartState>();
    state->name = name;
    parts_.push_back(state);
    return std::unique_ptr<File>(std::make_unique<PartFile>(std::move(file), std::move(state)));
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    for (const auto& part : parts_) DRIFTLESS_RETURN_IF_ERROR(check_finished(*part));
    std::vector<PartReceipt> receipts;
    for (const auto& part : parts_) {
      DRIFTLESS_ASSIGN_OR_RETURN(PartReceipt receipt, receipt_of(*part, deadline));
      receipts.push_back(std::move(receipt));
    }
    return receipts;
  }

  Status abort() override {
    parts_.clear();
    return {};
  }

 private:
  [[nodiscard]] Status check_finished(const PartState& part) const {
    const std::string path = join_path(directory_, part.name);
    if (part.open) return error(StatusCode::kInvalidArgument, path, ": the part is still open");
    if (part.failed) {
      return error(StatusCode::kIo, path, ": writing the part failed; abort the publication");
    }
    if (!part.synced) {
      return error(StatusCode::kInvalidArgument, path,
                   ": the part was not synced after its last write");
    }
    return {};
  }

  [[nodiscard]] Result<PartReceipt> receipt_of(const PartState& part, const Deadline& deadline) {
    const std::string path = join_path(directory_, part.name);
    PartReceipt receipt;
    receipt.name = part.name;
    receipt.size_bytes = part.hash.size_bytes();
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs_->info(path));
    if (info.size_bytes != receipt.size_bytes) {
      return error(StatusCode::kIo, path, ": ", receipt.size_bytes, " bytes were written, ",
                   info.size_bytes, " are there; does somebody else write here?");
    }
    if (const std::optional<Hash128> hash = part.hash.hash(); hash.has_value()) {
      receipt.hash = *hash;
      return receipt;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(receipt.hash, read_back(path, receipt.size_bytes, deadline));
    return receipt;
  }

  // Of a part that was not written front to back.
  [[nodiscard]] Result<Hash128> read_back(const std::string& path, std::uint64_t size_bytes,
                                          const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs_->open_to_read(path));
    std::vector<std::byte> piece(std::min(size_bytes, kPieceBytes));
    PartHash hash;
    for (std::uint64_t done = 0; done < size_bytes; done += piece.size()) {
      DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", path, " back")));
      piece.resize(std::min<std::uint64_t>(piece.size(), size_bytes - done));
      DRIFTLESS_RETURN_IF_ERROR(file->pread(done, piece));
      hash.wrote(done, piece);
    }
    return *hash.hash();
  }

  FileSystem* fs_;
  std::string directory_;
  std::vector<std::shared_ptr<PartState>> parts_;
};

class PartFilesReader final : public PartReader {
 public:
  PartFilesReader(FileSystem& fs, std::uint64_t map_above_bytes)
      : fs_(&fs), map_above_bytes_(map_above_bytes) {}

  Result<MappedFile> fetch(const std::string& directory, const PartReceipt& part,
                           const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
    const std::string path = join_path(directory, part.name);
    const Result<FileInfo> info = fs_->info(path);
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
    if (part.size_bytes > map_above_bytes_) return map(path, part);
    return read(path, part, deadline);
  }

 private:
  // Under the part's name, as on every road.
  [[nodiscard]] Result<MappedFile> map(const std::string& path, const PartReceipt& part) {
    DRIFTLESS_ASSIGN_OR_RETURN(MappedFile mapped, fs_->map(path));
    if (mapped.bytes().size() != part.size_bytes) {
      return error(StatusCode::kIncomplete, path, ": its size is changing");
    }
    auto owner = std::make_shared<const MappedFile>(std::move(mapped));
    const std::span<const std::byte> bytes = owner->bytes();
    return MappedFile(part.name, std::move(owner), bytes);
  }

  [[nodiscard]] Result<MappedFile> read(const std::string& path, const PartReceipt& part,
                                        const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs_->open_to_read(path));
    const std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[part.size_bytes]);
    if (memory == nullptr) {
      return error(StatusCode::kNoSpace, path, ": no memory for ", part.size_bytes, " bytes");
    }
    const std::span<std::byte> bytes(memory.get(), part.size_bytes);
    for (std::uint64_t done = 0; done < bytes.size(); done += kPieceBytes) {
      DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", path)));
      const std::uint64_t size = std::min<std::uint64_t>(kPieceBytes, bytes.size() - done);
      const Status read = file->pread(done, bytes.subspan(done, size));
      if (read.code() == StatusCode::kCorrupt) {
        return error(StatusCode::kIncomplete, read.message());  // shorter than it was a moment ago
      }
      DRIFTLESS_RETURN_IF_ERROR(read);
    }
    return MappedFile(part.name, memory, bytes);
  }

  FileSystem* fs_;
  std::uint64_t map_above_bytes_;
};

}  // namespace

std::unique_ptr<PartSink> make_part_files_sink(FileSystem& fs) {
  return std::make_unique<PartFilesSink>(fs);
}

std::unique_ptr<PartReader> make_part_files_reader(FileSystem& fs, std::uint64_t map_above_bytes) {
  return std::make_unique<PartFilesReader>(fs, map_above_bytes);
}

}  // namespace driftless
