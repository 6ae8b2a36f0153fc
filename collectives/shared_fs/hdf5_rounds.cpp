// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/hdf5_rounds.h"

#include <type_traits>

namespace driftless {

static_assert(std::is_trivially_copyable_v<Hdf5Message>);

Status write_hdf5_attempt_id(const std::string& directory, const Hash128& id) {
  FileSystem& fs = posix_file_system();
  const std::string path = join_path(directory, kHdf5FileName);
  if (exists(fs, path)) DRIFTLESS_RETURN_IF_ERROR(fs.remove_file(path));
  return write_text(fs, path, to_hex(id));
}

Result<Hash128> read_hdf5_attempt_id(const std::string& directory) {
  const std::string path = join_path(directory, kHdf5FileName);
  const Result<std::unique_ptr<File>> file = posix_file_system().open(path);
  if (!file.ok() && file.status().code() != StatusCode::kNotFound) return file.status();
  std::string text(32, '\0');
  // Reads instead of mapping, because the file may be truncated at any moment.
  if (!file.ok() ||
      !(*file)->pread(0, std::as_writable_bytes(std::span(text.data(), text.size()))).ok() ||
      !hash128_from_hex(text).ok()) {
    return error(StatusCode::kIncomplete, path, ": the leader has not begun it (yet)");
  }
  return hash128_from_hex(text);
}

Result<std::unique_ptr<Hdf5Exchange>> Hdf5Exchange::create(MPI_Comm ranks) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const mpi_rma::DuplicatedComm comm,
      mpi_rma::duplicate_comm(ranks, "the communicator of the publisher ranks"));
  std::unique_ptr<Hdf5Exchange> exchange(new Hdf5Exchange(comm));
  exchange->buffers_ = std::make_unique<Buffers>();
  exchange->buffers_->messages.resize(comm.size);
  exchange->buffers_->places.resize(comm.size);
  return exchange;
}

Hdf5Exchange::~Hdf5Exchange() {
  if (!mpi_rma::mpi_runs()) return;
  if (request_ != MPI_REQUEST_NULL) {
    [[maybe_unused]] const Buffers* left = buffers_.release();  // MPI may still write there
    return;
  }
  (void)MPI_Comm_free(&comm_.comm);
}

Status Hdf5Exchange::post(const Hdf5Message& mine) {
  buffers_->mine = mine;
  constexpr int kBytes = sizeof(Hdf5Message);
  return mpi_rma::mpi_status(
      MPI_Iallgather(&buffers_->mine, kBytes, MPI_BYTE, buffers_->messages.data(), kBytes, MPI_BYTE,
                     comm_.comm, &request_),
      "an exchange between the publisher ranks");
}

Status Hdf5Exchange::post_places(const std::vector<std::uint64_t>& places) {
  if (comm_.rank == 0) buffers_->places = places;
  return mpi_rma::mpi_status(MPI_Ibcast(buffers_->places.data(), static_cast<int>(comm_.size),
                                        MPI_UINT64_T, 0, comm_.comm, &request_),
                             "an exchange between the publisher ranks");
}

Result<bool> Hdf5Exchange::test() {
  int done = 0;
  DRIFTLESS_RETURN_IF_ERROR(mpi_rma::mpi_status(MPI_Test(&request_, &done, MPI_STATUS_IGNORE),
                                                "an exchange between the publisher ranks"));
  return done != 0;
}

Hdf5Rounds::Hdf5Rounds(std::unique_ptr<Hdf5Exchange> exchange, std::shared_ptr<Hdf5Monitor> monitor,
                       const Hdf5Options& options)
    : exchange_(std::move(exchange)),
      monitor_(std::move(monitor)),
      file_(exchange_->size(), options) {}

Hdf5Rounds::~Hdf5Rounds() {
  if (mpi_rma::mpi_runs()) {
    file_.discard(true);
  } else {
    file_.leave();
  }
}

Status Hdf5Rounds::set_next(std::shared_ptr<Hdf5Attempt> next, const Deadline& deadline) {
  std::shared_ptr<Hdf5Attempt> replaced;
  {
    std::unique_lock<std::mutex> lock(monitor_->mutex);
    if (!monitor_->changed.wait_until(lock, deadline.at(), [this] { return !writing_; })) {
      return deadline.check(
          concat(next->directory(), ": the previous publication is still being written"));
    }
    replaced = std::exchange(next_, std::move(next));
    monitor_->changed.notify_all();
  }
  if (replaced != nullptr) {
    replaced->end(error(StatusCode::kIncomplete, replaced->directory(), ": was begun anew"));
  }
  return {};
}

