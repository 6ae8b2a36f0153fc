// SPDX-License-Identifier: Apache-2.0
// This process among the others of an mpirun job: who trains, who rolls out, and the few messages
// that the command itself needs. Built where MPI is.
//
// Waits are loops of short looks with sleeps between them: on a machine with fewer cores than
// processes a rank that spins takes the time of the one it waits for. One thread at a time, the one
// that initialized MPI.
#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/deadline.h"
#include "core/status.h"
#include "plugin/job/job_process.h"
#include "plugin/job/watchdog.h"

namespace driftless {

class MpiProcess {
 public:
  // Collective over MPI_COMM_WORLD. Initializes MPI where nobody has, asking for
  // MPI_THREAD_MULTIPLE and taking what it gets; from then on MPI's errors come back. MPI waits for
  // all processes here without an end: past the deadline `late` is called (watchdog.h).
  [[nodiscard]] static Result<std::unique_ptr<MpiProcess>> start(JobRole role,
                                                                 const Deadline& deadline,
                                                                 const LateHandler& late);
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;
  // Without finish() before it nothing collective is done: the others may be gone.
  ~MpiProcess() = default;

  [[nodiscard]] unsigned rank() const { return rank_; }  // among those of its role
  [[nodiscard]] unsigned trainers() const { return trainers_; }
  [[nodiscard]] unsigned rollouts() const { return rollouts_; }
  // All processes but bystanders, trainers first. None on a bystander, who takes no part in
  // largest() and the words about the end.
  [[nodiscard]] MPI_Comm everybody() const { return everybody_; }
  // Those of this process' role, in the same order.
  [[nodiscard]] MPI_Comm role() const { return role_; }

  // Collective over everybody: the largest of each number. Also a meeting: none passes before all
  // have come.
  static constexpr std::size_t kNumbers = 4;
  using Numbers = std::array<std::uint64_t, kNumbers>;
  [[nodiscard]] Result<Numbers> largest(const Numbers& mine, std::string_view what,
                                        const Deadline& deadline);

  // The first trainer's last word to every rollout.
  [[nodiscard]] Status tell_end(std::string_view text, const Deadline& deadline);
  // Nothing where it has not come yet.
  [[nodiscard]] Result<std::optional<std::string>> hear_end();

  // Collective over all, bystanders too: frees what start() made, and ends MPI where start() began
  // it.
  [[nodiscard]] Status finish(const Deadline& deadline);
  // Ends the job; does not return.
  [[noreturn]] static void abandon(int exit_code);

 private:
  MpiProcess() = default;
  [[nodiscard]] Status split(JobRole role);
  [[nodiscard]] Result<Numbers> largest_of(MPI_Comm comm, const Numbers& mine,
                                           std::string_view what, const Deadline& deadline);
  [[nodiscard]] Status wait(MPI_Request& request, std::string_view what, const Deadline& deadline);

  struct Exchange {
    Numbers sent, received;
  };

  bool began_ = false;  // MPI was initialized here
  unsigned rank_ = 0, trainers_ = 0, rollouts_ = 0;
  MPI_Comm all_ = MPI_COMM_NULL;  // bystanders included
  MPI_Comm everybody_ = MPI_COMM_NULL;
  MPI_Comm role_ = MPI_COMM_NULL;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
};

}  // namespace driftless
