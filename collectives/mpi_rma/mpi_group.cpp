// SPDX-License-Identifier: Apache-2.0
// The publisher ranks' group over MPI's two-sided messages. No collective call after creation.
#include <mpi.h>

#include "collectives/message_group.h"
#include "collectives/mpi_rma/mpi_mailbox.h"
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/mpi_rma/mpi_status.h"

namespace driftless {
namespace {

using mpi_rma::MpiMailbox;

constexpr int kTag = 0x6472;
constexpr std::uint64_t kMostMessageBytes = std::uint64_t{1} << 30;

class MpiGroupMail final : public GroupMail {
 public:
  MpiGroupMail(const mpi_rma::DuplicatedComm& comm, RankName name)
      : comm_(comm),
        name_(std::move(name)),
        mailbox_(std::make_unique<MpiMailbox>(comm.comm, kTag, kTag)) {}
  MpiGroupMail(const MpiGroupMail&) = delete;
  MpiGroupMail& operator=(const MpiGroupMail&) = delete;
  ~MpiGroupMail() override {
    if (mpi_rma::mpi_runs() && mailbox_->idle()) MPI_Comm_free(&comm_.comm);
  }

  [[nodiscard]] unsigned rank() const override { return comm_.rank; }
  [[nodiscard]] unsigned size() const override { return comm_.size; }
  [[nodiscard]] std::uint64_t most_bytes() const override { return kMostMessageBytes; }
  [[nodiscard]] std::string name(unsigned rank) const override { return name_(rank); }

  Status send(unsigned to, std::string bytes, const Deadline&) override {
    return mailbox_->send(static_cast<int>(to), std::move(bytes));
  }
  [[nodiscard]] std::uint64_t mark() const override { return mailbox_->mark(); }
  Result<std::vector<unsigned>> unsent(std::uint64_t since) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<int> ranks, mailbox_->unsent(since));
    return std::vector<unsigned>(ranks.begin(), ranks.end());
  }
  // If nothing has arrived, frees finished send requests.
  Result<std::optional<Letter>> take() override {
    DRIFTLESS_ASSIGN_OR_RETURN(std::optional<MpiMailbox::Letter> letter,
                               mailbox_->take(MPI_ANY_SOURCE));
    if (!letter) {
      DRIFTLESS_RETURN_IF_ERROR(mailbox_->unsent(0).status());
      return std::optional<Letter>();
    }
    return std::optional(Letter{static_cast<unsigned>(letter->peer), std::move(letter->bytes)});
  }
  bool rest(Backoff& backoff, const Deadline& deadline) override { return backoff.sleep(deadline); }

 private:
  mpi_rma::DuplicatedComm comm_;
  RankName name_;
  std::unique_ptr<MpiMailbox> mailbox_;
};

}  // namespace

Result<std::unique_ptr<Group>> make_mpi_group(MPI_Comm publishers, RankName name) {
  if (!mpi_rma::mpi_runs()) {
    return error(StatusCode::kInvalidArgument,
                 "the group of publishers: MPI is not initialized, or finalized already");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const mpi_rma::DuplicatedComm comm,
                             mpi_rma::duplicate_comm(publishers, "the publishers' communicator"));
  if (!name) name = [](unsigned rank) { return concat("publisher rank ", rank); };
  return std::unique_ptr<Group>(
      std::make_unique<MessageGroup>(std::make_unique<MpiGroupMail>(comm, std::move(name))));
}

}  // namespace driftless
