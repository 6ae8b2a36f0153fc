// SPDX-License-Identifier: Apache-2.0
// The publisher ranks' group over two-sided messages. No collective call of MPI after creation, so
// nothing waits longer than its deadline for a rank that is gone.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <tuple>

#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/mpi_rma/mpi_status.h"

namespace driftless {
namespace {

using mpi_rma::mpi_runs;
using mpi_rma::mpi_status;
using std::chrono::microseconds;

constexpr int kTag = 0x6472;
constexpr std::uint64_t kMostMessageBytes = std::uint64_t{1} << 30;

// Before every message.
struct Header {
  std::uint64_t epoch = 0;
  std::uint64_t operation = 0;  // counts gather() and broadcast() within the epoch
  std::uint64_t kind = 0;       // of the call
  std::uint64_t size_bytes = 0;
};
enum Kind : std::uint64_t { kGather = 1, kBroadcast = 2 };

class MpiGroup final : public Group {
 public:
  MpiGroup(MPI_Comm comm, unsigned rank, unsigned size) : comm_(comm), rank_(rank), size_(size) {}
  ~MpiGroup() override;

  [[nodiscard]] unsigned rank() const override { return rank_; }
  [[nodiscard]] unsigned size() const override { return size_; }
  void begin_epoch(std::uint64_t epoch) override;
  [[nodiscard]] Result<std::vector<std::string>> gather(std::string_view message,
                                                        const Deadline& deadline) override;
  [[nodiscard]] Result<std::string> broadcast(std::string_view message,
                                              const Deadline& deadline) override;

 private:
  // Epoch, operation, rank it came from.
  using Key = std::tuple<std::uint64_t, std::uint64_t, unsigned>;
  struct Arrived {
    std::uint64_t kind;
    std::string text;
  };
  struct Sending {
    unsigned to;
    MPI_Request request;
    std::string bytes;
  };
  struct Receiving {
    unsigned from;
    MPI_Request request;
    std::string bytes;
  };

  [[nodiscard]] Status send(unsigned to, std::uint64_t kind, std::string_view message);
  // Until all that was sent is on its way or with its receiver: a long message needs this rank.
  [[nodiscard]] Status finish_sending(const Deadline& deadline);
  [[nodiscard]] Status test_sending();
  // Takes in everything that has arrived.
  [[nodiscard]] Status take_in();
  [[nodiscard]] Status keep(unsigned from, const std::string& bytes);
  // The message of this operation from `from`, once it is there.
  [[nodiscard]] Result<bool> arrived(unsigned from, std::uint64_t kind, std::string* text);

