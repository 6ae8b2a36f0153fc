// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/mpi_mailbox.h"

#include <set>

#include "collectives/mpi_rma/mpi_status.h"

namespace driftless::mpi_rma {

MpiMailbox::MpiMailbox(MPI_Comm comm, int send_tag, int receive_tag)
    : comm_(comm), send_tag_(send_tag), receive_tag_(receive_tag) {}

MpiMailbox::~MpiMailbox() {
  if (!mpi_runs() || !idle()) [[maybe_unused]]
    const InFlight* left = in_flight_.release();
}

Status MpiMailbox::send(int to, std::string bytes) {
  const Result<std::vector<int>> of_others = unsent(sent_);  // frees finished requests
  Transfer& sending = in_flight_->sending.emplace_back();
  sending.letter = {to, std::move(bytes)};
  sending.number = ++sent_;
  const std::string& text = sending.letter.bytes;
  const Status started = mpi_status(MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_BYTE,
                                              to, send_tag_, comm_, &sending.request),
                                    concat("message to rank ", to));
  if (!started.ok()) in_flight_->sending.pop_back();
  return started;
}

Result<std::vector<int>> MpiMailbox::unsent(std::uint64_t since) {
  std::vector<int> left;
  for (auto it = in_flight_->sending.begin(); it != in_flight_->sending.end();) {
    int done = 0;
    const Status tested = mpi_status(MPI_Test(&it->request, &done, MPI_STATUS_IGNORE),
                                     concat("message to rank ", it->letter.peer));
    const bool over = !tested.ok() || done != 0;
    if (!over && it->number > since) left.push_back(it->letter.peer);
    it = over ? in_flight_->sending.erase(it) : std::next(it);
    DRIFTLESS_RETURN_IF_ERROR(tested);
  }
  return left;
}

Result<std::optional<MpiMailbox::Letter>> MpiMailbox::take(int from) {
  std::list<Transfer>& receiving = in_flight_->receiving;
  for (;;) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    DRIFTLESS_RETURN_IF_ERROR(mpi_status(
        MPI_Improbe(from, receive_tag_, comm_, &found, &message, &status), "MPI_Improbe"));
    if (found == 0) break;
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    Transfer& arriving = receiving.emplace_back();
    arriving.letter.peer = status.MPI_SOURCE;
    arriving.letter.bytes.resize(static_cast<std::size_t>(std::max(count, 0)));
    const Status started = mpi_status(
        MPI_Imrecv(arriving.letter.bytes.data(), count, MPI_BYTE, &message, &arriving.request),
        concat("message from rank ", arriving.letter.peer));
    if (!started.ok()) receiving.pop_back();
    DRIFTLESS_RETURN_IF_ERROR(started);
  }
  std::set<int> blocked;  // ranks with an earlier message that is still arriving
  for (auto it = receiving.begin(); it != receiving.end(); ++it) {
    if (blocked.contains(it->letter.peer)) continue;
    int done = 0;
    DRIFTLESS_RETURN_IF_ERROR(mpi_status(MPI_Test(&it->request, &done, MPI_STATUS_IGNORE),
                                         concat("message from rank ", it->letter.peer)));
    if (done == 0) {
      blocked.insert(it->letter.peer);
      continue;
    }
    std::optional<Letter> letter(std::move(it->letter));
    receiving.erase(it);
    return letter;
  }
  return std::optional<Letter>();
}

bool MpiMailbox::idle() {
  return unsent(0).ok() && in_flight_->sending.empty() && in_flight_->receiving.empty();
}

}  // namespace driftless::mpi_rma
