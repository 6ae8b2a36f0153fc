// SPDX-License-Identifier: Apache-2.0
#include "collectives/hub/mpi_hub.h"

#include <cstring>
#include <map>
#include <mutex>

#include "collectives/mpi_rma/mpi_mailbox.h"
#include "collectives/mpi_rma/mpi_status.h"

namespace driftless::hub {
namespace {

using mpi_rma::mpi_status;
using mpi_rma::MpiMailbox;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Tags of messages to the leader and from it.
constexpr int kUpTag = 21;
constexpr int kDownTag = 22;

// Precedes each message: the link that it belongs to, and whether it is the link's last.
struct Header {
  std::uint64_t link = 0;
  std::uint64_t last = 0;
};

struct Arrived {
  int from = 0;
  Header header;
  std::string text;
};

[[nodiscard]] Status send(MpiMailbox& mailbox, int to, const Header& header,
                          std::string_view message) {
  const std::string_view begin(reinterpret_cast<const char*>(&header), sizeof(header));
  return mailbox.send(to, concat(begin, message));
}

// The next message, if one has arrived.
Result<std::optional<Arrived>> take(MpiMailbox& mailbox, int from) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<MpiMailbox::Letter> letter, mailbox.take(from));
  if (!letter) return std::optional<Arrived>();
  Arrived arrived{.from = letter->peer, .header = {}, .text = {}};
  if (letter->bytes.size() < sizeof(Header)) {
    return error(StatusCode::kCorrupt, "hub: rank ", arrived.from, " of the job sent ",
                 letter->bytes.size(), " bytes");
  }
  std::memcpy(&arrived.header, letter->bytes.data(), sizeof(Header));
  arrived.text = letter->bytes.substr(sizeof(Header));
  return std::optional<Arrived>(std::move(arrived));
}

Status check_threads() {
  int level = MPI_THREAD_SINGLE;
  DRIFTLESS_RETURN_IF_ERROR(mpi_status(MPI_Query_thread(&level), "MPI_Query_thread"));
  if (level == MPI_THREAD_MULTIPLE) return {};
  return error(StatusCode::kUnsupported,
               "hub: the rendezvous over MPI needs MPI_THREAD_MULTIPLE, which this MPI does not "
               "grant; use road.nccl.rendezvous: hub or file://DIR");
}

class MpiHub final : public Hub {
 public:
  explicit MpiHub(MPI_Comm job) : mailbox_(job, kDownTag, kUpTag) {}
  // The other side learns of the end only by this message: between processes of a job no connection
  // closes.
  ~MpiHub() override {
    for (const auto& [peer, rank] : ranks_) {
      const Status sent = hub::send(mailbox_, rank, {peer, 1}, "");
    }
  }

  [[nodiscard]] std::vector<HubEvent> poll(const Deadline& deadline) override {
    Backoff backoff(microseconds(50), milliseconds(2));
    std::vector<HubEvent> events;
    do {
      const std::scoped_lock lock(mutex_);
      for (;;) {
        Result<std::optional<Arrived>> arrived = take(mailbox_, MPI_ANY_SOURCE);
        if (!arrived.ok() || !arrived->has_value()) break;
        take_message(std::move(**arrived), events);
      }
      for (const std::uint64_t peer : std::exchange(dropped_, {})) end(peer, events);
    } while (events.empty() && backoff.sleep(deadline));
    return events;
  }

  void send(std::uint64_t peer, std::string_view message) override {
    const std::scoped_lock lock(mutex_);
    const auto found = ranks_.find(peer);
    if (found == ranks_.end()) return;
    if (!hub::send(mailbox_, found->second, {peer, 0}, message).ok()) dropped_.push_back(peer);
  }

  void drop(std::uint64_t peer) override {
    const std::scoped_lock lock(mutex_);
    dropped_.push_back(peer);
  }

 private:
  // The process that makes a link gives it a unique number.
  void take_message(Arrived arrived, std::vector<HubEvent>& events) {
    const std::uint64_t link = arrived.header.link;
    if (!ranks_.contains(link)) {
      if (arrived.header.last != 0 || ended_.contains(link)) return;
      for (const auto& [other, rank] : std::map(ranks_)) {
        if (rank == arrived.from) end(other, events);  // it has made a new link
      }
      ranks_[link] = arrived.from;
      events.push_back({HubEvent::Kind::kCame, link, {}});
    }
    if (arrived.header.last != 0) {
      end(link, events);
    } else {
      events.push_back({HubEvent::Kind::kMessage, link, std::move(arrived.text)});
    }
  }

  void end(std::uint64_t peer, std::vector<HubEvent>& events) {
    const auto found = ranks_.find(peer);
    if (found == ranks_.end()) return;
    // If it does not arrive, the other side ends the link when its own time limit passes.
    const Status sent = hub::send(mailbox_, found->second, {peer, 1}, "");
    ranks_.erase(found);
    ended_[peer] = true;
    events.push_back({HubEvent::Kind::kWent, peer, {}});
  }

  std::mutex mutex_;
  MpiMailbox mailbox_;
  std::map<std::uint64_t, int> ranks_;   // of the open links
  std::map<std::uint64_t, bool> ended_;  // late messages of these links are ignored
  std::vector<std::uint64_t> dropped_;
};

class MpiLink final : public Link {
 public:
  MpiLink(MPI_Comm job, int leader)
      : leader_(leader), number_(random_hash128().low), mailbox_(job, kUpTag, kDownTag) {}
  ~MpiLink() override {
    const std::scoped_lock lock(mutex_);
    const Status sent = hub::send(mailbox_, leader_, {number_, 1}, "");
  }

  Status send(std::string_view message, const Deadline&) override {
    const std::scoped_lock lock(mutex_);
    const Status sent = hub::send(mailbox_, leader_, {number_, 0}, message);
    return sent.ok() ? sent : error(StatusCode::kIo, sent.message());
  }

  Result<std::optional<std::string>> receive(const Deadline& deadline) override {
    Backoff backoff(microseconds(50), milliseconds(2));
    for (;;) {
      Result<std::optional<Arrived>> arrived = take(mailbox_, leader_);
      if (!arrived.ok()) return error(StatusCode::kIo, arrived.status().message());
      if (!arrived->has_value()) {
        if (!backoff.sleep(deadline)) return std::optional<std::string>();
        continue;
      }
      if ((*arrived)->header.link != number_) continue;  // from an earlier link
      if ((*arrived)->header.last != 0) {
        return error(StatusCode::kIo, "hub: the leader has ended the link");
      }
      return std::optional<std::string>(std::move((*arrived)->text));
    }
  }

 private:
  const int leader_;
  const std::uint64_t number_;
  std::mutex mutex_;  // protects sending
  MpiMailbox mailbox_;
};

}  // namespace

Result<std::unique_ptr<Hub>> make_mpi_hub(MPI_Comm job) {
  DRIFTLESS_RETURN_IF_ERROR(check_threads());
  return std::unique_ptr<Hub>(std::make_unique<MpiHub>(job));
}

Result<Connector> make_mpi_connector(MPI_Comm job, int leader) {
  DRIFTLESS_RETURN_IF_ERROR(check_threads());
  return Connector([job, leader](const Deadline&) -> Result<std::unique_ptr<Link>> {
    return std::unique_ptr<Link>(std::make_unique<MpiLink>(job, leader));
  });
}

}  // namespace driftless::hub
