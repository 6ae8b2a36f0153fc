// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/mpi_process.h"

#include <cstdlib>
#include <vector>

#include "collectives/mpi_rma/mpi_status.h"

namespace driftless {
namespace {

using mpi_rma::mpi_status;

constexpr int kEndTag = 1;
constexpr int kMaxEndBytes = 4096;

#define DRIFTLESS_MPI(call) DRIFTLESS_RETURN_IF_ERROR(mpi_status(call, #call))

}  // namespace

Result<std::unique_ptr<MpiProcess>> MpiProcess::start(JobRole role, const Deadline& deadline,
                                                      const LateHandler& late) {
  const Watchdog watchdog(deadline,
                          "deadlines.connect: MPI_Init waits for all processes that the launcher "
                          "started, and one of them does not come",
                          late);
  std::unique_ptr<MpiProcess> process(new MpiProcess());
  int running = 0;
  int over = 0;
  DRIFTLESS_MPI(MPI_Finalized(&over));
  if (over != 0) {
    return error(StatusCode::kUnsupported,
                 "MPI has ended in this process and cannot begin again: a process joins one job");
  }
  DRIFTLESS_MPI(MPI_Initialized(&running));
  if (running == 0) {
    int threads = MPI_THREAD_SINGLE;
    DRIFTLESS_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads));
    process->began_ = true;
  }
  DRIFTLESS_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  DRIFTLESS_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  DRIFTLESS_RETURN_IF_ERROR(process->split(role));
  return process;
}

Status MpiProcess::split(JobRole role) {
  int place = 0;
  int size = 0;
  DRIFTLESS_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &all_));
  DRIFTLESS_MPI(MPI_Comm_rank(all_, &place));
  DRIFTLESS_MPI(MPI_Comm_size(all_, &size));
  const int takes_part = role == JobRole::kBystander ? MPI_UNDEFINED : 0;
  const int order = role == JobRole::kTrainer ? place : size + place;
  DRIFTLESS_MPI(MPI_Comm_split(all_, takes_part, order, &everybody_));
  DRIFTLESS_MPI(MPI_Comm_split(all_, static_cast<int>(role), place, &role_));
  const std::array<int, 2> mine = {role == JobRole::kTrainer ? 1 : 0,
                                   role == JobRole::kRollout ? 1 : 0};
  std::array<int, 2> counts{};
  DRIFTLESS_MPI(MPI_Allreduce(mine.data(), counts.data(), 2, MPI_INT, MPI_SUM, all_));
  int rank = 0;
  DRIFTLESS_MPI(MPI_Comm_rank(role_, &rank));
  rank_ = static_cast<unsigned>(rank);
  trainers_ = static_cast<unsigned>(counts[0]);
  rollouts_ = static_cast<unsigned>(counts[1]);
  return {};
}

Status MpiProcess::wait(MPI_Request& request, std::string_view what, const Deadline& deadline) {
  Backoff backoff(std::chrono::microseconds(50), std::chrono::milliseconds(5));
  for (;;) {
    int done = 0;
    DRIFTLESS_RETURN_IF_ERROR(mpi_status(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what));
    if (done != 0) return {};
    if (!backoff.sleep(deadline)) return deadline.check(what);
  }
}

Result<MpiProcess::Numbers> MpiProcess::largest(const Numbers& mine, std::string_view what,
                                                const Deadline& deadline) {
  return largest_of(everybody_, mine, what, deadline);
}

Result<MpiProcess::Numbers> MpiProcess::largest_of(MPI_Comm comm, const Numbers& mine,
                                                   std::string_view what,
                                                   const Deadline& deadline) {
  // Where the wait below gives up MPI may still write there: it stays as long as this object.
  Exchange& exchange = *exchanges_.emplace_back(std::make_unique<Exchange>(Exchange{mine, {}}));
  MPI_Request request = MPI_REQUEST_NULL;
  // wait() ends it by MPI_Test, which the checker does not know.
  // NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
  DRIFTLESS_MPI(MPI_Iallreduce(exchange.sent.data(), exchange.received.data(), kNumbers,
                               MPI_UINT64_T, MPI_MAX, comm, &request));
  DRIFTLESS_RETURN_IF_ERROR(wait(request, what, deadline));
  // NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)
  return exchange.received;
}

Status MpiProcess::tell_end(std::string_view text, const Deadline& deadline) {
  std::vector<MPI_Request> requests(rollouts_, MPI_REQUEST_NULL);
  for (unsigned rollout = 0; rollout < rollouts_; ++rollout) {
    DRIFTLESS_MPI(MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_CHAR,
                            static_cast<int>(trainers_ + rollout), kEndTag, everybody_,
                            &requests[rollout]));
  }
  for (MPI_Request& request : requests) {
    DRIFTLESS_RETURN_IF_ERROR(wait(request, "telling the rollouts of the end", deadline));
  }
  return {};
}

Result<std::optional<std::string>> MpiProcess::hear_end() {
  int there = 0;
  MPI_Status found;
  DRIFTLESS_MPI(MPI_Iprobe(0, kEndTag, everybody_, &there, &found));
  if (there == 0) return std::optional<std::string>();
  int size = 0;
  DRIFTLESS_MPI(MPI_Get_count(&found, MPI_CHAR, &size));
  if (size < 0 || size > kMaxEndBytes) {
    return error(StatusCode::kCorrupt, "the trainer's last word has ", size, " bytes");
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  DRIFTLESS_MPI(MPI_Recv(text.data(), size, MPI_CHAR, 0, kEndTag, everybody_, MPI_STATUS_IGNORE));
  return std::optional<std::string>(std::move(text));
}

Status MpiProcess::finish(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      [[maybe_unused]] const Numbers met,
      largest_of(all_, {}, "waiting for all processes of the job to end", deadline));
  DRIFTLESS_MPI(MPI_Comm_free(&role_));
  if (everybody_ != MPI_COMM_NULL) DRIFTLESS_MPI(MPI_Comm_free(&everybody_));
  DRIFTLESS_MPI(MPI_Comm_free(&all_));
  if (!began_) return {};
  return mpi_status(MPI_Finalize(), "MPI_Finalize");
}

void MpiProcess::abandon(int exit_code) {
  int over = 0;
  if (MPI_Finalized(&over) == MPI_SUCCESS && over == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

#undef DRIFTLESS_MPI

}  // namespace driftless
