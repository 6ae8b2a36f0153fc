// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/stage_clock.h"

namespace driftless {
namespace {

class TimedPart final : public File {
 public:
  TimedPart(std::unique_ptr<File> file, StageClock& clock)
      : file_(std::move(file)), clock_(clock) {}
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    Stopwatch watch;
    Status written = file_->pwrite(offset, bytes);
    clock_.add_send(watch.lap_ms());
    return written;
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return file_->pread(offset, bytes);
  }
  Status sync() override {
    Stopwatch watch;
    Status synced = file_->sync();
    clock_.add_send(watch.lap_ms());
    return synced;
  }
  [[nodiscard]] const std::string& path() const override { return file_->path(); }

 private:
  std::unique_ptr<File> file_;
  StageClock& clock_;
};

}  // namespace

Result<std::unique_ptr<File>> PartRoad::create_part(const std::string& name) {
  Stopwatch watch;
  Result<std::unique_ptr<File>> part = road_.create_part(name);
  clock_.add_send(watch.lap_ms());
  if (!part.ok()) return part;
  return std::unique_ptr<File>(std::make_unique<TimedPart>(std::move(*part), clock_));
}

}  // namespace driftless
