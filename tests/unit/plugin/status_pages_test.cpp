// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/status_pages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "core/utc_time.h"
#include "plugin/observe/record_fanout.h"

namespace driftless {
namespace {

using nlohmann::json;

Hash128 some_run() { return *hash128_from_hex("0123456789abcdef0123456789abcdef"); }

VersionRecord version(std::uint64_t number) {
  VersionRecord record;
  record.origin = record_origin("trainer", 0);
  record.run = some_run();
  record.version = number;
  return record;
}

EngineRecord engine(std::string url, std::uint64_t held, Status status = {}) {
  EngineRecord record;
  record.run = some_run();
  record.engine = std::move(url);
  record.version = held;
  record.status = std::move(status);
  return record;
}

HttpRequest get(std::string path, std::string authorization = "") {
  return {"GET", std::move(path), "localhost:9400", std::move(authorization), {}, 9400};
}

TEST(HttpAddress, IsReadWithAndWithoutAHost) {
  const auto shown = [](std::string_view text) {
    const auto found = parse_http_address(text);
    return found.ok() ? to_string(*found) : std::string("refused");
  };
  EXPECT_EQ(shown("9400"), "127.0.0.1:9400");
  EXPECT_EQ(shown(":0"), "127.0.0.1:0");
  EXPECT_EQ(shown("node7:80"), "node7:80");
  EXPECT_EQ(shown("[::1]:9400"), "[::1]:9400");
  for (const char* wrong : {"", ":", "a:", "host", "1:65536", "::1:80", "a b:1", "h:-1", "[]:1",
                            "h:1x", "user@h:1", "http://h:1"}) {
    EXPECT_EQ(shown(wrong), "refused") << wrong;
  }
  for (const char* here : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) {
    EXPECT_TRUE(is_loopback(here)) << here;
  }
  for (const char* elsewhere : {"0.0.0.0", "::", "10.0.0.1", "127.0.0.1.evil.org", "host", ""}) {
    EXPECT_FALSE(is_loopback(elsewhere)) << elsewhere;
  }
}

TEST(PublicText, HasNoPathOfTheMachineAndNoCredentials) {
  const std::pair<std::string, std::string> cases[] = {
      {"http://me:secret@host:80/v1/x?token=a b", "http://host:80/v1/x b"},
      {"http://host:8000", "http://host:8000"},
      {"/srv/ckpt/step_3/model.safetensors: truncated", ".../model.safetensors: truncated"},
      {"open('/etc/driftless/job.yaml') failed", "open('.../job.yaml') failed"},
      {"/tmp", "/tmp"},
      {"of /a/b/, and 3/4 of s3://key:word@bucket/x", "of .../b, and 3/4 of s3://bucket/x"},
      {"a/b and ../c stay", "a/b and ../c stay"},
      {"x=/home/user/y:12", "x=.../y:12"},
      {"cannot open 'FILE:///home/user/y' or file://host/a/b",
       "cannot open 'FILE://.../y' or file://.../b"},
      {"in '/home/a user/y z' and \"/srv/p q\": no", "in '.../y z' and \".../p q\": no"},
      {"'/srv/a b is not closed", "'.../a b is not closed"},
      {"", ""},
  };
  for (const auto& [text, shown] : cases) EXPECT_EQ(public_text(text), shown);
}

TEST(StatusPages, AnswerWhatTheViewKnows) {
  RunView view("trainer", 0);
  StatusPages pages(view, {.host = "127.0.0.1"});
  EXPECT_EQ(pages.answer(get("/ready")).status, 503);
  view.open(some_run(), 4, "");
  for (std::uint64_t number = 5; number <= 8; ++number) view.add(version(number));
  view.add(engine("http://u:p@host:1", 7,
                  error(StatusCode::kIo, "cannot read /data/secret/model.safetensors")));
  HttpRequest asked = get("/status.json");
  const json all = json::parse(pages.answer(asked).body);
  EXPECT_EQ(all["version"], 8);
  EXPECT_EQ(all["trainer"]["state"], "alive");
  EXPECT_EQ(all["versions"].size(), 4U);
  EXPECT_EQ(all["versions"][0]["version"], 5);
  EXPECT_EQ(all["engines"][0]["engine"], "http://host:1");
  EXPECT_EQ(all["engines"][0]["lag"], 1);
  EXPECT_EQ(all["engines"][0]["error"], "cannot read .../model.safetensors");
  EXPECT_EQ(all["refusals"]["io"], 1);
  asked.query = {{"since", "7"}};
  EXPECT_EQ(json::parse(pages.answer(asked).body)["versions"].size(), 1U);
  asked.query = {{"since", "99"}};
  EXPECT_TRUE(json::parse(pages.answer(asked).body)["versions"].empty());
  for (const char* wrong : {"", "-1", "1x", "99999999999999999999"}) {
    asked.query = {{"since", wrong}};
    EXPECT_EQ(pages.answer(asked).status, 400) << wrong;
  }
  const HttpReply ready = pages.answer(get("/ready"));
  EXPECT_EQ(ready.status, 200);
  EXPECT_EQ(json::parse(ready.body)["run"], to_hex(some_run()));
  EXPECT_EQ(pages.answer(get("/")).type, "text/html; charset=utf-8");
  EXPECT_EQ(pages.answer(get("/metrics")).status, 501);
  EXPECT_EQ(pages.answer(get("/../status.json")).status, 404);
  asked.method = "POST";
  EXPECT_EQ(pages.answer(asked).status, 405);
}

TEST(StatusPages, HaveHeadersThatForbidCachingAndForeignContent) {
  const RunView view("agent", 1);
  StatusPages pages(view, {.host = "127.0.0.1"});
  for (const char* path : {"/", "/ready", "/nowhere"}) {
    std::map<std::string, std::string> headers;
    for (const auto& [name, value] : pages.answer(get(path)).headers) headers[name] = value;
    EXPECT_EQ(headers["X-Content-Type-Options"], "nosniff");
    EXPECT_EQ(headers["Cache-Control"], "no-store");
    EXPECT_TRUE(headers["Content-Security-Policy"].starts_with("default-src 'none'"));
    EXPECT_FALSE(headers.contains("Access-Control-Allow-Origin"));
  }
}

TEST(StatusPages, WithoutATokenTheHostHeaderNamesThisServer) {
  const RunView view("trainer", 0);
  StatusPages pages(view, {.host = "::1"});
  const auto code = [&](const std::string& host) {
    HttpRequest asked = get("/");
    asked.host = host;
    return pages.answer(asked).status;
  };
  for (const char* ours : {"localhost:9400", "LocalHost:9400", "127.0.0.1:9400", "[::1]:9400"}) {
    EXPECT_EQ(code(ours), 200) << ours;
  }
  for (const char* other : {"", "localhost", "localhost:94000", "evil.org:9400", "evil.org",
                            "localhost:9400.evil.org", "x127.0.0.1:9400", "127.0.0.1:9401"}) {
    EXPECT_EQ(code(other), 403) << other;
  }
}

TEST(StatusPages, WithATokenOtherRequestsAreRefused) {
  const RunView view("trainer", 0);
  StatusPages pages(view, {.token = "s3cret"});
  // "anyone:s3cret", ":s3cret", "s3cret"
  for (const char* right : {"Bearer s3cret", "bearer s3cret", "Basic YW55b25lOnMzY3JldA==",
                            "Basic YW55b25lOnMzY3JldA", "Basic OnMzY3JldA=="}) {
    EXPECT_EQ(pages.answer(get("/", right)).status, 200) << right;
  }
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "s3cret",
                            "Bearer  s3cret", "Basic czNjcmV0", "Basic ????", "Digest s3cret"}) {
    const HttpReply reply = pages.answer(get("/status.json", wrong));
    EXPECT_EQ(reply.status, 401) << wrong;
    EXPECT_EQ(reply.headers.front().second, "Basic realm=\"driftless\"");
  }
  HttpRequest elsewhere = get("/", "Bearer s3cret");
  elsewhere.host = "node7:9400";
  EXPECT_EQ(pages.answer(elsewhere).status, 200);
}

