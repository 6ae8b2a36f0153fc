#include "plugin/mpi_process.h"

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

Result<std::unique_ptr<MpiProcess>> MpiProcess::start(bool trains, const Deadline& deadline,
                                                      const LateHandler& late) {
  const Watchdog watchdog(deadline,
                          "deadlines.connect: MPI_Init waits for all processes that the launcher "
                          "started, and one of them does not come",
                          late);
  std::unique_ptr<MpiProcess> process(new MpiProcess());
  int running = 0;
  DRIFTLESS_MPI(MPI_Initialized(&running));
  if (running == 0) {
    int threads = MPI_THREAD_SINGLE;
    DRIFTLESS_MPI(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads));
    process->began_ = true;
  }
  DRIFTLESS_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  DRIFTLESS_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  int place = 0;
  int size = 0;
  DRIFTLESS_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &place));
  DRIFTLESS_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  DRIFTLESS_MPI(
      MPI_Comm_split(MPI_COMM_WORLD, 0, trains ? place : size + place, &process->everybody_));
  DRIFTLESS_MPI(MPI_Comm_split(MPI_COMM_WORLD, trains ? 0 : 1, place, &process->role_));
  int rank = 0;
  int own = 0;
  DRIFTLESS_MPI(MPI_Comm_rank(process->role_, &rank));
  DRIFTLESS_MPI(MPI_Comm_size(process->role_, &own));
  process->rank_ = static_cast<unsigned>(rank);
  process->trainers_ = static_cast<unsigned>(trains ? own : size - own);
  process->rollouts_ = static_cast<unsigned>(trains ? size - own : own);
  return process;
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
  // Where the wait below gives up MPI may still write there: it stays as long as this object.
  Exchange& exchange = *exchanges_.emplace_back(std::make_unique<Exchange>(Exchange{mine, {}}));
  MPI_Request request = MPI_REQUEST_NULL;
  // wait() ends it by MPI_Test, which the checker does not know.
  // NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
  DRIFTLESS_MPI(MPI_Iallreduce(exchange.sent.data(), exchange.received.data(), kNumbers,
                               MPI_UINT64_T, MPI_MAX, everybody_, &request));
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
  DRIFTLESS_ASSIGN_OR_RETURN([[maybe_unused]] const Numbers met,
                             largest({}, "waiting for all processes of the job to end", deadline));
  DRIFTLESS_MPI(MPI_Comm_free(&role_));
  DRIFTLESS_MPI(MPI_Comm_free(&everybody_));
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
