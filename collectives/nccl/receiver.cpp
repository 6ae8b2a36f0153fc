// SPDX-License-Identifier: Apache-2.0
// The receiving side: answers from what the follower has landed.
#include <utility>

#include "collectives/nccl/follower.h"
#include "collectives/nccl/medium.h"

namespace driftless::nccl {
namespace {

class Receiver final : public ReceiveRoad {
 public:
  Receiver(const NcclOptions& options, std::shared_ptr<Fabric> fabric,
           std::unique_ptr<Follower> follower)
      : landing_(options.landing), fabric_(std::move(fabric)), follower_(std::move(follower)) {}

  [[nodiscard]] Result<std::string> run_info(const Deadline& deadline) override {
    return follower_->run_info(deadline);
  }
  [[nodiscard]] Result<std::vector<PublicationId>> list(const Deadline&) override {
    return follower_->list();
  }
  [[nodiscard]] Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    return follower_->wait_beyond(version, deadline);
  }
  [[nodiscard]] Result<std::string> fetch_manifest(const PublicationId& id,
                                                   const Deadline&) override {
    return follower_->manifest(id);
  }

  [[nodiscard]] Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                              const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("nccl: fetching a part of ", to_string(id))));
    DRIFTLESS_ASSIGN_OR_RETURN(const LandedPart landed, follower_->part(id, part));
    const std::uint64_t size = landed.receipt.size_bytes;
    if (fabric_->memory() == landing_ || size == 0) {
      return MappedFile(part.name, landed.block.owner,
                        std::span<const std::byte>(landed.block.data, size), landing_);
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Block host, fabric_->allocate_host(size));
    DRIFTLESS_RETURN_IF_ERROR(fabric_->copy(host.data, landed.block.data, size));
    return MappedFile(part.name, host.owner, std::span<const std::byte>(host.data, size));
  }

  [[nodiscard]] Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_report(report));
    Message message;
    message.kind = MessageKind::kReport;
    message.name = report.id;
    message.id.version = report.version;
    message.text = report.proof;
    const std::string what = concat("nccl: receiver ", report.id, " reporting");
    const std::optional<Status> heard = follower_->ask(std::move(message), what, deadline);
    if (!heard) {
      return error(StatusCode::kIo, what, ": the leading trainer has closed its road, so nobody ",
                   "hears it; report again once another one is there");
    }
    DRIFTLESS_RETURN_IF_ERROR(*heard);
    reported_ = true;
    return {};
  }

  [[nodiscard]] Status leave(const Deadline& deadline) override {
    if (!reported_) return {};
    Message message;
    message.kind = MessageKind::kLeave;
    const std::optional<Status> left =
        follower_->ask(std::move(message), "nccl: leaving", deadline);
    // A leader that has closed keeps nothing for us, and will not send to us.
    if (left) DRIFTLESS_RETURN_IF_ERROR(*left);
    reported_ = false;
    return {};
  }

 private:
  const MemoryKind landing_;
  const std::shared_ptr<Fabric> fabric_;
  const std::unique_ptr<Follower> follower_;
  bool reported_ = false;
};

}  // namespace

Result<std::unique_ptr<ReceiveRoad>> make_receiver(const NcclOptions& options,
                                                   std::shared_ptr<Fabric> fabric,
                                                   std::unique_ptr<Connector> connector) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<Follower> follower,
                             Follower::start(options, fabric, std::move(connector)));
  return std::unique_ptr<ReceiveRoad>(
      std::make_unique<Receiver>(options, std::move(fabric), std::move(follower)));
}

}  // namespace driftless::nccl