bool Hdf5Rounds::has_work_locked() const {
  if (phase_ != Phase::kSilent) return true;
  if (active_ == nullptr) return next_ != nullptr;
  return active_->word_locked() != Hdf5Attempt::Word::kNothing;
}

Hdf5Rounds::Progress Hdf5Rounds::advance() {
  if (phase_ == Phase::kSilent) return announce();
  const Result<bool> arrived = exchange_->test();
  if (!arrived.ok()) return give_up(arrived.status());
  if (!*arrived) return Progress::kWaiting;
  switch (phase_) {
    case Phase::kAnnouncing: return on_announcements();
    case Phase::kConfirming: return on_confirmed();
    case Phase::kPlacing: return on_placed();
    case Phase::kFlushed: return on_flushed();
    default: return on_closed();
  }
}

Hdf5Message Hdf5Rounds::blank() const {
  Hdf5Message message;
  message.attempt = active_->id();
  return message;
}

Hdf5Rounds::Progress Hdf5Rounds::announce() {
  {
    const std::lock_guard<std::mutex> lock(monitor_->mutex);
    if (active_ == nullptr) active_ = std::move(next_);
    if (active_ == nullptr) return Progress::kNothing;
  }
  if (!broken_.ok()) return give_up(broken_);
  Hdf5Message message = blank();
  switch (active_->word()) {
    case Hdf5Attempt::Word::kNothing: return Progress::kNothing;
    case Hdf5Attempt::Word::kNoMore: message.kind = Hdf5Message::kNoMore; break;
    case Hdf5Attempt::Word::kFailed: message.set_failure(active_->status()); break;
    case Hdf5Attempt::Word::kPart:
      part_ = active_->front();
      if (part_ == nullptr) return Progress::kMoved;  // it has just failed
      message.kind = Hdf5Message::kPart;
      message.size_bytes = part_->receipt.size_bytes;
      message.hash = part_->receipt.hash;
      std::ranges::copy(part_->receipt.name, message.name.begin());
      break;
  }
  return post(message, Phase::kAnnouncing);
}

Hdf5Rounds::Progress Hdf5Rounds::post(const Hdf5Message& mine, Phase next) {
  const Status posted = exchange_->post(mine);
  if (!posted.ok()) return give_up(posted);
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  phase_ = next;
  return Progress::kMoved;
}

Hdf5Rounds::Progress Hdf5Rounds::post_status(const Status& mine, Phase next) {
  Hdf5Message message = blank();
  message.kind = Hdf5Message::kGo;
  if (!mine.ok()) message.set_failure(mine);
  return post(message, next);
}

Status Hdf5Rounds::first_failure() const {
  const std::vector<Hdf5Message>& messages = exchange_->messages();
  for (unsigned rank = 0; rank < messages.size(); ++rank) {
    if (messages[rank].kind == Hdf5Message::kFailed) return messages[rank].failure(rank);
  }
  return {};
}

std::string Hdf5Rounds::path() const { return join_path(active_->directory(), kHdf5FileName); }

Hdf5Rounds::Progress Hdf5Rounds::on_announcements() {
  announcements_ = exchange_->messages();
  for (const Hdf5Message& word : announcements_) {
    if (word.attempt != active_->id()) return on_misaligned();
  }
  if (const Status failure = first_failure(); !failure.ok()) return finish_failed(failure);
  return post_status(active_->status(), Phase::kConfirming);
}

// No rank has version.h5 open here: while it is open, all ranks have the same active attempt.
Hdf5Rounds::Progress Hdf5Rounds::on_misaligned() {
  part_ = nullptr;
  {
    const std::lock_guard<std::mutex> lock(monitor_->mutex);
    phase_ = Phase::kSilent;
  }
  Status failure = active_->status();
  const Result<Hash128> leaders = read_hdf5_attempt_id(active_->directory());
  if (failure.ok() && (!leaders.ok() || *leaders != active_->id())) {
    failure = error(StatusCode::kIncomplete, active_->directory(),
                    ": the leader has left this attempt, or begun another: begin again");
  }
  if (failure.ok()) return Progress::kWaiting;  // briefly, for the rank that is behind
  if (leads()) remove_file();
  end_active(failure);
  return Progress::kMoved;
}

