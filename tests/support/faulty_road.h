// SPDX-License-Identifier: Apache-2.0
// A SendRoad that passes every call on, and fails at the call that a test chooses.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/road.h"

namespace driftless::testing {

enum class RoadFault {
  kNone,
  kBegin,
  kCreate,
  kWrite,
  kFlush,
  kSeal,            // and nothing is published
  kSealLost,        // published, but the answer is lost; published() knows
  kSealUnknown,     // published, and published() fails as well
  kSealUnknownNot,  // not published, and published() fails as well
};

// Fails once, at the next call that the fault stands for; after that no call fails.
class FaultyRoad final : public SendRoad {
 public:
  explicit FaultyRoad(std::unique_ptr<SendRoad> road) : road_(std::move(road)) {}
  void arm(RoadFault fault) { fault_ = fault; }
  [[nodiscard]] bool armed() const { return fault_ != RoadFault::kNone; }
  // Called at every part.
  void at_create(std::function<void()> call) { at_create_ = std::move(call); }
  // From now on begin() is late, as on a busy host.
  void delay_begin(std::chrono::milliseconds delay) { begin_delay_ = delay; }
  // Refuses versions larger than this. Records the size that the publisher announced.
  void limit(std::uint64_t bytes) { limit_ = bytes; }
  [[nodiscard]] std::uint64_t asked_bytes() const { return asked_; }

  Status check_version_size(std::uint64_t bytes) override {
    asked_ = bytes;
    if (bytes <= limit_) return {};
    return error(StatusCode::kNoSpace, "a ring of ", limit_, " bytes");
  }
  Status announce(std::string_view run_info, const Deadline& deadline) override {
    return road_->announce(run_info, deadline);
  }
  Status begin(const PublicationId& id, const Deadline& deadline) override {
    std::this_thread::sleep_for(begin_delay_);
    return fires(RoadFault::kBegin) ? failure("begin") : road_->begin(id, deadline);
  }
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    if (at_create_) at_create_();
    if (fires(RoadFault::kCreate)) return failure("create_part");
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, road_->create_part(name));
    return std::unique_ptr<File>(new FaultyPart(std::move(file), *this));
  }
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    if (fires(RoadFault::kFlush)) return failure("flush");
    return road_->flush(deadline);
  }
  Status seal(std::string_view manifest, const Deadline& deadline) override {
    if (fires(RoadFault::kSeal)) return failure("seal");
    if (fires(RoadFault::kSealUnknownNot)) {
      lie_ = true;
      return failure("seal");
    }
    if (fires(RoadFault::kSealUnknown)) {
      lie_ = true;
      const Status sealed = road_->seal(manifest, deadline);
      return sealed.ok() ? failure("seal") : sealed;
    }
    if (!fires(RoadFault::kSealLost)) return road_->seal(manifest, deadline);
    const Status sealed = road_->seal(manifest, deadline);
    return sealed.ok() ? failure("seal") : sealed;
  }
  Status abort() override { return road_->abort(); }
  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    if (std::exchange(lie_, false)) return failure("published");
    return road_->published(id, deadline);
  }
  Result<std::vector<ReceiverReport>> receivers() override { return road_->receivers(); }
  std::vector<std::string> left() const override { return road_->left(); }
  std::vector<std::string> notes() const override { return road_->notes(); }
  Result<std::vector<PublicationId>> prune(std::uint64_t version) override {
    return road_->prune(version);
  }
  Result<std::uint64_t> highest_number() override { return road_->highest_number(); }
  MemoryKind part_memory() const override { return road_->part_memory(); }
  void progress() override { road_->progress(); }

 private:
  class FaultyPart final : public File {
   public:
    FaultyPart(std::unique_ptr<File> file, FaultyRoad& road)
        : file_(std::move(file)), road_(road) {}
    Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
      return road_.fires(RoadFault::kWrite) ? failure("write") : file_->pwrite(offset, bytes);
    }
    Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
      return file_->pread(offset, bytes);
    }
    Status sync() override { return file_->sync(); }
    const std::string& path() const override { return file_->path(); }

   private:
    std::unique_ptr<File> file_;
    FaultyRoad& road_;
  };

  static Status failure(std::string_view call) {
    return error(StatusCode::kIo, "injected failure of ", call);
  }
  bool fires(RoadFault fault) {
    if (fault_ != fault) return false;
    fault_ = RoadFault::kNone;
    return true;
  }

  std::unique_ptr<SendRoad> road_;
  RoadFault fault_ = RoadFault::kNone;
  std::uint64_t limit_ = std::numeric_limits<std::uint64_t>::max(), asked_ = 0;
  bool lie_ = false;
  std::function<void()> at_create_;
  std::chrono::milliseconds begin_delay_{0};
};

}  // namespace driftless::testing
