// A FileSystem over the real one that counts writes and syncs, remembers the largest and the
// smallest write, and makes a chosen call fail. Enough for writers; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"

namespace driftless::testing {

struct WriteLog {
  std::int64_t fail_write = -1;  // this pwrite(), counted from 0, and all after it fail
  bool fail_sync = false;
  std::vector<std::uint64_t> write_bytes;
  int syncs = 0;
};

class FailingFile final : public File {
 public:
  FailingFile(std::unique_ptr<File> file, WriteLog& log) : file_(std::move(file)), log_(log) {}

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    log_.write_bytes.push_back(bytes.size());
    const auto number = static_cast<std::int64_t>(log_.write_bytes.size()) - 1;
    if (log_.fail_write >= 0 && number >= log_.fail_write) {
      return error(StatusCode::kNoSpace, path(), ": write ", number, " was told to fail");
    }
    return file_->pwrite(offset, bytes);
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return file_->pread(offset, bytes);
  }
  Status sync() override {
    ++log_.syncs;
    if (log_.fail_sync) return error(StatusCode::kIo, path(), ": sync was told to fail");
    return file_->sync();
  }
  const std::string& path() const override { return file_->path(); }

 private:
  std::unique_ptr<File> file_;
  WriteLog& log_;
};

class FailingFileSystem final : public FileSystem {
 public:
  WriteLog log;

  Result<std::unique_ptr<File>> create(const std::string& path) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, real_.create(path));
    return std::unique_ptr<File>(std::make_unique<FailingFile>(std::move(file), log));
  }
  Result<std::unique_ptr<File>> open(const std::string& path) override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, real_.open(path));
    return std::unique_ptr<File>(std::make_unique<FailingFile>(std::move(file), log));
  }
  Result<FileInfo> info(const std::string& path) override { return real_.info(path); }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    return real_.list(directory);
  }
  Status make_directory(const std::string& path) override { return real_.make_directory(path); }
  Status rename_file(const std::string& from, const std::string& to) override {
    return real_.rename_file(from, to);
  }
  Status rename_directory(const std::string& from, const std::string& to) override {
    return real_.rename_directory(from, to);
  }
  Status remove_file(const std::string& path) override { return real_.remove_file(path); }
  Status remove_directory(const std::string& path) override { return real_.remove_directory(path); }
  Status sync_directory(const std::string& path) override { return real_.sync_directory(path); }
  Result<MappedFile> map(const std::string& path) override { return real_.map(path); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                         std::chrono::milliseconds wait) override {
    return real_.lock(path, wait);
  }

 private:
  FileSystem& real_ = posix_file_system();
};

}  // namespace driftless::testing
