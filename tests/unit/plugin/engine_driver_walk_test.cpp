// SPDX-License-Identifier: Apache-2.0
// Walks the engine driver through everything that can happen to it: 2 ranks, 2 versions, 2 runs.
// Every call is done, refused, lost, late, half done, or answered by a process that is gone; the
// driver and the engine restart at every point. After every step:
//
//   an engine that serves holds one run, version and digest on all ranks, and none is torn;
//   a label was right for the server process that got it, when it got it;
//   after a request that succeeded, the engine serves the goal's run, in its version or a later
//     one, and reports that; a request that leaves an engine paused reports that.
//
// The ranks do calls in their order (the engines queue them). Commits, stagings and finishes whose
// driver gave up or died may still arrive at any later time; a finish only in the server process to
// which it was sent, because it carries no ticket.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <iostream>
#include <memory>
#include <unordered_set>

#include "plugin/engines/engine_driver.h"

namespace driftless {
namespace {

constexpr int kRanks = 2;
constexpr std::uint64_t kVersions = 2;

std::string digest_of(const std::string& run, std::int64_t version) {
  return version == 0 ? "base" : concat("digest-", run, "-", version);
}

struct WalkedRank {
  std::string run;  // of the weights
  std::int64_t version = 0;
  std::string follows;  // empty: closed
  std::optional<std::uint64_t> staged;
  std::string ticket;
  std::optional<EngineIdentity> before;  // of the last commit

  [[nodiscard]] EngineIdentity holds() const {
    return {run, version, version < 0 ? "" : digest_of(run, version)};
  }
  [[nodiscard]] std::string key() const {
    return concat(run, ",", version, ",", follows, ",", staged.value_or(99), ",", ticket, ",",
                  before ? to_string(*before) : "", ";");
  }
};

// What a rank may do with a call that writes.
enum class Fate : unsigned char { kDone, kRefused, kTorn };

struct WalkedEngine {
  int process = 1;
  bool paused = false, session = false;
  std::string label = "default";
  std::array<WalkedRank, kRanks> ranks;

  [[nodiscard]] bool whole() const {
    return ranks[0].holds() == ranks[1].holds() && ranks[0].version >= 0;
  }
  // With the base, the label is the one that the server began with, or names no version.
  [[nodiscard]] bool label_fits() const {
    if (ranks[0].version > 0) return label == std::to_string(ranks[0].version);
    return label == "default" || label == "unproven";
  }
  void restart() {
    const int next = process + 1;
    *this = WalkedEngine();
    process = next;
  }
};

struct World {
  WalkedEngine engine;
  std::string run = "a";        // the run on the road
  std::uint64_t published = 1;  // the newest version on the road
  std::optional<EngineCall> late;
  // The state that the process before the engine's last start reports: it, or its replies, may
  // still be there.
  std::vector<RankReply> other;

  [[nodiscard]] std::string key() const {
    std::string text = concat(engine.process, engine.paused ? "P" : "R", engine.session ? "s" : "-",
                              engine.label, run, published, "|");
    for (const WalkedRank& rank : engine.ranks) text += rank.key();
    if (late) text += concat(to_string(late->op), late->version, late->ticket, late->label);
    for (const RankReply& reply : other) {
      text += concat(reply.process, reply.state, to_string(reply.holds));
    }
    return text;
  }

  void write(WalkedRank& rank, std::uint64_t version, const std::string& ticket, Fate fate) {
    if (!rank.staged || *rank.staged != version || rank.ticket != ticket) return;
    if (fate == Fate::kRefused) {
      rank.staged.reset();
      return;
    }
    rank.before = rank.holds();
    if (rank.version < 0) rank.before.reset();
    rank.run = rank.follows;
    rank.version = fate == Fate::kTorn ? kTornVersion : static_cast<std::int64_t>(version);
    rank.staged.reset();
  }

  static bool rollback(WalkedRank& rank, std::uint64_t version, Fate fate) {
    rank.staged.reset();
    if (rank.version == static_cast<std::int64_t>(version)) return true;
    if (!rank.before || rank.before->version != static_cast<std::int64_t>(version)) return false;
    if (fate == Fate::kRefused) return false;
    rank.version = fate == Fate::kTorn ? kTornVersion : rank.before->version;
    if (fate == Fate::kDone) rank.run = rank.before->run;
    rank.before.reset();
    return fate == Fate::kDone;
  }

