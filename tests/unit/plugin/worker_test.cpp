// SPDX-License-Identifier: Apache-2.0
// The state machine of an engine's rank: every transition, and every failure of its host.
#include "plugin/receive/worker.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "support/receiver_fixture.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

// The next results of a target or a host; the test sets them.
struct Script {
  std::deque<Status> open, follow, written, start, commits, undos;  // ok once they are used up
  std::deque<Status> torn;  // commits that write, fail, and leave no version
  std::vector<std::string> moved, logged, staged, opened;
  std::string unread;
  bool partial = false, valid = true;
  std::function<void()> in_follow, in_written, in_staged;
  std::atomic<int> tellings = 0;
  int closed = 0, used = 0;

  static Status next(std::deque<Status>& statuses) {
    if (statuses.empty()) return {};
    Status status = statuses.front();
    statuses.pop_front();
    return status;
  }
};

class ScriptedTarget final : public WeightTarget {
 public:
  ScriptedTarget(WeightTarget& target, Script& script) : target_(target), script_(script) {}
  [[nodiscard]] const WeightLayout* layout() const override { return target_.layout(); }
  Status adopt_layout(const WeightLayout& layout) override { return target_.adopt_layout(layout); }
  [[nodiscard]] TargetState state() const override {
    TargetState state = target_.state();
    state.valid = state.valid && script_.valid;
    state.partial = script_.partial;
    return state;
  }
  Status recover() override { return {}; }
  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    DRIFTLESS_ASSIGN_OR_RETURN(auto change, target_.stage(std::move(chain)));
    return std::unique_ptr<StagedChange>(std::make_unique<Change>(script_, std::move(change)));
  }

 private:
  struct Change final : StagedChange {
    Change(Script& its, std::unique_ptr<StagedChange> made)
        : script(its), change(std::move(made)) {}
    Result<CommitReport> commit() override {
      DRIFTLESS_RETURN_IF_ERROR(Script::next(script.commits));
      const Status tears = Script::next(script.torn);
      Result<CommitReport> done = change->commit();
      script.valid = tears.ok();
      return tears.ok() ? std::move(done) : Result<CommitReport>(tears);
    }
    Status undo() override {
      DRIFTLESS_RETURN_IF_ERROR(Script::next(script.undos));
      return change->undo();
    }
    Script& script;
    std::unique_ptr<StagedChange> change;
  };
  WeightTarget& target_;
  Script& script_;
};

class WorkerTest : public testing::ReceiverTest {
 protected:
  struct Host final : WorkerHost {
    explicit Host(WorkerTest& its) : test(its) {}
    Result<Receiver*> open(const std::string& config, std::span<const std::string> sets,
                           const std::string& take_over) override {
      DRIFTLESS_RETURN_IF_ERROR(Script::next(test.script_.open));
      test.script_.opened.push_back(concat(config, "|", sets.size(), "|", take_over));
      DRIFTLESS_RETURN_IF_ERROR(test.open_on(*test.scripted_));
      return test.receiver_.get();
    }
    void close() override {
      ++test.script_.closed;
      test.receiver_.reset();
    }
    WeightTarget& target() override { return *test.target_; }
    Result<std::shared_ptr<const void>> use() override {
      ++test.script_.used;
      return std::shared_ptr<const void>(&test, [](const void* its) {
        --const_cast<WorkerTest*>(static_cast<const WorkerTest*>(its))->script_.used;
      });
    }
    Result<std::vector<std::string>> follow(const Receiver& /*receiver*/) override {
      if (test.script_.in_follow) test.script_.in_follow();
      DRIFTLESS_RETURN_IF_ERROR(Script::next(test.script_.follow));
      return std::exchange(test.script_.moved, {});
    }
    Status written() override {
      if (test.script_.in_written) test.script_.in_written();
      return Script::next(test.script_.written);
    }
    [[nodiscard]] std::string unread() const override { return test.script_.unread; }
    [[nodiscard]] std::map<std::string, std::uint64_t> ways() const override {
      return {{"direct", test.run_.layout.size()}};
    }
    Status start(std::function<void()> work) override {
      DRIFTLESS_RETURN_IF_ERROR(Script::next(test.script_.start));
      return WorkerHost::start(std::move(work));
    }
    void staged(const std::string& reply) override {
      test.script_.staged.push_back(reply);
      if (const auto statuses = test.script_.in_staged) statuses();
      ++test.script_.tellings;
    }
    void log(const std::string& line) override { test.script_.logged.push_back(line); }
    WorkerTest& test;
  };

