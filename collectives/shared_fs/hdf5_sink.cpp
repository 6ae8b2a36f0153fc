// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <thread>

#include "collectives/shared_fs/hdf5_rounds.h"

namespace driftless {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr microseconds kPollFirst{20};
constexpr microseconds kPollLongest{1'000};

class Hdf5Sink final : public PartSink {
 public:
  Hdf5Sink(std::unique_ptr<Hdf5Exchange> exchange, const Hdf5Options& options, bool threaded)
      : options_(options),
        threaded_(threaded),
        monitor_(std::make_shared<Hdf5Monitor>()),
        rounds_(std::move(exchange), monitor_, options) {
    if (threaded_) thread_ = std::thread([this] { run(); });
  }

  ~Hdf5Sink() override {
    const std::shared_ptr<Hdf5Attempt> last = current_;
    leave("the publisher closed the road");
    const Deadline deadline = Deadline::after(options_.close_wait);
    if (!threaded_) {
      if (last != nullptr) drive(*last, deadline);
      return;
    }
    {
      std::unique_lock<std::mutex> lock(monitor_->mutex);
      monitor_->changed.wait_until(lock, deadline.at(), [this] { return rounds_.idle_locked(); });
      quit_ = true;
      monitor_->changed.notify_all();
    }
    thread_.join();
  }

  Status begin(const std::string& directory, const Deadline& deadline) override {
    leave("another publication was begun");
    run_ready_rounds();
    const bool leads = rounds_.rank() == 0;
    Hash128 id = random_hash128();
    if (!leads) {
      DRIFTLESS_ASSIGN_OR_RETURN(id, wait_for_id(directory, deadline));
    }
    const std::size_t queued =
        threaded_ ? options_.queued_parts : std::numeric_limits<std::size_t>::max();
    auto attempt = std::make_shared<Hdf5Attempt>(
        monitor_, directory, id, rounds_.rank(),
        Hdf5Attempt::Limits{options_.max_part_bytes, queued}, deadline);
    // Comes before the id is written: the previous attempt must not write in the directory any
    // more.
    DRIFTLESS_RETURN_IF_ERROR(rounds_.set_next(attempt, deadline));
    current_ = std::move(attempt);
    if (!leads) return {};
    const Status written = write_hdf5_attempt_id(directory, id);
    if (!written.ok()) current_->fail(written);
    return written;
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    if (current_ == nullptr) {
      return error(StatusCode::kInvalidArgument, "part '", name, "': no publication was begun");
    }
    return current_->create_part(name);
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    if (current_ == nullptr) {
      return error(StatusCode::kInvalidArgument, "flush: no publication was begun");
    }
    DRIFTLESS_RETURN_IF_ERROR(current_->start_flush());
    if (!threaded_) drive(*current_, deadline);
    if (!current_->wait_over(deadline)) {
      current_->fail(error(
          StatusCode::kDeadlineExceeded, current_->directory(), ": publisher rank ", rounds_.rank(),
          " waited in vain for the other publisher ranks to write ", kHdf5FileName));
      run_ready_rounds();
    }
    DRIFTLESS_RETURN_IF_ERROR(current_->status());
    return current_->receipts();
  }

  Status abort() override {
    leave("this rank aborted the publication");
    run_ready_rounds();
    return {};
  }

 private:
  // The thread runs a round, or waits until an attempt has something to send.
  void run() {
    Backoff backoff(kPollFirst, kPollLongest);
    Waiting waiting;
    for (;;) {
      const Hdf5Rounds::Progress progress = rounds_.advance();
      std::unique_lock<std::mutex> lock(monitor_->mutex);
      if (quit_) return;
      if (progress == Hdf5Rounds::Progress::kMoved) backoff.reset();
      if (progress != Hdf5Rounds::Progress::kWaiting) waiting.restart();
      if (progress == Hdf5Rounds::Progress::kNothing) {
        monitor_->changed.wait(lock, [this] { return quit_ || rounds_.has_work_locked(); });
      }
      lock.unlock();
      if (progress == Hdf5Rounds::Progress::kWaiting) {
        (void)waiting.sleep(backoff, Deadline::after(milliseconds(60)),
                            [this] { return others(); });
      }
    }
  }

  // Without a thread: advances until `attempt` is over or the deadline has passed.
  void drive(const Hdf5Attempt& attempt, const Deadline& deadline) {
    Backoff backoff(kPollFirst, kPollLongest);
    Waiting waiting;
    while (!attempt.over()) {
      if (rounds_.advance() == Hdf5Rounds::Progress::kMoved) {
        backoff.reset();
      } else if (!waiting.sleep(backoff, deadline, [this] { return others(); })) {
        return;
      }
    }
  }

  // The message of a long wait. It names no ranks: MPI does not report which ones are missing.
  [[nodiscard]] std::string others() const {
    return concat("hdf5: publisher rank ", rounds_.rank(),
                  " waits for the other publisher ranks to write their parts");
  }

  void run_ready_rounds() {
    while (!threaded_ && rounds_.advance() == Hdf5Rounds::Progress::kMoved) {
    }
  }

  void leave(std::string_view why) {
    if (current_ == nullptr) return;
    current_->fail(error(StatusCode::kIncomplete, current_->directory(), ": ", why));
    current_ = nullptr;
  }

  // Waits for the id that the leader's begin() writes.
  [[nodiscard]] Result<Hash128> wait_for_id(const std::string& directory,
                                            const Deadline& deadline) const {
    Backoff backoff(kPollFirst, kPollLongest * 50);
    Waiting waiting;
    for (;;) {
      Result<Hash128> id = read_hdf5_attempt_id(directory);
      if (id.ok() || id.status().code() != StatusCode::kIncomplete) return id;
      const auto whom = [&] {
        return concat(id.status().message(), "; publisher rank ", rounds_.rank(),
                      " waits: is this directory the same on all publisher ranks?");
      };
      if (!waiting.sleep(backoff, deadline, whom)) return deadline.check(whom());
    }
  }

  const Hdf5Options options_;
  const bool threaded_;
  const std::shared_ptr<Hdf5Monitor> monitor_;
  Hdf5Rounds rounds_;
  std::shared_ptr<Hdf5Attempt> current_;  // for the caller's thread
  bool quit_ = false;                     // guarded by the monitor
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<PartSink>> make_hdf5_sink(MPI_Comm ranks, const Hdf5Options& options) {
  int level = MPI_THREAD_SINGLE;
  if (!mpi_rma::mpi_runs()) {
    return error(StatusCode::kInvalidArgument, "the hdf5 road needs MPI: start under mpirun");
  }
  if (options.queued_parts == 0 || options.max_part_bytes == 0) {
    return error(StatusCode::kInvalidArgument,
                 "the hdf5 road needs room for at least one part: queued_parts ",
                 options.queued_parts, ", max_part_bytes ", options.max_part_bytes);
  }

  DRIFTLESS_RETURN_IF_ERROR(mpi_rma::mpi_status(MPI_Query_thread(&level), "MPI_Query_thread"));
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<Hdf5Exchange> exchange, Hdf5Exchange::create(ranks));
  return std::unique_ptr<PartSink>(
      std::make_unique<Hdf5Sink>(std::move(exchange), options, level >= MPI_THREAD_MULTIPLE));
}

}  // namespace driftless