  bool stage(WalkedRank& rank, const std::string& ticket) {
    if (rank.follows.empty()) return false;
    rank.staged.reset();
    rank.ticket = ticket;
    if (rank.version < static_cast<std::int64_t>(published)) rank.staged = published;
    return true;
  }

  // A rank that follows no run yet begins with the base, or continues in its own run.
  bool open(WalkedRank& rank) {
    const bool fits = rank.version <= 0 || rank.run == run;
    if (fits) rank.follows = run;
    return fits;
  }

  // Makes the call on every rank. Returns whether each of them did it.
  std::array<bool, kRanks> apply(const EngineCall& call, std::array<Fate, kRanks> fates) {
    std::array<bool, kRanks> ok{true, true};
    if (call.op == EngineOp::kWrite && !engine.session) return {false, false};
    for (int i = 0; i < kRanks; ++i) {
      WalkedRank& rank = engine.ranks[i];
      if (call.op == EngineOp::kOpen) ok[i] = open(rank);
      if (call.op == EngineOp::kClose) rank.follows.clear(), rank.staged.reset();
      if (call.op == EngineOp::kStage) ok[i] = fates[i] == Fate::kDone && stage(rank, call.ticket);
      if (call.op == EngineOp::kWrite) write(rank, call.version, call.ticket, fates[i]);
      if (call.op == EngineOp::kRollback) ok[i] = rollback(rank, call.version, fates[i]);
    }
    return ok;
  }

  [[nodiscard]] std::vector<RankReply> replies(std::array<bool, kRanks> ok) const {
    std::vector<RankReply> made;
    for (int i = 0; i < kRanks; ++i) {
      const WalkedRank& rank = engine.ranks[i];
      RankReply reply;
      reply.rank = i;
      reply.process = concat(engine.process, "-", i);
      reply.ok = ok[i];
      reply.error = ok[i] ? "" : "no";
      reply.state = rank.follows.empty() ? "closed" : rank.staged ? "staged" : "idle";
      const bool known = !rank.follows.empty() || !rank.run.empty();
      if (known) reply.holds = rank.holds();
      reply.follows = rank.follows;
      reply.staged_version = rank.staged;
      reply.session = true;
      reply.updating = engine.session;
      made.push_back(std::move(reply));
    }
    return made;
  }

  // Calls to the server, not to the ranks. False: it refuses.
  bool serve(const EngineCall& call, EngineAnswer& answer) {
    if (call.op == EngineOp::kPause) engine.paused = true;
    if (call.op == EngineOp::kResume) engine.paused = false;
    if (call.op == EngineOp::kBegin) engine.session = true;
    if (call.op == EngineOp::kReadLabel) answer.label = engine.label;
    if (call.op == EngineOp::kFinish && !engine.session) return false;
    if (call.op == EngineOp::kFinish) engine.session = false;
    const bool labels = call.op == EngineOp::kFinish || call.op == EngineOp::kSetLabel;
    if (labels && !call.label.empty()) engine.label = call.label;
    return true;
  }
};

// Calls that may still arrive after their caller gave up or died.
bool may_come_late(EngineOp op) {
  return op == EngineOp::kWrite || op == EngineOp::kStage || op == EngineOp::kFinish;
}

bool is_rank_call(EngineOp op) {
  return op == EngineOp::kAsk || op == EngineOp::kLook || op == EngineOp::kOpen ||
         op == EngineOp::kClose || op == EngineOp::kStage || op == EngineOp::kRollback;
}

// The path to a node, the last step first.
struct Move {
  std::shared_ptr<const Move> before;
  std::string text;
};

struct Node {
  World world;
  EngineDriver driver{DriverOptions{}};
  EngineCall call;
  int agent = 0;                     // which driver this is
  int requests = 0;                  // still to come
  int faults = 0;                    // still to come
  int restarts = 0;                  // of the engine
  int asked = 0;                     // the process that answered the request's first status call
  EngineOp broken = EngineOp::kEnd;  // fails until the request ends
  std::shared_ptr<const Move> way;

  void went(std::string text) { way = std::make_shared<Move>(Move{way, std::move(text)}); }
  [[nodiscard]] std::string whole_way() const {
    std::string text;
    for (const Move* step = way.get(); step != nullptr; step = step->before.get()) {
      text = concat(" ", step->text, text);
    }
    return text;
  }

