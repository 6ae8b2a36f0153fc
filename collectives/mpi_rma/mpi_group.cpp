// SPDX-License-Identifier: Apache-2.0
// The publisher ranks' group over two-sided messages. No collective call of MPI after creation, so
// nothing waits longer than its deadline for a rank that is gone.
#include <mpi.h>

#include <cstring>
#include <map>
#include <tuple>

#include "collectives/mpi_rma/mpi_mailbox.h"
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/mpi_rma/mpi_status.h"

namespace driftless {
namespace {

using mpi_rma::MpiMailbox;
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
  MpiGroup(const mpi_rma::OwnComm& own, RankName name)
      : own_(own),
        name_(std::move(name)),
        mailbox_(std::make_unique<MpiMailbox>(own.comm, kTag, kTag)) {}
  ~MpiGroup() override {
    if (mpi_rma::mpi_runs() && mailbox_->idle()) MPI_Comm_free(&own_.comm);
  }

  [[nodiscard]] unsigned rank() const override { return own_.rank; }
  [[nodiscard]] unsigned size() const override { return own_.size; }
  void begin_epoch(std::uint64_t epoch) override {
    epoch_ = epoch;
    operation_ = 0;
    std::erase_if(inbox_, [&](const auto& entry) { return std::get<0>(entry.first) < epoch; });
  }

  Result<std::vector<std::string>> gather(std::string_view message,
                                          const Deadline& deadline) override {
    ++operation_;
    if (!leads()) {
      DRIFTLESS_RETURN_IF_ERROR(send(0, 0, kGather, message, deadline));
      return std::vector<std::string>{};
    }
    std::vector<std::string> messages(size());
    messages[0] = message;
    std::vector<unsigned> silent;
    for (unsigned from = 1; from < size(); ++from) silent.push_back(from);
    Backoff backoff(microseconds(10), microseconds(500));
    Waiting waiting;
    const auto whom = [&] {
      return concat("nothing from ", names_of(silent), "; ", size() - 1 - silent.size(), " of ",
                    size() - 1, " others have answered");
    };
    do {
      DRIFTLESS_RETURN_IF_ERROR(work());
      std::vector<unsigned> still;
      for (const unsigned from : silent) {
        DRIFTLESS_ASSIGN_OR_RETURN(const bool there, arrived(from, kGather, &messages[from]));
        if (!there) still.push_back(from);
      }
      silent = std::move(still);
      if (silent.empty()) return messages;
    } while (waiting.sleep(backoff, deadline, whom));
    return deadline.check(whom());
  }

  Result<std::string> broadcast(std::string_view message, const Deadline& deadline) override {
    ++operation_;
    if (leads()) {
      DRIFTLESS_RETURN_IF_ERROR(send(1, size() - 1, kBroadcast, message, deadline));
      return std::string(message);
    }
    Backoff backoff(microseconds(10), microseconds(500));
    std::string text;
    Waiting waiting;
    const auto whom = [this] { return concat(name_(rank()), ": nothing from ", name_(0)); };
    do {
      DRIFTLESS_RETURN_IF_ERROR(work());
      DRIFTLESS_ASSIGN_OR_RETURN(const bool there, arrived(0, kBroadcast, &text));
      if (there) return text;
    } while (waiting.sleep(backoff, deadline, whom));
    return deadline.check(whom());
  }

 private:
  // Epoch, operation, rank it came from.
  using Key = std::tuple<std::uint64_t, std::uint64_t, unsigned>;
  struct Arrived {
    std::uint64_t kind;
    std::string text;
  };

  // To ranks `first` to `last`. Until it is on its way or with its receivers: a long message needs
  // this rank. What an earlier epoch left behind may never end.
  [[nodiscard]] Status send(unsigned first, unsigned last, std::uint64_t kind,
                            std::string_view message, const Deadline& deadline) {
    if (message.size() > kMostMessageBytes) {
      return error(StatusCode::kInvalidArgument, "a message of ", message.size(),
                   " bytes between publisher ranks: at most ", kMostMessageBytes);
    }
    const Header header{epoch_, operation_, kind, message.size()};
    const std::string_view begin(reinterpret_cast<const char*>(&header), sizeof(header));
    const std::uint64_t mark = mailbox_->mark();
    for (unsigned to = first; to <= last; ++to) {
      DRIFTLESS_RETURN_IF_ERROR(mailbox_->send(static_cast<int>(to), concat(begin, message)));
    }
    Backoff backoff(microseconds(10), microseconds(500));
    std::vector<int> silent;
    Waiting waiting;
    const auto whom = [&] { return concat(name_(rank()), ": no answer from ", names_of(silent)); };
    do {
      DRIFTLESS_RETURN_IF_ERROR(work());
      DRIFTLESS_ASSIGN_OR_RETURN(silent, mailbox_->unsent(mark));
      if (silent.empty()) return {};
    } while (waiting.sleep(backoff, deadline, whom));
    return deadline.check(whom());
  }

  template <typename Ranks>
  [[nodiscard]] std::string names_of(const Ranks& ranks) const {
    std::string names;
    for (const auto rank : ranks) {
      names += concat(names.empty() ? "" : ", ", name_(static_cast<unsigned>(rank)));
    }
    return names;
  }

  // Takes in everything that has arrived, and lets go on what is being sent.
  [[nodiscard]] Status work() {
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<MpiMailbox::Letter> letter,
                                 mailbox_->take(MPI_ANY_SOURCE));
      if (!letter) return mailbox_->unsent(0).status();
      DRIFTLESS_RETURN_IF_ERROR(keep(static_cast<unsigned>(letter->peer), letter->bytes));
    }
  }

  [[nodiscard]] Status keep(unsigned from, const std::string& bytes) {
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

  // The message of this operation from `from`, once it is there.
  [[nodiscard]] Result<bool> arrived(unsigned from, std::uint64_t kind, std::string* text) {
    const auto found = inbox_.find({epoch_, operation_, from});
    if (found == inbox_.end()) return false;
    if (found->second.kind != kind) {
      return error(StatusCode::kInternal, "publisher ranks ", rank(), " and ", from,
                   " call gather() and broadcast() in different order");
    }
    *text = std::move(found->second.text);
    inbox_.erase(found);
    return true;
  }

  mpi_rma::OwnComm own_;
  RankName name_;
  std::unique_ptr<MpiMailbox> mailbox_;
  std::uint64_t epoch_ = 0;
  std::uint64_t operation_ = 0;
  std::map<Key, Arrived> inbox_;
};

}  // namespace

Result<std::unique_ptr<Group>> make_mpi_group(MPI_Comm publishers, RankName name) {
  if (!mpi_rma::mpi_runs()) {
    return error(StatusCode::kInvalidArgument,
                 "the group of publishers: MPI is not initialized, or finalized already");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const mpi_rma::OwnComm own,
                             mpi_rma::duplicate_comm(publishers, "the publishers' communicator"));
  if (!name) name = [](unsigned rank) { return concat("publisher rank ", rank); };
  return std::unique_ptr<Group>(std::make_unique<MpiGroup>(own, std::move(name)));
}

}  // namespace driftless
