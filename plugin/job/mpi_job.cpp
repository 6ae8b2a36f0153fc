// SPDX-License-Identifier: Apache-2.0
// A process that an MPI launcher started, or whose road needs MPI.
//
// Waits poll briefly and sleep in between: on a machine with fewer cores than processes, a rank
// that spins takes CPU time from the rank for which it waits. One thread at a time, the one that
// initialized MPI.
#include <array>
#include <cstdlib>
#include <cstring>

#include "collectives/mpi_rma/mpi_comms.h"
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/mpi_rma/mpi_status.h"
#include "plugin/job/job_process.h"

namespace driftless {
namespace {

using mpi_rma::mpi_status;

constexpr std::chrono::seconds kCloseGrace{30};
constexpr int kEndTag = 1;
constexpr int kMaxEndBytes = 4096;
constexpr std::size_t kNumbers = 3;
using Numbers = std::array<std::uint64_t, kNumbers>;

#define DRIFTLESS_MPI(call) DRIFTLESS_RETURN_IF_ERROR(mpi_status(call, #call))

// FNV-1a: equal texts give equal numbers in every process.
std::uint64_t number_of(std::string_view text) {
  std::uint64_t number = 0xcbf29ce484222325;
  for (const char c : text) number = (number ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return number;
}

Status wait_for(MPI_Request& request, std::string_view what, const Deadline& deadline) {
  Backoff backoff(std::chrono::microseconds(50), std::chrono::milliseconds(5));
  Waiting waiting;
  for (;;) {
    int done = 0;
    DRIFTLESS_RETURN_IF_ERROR(mpi_status(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what));
    if (done != 0) return {};
    if (!waiting.sleep(backoff, deadline, [&] { return std::string(what); }))
      return deadline.check(what);
  }
}

class MpiProcess final : public JobProcess {
 public:
  MpiProcess(const Config& config, const Road& road, JobRole role, LateHandler late)
      : JobProcess(config, road, role), late_(std::move(late)) {}
  ~MpiProcess() override {  // if close() was not called: the others may be gone
    static_cast<void>(everybody_.release());
    static_cast<void>(all_together_.release());
  }

  // Collective over MPI_COMM_WORLD. Initializes MPI if that was not done, requests
  // MPI_THREAD_MULTIPLE and accepts the level it gets; afterwards MPI returns errors instead of
  // aborting. Here MPI waits for all processes without limit: past the deadline `late` is called
  // (watchdog.h).
  [[nodiscard]] Status start() {
    const Watchdog watchdog(connect(),
                            "deadlines.connect: MPI_Init waits for all processes that the launcher "
                            "started",
                            late_);
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
      began_ = true;
    }
    DRIFTLESS_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    DRIFTLESS_MPI(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    return split();
  }

  [[nodiscard]] unsigned rank() const override { return rank_; }
  [[nodiscard]] unsigned trainers() const override { return trainers_; }
  [[nodiscard]] unsigned rollouts() const override { return rollouts_; }
  [[nodiscard]] Result<std::unique_ptr<Group>> group() override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    const Watchdog watchdog(connect(), late_text("meeting the other trainers"), late_);
    return make_mpi_group(comms_.role);
  }

  [[nodiscard]] Status publish_end(std::string_view text, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    if (!together()) return JobProcess::publish_end(text, deadline);
    std::vector<MPI_Request> requests(rollouts_, MPI_REQUEST_NULL);
    for (unsigned rollout = 0; rollout < rollouts_; ++rollout) {
      DRIFTLESS_MPI(MPI_Isend(text.data(), static_cast<int>(text.size()), MPI_CHAR,
                              static_cast<int>(trainers_ + rollout), kEndTag, comms_.everybody,
                              &requests[rollout]));
    }
    for (unsigned rollout = 0; rollout < rollouts_; ++rollout) {
      DRIFTLESS_RETURN_IF_ERROR(wait_for(
          requests[rollout], concat("sending the end of the run to rollout ", rollout), deadline));
    }
    return JobProcess::publish_end(text, deadline);
  }

  [[nodiscard]] Result<std::optional<std::string>> fetch_end() override {
    DRIFTLESS_RETURN_IF_ERROR(check_has_road(role_));
    if (!together()) return JobProcess::fetch_end();
    int there = 0;
    MPI_Status found;
    DRIFTLESS_MPI(MPI_Iprobe(0, kEndTag, comms_.everybody, &there, &found));
    if (there == 0) return end_note_;
    int size = 0;
    DRIFTLESS_MPI(MPI_Get_count(&found, MPI_CHAR, &size));
    if (size < 0 || size > kMaxEndBytes) {
      return error(StatusCode::kCorrupt, "the trainer's end-of-run note has ", size, " bytes");
    }
    std::string text(static_cast<std::size_t>(size), '\0');
    DRIFTLESS_MPI(
        MPI_Recv(text.data(), size, MPI_CHAR, 0, kEndTag, comms_.everybody, MPI_STATUS_IGNORE));
    end_note_ = std::move(text);
    return end_note_;
  }

  // The destructor alone does nothing collective, because the others may be gone.
  [[nodiscard]] Status close(const Deadline& deadline) override {
    if (role_ == JobRole::kBystander) return finish(deadline);
    DRIFTLESS_RETURN_IF_ERROR(meet_to_end(*everybody_, deadline));
    // The waits inside have their own deadlines, which expire first.
    const Watchdog watchdog(Deadline::after(config_.connect_deadline + kCloseGrace),
                            late_text("freeing windows and MPI_Finalize"), late_);
    if (open_.close) DRIFTLESS_RETURN_IF_ERROR(open_.close());
    open_ = {};
    return finish(deadline);
  }

  [[noreturn]] void abandon(int exit_code) override {
    int over = 0;
    if (MPI_Finalized(&over) == MPI_SUCCESS && over == 0) MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  [[nodiscard]] Status split() {
    int place = 0;
    int size = 0;
    DRIFTLESS_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &all_));
    DRIFTLESS_MPI(MPI_Comm_rank(all_, &place));
    DRIFTLESS_MPI(MPI_Comm_size(all_, &size));
    const int takes_part = role_ == JobRole::kBystander ? MPI_UNDEFINED : 0;
    const int order = role_ == JobRole::kTrainer ? place : size + place;
    DRIFTLESS_MPI(MPI_Comm_split(all_, takes_part, order, &comms_.everybody));
    DRIFTLESS_MPI(MPI_Comm_split(all_, static_cast<int>(role_), place, &comms_.role));
    const std::array<int, 2> mine = {role_ == JobRole::kTrainer ? 1 : 0,
                                     role_ == JobRole::kRollout ? 1 : 0};
    std::array<int, 2> counts{};
    DRIFTLESS_MPI(MPI_Allreduce(mine.data(), counts.data(), 2, MPI_INT, MPI_SUM, all_));
    int rank = 0;
    DRIFTLESS_MPI(MPI_Comm_rank(comms_.role, &rank));
    rank_ = static_cast<unsigned>(rank);
    trainers_ = static_cast<unsigned>(counts[0]);
    rollouts_ = static_cast<unsigned>(counts[1]);
    DRIFTLESS_ASSIGN_OR_RETURN(all_together_, make_mpi_group(all_, [](unsigned process) {
                                 return concat("process ", process, " of the job");
                               }));
    if (role_ == JobRole::kBystander) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(
        everybody_, make_mpi_group(comms_.everybody, [trainers = trainers_](unsigned process) {
          return process < trainers ? concat("trainer ", process)
                                    : concat("rollout ", process - trainers);
        }));
    return {};
  }