  [[nodiscard]] std::string key() const {
    return concat(world.key(), "#", driver.fingerprint(), "#", agent, requests, faults, restarts,
                  asked, to_string(broken), call.ticket);
  }
};

class Walk {
 public:
  std::size_t run(int faults, int requests) {
    Node first;
    first.faults = faults;
    first.requests = requests;
    first.restarts = 1;
    start_agent(first, "a", 1);
    push(std::move(first));
    while (!open_.empty() && failure_.empty()) {
      const Node node = std::move(open_.back());
      open_.pop_back();
      expand(node);
    }
    return seen_.size();
  }
  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] std::size_t ended_well() const { return ended_well_; }
  [[nodiscard]] std::size_t left_paused() const { return left_paused_; }

 private:
  static void start_agent(Node& node, const std::string& run, std::uint64_t version) {
    ++node.agent;
    DriverOptions options;
    options.source = "host_shm:walk";
    options.stage_ms = 1'000;
    options.ticket = concat("t", node.agent);
    node.driver = EngineDriver(options);
    node.world.run = run;
    node.world.published = version;
    begin(node);
  }

  static void begin(Node& node) {
    EngineGoal goal;
    goal.run = node.world.run;
    goal.version = node.world.published;
    goal.digest_of = [run = goal.run](std::uint64_t version) {
      return std::optional<std::string>(digest_of(run, static_cast<std::int64_t>(version)));
    };
    node.broken = EngineOp::kEnd;
    node.asked = 0;
    node.call = node.driver.begin_update(std::move(goal));
  }

  void push(Node node) {
    check(node);
    if (seen_.insert(std::hash<std::string>()(node.key())).second) open_.push_back(std::move(node));
  }

  void fail(const Node& node, const std::string& why) {
    if (failure_.empty())
      failure_ = concat(why, "\n", node.whole_way(), "\nnow: ", node.world.key());
  }

  void check(const Node& node) {
    const WalkedEngine& engine = node.world.engine;
    if (!engine.paused && !engine.whole()) fail(node, "serves what is not one version");
    if (!engine.paused && !engine.label_fits()) fail(node, "serves under a label that is not true");
  }

  void expand(const Node& node) {
    if (node.call.op == EngineOp::kEnd) return at_end(node);
    restarts(node);
    if (node.call.op == EngineOp::kWait) return answer(node, {}, "");
    if (node.world.late) run_late(node);
    outcomes(node);
  }

  // The engine or the driver restarts before the pending call is made.
  void restarts(const Node& node) {
    if (node.restarts > 0) {
      Node next = node;
      --next.restarts;
      next.world.other = next.world.replies({true, true});
      next.world.engine.restart();
      // A finish names no ticket: it is lost with the connection to the process to which it was
      // sent.
      if (next.world.late && next.world.late->op == EngineOp::kFinish) next.world.late.reset();
      next.went("ENGINE-RESTART");
      push(std::move(next));
    }
    if (node.requests == 0) return;
    for (const bool made : {false, true}) {  // the call was not made, or is under way
      if (made && (!may_come_late(node.call.op) || node.world.late)) continue;
      Node next = node;
      --next.requests;
      if (made) next.world.late = node.call;
      next.went(made ? "DRIVER-RESTART(call on its way)" : "DRIVER-RESTART");
      start_agent(next, node.world.run, node.world.published);
      push(std::move(next));
    }
  }

  void run_late(const Node& node) {
    Node next = node;
    EngineAnswer lost_answer;
    if (node.world.late->op == EngineOp::kFinish) {
      static_cast<void>(next.world.serve(*node.world.late, lost_answer));
    } else {
      static_cast<void>(next.world.apply(*node.world.late, {Fate::kDone, Fate::kDone}));
    }
    next.went(concat("late:", to_string(node.world.late->op)));
    next.world.late.reset();
    push(std::move(next));
  }

  void answer(const Node& node, const EngineAnswer& answered, const std::string& how,
              int faults = 0) {
    Node next = node;
    next.faults -= faults;
    if (next.asked == 0) next.asked = next.world.engine.process;
    next.went(concat(to_string(node.call.op), how));
    next.call = next.driver.next(answered);
    push(std::move(next));
  }

