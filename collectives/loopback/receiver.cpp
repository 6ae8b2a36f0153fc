// SPDX-License-Identifier: Apache-2.0
#include "collectives/loopback/medium.h"

namespace driftless {
namespace {

class LoopbackReceiver final : public ReceiveRoad {
 public:
  explicit LoopbackReceiver(std::shared_ptr<LoopbackMedium> medium) : medium_(std::move(medium)) {}

  Result<std::string> run_info(const Deadline& deadline) override {
    return medium_->run_info(deadline);
  }
  Result<std::vector<PublicationId>> list(const Deadline&) override { return medium_->list(); }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    return medium_->wait_beyond(version, deadline);
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline&) override {
    return medium_->manifest(id);
  }

  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline&) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const HeldPart held, medium_->part(id, part));
    return MappedFile(part.name, held.owner, held.bytes);
  }

  Status report(const ReceiverReport& report, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(check_report(report));
    id_ = report.id;
    medium_->report(report);
    return {};
  }

  Status leave(const Deadline&) override {
    if (!id_.empty()) medium_->leave(id_);
    id_.clear();
    return {};
  }

 private:
  std::shared_ptr<LoopbackMedium> medium_;
  std::string id_;  // as last reported
};

}  // namespace

std::unique_ptr<ReceiveRoad> make_loopback_receiver(std::shared_ptr<LoopbackMedium> medium) {
  return std::make_unique<LoopbackReceiver>(std::move(medium));
}

}  // namespace driftless
