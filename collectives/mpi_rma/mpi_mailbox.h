// SPDX-License-Identifier: Apache-2.0
// MpiMailbox: two-sided messages over a communicator that return their errors and never wait.
// Requests that are unfinished at its destruction, to or from a rank that is gone, are kept until
// the process ends.
//
// One thread at a time may call send() and unsent(), and one thread, possibly another, take().
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
    int peer = 0;  // destination or source
    std::string bytes;
  };
  [[nodiscard]] Status send(int to, std::string bytes);
  // mark() returns a point in the sequence of sent messages. unsent(since) returns the ranks to
  // which a message after that point is not yet on its way.
  [[nodiscard]] Result<std::vector<int>> unsent(std::uint64_t since);
  [[nodiscard]] std::uint64_t mark() const { return sent_; }
  // The next message of rank `from` (or MPI_ANY_SOURCE), if one has arrived. Messages of one rank
  // come in order.
  [[nodiscard]] Result<std::optional<Letter>> take(int from);
  // Whether all requests of this mailbox are finished.
  [[nodiscard]] bool idle();

 private:
  struct Transfer {
    Letter letter;
    std::uint64_t number = 0;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  // Allocated separately, because MPI uses the bytes while the request is unfinished.
  struct InFlight {
    std::list<Transfer> sending, receiving;
  };

  const MPI_Comm comm_;
  const int send_tag_, receive_tag_;
  std::uint64_t sent_ = 0;
  std::unique_ptr<InFlight> in_flight_ = std::make_unique<InFlight>();
};

}  // namespace driftless::mpi_rma