  MPI_Comm comm_;
  unsigned rank_, size_;
  std::uint64_t epoch_ = 0;
  std::uint64_t operation_ = 0;
  std::map<Key, Arrived> inbox_;
  // MPI works on their bytes, which stay in place.
  struct InFlight {
    std::list<Sending> sending;
    std::list<Receiving> receiving;
  };
  std::unique_ptr<InFlight> in_flight_ = std::make_unique<InFlight>();
  std::list<Sending>& sending_ = in_flight_->sending;
  std::list<Receiving>& receiving_ = in_flight_->receiving;
};

MpiGroup::~MpiGroup() {
  if (!mpi_runs()) return;
  [[maybe_unused]] const Status status = test_sending();
  if (!sending_.empty() || !receiving_.empty()) {
    // To or from a rank that is gone. MPI may still use the bytes: they stay to the end of the
    // process.
    [[maybe_unused]] const InFlight* left = in_flight_.release();
    return;
  }
  MPI_Comm_free(&comm_);
}

void MpiGroup::begin_epoch(std::uint64_t epoch) {
  epoch_ = epoch;
  operation_ = 0;
  std::erase_if(inbox_, [&](const auto& entry) { return std::get<0>(entry.first) < epoch; });
}

Status MpiGroup::send(unsigned to, std::uint64_t kind, std::string_view message) {
  if (message.size() > kMostMessageBytes) {
    return error(StatusCode::kInvalidArgument, "a message of ", message.size(),
                 " bytes between publisher ranks: at most ", kMostMessageBytes);
  }
  const Header header{epoch_, operation_, kind, message.size()};
  Sending& sending = sending_.emplace_back();
  sending.to = to;
  sending.bytes.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  sending.bytes.append(message);
  const Status started =
      mpi_status(MPI_Isend(sending.bytes.data(), static_cast<int>(sending.bytes.size()), MPI_BYTE,
                           static_cast<int>(to), kTag, comm_, &sending.request),
                 concat("message to publisher rank ", to));
  if (!started.ok()) sending_.pop_back();
  return started;
}

Status MpiGroup::test_sending() {
  for (auto it = sending_.begin(); it != sending_.end();) {
    int done = 0;
    const int code = MPI_Test(&it->request, &done, MPI_STATUS_IGNORE);
    DRIFTLESS_RETURN_IF_ERROR(mpi_status(code, concat("message to publisher rank ", it->to)));
    it = done != 0 ? sending_.erase(it) : std::next(it);
  }
  return {};
}

Status MpiGroup::finish_sending(const Deadline& deadline) {
  // What an earlier epoch left behind may never end.
  std::vector<const Sending*> mine;
  for (const Sending& sending : sending_) {
    Header header;
    std::memcpy(&header, sending.bytes.data(), sizeof(header));
    if (header.epoch == epoch_ && header.operation == operation_) mine.push_back(&sending);
  }
  Backoff backoff(microseconds(10), microseconds(500));
  std::string silent;
  do {
    DRIFTLESS_RETURN_IF_ERROR(test_sending());
    DRIFTLESS_RETURN_IF_ERROR(take_in());
    silent.clear();
    for (const Sending& sending : sending_) {
      if (std::find(mine.begin(), mine.end(), &sending) == mine.end()) continue;
      silent += concat(silent.empty() ? "" : ", ", sending.to);
    }
    if (silent.empty()) return {};
  } while (backoff.sleep(deadline));
  return deadline.check(concat("publisher rank ", rank_, ": no answer from rank ", silent));
}

Status MpiGroup::take_in() {
  for (;;) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    DRIFTLESS_RETURN_IF_ERROR(mpi_status(
        MPI_Improbe(MPI_ANY_SOURCE, kTag, comm_, &found, &message, &status), "MPI_Improbe"));
    if (found == 0) break;
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    Receiving& receiving = receiving_.emplace_back();
    receiving.from = static_cast<unsigned>(status.MPI_SOURCE);
    receiving.bytes.resize(static_cast<std::size_t>(std::max(count, 0)));
    const Status started = mpi_status(
        MPI_Imrecv(receiving.bytes.data(), count, MPI_BYTE, &message, &receiving.request),
        concat("message from publisher rank ", receiving.from));
    if (!started.ok()) receiving_.pop_back();
    DRIFTLESS_RETURN_IF_ERROR(started);
  }
  for (auto it = receiving_.begin(); it != receiving_.end();) {
    int done = 0;
    const int code = MPI_Test(&it->request, &done, MPI_STATUS_IGNORE);
    DRIFTLESS_RETURN_IF_ERROR(mpi_status(code, concat("message from publisher rank ", it->from)));
    if (done == 0) {
      ++it;
      continue;
    }
    const Receiving received = std::move(*it);
    it = receiving_.erase(it);
    DRIFTLESS_RETURN_IF_ERROR(keep(received.from, received.bytes));
  }
  return {};
}

Status MpiGroup::keep(unsigned from, const std::string& bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) {
    return error(StatusCode::kCorrupt, "publisher rank ", from, " sent ", bytes.size(), " bytes");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.size_bytes != bytes.size() - sizeof(header)) {
    return error(StatusCode::kCorrupt, "publisher rank ", from, " announced ", header.size_bytes,
                 " bytes and sent ", bytes.size() - sizeof(header));
  }
  const bool stale =
      header.epoch < epoch_ || (header.epoch == epoch_ && header.operation < operation_);
  if (stale) return {};
  inbox_[{header.epoch, header.operation, from}] = {header.kind, bytes.substr(sizeof(header))};
  return {};
}

