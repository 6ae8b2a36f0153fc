// SPDX-License-Identifier: Apache-2.0
// toy: a road made of a map in memory, as somebody might add one (docs: adding a road). One sender.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/part_ranges.h"

namespace driftless::testing {

struct ToyPublication {
  std::string manifest;
  std::map<std::string, std::shared_ptr<std::vector<std::byte>>> parts;
};

// What both sides share.
struct ToyMedium {
  std::optional<std::string> run_info;
  std::map<PublicationId, ToyPublication> published;
  std::map<std::string, ReceiverReport> receivers;
  std::optional<std::string> end;  // the trainer's end-of-run note
};

class ToyPart final : public File {
 public:
  ToyPart(std::string name, std::shared_ptr<std::vector<std::byte>> bytes)
      : name_(std::move(name)), bytes_(std::move(bytes)) {}
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    bytes_->resize(std::max<std::size_t>(bytes_->size(), offset + bytes.size()));
    std::ranges::copy(bytes, bytes_->begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    if (offset + bytes.size() > bytes_->size())
      return error(StatusCode::kCorrupt, name_, ": short");
    std::copy_n(bytes_->begin() + static_cast<std::ptrdiff_t>(offset), bytes.size(), bytes.begin());
    return {};
  }
  Status sync() override { return {}; }
  [[nodiscard]] const std::string& path() const override { return name_; }

 private:
  std::string name_;
  std::shared_ptr<std::vector<std::byte>> bytes_;
};

class ToySender final : public SendRoad {
 public:
  explicit ToySender(std::shared_ptr<ToyMedium> medium) : medium_(std::move(medium)) {}
  Status announce(std::string_view run_info, const Deadline&) override {
    medium_->run_info = run_info;
    return {};
  }
  Status begin(const PublicationId& id, const Deadline&) override {
    if (medium_->published.contains(id)) return error(StatusCode::kAlreadyExists, to_string(id));
    begun_ = id;
    publication_ = {};
    receipts_.clear();
    return {};
  }
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    auto& bytes = publication_.parts[name] = std::make_shared<std::vector<std::byte>>();
    receipts_.push_back({name, 0, 0, {}, 0});
    return std::unique_ptr<File>(std::make_unique<ToyPart>(name, bytes));
  }
  Result<std::vector<PartReceipt>> flush(const Deadline&) override {
    for (PartReceipt& receipt : receipts_) {
      receipt.size_bytes = publication_.parts[receipt.name]->size();
      receipt.hash = xxh3_128(std::span<const std::byte>(*publication_.parts[receipt.name]));
    }
    return receipts_;
  }
  Status seal(std::string_view manifest, const Deadline&) override {
    publication_.manifest = manifest;
    medium_->published[begun_] = std::move(publication_);
    return {};
  }
  Status abort() override { return {}; }
  Result<std::optional<Hash128>> published(const PublicationId& id, const Deadline&) override {
    const auto at = medium_->published.find(id);
    return at == medium_->published.end() ? std::nullopt
                                          : std::optional(xxh3_128(at->second.manifest));
  }
  Result<std::vector<ReceiverReport>> receivers() override {
    std::vector<ReceiverReport> all;
    for (const auto& [id, report] : medium_->receivers) all.push_back(report);
    return all;
  }
  Result<std::uint64_t> highest_number() override { return std::uint64_t{0}; }
  Result<std::vector<PublicationId>> prune(std::uint64_t) override {
    return std::vector<PublicationId>();
  }
  [[nodiscard]] MemoryKind part_memory() const override { return MemoryKind::kHost; }
  void progress() override {}

 private:
  std::shared_ptr<ToyMedium> medium_;
  PublicationId begun_;
  ToyPublication publication_;
  std::vector<PartReceipt> receipts_;
};

class ToyReceiver final : public ReceiveRoad {
 public:
  explicit ToyReceiver(std::shared_ptr<ToyMedium> medium) : medium_(std::move(medium)) {}
  Result<std::string> run_info(const Deadline&) override {
    if (!medium_->run_info) return error(StatusCode::kDeadlineExceeded, "toy: no run");
    return *medium_->run_info;
  }
  Result<std::vector<PublicationId>> list(const Deadline&) override {
    std::vector<PublicationId> ids;
    for (const auto& [id, publication] : medium_->published) ids.push_back(id);
    return ids;
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    for (const auto& [id, publication] : medium_->published) {
      if (id.version > version && id.kind == PublicationKind::kVersion) return {};
    }
    while (Backoff(std::chrono::milliseconds(1), std::chrono::milliseconds(1)).sleep(deadline)) {
    }
    return deadline.check("toy: waiting for a version");
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline&) override {
    const auto at = medium_->published.find(id);
    if (at == medium_->published.end()) return error(StatusCode::kNotFound, to_string(id));
    return at->second.manifest;
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline&) override {
    const auto at = medium_->published.find(id);
    if (at == medium_->published.end()) return error(StatusCode::kNotFound, to_string(id));
    const auto& bytes = at->second.parts.at(part.name);
    return MappedFile(part.name, bytes, *bytes);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("toy", id, part, ranges));
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile whole, fetch_part(id, part, deadline));
    return slices(whole, ranges);
  }
  [[nodiscard]] bool fetches_at_once() const override { return false; }
  Status report(const ReceiverReport& report, const Deadline&) override {
    id_ = report.id;
    medium_->receivers[id_] = report;
    return {};
  }
  Status leave(const Deadline&) override {
    medium_->receivers.erase(id_);
    return {};
  }

 private:
  std::shared_ptr<ToyMedium> medium_;
  std::string id_;
};

}  // namespace driftless::testing