  // Collective: the maximum of each number. It is also a barrier: no rank returns before all have
  // come, and rank 0 names the missing ones.
  [[nodiscard]] static Result<Numbers> largest(Group& group, const Numbers& mine,
                                               std::string_view what, const Deadline& deadline) {
    group.next_epoch();
    const std::string_view sent(reinterpret_cast<const char*>(mine.data()), sizeof(mine));
    const auto gathered = group.gather(sent, deadline);
    if (!gathered.ok()) return gathered.status().with_context(what);
    Numbers most = mine;
    for (const std::string& one : *gathered) {
      Numbers numbers{};
      std::memcpy(numbers.data(), one.data(), std::min(one.size(), sizeof(numbers)));
      std::ranges::transform(most, numbers, most.begin(), std::ranges::max);
    }
    const auto merged =
        group.broadcast({reinterpret_cast<const char*>(most.data()), sizeof(most)}, deadline);
    if (!merged.ok()) return merged.status().with_context(what);
    std::memcpy(most.data(), merged->data(), std::min(merged->size(), sizeof(most)));
    return most;
  }
  [[nodiscard]] static Status meet_to_end(Group& group, const Deadline& deadline) {
    return largest(group, {}, "waiting for all processes of the job to end", deadline).status();
  }

  // Returns once all processes have read their configuration; it checks that they use the same
  // road.
  [[nodiscard]] Result<RoadPlace> meet(std::uint64_t anchor_bytes,
                                       const Deadline& deadline) override {
    const std::string_view layout = to_string(config_.publisher.layout);
    const std::uint64_t mine = number_of(concat(road_.name, " ", layout));
    DRIFTLESS_ASSIGN_OR_RETURN(const Numbers agreed,
                               largest(*everybody_, {mine, ~mine, anchor_bytes},
                                       concat("deadlines.connect: ", to_string(role_), " ", rank_,
                                              " waiting for all processes of the job"),
                                       deadline));
    if (agreed[0] == mine && ~agreed[1] == mine) {
      return RoadPlace{role_, rank_, trainers_, rollouts_, agreed[2], &comms_};
    }
    return error(StatusCode::kInvalidArgument,
                 "road.kind or road.layout differ between the processes of the job: this one (",
                 to_string(role_), " ", rank_, ") has ", config_.road, " with ", layout);
  }

