// SPDX-License-Identifier: Apache-2.0
// The sending side: parts in the fabric's memory, which flush() sends to all receivers of the
// group.
#include <limits>
#include <system_error>

#include "collectives/nccl/control.h"
#include "collectives/nccl/nccl_road.h"
#include "collectives/open_part.h"

namespace driftless::nccl {
namespace {

using std::chrono::microseconds;

constexpr std::uint64_t kFirstBytes = std::uint64_t{64} << 10;

// A part in the fabric's memory.
class FabricPart final : public OpenPart {
 public:
  FabricPart(unsigned rank, std::string name, TakeRoom room, std::shared_ptr<Fabric> fabric)
      : OpenPart(concat("nccl: rank ", rank), std::move(name), std::move(room)),
        fabric_(std::move(fabric)) {}
  // Only after finish().
  [[nodiscard]] Block block() const { return {block_.owner, block_.data, written_}; }

 protected:
  Status write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    DRIFTLESS_RETURN_IF_ERROR(grow(size_bytes()));
    if (offset > written_) {
      DRIFTLESS_RETURN_IF_ERROR(fabric_->zero(block_.data + written_, offset - written_));
    }
    DRIFTLESS_RETURN_IF_ERROR(fabric_->copy(block_.data + offset, bytes.data(), bytes.size()));
    written_ = std::max(written_, offset + bytes.size());
    return {};
  }

  Status read(std::uint64_t offset, std::span<std::byte> bytes) override {
    return fabric_->copy(bytes.data(), block_.data + offset, bytes.size());
  }

  // One later call computes the hashes of all parts.
  Status complete(PartReceipt&, const Deadline&) override { return {}; }

 private:
  // Grows the capacity to `size` bytes and keeps the content.
  [[nodiscard]] Status grow(std::uint64_t size) {
    if (size <= block_.size) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const Block larger,
                               fabric_->allocate(std::max({size, 2 * block_.size, kFirstBytes})));
    if (written_ > 0) {
      DRIFTLESS_RETURN_IF_ERROR(fabric_->copy(larger.data, block_.data, written_));
    }
    block_ = larger;
    return {};
  }

  const std::shared_ptr<Fabric> fabric_;
  Block block_;                // its size is the capacity
  std::uint64_t written_ = 0;  // bytes
};

class Sender final : public SendRoad {
 public:
  Sender(NcclOptions options, unsigned rank, std::shared_ptr<Fabric> fabric,
         std::unique_ptr<Control> control)
      : options_(std::move(options)),
        rank_(rank),
        fabric_(std::move(fabric)),
        control_(std::move(control)) {}
  ~Sender() override { drop(); }

