// SPDX-License-Identifier: Apache-2.0
// A file system on real files in which one call takes long, as on a server that is unreachable for
// a while, or in which an action of the test runs before one call. Every call is numbered from 0.
// Several threads may use it.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/file_system.h"

namespace driftless::testing {

class StallingFileSystem : public FileSystem {
 public:
  // Call number `at_call` from now on takes so much longer.
  void plan(std::uint64_t at_call, std::chrono::milliseconds stall) {
    plan(at_call, [stall] { std::this_thread::sleep_for(stall); });
  }
  // Runs `before` before call number `at_call` from now on.
  void plan(std::uint64_t at_call, std::function<void()> before) {
    calls_ = 0;
    before_ = std::move(before);
    at_call_ = at_call;
  }
  [[nodiscard]] std::uint64_t calls() const { return calls_; }

  Result<std::unique_ptr<File>> create(const std::string& path) override {
    return slow(tick().create(path));
  }
  Result<std::unique_ptr<File>> open(const std::string& path) override {
    return slow(tick().open(path));
  }
  Result<std::unique_ptr<File>> open_to_read(const std::string& path) override {
    return slow(tick().open_to_read(path));
  }
  Result<FileInfo> info(const std::string& path) override { return tick().info(path); }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return tick().list(path);
  }
  Status make_directory(const std::string& path) override { return tick().make_directory(path); }
  Status rename_file(const std::string& from, const std::string& to) override {
    return tick().rename_file(from, to);
  }
  Status rename_new(const std::string& from, const std::string& to) override {
    return tick().rename_new(from, to);
  }
  Status remove_file(const std::string& path) override { return tick().remove_file(path); }
  Status remove_directory(const std::string& path) override {
    return tick().remove_directory(path);
  }
  Status sync_directory(const std::string& path) override { return tick().sync_directory(path); }
  Result<MappedFile> map(const std::string& path) override { return tick().map(path); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                         std::chrono::milliseconds wait) override {
    return tick().lock(path, wait);
  }

 private:
  class SlowFile final : public File {
   public:
    SlowFile(StallingFileSystem& fs, std::unique_ptr<File> file)
        : fs_(fs), file_(std::move(file)) {}
    Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
      fs_.tick();
      return file_->pwrite(offset, bytes);
    }
    Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
      fs_.tick();
      return file_->pread(offset, bytes);
    }
    Status sync() override {
      fs_.tick();
      return file_->sync();
    }
    [[nodiscard]] const std::string& path() const override { return file_->path(); }

   private:
    StallingFileSystem& fs_;
    std::unique_ptr<File> file_;
  };

  FileSystem& tick() {
    if (calls_++ == at_call_) before_();
    return posix_file_system();
  }
  Result<std::unique_ptr<File>> slow(Result<std::unique_ptr<File>> file) {
    if (!file.ok()) return file;
    return std::unique_ptr<File>(std::make_unique<SlowFile>(*this, std::move(*file)));
  }

  std::atomic<std::uint64_t> calls_ = 0;
  std::uint64_t at_call_ = ~std::uint64_t{0};
  std::function<void()> before_;
};

}  // namespace driftless::testing