TEST(RunView, AnAgentIsReadyWhenItsEnginesFollow) {
  RunView view("agent", 0);
  EXPECT_EQ(view.readiness(1).reason, "no run is open yet");
  view.open(some_run(), 0, "");
  EXPECT_EQ(view.readiness(1).reason, "no version was handed over yet");
  view.add(version(5));
  EXPECT_TRUE(view.readiness(1).ready);  // it has no engines
  view.replace({engine("a", 5), engine("b", 4)});
  EXPECT_TRUE(view.readiness(1).ready);
  EXPECT_EQ(view.readiness(1).lag, 1U);
  EXPECT_EQ(view.readiness(0).reason, "engine b is 1 versions behind");
  view.replace({engine("a", 5), engine("b", 0, error(StatusCode::kIo, "refused"))});
  EXPECT_EQ(view.readiness(1).reason, "engine b holds no version: io: refused");
  view.add(engine("b", 5));
  EXPECT_TRUE(view.readiness(0).ready);
}

TEST(RunView, AnAgentFarBelowItsRoadIsNotReadyEvenIfItsEnginesHaveItsVersion) {
  RunView view("agent", 0);
  view.open(some_run(), 0, "");
  view.add(version(5));
  view.replace({engine("a", 5)});
  view.listed(6);
  EXPECT_TRUE(view.readiness(1).ready);
  EXPECT_EQ(view.readiness(1).lag, 1U);
  view.listed(9);
  EXPECT_EQ(view.readiness(1).reason, "the road has version 9, this agent holds 5");
  EXPECT_EQ(view.readiness(1).lag, 4U);
  EXPECT_TRUE(view.readiness(4).ready);
  view.add(version(9));
  EXPECT_EQ(view.readiness(1).reason, "engine a is 4 versions behind");
  view.replace({engine("a", 9)});
  EXPECT_TRUE(view.readiness(1).ready);
}