  Status announce(std::string_view run_info, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("nccl: announcing the run"));
    return control_->announce(run_info);
  }

  Status begin(const PublicationId& id, const Deadline& deadline) override {
    drop();
    DRIFTLESS_ASSIGN_OR_RETURN(const Attempt attempt, control_->begin(id, deadline));
    // Anchors do not count against the ring.
    const std::uint64_t most =
        is_version(id) ? options_.ring_bytes : std::numeric_limits<std::uint64_t>::max();
    begun_.emplace(Begun{attempt, make_byte_budget(most, "road.ring_size"), {}, {}});
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
    if (begun_->receipts) {
      return error(StatusCode::kInvalidArgument, "nccl: part '", name, "' comes after the flush()");
    }
    DRIFTLESS_RETURN_IF_ERROR(check_part_name(begun_->parts, name, "nccl"));
    begun_->parts.push_back(std::make_shared<FabricPart>(rank_, name, begun_->room, fabric_));
    return make_part_file(begun_->parts.back());
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
    if (begun_->receipts) return *begun_->receipts;
    std::vector<Block> blocks;
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PartReceipt> receipts, finish_parts(blocks, deadline));
    const Status sent = send(receipts, blocks, deadline);
    if (!sent.ok()) {
      communicator_.reset();
      control_->failed(begun_->attempt.number, sent);
      return sent;
    }
    begun_->parts.clear();  // the receivers have them
    begun_->receipts = receipts;
    return receipts;
  }

  Status seal(std::string_view manifest, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
    if (!begun_->receipts) {
      return error(StatusCode::kInvalidArgument, "nccl: sealing without a flush()");
    }
    DRIFTLESS_RETURN_IF_ERROR(control_->seal(begun_->attempt.number, manifest, deadline));
    begun_.reset();
    return {};
  }

  Status abort() override {
    drop();
    return {};
  }

  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    return control_->published(id, deadline);
  }

  // This road forgets versions that it does not list.
  Result<std::uint64_t> highest_number() override { return std::uint64_t{0}; }
  Result<std::vector<ReceiverReport>> receivers() override { return control_->receivers(); }
  [[nodiscard]] std::vector<std::string> left() const override { return control_->left(); }
  [[nodiscard]] MemoryKind part_memory() const override { return fabric_->memory(); }

 private:
  // The publication that was begun.
  struct Begun {
    Attempt attempt;
    TakeRoom room;
    std::vector<std::shared_ptr<FabricPart>> parts;    // until they are sent
    std::optional<std::vector<PartReceipt>> receipts;  // after they were sent
  };

  [[nodiscard]] Status check_begun(std::string_view what) const {
    if (begun_.has_value()) return {};
    return error(StatusCode::kInvalidArgument, "nccl: ", what, " on rank ", rank_,
                 " without a begin()");
  }

  [[nodiscard]] Result<std::vector<PartReceipt>> finish_parts(std::vector<Block>& blocks,
                                                              const Deadline& deadline) {
    std::vector<PartReceipt> receipts;
    std::vector<std::span<const std::byte>> stretches;
    for (const auto& part : begun_->parts) {
      DRIFTLESS_ASSIGN_OR_RETURN(receipts.emplace_back(), part->finish(rank_, deadline));
      const Block& block = blocks.emplace_back(part->block());
      stretches.emplace_back(block.data, block.size);
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Hash128> hashes, fabric_->hash(stretches));
    for (std::size_t i = 0; i < hashes.size(); ++i) receipts[i].hash = hashes[i];
    return receipts;
  }

  [[nodiscard]] Status send(const std::vector<PartReceipt>& receipts,
                            const std::vector<Block>& blocks, const Deadline& deadline) {
    const Attempt& attempt = begun_->attempt;
    Message offer{.kind = MessageKind::kOffer,
                  .attempt = attempt.number,
                  .generation = attempt.generation,
                  .parts = receipts};
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
    DRIFTLESS_RETURN_IF_ERROR(communicator_->broadcast(blocks));
    return wait_for_communicator(deadline, "sending to the receivers");
  }

  [[nodiscard]] Status wait_for_communicator(const Deadline& deadline, std::string_view what) {
    Backoff backoff(microseconds(20), microseconds(500));
    Waiting waiting;
    const auto whom = [&] { return concat("nccl: rank ", rank_, " ", what); };
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool done, communicator_->poll());
      if (done) return {};
      DRIFTLESS_RETURN_IF_ERROR(control_->check(begun_->attempt.number));
      if (!waiting.sleep(backoff, deadline, whom)) return deadline.check(whom());
    }
  }

  void drop() {
    if (begun_) control_->abort(begun_->attempt.number);
    begun_.reset();
  }

  const NcclOptions options_;
  const unsigned rank_;
  const std::shared_ptr<Fabric> fabric_;
  const std::unique_ptr<Control> control_;
  std::unique_ptr<Communicator> communicator_;  // this rank and the receivers
  std::uint64_t generation_ = 0;                // generation of the communicator
  std::optional<Begun> begun_;
};

}  // namespace

Result<std::unique_ptr<SendRoad>> make_leading_sender(const NcclOptions& options, unsigned ranks,
                                                      std::shared_ptr<Fabric> fabric,
                                                      std::unique_ptr<Hub> hub,
                                                      std::shared_ptr<EndNote> end) {
  try {
    auto control = std::make_unique<LeaderControl>(options, ranks, std::move(hub), std::move(end));
    return std::unique_ptr<SendRoad>(
        std::make_unique<Sender>(options, 0, std::move(fabric), std::move(control)));
  } catch (const std::system_error& failure) {
    return error(StatusCode::kIo, "nccl: no thread for the leader: ", failure.what());
  }
}

std::unique_ptr<SendRoad> make_other_sender(const NcclOptions& options, unsigned rank,
                                            unsigned ranks, std::shared_ptr<Fabric> fabric,
                                            Connector connector) {
  return std::make_unique<Sender>(
      options, rank, std::move(fabric),
      make_remote_control(std::move(connector), rank, ranks, options.start));
}

}  // namespace driftless::nccl