  void outcomes(const Node& node) {
    const EngineOp op = node.call.op;
    EngineAnswer lost;
    lost.status = error(StatusCode::kDeadlineExceeded, "no reply");
    if (node.broken == op) return answer(node, lost, ":broken");
    if (is_rank_call(op) || op == EngineOp::kWrite) {
      rank_outcomes(node, lost);
    } else {
      Node made = node;
      EngineAnswer answered;
      if (!made.world.serve(node.call, answered)) {
        answered.status = error(StatusCode::kIo, "refused");
        answered.refused = node.call.op == EngineOp::kBegin;
      }
      answer(made, answered, answered.status.ok() ? "" : ":refused");
      if (node.faults > 0) answer(made, lost, ":reply-lost", 1);
    }
    if (node.faults == 0) return;
    answer(node, lost, ":not-made", 1);
    Node broken = node;
    broken.broken = op;
    answer(broken, lost, ":broken-from-now", 1);
    if (may_come_late(op) && !node.world.late) {
      Node late = node;
      late.world.late = node.call;
      answer(late, lost, ":late", 1);
    }
  }

  void rank_outcomes(const Node& node, const EngineAnswer& lost) {
    const EngineOp op = node.call.op;
    // The engine answers a request's first status call; another process may answer any later one.
    const bool other = node.asked == node.world.engine.process && !node.world.other.empty();
    if (is_rank_call(op) && other && node.faults > 0) {
      EngineAnswer strange;
      strange.ranks = node.world.other;
      answer(node, strange, ":of-another-process", 1);
    }
    const bool writes = op == EngineOp::kWrite || op == EngineOp::kRollback;
    const int kinds = writes ? 3 : op == EngineOp::kStage ? 2 : 1;
    for (int a = 0; a < kinds; ++a) {
      for (int b = 0; b < kinds; ++b) {
        const int faults = a + b > 0 ? 1 : 0;
        if (faults > node.faults) continue;
        Node made = node;
        const std::array<Fate, kRanks> fates{static_cast<Fate>(a), static_cast<Fate>(b)};
        const std::array<bool, kRanks> ok = made.world.apply(node.call, fates);
        EngineAnswer answered;
        if (op != EngineOp::kWrite) answered.ranks = made.world.replies(ok);
        const std::string how = faults > 0 ? concat(":", a, b) : "";
        answer(made, answered, how, faults);
        if (node.faults > faults) answer(made, lost, how + ":reply-lost", faults + 1);
      }
    }
  }

  void at_end(const Node& node) {
    const WalkedEngine& engine = node.world.engine;
    const DriverResult& result = node.driver.result();
    if (result.status.ok()) {
      ++ended_well_;
      const EngineIdentity held = engine.ranks[0].holds();
      if (engine.paused) fail(node, "ended well and left the engine paused");
      if (held.run != node.world.run ||
          held.version < static_cast<std::int64_t>(node.world.published)) {
        fail(node, concat("ended well, and the engine holds ", to_string(held)));
      }
      if (engine.label != std::to_string(held.version)) fail(node, "ended well with another label");
    } else if (engine.paused) {
      ++left_paused_;
      const std::string_view answered = result.status.message();
      if (answered.find("paused") == std::string_view::npos &&
          answered.find("left as it is") == std::string_view::npos) {
        fail(node, concat("left paused without a word: ", answered));
      }
    }
    next_requests(node);
  }

  void next_requests(const Node& node) {
    if (node.requests == 0) return;
    Node next = node;
    --next.requests;
    next.went("| NEXT-REQUEST");
    next.world.published = kVersions;
    begin(next);
    push(std::move(next));
    for (const std::string run : {"a", "b"}) {
      if (node.world.run == "b" && run == "a") continue;
      Node other = node;
      --other.requests;
      other.went(concat("| NEW-DRIVER-OF-RUN-", run));
      start_agent(other, run, run == "a" ? node.world.published : 1);
      push(std::move(other));
    }
  }

  std::vector<Node> open_;
  std::unordered_set<std::size_t> seen_;
  std::string failure_;
  std::size_t ended_well_ = 0, left_paused_ = 0;
};

TEST(EngineDriverWalk, AnEngineServesOneVersionWhateverHappens) {
  Walk walk;
  const std::size_t states = walk.run(2, 2);
  std::cout << "engine driver: " << states << " states visited, " << walk.ended_well()
            << " requests ended well, " << walk.left_paused() << " left the engine paused\n";
  EXPECT_EQ(walk.failure(), "");
  EXPECT_GT(states, 10'000U);
  EXPECT_GT(walk.ended_well(), 100U);
  EXPECT_GT(walk.left_paused(), 10U);
}

}  // namespace
}  // namespace driftless
