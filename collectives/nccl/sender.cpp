// SPDX-License-Identifier: Apache-2.0
// The sending side: parts in the fabric's memory, sent to all receivers of the group by flush().
#include <limits>
#include <optional>
#include <utility>

#include "collectives/nccl/board.h"
#include "collectives/nccl/medium.h"
#include "collectives/nccl/part_store.h"

namespace driftless::nccl {
namespace {

using std::chrono::microseconds;

class Sender final : public SendRoad {
 public:
  Sender(const NcclOptions& options, unsigned rank, std::shared_ptr<Fabric> fabric,
         std::unique_ptr<Control> control)
      : options_(options), rank_(rank), fabric_(std::move(fabric)), control_(std::move(control)) {}
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  ~Sender() override { drop(); }

  [[nodiscard]] Status announce(std::string_view run_info, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("nccl: announcing the run"));
    return control_->announce(run_info);
  }
  [[nodiscard]] Status begin(const PublicationId& id, const Deadline& deadline) override;
  [[nodiscard]] Result<std::unique_ptr<File>> create_part(const std::string& name) override;
  [[nodiscard]] Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override;
  [[nodiscard]] Status seal(std::string_view manifest, const Deadline& deadline) override;
  [[nodiscard]] Status abort() override {
    drop();
    return {};
  }
  [[nodiscard]] Result<std::optional<Hash128>> published(const PublicationId& id,
                                                         const Deadline& deadline) override {
    return control_->published(id, deadline);
  }
  [[nodiscard]] Result<std::vector<ReceiverReport>> receivers() override {
    return control_->receivers();
  }
  // The ring makes room by itself.
  [[nodiscard]] Result<std::vector<PublicationId>> prune(std::uint64_t) override {
    return std::vector<PublicationId>();
  }
  [[nodiscard]] MemoryKind part_memory() const override { return fabric_->memory(); }
  void progress() override {}

 private:
  // What was begun.
  struct Begun {
    Attempt attempt;
    std::optional<PartStore> store;  // until it was sent
    std::vector<PartReceipt> receipts;
  };

  [[nodiscard]] Status check_begun(std::string_view what) const;
  [[nodiscard]] Status send(const PartStore::Finished& parts, const Deadline& deadline);
  [[nodiscard]] Status wait_for_communicator(const Deadline& deadline, std::string_view what);
  void drop();

  const NcclOptions options_;
  const unsigned rank_;
  const std::shared_ptr<Fabric> fabric_;
  const std::unique_ptr<Control> control_;
  std::unique_ptr<Communicator> communicator_;  // this rank and the receivers
  std::uint64_t generation_ = 0;                // that it is of
  std::optional<Begun> begun_;
};

Status Sender::check_begun(std::string_view what) const {
  if (begun_.has_value()) return {};
  return error(StatusCode::kInvalidArgument, "nccl: ", what, " on rank ", rank_,
               " without a begin()");
}

void Sender::drop() {
  if (begun_) control_->abort(begun_->attempt.number);
  begun_.reset();
}

Status Sender::begin(const PublicationId& id, const Deadline& deadline) {
  drop();
  DRIFTLESS_ASSIGN_OR_RETURN(const Attempt attempt, control_->begin(id, deadline));
  // Anchors are beside the ring.
  const std::uint64_t most = id.kind == PublicationKind::kStep
                                 ? options_.ring_bytes
                                 : std::numeric_limits<std::uint64_t>::max();
  begun_.emplace(Begun{attempt, PartStore(fabric_, rank_, most), {}});
  return {};
}

Result<std::unique_ptr<File>> Sender::create_part(const std::string& name) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
  if (!begun_->store) {
    return error(StatusCode::kInvalidArgument, "nccl: part '", name, "' comes after the flush()");
  }
  return begun_->store->create(name);
}

Result<std::vector<PartReceipt>> Sender::flush(const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
  if (!begun_->store) return begun_->receipts;
  DRIFTLESS_ASSIGN_OR_RETURN(PartStore::Finished finished, begun_->store->finish());
  const Status sent = send(finished, deadline);
  if (!sent.ok()) {
    communicator_.reset();
    control_->failed(begun_->attempt.number, sent);
    return sent;
  }
  begun_->receipts = std::move(finished.receipts);
  begun_->store.reset();  // the receivers have them
  return begun_->receipts;
}

Status Sender::send(const PartStore::Finished& parts, const Deadline& deadline) {
  const Attempt& attempt = begun_->attempt;
  Offer offer{attempt.number, attempt.generation, {}, parts.receipts};
  if (generation_ != attempt.generation) communicator_.reset();
  generation_ = attempt.generation;
  const bool connects = communicator_ == nullptr && attempt.receivers > 0;
  if (connects) {
    DRIFTLESS_ASSIGN_OR_RETURN(offer.meeting, fabric_->new_meeting());
  }
  DRIFTLESS_RETURN_IF_ERROR(control_->offer(offer, deadline));
  if (attempt.receivers == 0) return {};
  if (connects) {
    DRIFTLESS_ASSIGN_OR_RETURN(communicator_,
                               fabric_->connect(offer.meeting, 0, attempt.receivers + 1));
  }
  DRIFTLESS_RETURN_IF_ERROR(wait_for_communicator(deadline, "connecting to the receivers"));
  DRIFTLESS_RETURN_IF_ERROR(communicator_->broadcast(parts.blocks));
  return wait_for_communicator(deadline, "sending to the receivers");
}

Status Sender::wait_for_communicator(const Deadline& deadline, std::string_view what) {
  Backoff backoff(microseconds(20), microseconds(500));
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool done, communicator_->poll());
    if (done) return {};
    DRIFTLESS_RETURN_IF_ERROR(control_->check(begun_->attempt.number));
    if (!backoff.sleep(deadline)) {
      return deadline.check(concat("nccl: rank ", rank_, " ", what));
    }
  }
}

Status Sender::seal(std::string_view manifest, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
  if (begun_->store) {
    return error(StatusCode::kInvalidArgument, "nccl: sealing without a flush()");
  }
  DRIFTLESS_RETURN_IF_ERROR(control_->seal(begun_->attempt.number, manifest, deadline));
  begun_.reset();
  return {};
}

}  // namespace

Result<std::unique_ptr<SendRoad>> make_leading_sender(const NcclOptions& options, unsigned ranks,
                                                      std::shared_ptr<Fabric> fabric,
                                                      std::unique_ptr<Hub> hub) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<Board> board,
                             Board::start(options, ranks, std::move(hub)));
  return std::unique_ptr<SendRoad>(
      std::make_unique<Sender>(options, 0, std::move(fabric), std::move(board)));
}

std::unique_ptr<SendRoad> make_other_sender(const NcclOptions& options, unsigned rank,
                                            unsigned ranks, std::shared_ptr<Fabric> fabric,
                                            std::unique_ptr<Connector> connector) {
  return std::make_unique<Sender>(options, rank, std::move(fabric),
                                  make_remote_control(std::move(connector), rank, ranks));
}

}  // namespace driftless::nccl