TEST(RunView, AnEngineThatCannotBeReachedOrIsToBeLoadedAgainIsNotReady) {
  RunView view("agent", 0);
  view.open(some_run(), 0, "");
  view.add(version(1));
  EngineRecord away = engine("a", 0, error(StatusCode::kIo, "does not answer"));
  away.reachable = false;
  view.replace({away});
  EXPECT_EQ(view.readiness(9).reason, "engine a cannot be reached: io: does not answer");
  EngineRecord lost = engine("a", 0, error(StatusCode::kMismatch, "says that it serves 'default'"));
  lost.reload = true;
  view.replace({lost});
  EXPECT_EQ(view.readiness(9).reason,
            "engine a lost its version and is to be loaded again: mismatch: says that it serves "
            "'default'");
}

TEST(RunView, AnAgentKnowsItsTrainerByTheVersions) {
  const auto ago = [](std::chrono::seconds age) { return utc_text(Moment::clock::now() - age); };
  using std::chrono_literals::operator""s;
  const auto state = [&](std::initializer_list<std::chrono::seconds> ages) {
    RunView view("agent", 0);
    view.open(some_run(), 0, "");
    for (const std::chrono::seconds age : ages) {
      view.made(ago(age));
      view.add(version(1));
    }
    return view.status().trainer;
  };
  EXPECT_EQ(state({}), TrainerState::kUnknown);
  EXPECT_EQ(state({5s}), TrainerState::kAlive);
  EXPECT_EQ(state({100s}), TrainerState::kUnknown) << "nobody knows when the next is due";
  EXPECT_EQ(state({106s, 103s, 100s}), TrainerState::kSilent);
  EXPECT_EQ(state({130s, 115s, 100s}), TrainerState::kAlive) << "ten times 15 s";
  EXPECT_EQ(state({400s, 370s, 340s}), TrainerState::kSilent);
  EXPECT_EQ(state({9s, 6s, -3s}), TrainerState::kAlive) << "a clock that is ahead";
  EXPECT_EQ(state({9s, 6s, 3s, 8s}), TrainerState::kAlive) << "an anchor of before";

  RunView view("agent", 0);
  view.made(ago(3s));
  const std::string seen = view.status().trainer_seen;
  EXPECT_EQ(seen.size(), std::string("2026-01-31T12:00:00.250Z").size());
  view.reaches_trainer(false);
  EXPECT_EQ(view.status().trainer, TrainerState::kSilent);
  view.reaches_trainer(true);
  EXPECT_EQ(view.status().trainer, TrainerState::kAlive);
  view.end_run();
  view.reaches_trainer(false);
  EXPECT_EQ(view.status().trainer, TrainerState::kEnded);
  EXPECT_EQ(view.status().trainer_seen, seen);
}

// Sinks, each of which has lost one line.
class Losing final : public RecordSink {
 public:
  explicit Losing(Status trouble) : trouble_(std::move(trouble)) {}
  void add(const VersionRecord&) override {}
  void add(const EngineRecord&) override {}
  void replace(std::span<const RolloutRecord>) override {}
  void failed(const Status&) override {}
  void add(const EndRecord&) override {}
  Status take_trouble() override { return std::exchange(trouble_, {}); }

 private:
  Status trouble_;
};

TEST(RecordFanout, ReportsTheFailuresOfEverySink) {
  RecordFanout records;
  records.keep(std::make_unique<Losing>(error(StatusCode::kNoSpace, "one")));
  records.keep(std::make_unique<Losing>(Status()));
  records.keep(std::make_unique<Losing>(error(StatusCode::kIo, "two")));
  EXPECT_EQ(records.take_trouble().to_string(), "no_space: one; two");
  EXPECT_TRUE(records.take_trouble().ok());
}

TEST(RunView, IsBoundedAndMayBeReadMeanwhile) {
  RecordFanout records;
  auto owned = std::make_unique<RunView>("trainer", 0);
  const RunView& view = *owned;
  records.keep(std::move(owned));
  std::jthread reader([&view](const std::stop_token& over) {
    while (!over.stop_requested()) static_cast<void>(view.status(9'990));
  });
  constexpr std::uint64_t kMore = RunView::kVersions + 10;
  for (std::uint64_t number = 1; number <= kMore; ++number) records.add(version(number));
  for (std::size_t i = 0; i < RunView::kPeers + 5; ++i) records.add(engine(std::to_string(i), 1));
  const std::vector<RolloutRecord> many(RunView::kPeers + 5);
  records.replace(many);
  records.failed(error(StatusCode::kCorrupt, "x"));
  records.add(EndRecord{record_origin("trainer", 0), some_run(), "summary", "", kMore, "d"});
  const RunStatus status = view.status();
  EXPECT_EQ(status.versions.size(), RunView::kVersions);
  EXPECT_EQ(status.versions.front().version, 11U);
  EXPECT_EQ(status.versions.back().version, kMore);
  EXPECT_EQ(status.engines.size(), RunView::kPeers);
  EXPECT_EQ(status.rollouts.size(), RunView::kPeers);
  EXPECT_EQ(status.refusals.at("corrupt"), 1U);
  EXPECT_EQ(status.trainer, TrainerState::kEnded);
  EXPECT_TRUE(records.take_trouble().ok());
}

}  // namespace
}  // namespace driftless
