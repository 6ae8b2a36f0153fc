// A FileSystem that works like the real one until a chosen call, which fails, as do all writing
// calls after it except removals: a disk that fills up, a mount that turns read-only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"

namespace driftless::testing {

class FailAtFileSystem final : public FileSystem {
 public:
  // Writing calls are counted from 0; number `fail_at` fails with `code`.
  FailAtFileSystem(FileSystem& real, std::uint64_t fail_at, StatusCode code)
      : real_(real), fail_at_(fail_at), code_(code) {}

  [[nodiscard]] std::uint64_t calls() const { return calls_; }

  Result<std::unique_ptr<File>> create(const std::string& path) override {
    DRIFTLESS_RETURN_IF_ERROR(count("creating ", path));
    return wrap(real_.create(path));
  }
  Result<std::unique_ptr<File>> open(const std::string& path) override {
    DRIFTLESS_RETURN_IF_ERROR(count("opening ", path));
    return wrap(real_.open(path));
  }
  Result<FileInfo> info(const std::string& path) override { return real_.info(path); }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    return real_.list(directory);
  }
  Status make_directory(const std::string& path) override {
    DRIFTLESS_RETURN_IF_ERROR(count("creating ", path));
    return real_.make_directory(path);
  }
  Status rename_file(const std::string& from, const std::string& to) override {
    DRIFTLESS_RETURN_IF_ERROR(count("renaming ", from));
    return real_.rename_file(from, to);
  }
  Status rename_directory(const std::string& from, const std::string& to) override {
    DRIFTLESS_RETURN_IF_ERROR(count("renaming ", from));
    return real_.rename_directory(from, to);
  }
  Status remove_file(const std::string& path) override { return real_.remove_file(path); }
  Status remove_directory(const std::string& path) override { return real_.remove_directory(path); }
  Status sync_directory(const std::string& path) override {
    DRIFTLESS_RETURN_IF_ERROR(count("syncing ", path));
    return real_.sync_directory(path);
  }
  Result<MappedFile> map(const std::string& path) override { return real_.map(path); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                         std::chrono::milliseconds wait) override {
    return real_.lock(path, wait);
  }

 private:
  class CountedFile final : public File {
   public:
    CountedFile(FailAtFileSystem& owner, std::unique_ptr<File> file)
        : owner_(owner), file_(std::move(file)) {}
    Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
      const Status status = owner_.count("writing ", path());
      if (status.ok()) return file_->pwrite(offset, bytes);
      static_cast<void>(file_->pwrite(offset, bytes.first(bytes.size() / 2)).ok());  // cut short
      return status;
    }
    Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
      return file_->pread(offset, bytes);
    }
    Status sync() override {
      DRIFTLESS_RETURN_IF_ERROR(owner_.count("syncing ", path()));
      return file_->sync();
    }
    [[nodiscard]] const std::string& path() const override { return file_->path(); }

   private:
    FailAtFileSystem& owner_;
    std::unique_ptr<File> file_;
  };

  Result<std::unique_ptr<File>> wrap(Result<std::unique_ptr<File>> file) {
    if (!file.ok()) return file.status();
    return std::unique_ptr<File>(std::make_unique<CountedFile>(*this, std::move(*file)));
  }

  Status count(std::string_view what, const std::string& path) {
    if (calls_++ < fail_at_) return {};
    return error(code_, what, path, ": made to fail");
  }

  FileSystem& real_;
  const std::uint64_t fail_at_;
  const StatusCode code_;
  std::atomic<std::uint64_t> calls_ = 0;
};

}  // namespace driftless::testing
