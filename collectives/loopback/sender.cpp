// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "collectives/loopback/medium.h"
#include "collectives/open_part.h"

namespace driftless {
namespace {

class LoopbackSender final : public SendRoad {
 public:
  LoopbackSender(std::shared_ptr<LoopbackMedium> medium, unsigned rank)
      : medium_(std::move(medium)), rank_(rank) {}
  LoopbackSender(const LoopbackSender&) = delete;
  LoopbackSender& operator=(const LoopbackSender&) = delete;
  ~LoopbackSender() override { drop(); }

  Status announce(std::string_view run_info, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: announcing the run"));
    return medium_->announce(run_info);
  }

  Status begin(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("loopback: beginning ", to_string(id))));
    drop();
    DRIFTLESS_ASSIGN_OR_RETURN(attempt_, medium_->begin(id, rank_));
    // Anchors are beside the ring.
    room_ = make_byte_budget(
        is_step(id) ? medium_->options().ring_bytes : std::numeric_limits<std::uint64_t>::max(),
        "ring_bytes");
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("creating a part"));
    DRIFTLESS_RETURN_IF_ERROR(check_part_name(parts_, name, "loopback"));
    parts_.push_back(std::make_shared<BufferPart>("loopback", name, room_, pool_->take()));
    return make_part_file(parts_.back());
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("flushing"));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: flushing"));
    std::vector<PartReceipt> receipts;
    for (const auto& part : parts_) {
      DRIFTLESS_ASSIGN_OR_RETURN(receipts.emplace_back(), part->finish(rank_));
    }
    std::vector<HeldPart> finished;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::shared_ptr<const PartBuffer> buffer = pool_->share(parts_[i]->take());
      finished.push_back({receipts[i], buffer, buffer->bytes()});
    }
    parts_.clear();
    DRIFTLESS_RETURN_IF_ERROR(medium_->flush(*attempt_, rank_, std::move(finished)));
    return receipts;
  }

  Status seal(std::string_view manifest, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_begun("sealing"));
    DRIFTLESS_RETURN_IF_ERROR(deadline.check("loopback: sealing"));
    DRIFTLESS_RETURN_IF_ERROR(medium_->seal(*attempt_, manifest));
    attempt_.reset();
    return {};
  }

  Status abort() override {
    drop();
    return {};
  }

  Result<std::optional<Hash128>> published(const PublicationId& id, const Deadline&) override {
    return medium_->published(id);
  }
  Result<std::vector<ReceiverReport>> receivers() override { return medium_->receivers(); }

 private:
  [[nodiscard]] Status check_begun(std::string_view what) const {
    if (attempt_.has_value()) return {};
    return error(StatusCode::kInvalidArgument, "loopback: ", what, " on rank ", rank_,
                 " without a begin()");
  }

  void drop() {
    parts_.clear();
    if (attempt_.has_value()) medium_->abort(*attempt_, rank_);
    attempt_.reset();
  }

  std::shared_ptr<LoopbackMedium> medium_;
  const unsigned rank_;
  const std::shared_ptr<PartPool> pool_ = std::make_shared<PartPool>();
  std::optional<std::uint64_t> attempt_;  // of the medium; none: nothing was begun
  TakeRoom room_;
  std::vector<std::shared_ptr<BufferPart>> parts_;
};

}  // namespace

std::unique_ptr<SendRoad> make_loopback_sender(std::shared_ptr<LoopbackMedium> medium,
                                               unsigned rank) {
  return std::make_unique<LoopbackSender>(std::move(medium), rank);
}

}  // namespace driftless
