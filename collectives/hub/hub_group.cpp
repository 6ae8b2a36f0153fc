// SPDX-License-Identifier: Apache-2.0
#include "collectives/hub/hub_group.h"

#include <unistd.h>

#include <deque>
#include <map>

#include "collectives/fields.h"
#include "collectives/message_group.h"
#include "core/hash128.h"
#include "core/host_name.h"

namespace driftless::hub {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kMostHelloBytes = 4096;
constexpr milliseconds kMailSlice{100};    // between two checks for missing ranks
constexpr milliseconds kJoinSlice{2'000};  // for one attempt

// A process's first message over each link.
struct GroupHello {
  std::uint64_t rank = 0, size = 0;
  std::uint64_t process = 0;  // random number of the process
  std::uint64_t session = 0;  // the session that it has joined; 0: none
  std::string attempt;
  std::string from;  // describes the process in messages
  template <typename Fields, typename Self>
  static void walk(Fields& fields, Self& self) {
    fields.number(self.rank);
    fields.number(self.size);
    fields.number(self.process);
    fields.number(self.session);
    fields.text(self.attempt, kMostHelloBytes);
    fields.text(self.from, kMostHelloBytes);
  }
};

// Rank 0's reply to a GroupHello.
struct GroupWelcome {
  enum class Kind : std::uint8_t {
    kJoined,
    kNotNow,  // try again: the process that has this rank may leave
    kNever,   // the session that it had joined has ended
  };
  Kind kind = Kind::kJoined;
  std::uint64_t session = 0;
  std::string why;
  template <typename Fields, typename Self>
  static void walk(Fields& fields, Self& self) {
    fields.choice(self.kind, Kind::kNever);
    fields.number(self.session);
    fields.text(self.why, kMostHelloBytes);
  }
};

template <typename Record>
std::string to_bytes(const Record& record) {
  WireWriter writer;
  Record::walk(writer, record);
  return writer.take();
}
template <typename Record>
std::optional<Record> parse(std::string_view bytes) {
  WireReader reader(bytes);
  Record record;
  Record::walk(reader, record);
  return reader.whole() ? std::optional(std::move(record)) : std::nullopt;
}

std::string rank_name(unsigned rank) { return concat("publisher rank ", rank); }
std::string attempt_text(const std::string& attempt) {
  return attempt.empty() ? "" : concat(" of attempt '", attempt, "'");
}

// The mail of rank 0.
class LeaderMail final : public GroupMail {
 public:
  LeaderMail(std::shared_ptr<Port> port, std::unique_ptr<Hub> hub, GroupPlace place)
      : port_(std::move(port)),
        hub_(std::move(hub)),
        place_(std::move(place)),
        session_(random_hash128().low) {}

  [[nodiscard]] unsigned rank() const override { return 0; }
  [[nodiscard]] unsigned size() const override { return place_.size; }
  [[nodiscard]] std::uint64_t most_bytes() const override { return kMaxMessageBytes; }
  [[nodiscard]] std::string name(unsigned rank) const override {
    const auto at = members_.find(rank);
    if (rank == 0 || (at != members_.end() && at->second.peer)) return rank_name(rank);
    if (at == members_.end()) return rank_name(rank);
    return concat(rank_name(rank), " (", at->second.from, "; its link was lost)");
  }

  // Keeps only the last message, because rank 0 sends each message to all ranks.
  Status send(unsigned to, std::string bytes, const Deadline&) override {
    const auto at = members_.find(to);
    if (at != members_.end() && at->second.peer) hub_->send(*at->second.peer, bytes);
    last_ = std::move(bytes);
    return {};
  }
  Result<std::optional<Letter>> take() override {
    if (letters_.empty()) look(Deadline::after(milliseconds(0)));
    if (letters_.empty()) return std::optional<Letter>();
    std::optional<Letter> letter(std::move(letters_.front()));
    letters_.pop_front();
    return letter;
  }
  bool rest(Backoff&, const Deadline& deadline) override {
    look(deadline.sooner(kMailSlice));
    return !deadline.expired();
  }

  [[nodiscard]] Status wait_for_all(const Deadline& deadline) {
    Backoff unused(milliseconds(1), milliseconds(1));
    Waiting waiting;
    while (members_.size() + 1 < size()) {
      waiting.look([this] { return missing(); });
      if (!rest(unused, deadline)) return deadline.check(missing());
    }
    return {};
  }

 private:
  struct Member {
    std::uint64_t process = 0;
    std::string from;
    std::optional<std::uint64_t> peer;  // empty: its link was lost
  };

  [[nodiscard]] std::string missing() const {
    std::string names;
    for (unsigned rank = 1; rank < size(); ++rank) {
      if (!members_.contains(rank)) names += concat(names.empty() ? "" : ", ", rank_name(rank));
    }
    return concat("hub: ", names, " of ", size(), " have not joined the group of trainers",
                  attempt_text(place_.attempt), refused_.empty() ? "" : "; ", refused_);
  }

  void look(const Deadline& deadline) {
    for (HubEvent& event : hub_->poll(deadline)) {
      const auto at = ranks_.find(event.peer);
      if (event.kind == HubEvent::Kind::kMessage) {
        if (at == ranks_.end()) {
          greet(event.peer, event.text);
        } else {
          letters_.push_back({at->second, std::move(event.text)});
        }
      } else if (event.kind == HubEvent::Kind::kWent && at != ranks_.end()) {
        Member& member = members_.at(at->second);
        if (member.peer == event.peer) member.peer.reset();
        ranks_.erase(at);
      }
    }
  }

  void greet(std::uint64_t peer, std::string_view bytes) {
    const std::optional<GroupHello> hello = parse<GroupHello>(bytes);
    if (!hello) return hub_->drop(peer);
    GroupWelcome welcome = judge(*hello);
    welcome.session = session_;
    hub_->send(peer, to_bytes(welcome));
    if (welcome.kind != GroupWelcome::Kind::kJoined) {
      refused_ = concat("refused: ", welcome.why);
      return hub_->finish(peer);
    }
    const auto rank = static_cast<unsigned>(hello->rank);
    Member& member = members_[rank];
    if (member.peer) {
      ranks_.erase(*member.peer);
      hub_->drop(*member.peer);
    }
    member = {hello->process, hello->from, peer};
    ranks_[peer] = rank;
    if (!last_.empty()) hub_->send(peer, last_);
  }

  [[nodiscard]] GroupWelcome judge(const GroupHello& hello) const {
    const auto no = [](GroupWelcome::Kind kind, std::string why) {
      return GroupWelcome{.kind = kind, .why = std::move(why)};
    };
    const std::string who = concat("rank ", hello.rank, " of ", hello.size,
                                   attempt_text(hello.attempt), " (", hello.from, ")");
    if (hello.session != 0 && hello.session != session_) {
      return no(GroupWelcome::Kind::kNever, concat(who, " had joined an earlier start of the job"));
    }
    if (hello.size != size() || hello.attempt != place_.attempt || hello.rank == 0 ||
        hello.rank >= size()) {
      return no(GroupWelcome::Kind::kNotNow, concat(who, ", and the leading trainer is rank 0 of ",
                                                    size(), attempt_text(place_.attempt)));
    }
    const auto at = members_.find(static_cast<unsigned>(hello.rank));
    if (at != members_.end() && at->second.process != hello.process) {
      return no(GroupWelcome::Kind::kNotNow,
                concat(who, ", and ", at->second.from,
                       " has joined as that rank: start one process per rank, or restart all"));
    }
    return {};
  }

  const std::shared_ptr<Port> port_;
  const std::unique_ptr<Hub> hub_;
  const GroupPlace place_;
  const std::uint64_t session_;
  std::map<unsigned, Member> members_;       // keyed by rank
  std::map<std::uint64_t, unsigned> ranks_;  // keyed by peer
  std::deque<Letter> letters_;
  std::string last_;     // the last message sent
  std::string refused_;  // the last refused process
};

// The mail of every other rank.
class MemberMail final : public GroupMail {
 public:
  MemberMail(Connector connector, const GroupPlace& place)
      : connector_(std::move(connector)),
        hello_{place.rank, place.size,    random_hash128().low,
               0,          place.attempt, concat("process ", ::getpid(), " on ", host_name())} {}

  [[nodiscard]] unsigned rank() const override { return static_cast<unsigned>(hello_.rank); }
  [[nodiscard]] unsigned size() const override { return static_cast<unsigned>(hello_.size); }
  [[nodiscard]] std::uint64_t most_bytes() const override { return kMaxMessageBytes; }
  [[nodiscard]] std::string name(unsigned rank) const override {
    return rank == 0 && !lost_.empty() ? concat(rank_name(rank), " (", lost_, ")")
                                       : rank_name(rank);
  }

  Status send(unsigned, std::string bytes, const Deadline& deadline) override {
    last_ = std::move(bytes);
    if (link_ != nullptr) {
      const Status sent = link_->send(last_, deadline);
      if (sent.ok()) return {};
      lose(sent);
    }
    return join(deadline);
  }
  Result<std::optional<Letter>> take() override {
    DRIFTLESS_RETURN_IF_ERROR(over_);
    look(Deadline::after(milliseconds(0)));
    if (!came_) return std::optional<Letter>();
    return std::optional(Letter{0, *std::exchange(came_, std::nullopt)});
  }
  bool rest(Backoff&, const Deadline& deadline) override {
    if (link_ == nullptr && !try_join(deadline).ok()) {
      return !over_.ok() || again_.sleep(deadline);
    }
    look(deadline.sooner(kMailSlice));
    return !deadline.expired();
  }

  // Tries until rank 0 has accepted this process, which then sends its last message again.
  [[nodiscard]] Status join(const Deadline& deadline) {
    Waiting waiting;
    const auto whom = [this] {
      return concat(rank_name(rank()), " joins the group of trainers: ", lost_);
    };
    for (;;) {
      DRIFTLESS_RETURN_IF_ERROR(over_);
      if (link_ != nullptr || try_join(deadline).ok()) return {};
      if (!over_.ok()) continue;
      if (!waiting.sleep(again_, deadline, whom)) return deadline.check(whom());
    }
  }

 private:
  // An attempt that timed out must not hide why earlier ones failed.
  void lose(const Status& why) {
    if (lost_.empty() || why.code() != StatusCode::kDeadlineExceeded) lost_ = why.message();
    link_.reset();
  }

  // Sets over_ if another attempt cannot succeed.
  [[nodiscard]] Status try_join(const Deadline& deadline) {
    const Status joined = greet(deadline.sooner(kJoinSlice));
    if (joined.ok()) {
      lost_.clear();
      again_.reset();
    } else {
      lose(joined);
    }
    return joined;
  }

  [[nodiscard]] Status greet(const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, connector_(deadline));
    DRIFTLESS_RETURN_IF_ERROR(link->send(to_bytes(hello_), deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, link->receive(deadline));
    if (!bytes) return deadline.check("rank 0 has not answered");
    const std::optional<GroupWelcome> welcome = parse<GroupWelcome>(*bytes);
    if (!welcome) return error(StatusCode::kCorrupt, "rank 0 sent a malformed answer");
    if (welcome->kind == GroupWelcome::Kind::kNever) {
      over_ =
          error(StatusCode::kIo, rank_name(rank()), ": rank 0 was started again: ", welcome->why,
                "; start this process again, too");
    }
    if (welcome->kind != GroupWelcome::Kind::kJoined) {
      return error(StatusCode::kIo, "rank 0 refused this process: ", welcome->why);
    }
    hello_.session = welcome->session;
    if (!last_.empty()) DRIFTLESS_RETURN_IF_ERROR(link->send(last_, deadline));
    link_ = std::move(link);
    return {};
  }

  void look(const Deadline& deadline) {
    if (link_ == nullptr || came_) return;
    Result<std::optional<std::string>> message = link_->receive(deadline);
    if (message.ok()) {
      came_ = std::move(*message);
    } else {
      lose(message.status());
    }
  }

  const Connector connector_;
  GroupHello hello_;
  std::unique_ptr<Link> link_;
  std::string last_;                                   // the last message sent
  std::optional<std::string> came_;                    // arrived, and not yet taken
  std::string lost_;                                   // why there is no link
  Backoff again_{milliseconds(5), milliseconds(200)};  // between attempts to join
  Status over_;
};

}  // namespace

Result<std::unique_ptr<Group>> make_hub_group(std::shared_ptr<Port> port, const GroupPlace& place,
                                              const Deadline& deadline) {
  std::unique_ptr<GroupMail> mail;
  if (place.rank == 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<Hub> hub, port->serve(place.service));
    auto leader = std::make_unique<LeaderMail>(std::move(port), std::move(hub), place);
    DRIFTLESS_RETURN_IF_ERROR(leader->wait_for_all(deadline));
    mail = std::move(leader);
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(Connector connector, port->connector(place.service));
    auto member = std::make_unique<MemberMail>(std::move(connector), place);
    DRIFTLESS_RETURN_IF_ERROR(member->join(deadline));
    mail = std::move(member);
  }
  return std::unique_ptr<Group>(std::make_unique<MessageGroup>(std::move(mail)));
}

}  // namespace driftless::hub