Hdf5Rounds::Progress Hdf5Rounds::on_confirmed() {
  if (const Status failure = first_failure(); !failure.ok()) return finish_failed(failure);
  const bool last = std::ranges::all_of(
      announcements_, [](const Hdf5Message& word) { return word.kind == Hdf5Message::kNoMore; });
  if (last) return post_status(sync_bytes(), Phase::kFlushed);
  Result<std::vector<std::uint64_t>> places = std::vector<std::uint64_t>();
  if (leads()) places = make_datasets();
  if (!places.ok()) {
    active_->fail(places.status());  // announced in the next round
    places = std::vector<std::uint64_t>(announcements_.size(), kHdf5Nowhere);
  }
  const Status posted = exchange_->post_places(*places);
  if (!posted.ok()) return give_up(posted);
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  phase_ = Phase::kPlacing;
  return Progress::kMoved;
}

Result<std::vector<std::uint64_t>> Hdf5Rounds::make_datasets() {
  Status status;
  if (!begin_writing()) status = begun_anew();
  if (status.ok() && !file_.is_open()) status = file_.create(path());
  Result<std::vector<std::uint64_t>> places = std::vector<std::uint64_t>();
  if (status.ok()) places = file_.place(announcements_);
  end_writing();
  return status.ok() ? places : status;
}

Hdf5Rounds::Progress Hdf5Rounds::on_placed() {
  const std::uint64_t place = exchange_->my_place();
  if (part_ != nullptr && place != kHdf5Nowhere) {
    const Status written = begin_writing() ? write_part(place) : begun_anew();
    end_writing();
    if (!written.ok()) active_->fail(written);  // announced in the next round
  }
  if (part_ != nullptr) active_->pop_front();
  part_ = nullptr;
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  phase_ = Phase::kSilent;
  return Progress::kMoved;
}

Status Hdf5Rounds::write_part(std::uint64_t place) {
  if (part_->buffer.bytes().empty()) return {};
  if (bytes_ == nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(bytes_, posix_file_system().open(path()));
  }
  return bytes_->pwrite(place, part_->buffer.bytes());
}

// Brings this rank's bytes to stable storage; the leader has a file even without parts.
Status Hdf5Rounds::sync_bytes() {
  Status status;
  if (!begin_writing()) status = begun_anew();
  if (status.ok() && leads() && !file_.is_open()) status = file_.create(path());
  if (status.ok() && bytes_ != nullptr) status = bytes_->sync();
  bytes_.reset();
  end_writing();
  return status;
}

Hdf5Rounds::Progress Hdf5Rounds::on_flushed() {
  if (const Status failure = first_failure(); !failure.ok()) return finish_failed(failure);
  Status closed;
  if (leads()) {
    closed = begin_writing() ? file_.close() : begun_anew();
    end_writing();
  }
  return post_status(closed, Phase::kClosed);
}

Hdf5Rounds::Progress Hdf5Rounds::on_closed() {
  if (const Status failure = first_failure(); !failure.ok()) return finish_failed(failure);
  end_active({});
  return Progress::kMoved;
}

Hdf5Rounds::Progress Hdf5Rounds::finish_failed(const Status& why) {
  file_.discard(begin_writing());
  if (leads()) remove_file();
  end_writing();
  end_active(why);
  return Progress::kMoved;
}

Hdf5Rounds::Progress Hdf5Rounds::give_up(const Status& why) {
  broken_ = why;
  file_.leave();
  end_active(why);
  return Progress::kMoved;
}

void Hdf5Rounds::remove_file() {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  if (begun_anew_locked()) return;
  (void)posix_file_system().remove_file(join_path(active_->directory(), kHdf5FileName));
}

// Whether the same directory was begun again: its content then belongs to the next attempt.
bool Hdf5Rounds::begun_anew_locked() const {
  return next_ != nullptr && next_->directory() == active_->directory();
}

Status Hdf5Rounds::begun_anew() const {
  return error(StatusCode::kIncomplete, active_->directory(), ": was begun anew");
}

bool Hdf5Rounds::begin_writing() {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  writing_ = true;
  return !begun_anew_locked();
}

void Hdf5Rounds::end_writing() {
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  writing_ = false;
  monitor_->changed.notify_all();
}

void Hdf5Rounds::end_active(const Status& how) {
  part_ = nullptr;
  bytes_.reset();
  active_->end(how);
  const std::lock_guard<std::mutex> lock(monitor_->mutex);
  phase_ = Phase::kSilent;
  active_ = nullptr;
  monitor_->changed.notify_all();
}

}  // namespace driftless