  // Collective over all processes, with bystanders: frees what start() made, and finalizes MPI if
  // start() initialized it.
  [[nodiscard]] Status finish(const Deadline& deadline) {
    DRIFTLESS_RETURN_IF_ERROR(meet_to_end(*all_together_, deadline));
    everybody_.reset();
    all_together_.reset();
    DRIFTLESS_MPI(MPI_Comm_free(&comms_.role));
    if (comms_.everybody != MPI_COMM_NULL) DRIFTLESS_MPI(MPI_Comm_free(&comms_.everybody));
    DRIFTLESS_MPI(MPI_Comm_free(&all_));
    return began_ ? mpi_status(MPI_Finalize(), "MPI_Finalize") : Status();
  }

  [[nodiscard]] std::unique_ptr<Watchdog> watch() const override {
    return std::make_unique<Watchdog>(connect(), late_text(concat("making ", config_.road)), late_);
  }
  [[nodiscard]] Deadline connect() const { return Deadline::after(config_.connect_deadline); }
  [[nodiscard]] std::string late_text(std::string_view what) const {
    return concat("deadlines.connect: ", to_string(role_), " ", rank_, " within MPI, ", what);
  }

  LateHandler late_;
  bool began_ = false;  // start() initialized MPI
  unsigned rank_ = 0, trainers_ = 0, rollouts_ = 0;
  MPI_Comm all_ = MPI_COMM_NULL;  // bystanders included
  MpiComms comms_;
  std::optional<std::string>
      end_note_;  // the trainer's end-of-run message; kept for repeated reads
  std::unique_ptr<Group> everybody_, all_together_;  // groups on these communicators, for barriers
};

#undef DRIFTLESS_MPI

}  // namespace

Result<std::unique_ptr<JobProcess>> join_mpi_job(const Config& config, const Road& road,
                                                 JobRole role, const LateHandler& late) {
  auto process = std::make_unique<MpiProcess>(config, road, role, late);
  DRIFTLESS_RETURN_IF_ERROR(process->start());
  const bool with_rollouts = road.needs_mpi != nullptr && road.needs_mpi(JobRole::kRollout);
  if (with_rollouts && process->trainers() == 0) {
    return error(StatusCode::kInvalidArgument, "road.kind: ", config.road,
                 " needs trainers in the same job: mpirun -n 1 driftless trainer "
                 "... : -n 1 driftless rollout ...");
  }
  return std::unique_ptr<JobProcess>(std::move(process));
}

}  // namespace driftless