Result<bool> MpiGroup::arrived(unsigned from, std::uint64_t kind, std::string* text) {
  const auto found = inbox_.find({epoch_, operation_, from});
  if (found == inbox_.end()) return false;
  if (found->second.kind != kind) {
    return error(StatusCode::kInternal, "publisher ranks ", rank_, " and ", from,
                 " call gather() and broadcast() in different order");
  }
  *text = std::move(found->second.text);
  inbox_.erase(found);
  return true;
}

Result<std::vector<std::string>> MpiGroup::gather(std::string_view message,
                                                  const Deadline& deadline) {
  ++operation_;
  if (rank_ != 0) {
    DRIFTLESS_RETURN_IF_ERROR(send(0, kGather, message));
    DRIFTLESS_RETURN_IF_ERROR(finish_sending(deadline));
    return std::vector<std::string>{};
  }
  std::vector<std::string> messages(size_);
  messages[0] = message;
  std::vector<unsigned> silent;
  for (unsigned from = 1; from < size_; ++from) silent.push_back(from);
  Backoff backoff(microseconds(10), microseconds(500));
  do {
    DRIFTLESS_RETURN_IF_ERROR(take_in());
    DRIFTLESS_RETURN_IF_ERROR(test_sending());
    std::vector<unsigned> still;
    for (const unsigned from : silent) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool there, arrived(from, kGather, &messages[from]));
      if (!there) still.push_back(from);
    }
    silent = std::move(still);
    if (silent.empty()) return messages;
  } while (backoff.sleep(deadline));
  std::string names;
  for (const unsigned from : silent) names += concat(names.empty() ? "" : ", ", from);
  return deadline.check(concat("nothing from publisher rank ", names));
}

Result<std::string> MpiGroup::broadcast(std::string_view message, const Deadline& deadline) {
  ++operation_;
  if (rank_ == 0) {
    for (unsigned to = 1; to < size_; ++to) {
      DRIFTLESS_RETURN_IF_ERROR(send(to, kBroadcast, message));
    }
    DRIFTLESS_RETURN_IF_ERROR(finish_sending(deadline));
    return std::string(message);
  }
  Backoff backoff(microseconds(10), microseconds(500));
  std::string text;
  do {
    DRIFTLESS_RETURN_IF_ERROR(take_in());
    DRIFTLESS_RETURN_IF_ERROR(test_sending());
    DRIFTLESS_ASSIGN_OR_RETURN(const bool there, arrived(0, kBroadcast, &text));
    if (there) return text;
  } while (backoff.sleep(deadline));
  return deadline.check(concat("publisher rank ", rank_, ": nothing from publisher rank 0"));
}

}  // namespace

Result<std::unique_ptr<Group>> make_mpi_group(MPI_Comm publishers) {
  if (!mpi_runs()) {
    return error(StatusCode::kInvalidArgument,
                 "the group of publishers: MPI is not initialized, or finalized already");
  }
  MPI_Errhandler theirs = MPI_ERRHANDLER_NULL;
  DRIFTLESS_RETURN_IF_ERROR(
      mpi_status(MPI_Comm_get_errhandler(publishers, &theirs), "MPI_Comm_get_errhandler"));
  MPI_Comm_set_errhandler(publishers, MPI_ERRORS_RETURN);
  MPI_Comm comm = MPI_COMM_NULL;
  const int made = MPI_Comm_dup(publishers, &comm);
  MPI_Comm_set_errhandler(publishers, theirs);
  MPI_Errhandler_free(&theirs);
  DRIFTLESS_RETURN_IF_ERROR(mpi_status(made, "MPI_Comm_dup of the publishers' communicator"));
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  return std::unique_ptr<Group>(
      std::make_unique<MpiGroup>(comm, static_cast<unsigned>(rank), static_cast<unsigned>(size)));
}

}  // namespace driftless