  void SetUp() override {
    announce();
    held_ = run_.weights[0];
    target_ = std::move(*make_memory_target(run_.layout, testing::pointers(held_), VersionId{}, 1));
    scripted_ = std::make_unique<ScriptedTarget>(*target_, script_);
    worker_ = Worker::make(3, std::make_unique<Host>(*this));
  }
  void TearDown() override {
    worker_->wait(milliseconds(5'000));
    EXPECT_EQ(script_.used, 0);
    worker_.reset();
    receiver_.reset();
  }

  static Json parsed(const std::string& reply) { return Json::parse(reply); }
  Json open() { return parsed(worker_->open("job.yaml", {}, "n", "")); }
  Json stage(int wait_ms = 200, const std::string& ticket = "t") {
    const Json begun = parsed(worker_->stage(milliseconds(wait_ms), "s", ticket));
    if (begun["state"] != "staging") return begun;
    EXPECT_TRUE(worker_->wait(milliseconds(5'000)));
    return status();
  }
  Json status() { return parsed(worker_->status("n")); }
  Json commit(std::optional<std::int64_t> version = {}, const std::string& ticket = "t") {
    return parsed(worker_->commit(version, "n", ticket));
  }
  Json rollback(std::int64_t version) { return parsed(worker_->rollback(version, "n")); }
  // At version 0, with version 1 staged.
  void stage_first() {
    publish(1, 1);
    ASSERT_TRUE(open()["ok"]);
    ASSERT_EQ(stage()["state"], "staged");
  }
  [[nodiscard]] std::string digest(std::size_t version) const {
    return to_hex(testing::digest_of(run_.weights[version]));
  }
  [[nodiscard]] bool holds(std::size_t version) const {
    return testing::same(held_, run_.weights[version]);
  }
  static bool contains(const Json& reply, const std::string& words) {
    return !reply["ok"].get<bool>() &&
           reply["error"].get<std::string>().find(words) != std::string::npos;
  }
  static Status fault(const char* why) { return error(StatusCode::kIo, why); }

  Script script_;
  std::unique_ptr<ScriptedTarget> scripted_;
  std::shared_ptr<Worker> worker_;
};

TEST_F(WorkerTest, AClosedOneAnswersAndRefuses) {
  const Json closed = status();
  EXPECT_TRUE(closed["ok"]);
  EXPECT_TRUE(closed["error"].is_null() && closed["staged_version"].is_null());
  EXPECT_EQ(closed["nonce"], "n");
  EXPECT_EQ(closed["rank"], 3);
  EXPECT_EQ(closed["state"], "closed");
  EXPECT_EQ(closed["process"], worker_process());
  EXPECT_TRUE(worker_process().ends_with(concat("-", ::getpid())));
  for (const Json& reply : {stage(), rollback(0), parsed(worker_->read("", 0, 0, "n"))}) {
    EXPECT_TRUE(contains(reply, "rank 3 follows no run: call open() first")) << reply;
  }
  EXPECT_TRUE(status()["ok"]);  // an error is reported once
  EXPECT_TRUE(contains(commit(), "follows no run"));
  EXPECT_TRUE(contains(status(), "follows no run"));  // the reply to a commit may have been lost
  EXPECT_EQ(parsed(worker_->close("n"))["state"], "closed");
}

TEST_F(WorkerTest, GoesFromVersionToVersionAndBack) {
  Json reply = open();
  EXPECT_EQ(reply["state"], "idle");
  EXPECT_EQ(reply["follows"], to_hex(run_.run));
  EXPECT_EQ(reply["ways"], Json({{"direct", run_.layout.size()}}));
  EXPECT_EQ(reply["digest"], digest(0));
  publish(1, 1);
  reply = stage();
  EXPECT_EQ(reply["state"], "staged");
  EXPECT_EQ(reply["staged_version"], 1);
  EXPECT_EQ(reply["version"], 0);
  EXPECT_GE(reply["timings"]["staging_ms"].get<double>(), 0);
  reply = commit(1);
  EXPECT_TRUE(reply["ok"]) << reply;
  EXPECT_EQ(reply["state"], "committed");
  EXPECT_EQ(reply["version"], 1);
  EXPECT_EQ(reply["run"], to_hex(run_.run));
  EXPECT_EQ(reply["digest"], digest(1));
  EXPECT_TRUE(reply["staged_version"].is_null());
  for (const char* name : {"staging_ms", "fetch_ms", "stage_ms", "pause_ms", "apply_ms"}) {
    EXPECT_TRUE(reply["timings"].contains(name)) << name;
  }
  EXPECT_TRUE(holds(1));
  EXPECT_TRUE(commit(1)["ok"]);  // called again: the first reply was lost
  EXPECT_EQ(rollback(1)["state"], "committed");
  reply = rollback(0);
  EXPECT_EQ(reply["state"], "idle");
  EXPECT_EQ(reply["version"], 0);
  EXPECT_TRUE(holds(0));
  EXPECT_TRUE(contains(rollback(1), "cannot go back to 1"));
  EXPECT_EQ(parsed(worker_->close("n"))["state"], "closed");
  EXPECT_EQ(script_.closed, 1);
  EXPECT_EQ(status()["follows"], "");
}

TEST_F(WorkerTest, OpensOnceAndAnotherConfigurationInItsPlace) {
  script_.open.push_back(fault("no road"));
  EXPECT_TRUE(contains(open(), "no road"));
  EXPECT_EQ(status()["state"], "closed");
  EXPECT_TRUE(open()["ok"] && open()["ok"]);
  EXPECT_EQ(script_.opened.size(), 1U);
  const std::vector<std::string> sets = {"a=b"};
  EXPECT_TRUE(parsed(worker_->open("job.yaml", sets, "n", "ab"))["ok"]);
  EXPECT_EQ(script_.opened.back(), "job.yaml|1|ab");
  EXPECT_EQ(script_.closed, 1);
}

TEST_F(WorkerTest, OnlyACommitWithItsTicketTakesWhatIsStaged) {
  stage_first();
  EXPECT_TRUE(contains(commit(1, "late"), "nothing staged for this commit"));
  EXPECT_TRUE(contains(commit(2), "has version 1 staged, not 2"));
  EXPECT_TRUE(contains(commit(-1), "not -1"));
  EXPECT_EQ(status()["state"], "staged");
  EXPECT_TRUE(commit()["ok"]);
  EXPECT_TRUE(contains(commit(), "is at version 1 and has nothing staged"));
}

TEST_F(WorkerTest, WhatIsStagedCanBeDropped) {
  stage_first();
  const Json reply = rollback(0);
  EXPECT_EQ(reply["state"], "idle");
  EXPECT_TRUE(reply["ok"] && reply["staged_version"].is_null());
  EXPECT_TRUE(contains(commit(1), "nothing staged"));
  EXPECT_EQ(stage()["staged_version"], 1);
}

TEST_F(WorkerTest, WaitsAndReportsTheReasonOnce) {
  ASSERT_TRUE(open()["ok"]);
  Json reply = stage(10);
  EXPECT_TRUE(reply["ok"]);
  EXPECT_EQ(reply["state"], "idle");
  EXPECT_NE(reply["waits"].get<std::string>().find("nothing newer than version 0"),
            std::string::npos);
  EXPECT_NE(reply["waits"].get<std::string>().find("job.yaml"), std::string::npos);
  reply = stage(10);
  ASSERT_EQ(script_.logged.size(), 1U);
  EXPECT_TRUE(script_.logged[0].starts_with("driftless: rank 3 waits: nothing newer"));
  ASSERT_EQ(script_.staged.size(), 2U);
  EXPECT_EQ(parsed(script_.staged[1])["nonce"], "s");
  EXPECT_EQ(parsed(script_.staged[1])["state"], "idle");
  publish(1, 1);
  EXPECT_EQ(stage()["waits"], "");
}

TEST_F(WorkerTest, AFailedStagingIsReportedUntilTheNextOne) {
  publish(1, 1);
  ASSERT_TRUE(open()["ok"]);
  script_.valid = false;  // holds no version, and no full one is there
  Json reply = stage();
  EXPECT_EQ(reply["state"], "failed") << reply;
  EXPECT_TRUE(contains(reply, "wrong_base"));
  EXPECT_EQ(reply["waits"], reply["error"]);
  EXPECT_TRUE(contains(commit(), "has nothing staged: wrong_base"));
  script_.valid = true;
  EXPECT_TRUE(stage()["ok"] && commit(1)["ok"]);
}

TEST_F(WorkerTest, NothingElseHappensWhileAThreadStages) {
  ASSERT_TRUE(open()["ok"]);
  EXPECT_EQ(parsed(worker_->stage(milliseconds(5'000), "s", "t"))["state"], "staging");
  EXPECT_EQ(status()["state"], "staging");
  EXPECT_FALSE(worker_->wait(milliseconds(20)));
  EXPECT_TRUE(contains(parsed(worker_->stage(milliseconds(1), "n", "t")), "is still staging"));
  EXPECT_TRUE(contains(commit(), "busy: rank 3 is still staging"));
  EXPECT_TRUE(contains(rollback(0), "is still staging"));
  EXPECT_TRUE(contains(parsed(worker_->shares(true, "n")), "is still staging"));
  EXPECT_TRUE(contains(parsed(worker_->close("n")), "is still staging"));
  EXPECT_TRUE(contains(parsed(worker_->open("other", {}, "n", "")), "is still staging"));
  EXPECT_EQ(parsed(worker_->open("job.yaml", {}, "n", ""))["state"], "staging");
  publish(1, 1);
  EXPECT_TRUE(worker_->wait(milliseconds(5'000)));
  const Json staged = status();
  EXPECT_EQ(staged["staged_version"], 1);
  EXPECT_TRUE(staged["ok"]) << "what was refused meanwhile is over: " << staged;
}

// If a thread still reports its staging while the next thread stages, the latter keeps the
// receiver.
TEST_F(WorkerTest, AStagingBegunInTheStagedCallbackKeepsTheReceiver) {
  ASSERT_TRUE(open()["ok"]);
  script_.in_staged = [this] {
    script_.in_staged = nullptr;
    EXPECT_EQ(parsed(worker_->stage(milliseconds(5'000), "again", "t"))["state"], "staging");
  };
  ASSERT_EQ(parsed(worker_->stage(milliseconds(20), "s", "t"))["state"], "staging");
  const Deadline deadline = Deadline::after(milliseconds(5'000));
  while (script_.tellings == 0 && !deadline.expired()) std::this_thread::yield();
  EXPECT_FALSE(worker_->wait(milliseconds(50)));  // the first thread has ended by then
  EXPECT_TRUE(contains(parsed(worker_->close("n")), "is still staging"));
  publish(1, 1);
  EXPECT_TRUE(worker_->wait(milliseconds(5'000)));
  EXPECT_EQ(status()["staged_version"], 1);
}

TEST_F(WorkerTest, WithoutAThreadItStagesLater) {
  publish(1, 1);
  ASSERT_TRUE(open()["ok"]);
  script_.start.push_back(fault("no more threads"));
  const Json reply = stage();
  EXPECT_EQ(reply["state"], "failed");
  EXPECT_TRUE(contains(reply, "no more threads"));
  EXPECT_TRUE(worker_->wait(milliseconds(0)));
  EXPECT_EQ(stage()["staged_version"], 1);
}

TEST_F(WorkerTest, ACommitThatWroteNothingLeavesTheVersion) {
  stage_first();
  script_.commits.push_back(fault("before it writes"));
  const Json reply = commit(1);
  EXPECT_TRUE(contains(reply, "before it writes"));
  EXPECT_EQ(reply["state"], "failed");
  EXPECT_EQ(reply["version"], 0);
  EXPECT_TRUE(reply["staged_version"].is_null());
  EXPECT_TRUE(contains(status(), "before it writes"));
  EXPECT_EQ(rollback(0)["state"], "idle");
  EXPECT_TRUE(status()["ok"]);
  EXPECT_EQ(stage()["staged_version"], 1);
  EXPECT_TRUE(commit(1)["ok"] && holds(1));
}

TEST_F(WorkerTest, ACommitWhoseUndoFailedIsTorn) {
  stage_first();
  script_.torn.push_back(fault("half of it"));
  const Json reply = commit(1);
  EXPECT_TRUE(contains(reply, "half of it"));
  EXPECT_EQ(reply["version"], kTornVersion);
  EXPECT_EQ(reply["digest"], "");
  EXPECT_EQ(reply["state"], "failed");
  EXPECT_TRUE(contains(rollback(0), "publish an anchor"));
}

TEST_F(WorkerTest, ACommitThatHoldsMayFailAfterwards) {
  options_.resume = [] { return fault("cannot resume"); };
  stage_first();
  const Json reply = commit(1);
  EXPECT_TRUE(contains(reply, "cannot resume"));
  EXPECT_EQ(reply["state"], "committed");
  EXPECT_EQ(reply["version"], 1);
  EXPECT_TRUE(holds(1));
}

TEST_F(WorkerTest, WhatTheEngineDoesNotTakeIsTakenBack) {
  stage_first();
  script_.written.push_back(fault("the loader failed"));
  Json reply = commit(1);
  EXPECT_TRUE(contains(reply, "the loader failed"));
  EXPECT_EQ(reply["state"], "failed");
  EXPECT_EQ(reply["version"], 0);
  EXPECT_TRUE(holds(0));
  ASSERT_EQ(stage()["staged_version"], 1);
  script_.written = {fault("the loader failed"), fault("and again")};
  reply = commit(1);
  EXPECT_TRUE(contains(reply, "the loader failed"));
  EXPECT_EQ(reply["version"], kTornVersion);
  ASSERT_EQ(stage()["staged_version"], 1);  // the target holds a version, the engine does not
  EXPECT_EQ(commit(1)["version"], 1);
  publish(2, 2);
  ASSERT_EQ(stage()["staged_version"], 2);
  EXPECT_EQ(commit(2)["version"], 2);
  script_.written.push_back(fault("not back, either"));
  reply = rollback(1);
  EXPECT_TRUE(contains(reply, "not back, either"));
  EXPECT_EQ(reply["version"], kTornVersion);
}

TEST_F(WorkerTest, AFailedRollbackIsReported) {
  stage_first();
  ASSERT_TRUE(commit(1)["ok"]);
  script_.undos.push_back(fault("no way back"));
  const Json reply = rollback(0);
  EXPECT_TRUE(contains(reply, "no way back"));
  EXPECT_NE(reply["version"], 0);
}

TEST_F(WorkerTest, FollowsWhatTheEngineMoved) {
  publish(1, 1);
  ASSERT_TRUE(open()["ok"]);
  script_.follow.push_back(fault("it sleeps"));
  EXPECT_TRUE(contains(stage(), "it sleeps"));
  EXPECT_EQ(status()["state"], "idle");
  script_.moved = {"'a' lies elsewhere"};
  EXPECT_EQ(stage()["moved"], Json({"'a' lies elsewhere"}));
}

TEST_F(WorkerTest, APartOfTheTensorsHasNoDigestToCompare) {
  script_.partial = true;
  const Json reply = open();
  EXPECT_TRUE(reply["ok"]);
  EXPECT_EQ(reply["digest"], "");
}

TEST_F(WorkerTest, SharesAddUpAndASweepFindsWhatDoesNot) {
  stage_first();
  ASSERT_TRUE(commit(1)["ok"]);
  for (const bool sweep : {false, true}) {
    const Json reply = parsed(worker_->shares(sweep, "n"));
    ASSERT_TRUE(reply["ok"]) << reply;
    ASSERT_FALSE(reply["shares"].empty());
    for (const Json& row : reply["shares"]) {
      ASSERT_EQ(row.size(), 6U);
      EXPECT_EQ(row[1], row[2]);
      EXPECT_EQ(row[4], row[5]) << row;
    }
    EXPECT_TRUE(reply["unproven"].empty() && reply["absent"].empty());
  }
  script_.unread = "the engine packs it";
  const Json unread = parsed(worker_->shares(true, "n"));
  EXPECT_EQ(unread["unproven"].size(), run_.layout.size());
  EXPECT_TRUE(unread["shares"].empty());
  script_.unread.clear();
  auto& tensor = std::find_if(held_.begin(), held_.end(), [](const auto& each) {
                   return !each.second.bytes.empty();
                 })->second;
  tensor.bytes[0] ^= std::byte{1};
  EXPECT_TRUE(contains(parsed(worker_->shares(true, "n")), "mismatch"));
  EXPECT_EQ(status()["version"], kTornVersion);
  EXPECT_TRUE(contains(status(), "mismatch"));
}

TEST_F(WorkerTest, ReadsWhatLiesThere) {
  ASSERT_TRUE(open()["ok"]);
  const auto& [name, tensor] = *held_.begin();
  const Json all = parsed(worker_->read("", 0, 0, "n"));
  EXPECT_TRUE(all["suspects"].empty() && !all["shares"].empty()) << all;
  const Json blocks = parsed(worker_->read(name, 0, 0, "n"));
  EXPECT_EQ(blocks["block_units"], 65'536);
  EXPECT_TRUE(blocks["disagree"].empty());
  const Json some = parsed(worker_->read(name, 0, 1, "n"));
  EXPECT_EQ(some["copies"][0][1], Json::parse("[[0, 1]]"));
  EXPECT_EQ(some["copies"][0][2].get<std::string>().size(), 2 * unit_bytes(tensor.dtype));
  EXPECT_TRUE(contains(parsed(worker_->read(name, 0, 65'537, "n")), "at most 65536"));
  EXPECT_TRUE(contains(parsed(worker_->read("none", 0, 0, "n")), "no tensor 'none'"));
  EXPECT_TRUE(status()["ok"]);
}

TEST_F(WorkerTest, ARefusalIsReportedLikeAFailure) {
  stage_first();
  EXPECT_TRUE(contains(parsed(worker_->refuse("not now", "n")), "unsupported: not now"));
  EXPECT_TRUE(contains(status(), "not now"));
  EXPECT_TRUE(commit(1)["ok"]);
}

TEST_F(WorkerTest, OneCallAtATime) {
  stage_first();
  std::string within;
  script_.in_follow = [&] { within = worker_->commit(1, "i", "t"); };
  EXPECT_EQ(stage()["state"], "staged");
  EXPECT_TRUE(contains(parsed(within), "in another call"));
  EXPECT_EQ(parsed(within)["nonce"], "i");
}

TEST_F(WorkerTest, WhatAHostThrowsIsAReply) {
  stage_first();
  script_.in_follow = [] { throw std::runtime_error("a loader's own"); };
  EXPECT_TRUE(contains(stage(), "internal: a loader's own"));
  script_.in_follow = nullptr;
  EXPECT_TRUE(stage()["ok"]);
  script_.in_written = [] { throw std::runtime_error("a loader's own"); };
  const Json reply = commit(1);
  EXPECT_TRUE(contains(reply, "internal: a loader's own"));
  EXPECT_EQ(reply["state"], "failed");
  EXPECT_EQ(reply["version"], kTornVersion);  // it is unknown what the engine took
  script_.in_written = nullptr;
  ASSERT_EQ(stage()["staged_version"], 1);
  EXPECT_EQ(commit(1)["version"], 1);
}

// The engine ends while a thread stages: then only the thread holds the worker.
TEST_F(WorkerTest, AThreadKeepsItsWorker) {
  ASSERT_TRUE(open()["ok"]);
  EXPECT_EQ(parsed(worker_->stage(milliseconds(200), "s", "t"))["state"], "staging");
  const std::weak_ptr<Worker> watched = worker_;
  worker_.reset();
  const Deadline deadline = Deadline::after(milliseconds(5'000));
  while (!watched.expired() && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(watched.expired());
  worker_ = Worker::make(3, std::make_unique<Host>(*this));
}

}  // namespace
}  // namespace driftless
