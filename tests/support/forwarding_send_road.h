// SPDX-License-Identifier: Apache-2.0
// A SendRoad and a part that pass every call on: base classes for those that change a few calls.
#pragma once

#include <memory>

#include "collectives/road.h"

namespace driftless::testing {

class ForwardingPart : public File {
 public:
  explicit ForwardingPart(std::unique_ptr<File> file) : file_(std::move(file)) {}
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return file_->pwrite(offset, bytes);
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return file_->pread(offset, bytes);
  }
  Status sync() override { return file_->sync(); }
  [[nodiscard]] const std::string& path() const override { return file_->path(); }

 protected:
  std::unique_ptr<File> file_;
};

class ForwardingSendRoad : public SendRoad {
 public:
  explicit ForwardingSendRoad(std::unique_ptr<SendRoad> road) : road_(std::move(road)) {}
  Status announce(std::string_view run_info, const Deadline& deadline) override {
    return road_->announce(run_info, deadline);
  }
  Status begin(const PublicationId& id, const Deadline& deadline) override {
    return road_->begin(id, deadline);
  }
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    return road_->create_part(name);
  }
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    return road_->flush(deadline);
  }
  Status seal(std::string_view manifest, const Deadline& deadline) override {
    return road_->seal(manifest, deadline);
  }
  Status abort() override { return road_->abort(); }
  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    return road_->published(id, deadline);
  }
  Result<std::vector<ReceiverReport>> receivers() override { return road_->receivers(); }
  std::vector<std::string> left() const override { return road_->left(); }
  Status check_version_size(std::uint64_t bytes) override {
    return road_->check_version_size(bytes);
  }
  std::vector<std::string> notes() const override { return road_->notes(); }
  Result<std::vector<PublicationId>> prune(std::uint64_t version) override {
    return road_->prune(version);
  }
  Result<std::uint64_t> highest_number() override { return road_->highest_number(); }
  [[nodiscard]] MemoryKind part_memory() const override { return road_->part_memory(); }
  void progress() override { road_->progress(); }

 protected:
  std::unique_ptr<SendRoad> road_;
};

}  // namespace driftless::testing
