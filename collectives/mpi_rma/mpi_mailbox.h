// SPDX-License-Identifier: Apache-2.0
// MpiMailbox: two-sided messages over a communicator that return their errors and never wait. What
// MPI still works on when it is destroyed, to or from a rank that is gone, is left to the end of
// the process.
//
// send() and unsent() by one thread at a time, and take() by one, which may be another.
#pragma once

#include <mpi.h>

#include <list>

#include "collectives/road.h"

namespace driftless::mpi_rma {

class MpiMailbox {
 public:
  MpiMailbox(MPI_Comm comm, int send_tag, int receive_tag);
  ~MpiMailbox();

  struct Letter {
    int peer = 0;  // to or from whom
    std::string bytes;
  };
  [[nodiscard]] Status send(int to, std::string bytes);
  // Those whose messages are not on their way yet, of all since mark() returned `since`.
  [[nodiscard]] Result<std::vector<int>> unsent(std::uint64_t since);
  [[nodiscard]] std::uint64_t mark() const { return sent_; }
  // The next message of rank `from` (or MPI_ANY_SOURCE), if it has arrived. Those of one rank come
  // in their order.
  [[nodiscard]] Result<std::optional<Letter>> take(int from);
  // Whether MPI works on nothing of ours.
  [[nodiscard]] bool idle();

 private:
  struct Transfer {
    Letter letter;
    std::uint64_t number = 0;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  // In a place of their own: MPI works on their bytes.
  struct InFlight {
    std::list<Transfer> sending, receiving;
  };

  const MPI_Comm comm_;
  const int send_tag_, receive_tag_;
  std::uint64_t sent_ = 0;
  std::unique_ptr<InFlight> in_flight_ = std::make_unique<InFlight>();
};

}  // namespace driftless::mpi_rma
