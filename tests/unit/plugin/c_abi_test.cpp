// driftless.h as a program sees it: this test links libdriftless.so, and publishes by the library
// itself, over files.
#include <driftless.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "collectives/group.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/publisher.h"
#include "plugin/run_end.h"
#include "support/published_run.h"
#include "support/weight_source.h"

namespace driftless::testing {
namespace {

template <typename Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof(Struct);
  return made;
}

// Owns one, and says what it is.
class Error {
 public:
  Error() = default;
  Error(const Error&) = delete;
  Error& operator=(const Error&) = delete;
  ~Error() { driftless_error_free(error_); }
  operator driftless_error**() { return &error_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] driftless_error* get() const { return error_; }
  [[nodiscard]] std::string message() const { return driftless_error_message(error_); }
  [[nodiscard]] bool says(const std::string& words) const {
    return message().find(words) != std::string::npos;
  }

 private:
  driftless_error* error_ = nullptr;
};

std::string take_text(char* text) {
  std::string copy = text;
  driftless_free(text);
  return copy;
}

// The trainer.
class Trainer {
 public:
  explicit Trainer(std::string directory) : directory_(std::move(directory)) {
    shared_fs_.dir = directory_;
    auto sender = make_shared_fs_sender(posix_file_system(), shared_fs_, 0, 1);
    EXPECT_TRUE(sender.ok()) << sender.status().to_string();
    sender_ = std::move(*sender);
    options_.layout = DirectoryLayout::kFrames;
    options_.threads = 1;
    options_.resume = ResumeMode::kNever;
  }
  void open(bool anchor = false) {
    options_.first_anchor = anchor;
    MemorySource base(weights);
    auto made = Publisher::open(options_, group_, *sender_, nullptr, base);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    publisher_ = std::move(*made);
  }
  void step() {
    weights = changed_weights(weights, ++seed_, 0.02);
    MemorySource source(weights);
    const auto published = publisher_->publish(source);
    ASSERT_TRUE(published.ok()) << published.status().to_string();
  }
  void end() {
    const EndOfRun end{publisher_->version().run, publisher_->version().version,
                       publisher_->digest()};
    std::ofstream(directory_ + "/closed.json") << end_to_json(end) << "\n";
  }
  [[nodiscard]] std::string digest() const { return to_hex(publisher_->digest()); }
  [[nodiscard]] std::string run() const { return to_hex(publisher_->version().run); }

  Weights weights = random_weights(3, 40);

 private:
  std::string directory_;
  SharedFsOptions shared_fs_;
  SoloGroup group_;
  PublisherOptions options_;
  std::unique_ptr<SendRoad> sender_;
  std::unique_ptr<Publisher> publisher_;
  std::uint64_t seed_ = 0;
};

// What callbacks do, and have seen.
struct Engine {
  int32_t pause_answer = 0, resume_answer = 0;
  int pauses = 0, resumes = 0;
  std::function<void()> during_pause;

  static int32_t pause(void* user) {
    auto* const self = static_cast<Engine*>(user);
    ++self->pauses;
    if (self->during_pause) self->during_pause();
    return self->pause_answer;
  }
  static int32_t resume(void* user) {
    auto* const self = static_cast<Engine*>(user);
    ++self->resumes;
    return self->resume_answer;
  }
};

class CAbiTest : public ::testing::Test {
 protected:
  CAbiTest() {
    std::ofstream(config_) << "road: {kind: shared_fs, dir: " << road_
                           << "}\ndeadlines: {fetch: 2s, connect: 2s}\n";
    held_ = trainer_.weights;
  }
  ~CAbiTest() override { driftless_close(&receiver_, 0, nullptr); }

  [[nodiscard]] driftless_code open(const std::vector<const char*>& overrides = {}) {
    auto options = sized<driftless_options>();
    options.id = "one";
    options.launched = DRIFTLESS_LAUNCHED_NO;
    options.threads = 1;
    return driftless_open(config_.c_str(), overrides.data(), overrides.size(), &options, &receiver_,
                          error_);
  }
  [[nodiscard]] driftless_tensor describe(const std::string& name, TestTensor& tensor) {
    auto& [kept_name, shape] = *shapes_.try_emplace(name).first;
    shape.assign(tensor.shape.begin(), tensor.shape.end());
    auto told = sized<driftless_tensor>();
    told.name = kept_name.c_str();
    told.dtype = info(tensor.dtype).name.data();
    told.dims = static_cast<uint32_t>(shape.size());
    told.shape = shape.data();
    told.data = tensor.bytes.data();
    return told;
  }
  void add_all() {
    for (auto& [name, tensor] : held_) {
      const driftless_tensor told = describe(name, tensor);
      ASSERT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_OK) << error_.message();
    }
  }
  void use_engine() {
    auto callbacks = sized<driftless_callbacks>();
    callbacks.user = &engine_;
    callbacks.pause = &Engine::pause;
    callbacks.resume = &Engine::resume;
    ASSERT_EQ(driftless_set_callbacks(receiver_, &callbacks, error_), DRIFTLESS_OK);
  }
  // Follows from the base, with callbacks.
  void follow(int32_t holds = DRIFTLESS_HOLDS_BASE) {
    ASSERT_EQ(open(), DRIFTLESS_OK) << error_.message();
    use_engine();
    add_all();
    ASSERT_EQ(driftless_start(receiver_, holds, 2000, error_), DRIFTLESS_OK) << error_.message();
  }
  void stage() {
    int32_t staged = 0;
    ASSERT_EQ(driftless_stage(receiver_, 2000, &staged, error_), DRIFTLESS_OK) << error_.message();
    ASSERT_EQ(staged, 1);
  }
  void update() {
    stage();
    ASSERT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_OK) << error_.message();
  }
  [[nodiscard]] driftless_state state() {
    auto state = sized<driftless_state>();
    EXPECT_EQ(driftless_get_state(receiver_, &state, nullptr), DRIFTLESS_OK);
    return state;
  }

  TempDir folder_{TempDir::Where::kMemory};
  std::string road_ = folder_.file("road");
  std::string config_ = folder_.file("job.yaml");
  Trainer trainer_{road_};
  Weights held_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  Engine engine_;
  driftless_receiver* receiver_ = nullptr;
  Error error_;
};

// --- the library
// ----------------------------------------------------------------------------------

TEST(CAbiLibraryTest, SaysWhatItIs) {
  EXPECT_EQ(driftless_abi(), static_cast<uint32_t>(DRIFTLESS_ABI));
  EXPECT_GE(std::string(driftless_version()).size(), 5U);
  char* text = nullptr;
  ASSERT_EQ(driftless_info_json(&text, nullptr), DRIFTLESS_OK);
  const auto info = nlohmann::json::parse(take_text(text));
  EXPECT_EQ(info["version"], driftless_version());
  EXPECT_EQ(info["abi"], DRIFTLESS_ABI);
  bool files = false;
  for (const auto& backend : info["backends"]) {
    files = files || (backend["name"] == "shared_fs" && backend["built"] == true);
  }
  EXPECT_TRUE(files);
  EXPECT_EQ(driftless_info_json(nullptr, nullptr), DRIFTLESS_INVALID_ARGUMENT);
}

TEST(CAbiLibraryTest, CodesHaveTheNamesOfTheLibraryAndANextAction) {
  for (int code = 0; code <= DRIFTLESS_INTERNAL; ++code) {
    EXPECT_EQ(driftless_code_name(code), to_string(static_cast<StatusCode>(code)));
    EXPECT_EQ(std::string(driftless_code_next_action(code)).empty(), code == DRIFTLESS_OK);
  }
  for (const int code : {-1, DRIFTLESS_INTERNAL + 1, 1 << 30}) {
    EXPECT_STREQ(driftless_code_name(code), "unknown");
    EXPECT_STRNE(driftless_code_next_action(code), "");
  }
}

TEST(CAbiLibraryTest, NoErrorIsOk) {
  EXPECT_EQ(driftless_error_code(nullptr), DRIFTLESS_OK);
  EXPECT_STREQ(driftless_error_name(nullptr), "ok");
  EXPECT_STREQ(driftless_error_message(nullptr), "");
  EXPECT_STREQ(driftless_error_next_action(nullptr), "");
  driftless_error_free(nullptr);
  driftless_free(nullptr);
}

TEST_F(CAbiTest, AnErrorIsReplacedByTheNextAndGoneAfterSuccess) {
  EXPECT_EQ(driftless_rollback(nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_error_code(error_.get()), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_STREQ(driftless_error_name(error_.get()), "invalid_argument");
  EXPECT_EQ(error_.message(), "receiver is NULL");
  EXPECT_STREQ(driftless_error_next_action(error_.get()), "Fix the call or the option.");
  EXPECT_EQ(open({"road.dirr=x"}), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.says("road.dirr")) << error_.message();
  EXPECT_EQ(open(), DRIFTLESS_OK);
  EXPECT_EQ(error_.get(), nullptr);
}

// --- following
// ------------------------------------------------------------------------------------

TEST_F(CAbiTest, FollowsVersionByVersion) {
  trainer_.open();
  follow();
  int32_t newer = -1, staged = -1;
  uint64_t newest = 99;
  EXPECT_EQ(driftless_poll(receiver_, 0, &newer, &newest, error_), DRIFTLESS_OK);
  EXPECT_EQ(newer, 0);
  EXPECT_EQ(newest, 0U);
  EXPECT_EQ(driftless_stage(receiver_, 0, &staged, error_), DRIFTLESS_OK);
  EXPECT_EQ(staged, 0);
  for (uint64_t version = 1; version <= 3; ++version) {
    trainer_.step();
    EXPECT_EQ(driftless_poll(receiver_, 2000, &newer, &newest, error_), DRIFTLESS_OK);
    EXPECT_EQ(newer, 1);
    EXPECT_EQ(newest, version);
    EXPECT_EQ(state().staged, 0);
    stage();
    EXPECT_EQ(state().staged, 1);
    EXPECT_EQ(state().version, version - 1);
    auto report = sized<driftless_report>();
    ASSERT_EQ(driftless_commit(receiver_, &report, error_), DRIFTLESS_OK) << error_.message();
    EXPECT_TRUE(same(held_, trainer_.weights));
    EXPECT_EQ(report.from_version, version - 1);
    EXPECT_EQ(report.version, version);
    EXPECT_EQ(report.versions, 1U);
    EXPECT_EQ(report.digest, trainer_.digest());
    EXPECT_GT(report.changed_units, 0U);
    EXPECT_GT(report.wire_bytes, report.delta_bytes);
    EXPECT_EQ(engine_.pauses, static_cast<int>(version));
    EXPECT_EQ(engine_.resumes, static_cast<int>(version));
  }
  EXPECT_EQ(driftless_keep_alive(receiver_, error_), DRIFTLESS_OK) << error_.message();
}

TEST_F(CAbiTest, SaysWhatTheTensorsHold) {
  trainer_.open();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  std::array<char, 33> text{};
  uint64_t version = 77;
  EXPECT_EQ(driftless_weights_version(receiver_, &version, error_), DRIFTLESS_INCOMPLETE);
  EXPECT_EQ(driftless_weights_digest(receiver_, text.data(), error_), DRIFTLESS_INCOMPLETE);
  EXPECT_EQ(driftless_run_id(receiver_, text.data(), error_), DRIFTLESS_INCOMPLETE);
  EXPECT_EQ(state().started, 0);
  EXPECT_EQ(version, 77U) << "written although it failed";
  add_all();
  ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_OK);
  trainer_.step();
  update();
  EXPECT_EQ(driftless_weights_version(receiver_, &version, error_), DRIFTLESS_OK);
  EXPECT_EQ(version, 1U);
  EXPECT_EQ(driftless_weights_digest(receiver_, text.data(), error_), DRIFTLESS_OK);
  EXPECT_EQ(text.data(), trainer_.digest());
  EXPECT_EQ(driftless_run_id(receiver_, text.data(), error_), DRIFTLESS_OK);
  EXPECT_EQ(text.data(), trainer_.run());
  EXPECT_EQ(state().digest, trainer_.digest());
  EXPECT_EQ(state().run, trainer_.run());
  EXPECT_EQ(state().valid, 1);
  EXPECT_EQ(state().partial, 0);
  for (const auto call : {&driftless_weights_digest, &driftless_run_id}) {
    EXPECT_EQ(call(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  }
  EXPECT_EQ(driftless_weights_version(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, FromNothingAnAnchorIsTaken) {
  trainer_.open(true);
  trainer_.step();
  held_ = changed_weights(held_, 5, 0.5, "none");
  follow(DRIFTLESS_HOLDS_NOTHING);
  EXPECT_EQ(state().valid, 0);
  int32_t newer = 0;
  EXPECT_EQ(driftless_poll(receiver_, 0, &newer, nullptr, error_), DRIFTLESS_OK);
  EXPECT_EQ(newer, 1);
  update();
  auto report = sized<driftless_report>();
  ASSERT_EQ(driftless_last_report(receiver_, &report, error_), DRIFTLESS_OK);
  EXPECT_EQ(report.anchor, 1);
  if (state().version == 0) update();
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, ContinuesFromAVersionOfTheRun) {
  trainer_.open();
  trainer_.step();
  held_ = trainer_.weights;
  trainer_.step();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  add_all();
  EXPECT_EQ(driftless_start_at(receiver_, "not a run", 1, 2000, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_start_at(receiver_, std::string(32, 'a').c_str(), 1, 2000, error_),
            DRIFTLESS_WRONG_RUN);
  EXPECT_EQ(driftless_start_at(receiver_, nullptr, ~uint64_t{0}, 2000, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  ASSERT_EQ(driftless_start_at(receiver_, trainer_.run().c_str(), 1, 2000, error_), DRIFTLESS_OK)
      << error_.message();
  update();
  EXPECT_EQ(state().version, 2U);
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, TensorsMayBeAbsent) {
  trainer_.open();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  bool first = true;
  for (auto& [name, tensor] : held_) {
    driftless_tensor told = describe(name, tensor);
    if (first) {
      told.place = DRIFTLESS_ABSENT;
      EXPECT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_INVALID_ARGUMENT)
          << "data of a tensor that is not there";
      told.data = nullptr;
    }
    ASSERT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_OK) << error_.message();
    first = false;
  }
  ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_OK);
  trainer_.step();
  update();
  EXPECT_EQ(state().partial, 1);
  const Weights expected = trainer_.weights;
  EXPECT_NE(held_.begin()->second.bytes, expected.begin()->second.bytes);
  held_.begin()->second.bytes = expected.begin()->second.bytes;
  EXPECT_TRUE(same(held_, expected));
}

TEST_F(CAbiTest, SeesTheEndOfTheRun) {
  trainer_.open();
  follow();
  auto end = sized<driftless_end>();
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_OK);
  EXPECT_EQ(end.ended, 0);
  trainer_.step();
  trainer_.end();
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_OK);
  EXPECT_EQ(end.ended, 1);
  EXPECT_EQ(end.reached, 0);
  EXPECT_EQ(end.version, 1U);
  EXPECT_EQ(end.digest, trainer_.digest());
  update();
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_OK);
  EXPECT_EQ(end.reached, 1);
  std::ofstream(road_ + "/closed.json") << "{\"run\": ";  // being written
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_EQ(end.ended, 0);
}

TEST_F(CAbiTest, MetricsAndReportsAddUp) {
  trainer_.open();
  follow();
  auto report = sized<driftless_report>();
  char* text = nullptr;
  EXPECT_EQ(driftless_last_report(receiver_, &report, error_), DRIFTLESS_NOT_FOUND);
  EXPECT_EQ(driftless_last_report_json(receiver_, &text, error_), DRIFTLESS_NOT_FOUND);
  EXPECT_EQ(text, nullptr);
  trainer_.step();
  update();
  trainer_.step();
  trainer_.step();
  update();
  ASSERT_EQ(driftless_last_report(receiver_, &report, error_), DRIFTLESS_OK);
  EXPECT_EQ(report.from_version, 1U);
  EXPECT_EQ(report.version, 3U);
  EXPECT_EQ(report.versions, 2U);
  auto metrics = sized<driftless_metrics>();
  ASSERT_EQ(driftless_get_metrics(receiver_, &metrics, error_), DRIFTLESS_OK);
  EXPECT_EQ(metrics.commits, 2U);
  EXPECT_EQ(metrics.versions, 3U);
  EXPECT_EQ(metrics.version, 3U);
  EXPECT_EQ(metrics.newest, 3U);
  EXPECT_EQ(metrics.anchors + metrics.rollbacks + metrics.unheard, 0U);
  EXPECT_GT(metrics.wire_bytes, report.wire_bytes);
  EXPECT_GT(metrics.longest_pause_ms, 0.0);
  ASSERT_EQ(driftless_metrics_json(receiver_, &text, error_), DRIFTLESS_OK);
  const auto json = nlohmann::json::parse(take_text(text));
  EXPECT_EQ(json["commits"], 2);
  EXPECT_EQ(json["wire_bytes"], metrics.wire_bytes);
  ASSERT_EQ(driftless_last_report_json(receiver_, &text, error_), DRIFTLESS_OK);
  const auto last = nlohmann::json::parse(take_text(text));
  EXPECT_EQ(last["version"], 3);
  EXPECT_EQ(last["digest"], trainer_.digest());
  EXPECT_TRUE(last["notes"].is_array() && last["notes"].empty());
  EXPECT_EQ(driftless_metrics_json(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_last_report_json(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, RollbackDropsWhatIsStagedOrTakesTheCommitBack) {
  trainer_.open();
  follow();
  EXPECT_EQ(driftless_rollback(receiver_, error_), DRIFTLESS_INVALID_ARGUMENT);
  const Weights base = held_;
  trainer_.step();
  stage();
  EXPECT_EQ(driftless_rollback(receiver_, error_), DRIFTLESS_OK);
  EXPECT_EQ(state().staged, 0);
  EXPECT_EQ(engine_.pauses, 0) << "nothing was written";
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  update();
  EXPECT_TRUE(same(held_, trainer_.weights));
  EXPECT_EQ(driftless_rollback(receiver_, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_TRUE(same(held_, base));
  EXPECT_EQ(state().version, 0U);
  EXPECT_EQ(engine_.pauses, 2);
  EXPECT_EQ(engine_.resumes, 2);
  auto metrics = sized<driftless_metrics>();
  ASSERT_EQ(driftless_get_metrics(receiver_, &metrics, error_), DRIFTLESS_OK);
  EXPECT_EQ(metrics.rollbacks, 2U);
  EXPECT_EQ(metrics.version, 0U);
  update();
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, AFailedPauseLeavesItStaged) {
  trainer_.open();
  follow();
  const Weights base = held_;
  trainer_.step();
  stage();
  engine_.pause_answer = DRIFTLESS_DEADLINE_EXCEEDED;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_DEADLINE_EXCEEDED);
  EXPECT_TRUE(error_.says("pause")) << error_.message();
  engine_.pause_answer = -5;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_BUSY);
  EXPECT_TRUE(error_.says("-5")) << error_.message();
  engine_.during_pause = [] { throw std::runtime_error("thrown through C"); };
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_INTERNAL);
  EXPECT_TRUE(same(held_, base));
  EXPECT_EQ(engine_.resumes, 0);
  EXPECT_EQ(state().staged, 1);
  engine_.during_pause = nullptr;
  engine_.pause_answer = 0;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, AFailedResumeComesAfterACommitThatHolds) {
  trainer_.open();
  follow();
  trainer_.step();
  stage();
  engine_.resume_answer = DRIFTLESS_IO;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_IO);
  EXPECT_TRUE(error_.says("version 1 is committed")) << error_.message();
  EXPECT_TRUE(same(held_, trainer_.weights));
  EXPECT_EQ(state().version, 1U);
  EXPECT_EQ(state().staged, 0);
  auto metrics = sized<driftless_metrics>();
  ASSERT_EQ(driftless_get_metrics(receiver_, &metrics, error_), DRIFTLESS_OK);
  EXPECT_EQ(metrics.commits, 1U);
  EXPECT_EQ(metrics.commit_failures, 1U);
}

TEST_F(CAbiTest, SomebodyElsesWriteIsFoundAndTheWeightsStay) {
  trainer_.open();
  follow();
  trainer_.step();
  stage();
  // Every byte, so that some of them are about to be changed.
  for (auto& [name, tensor] : held_) {
    for (std::byte& byte : tensor.bytes) byte ^= std::byte{0x55};
  }
  const Weights written = held_;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_MISMATCH);
  EXPECT_TRUE(same(held_, written));
  EXPECT_EQ(engine_.resumes, 1) << "paused and never resumed";
  EXPECT_EQ(state().staged, 0);
}

// --- wrong use
// ------------------------------------------------------------------------------------

TEST_F(CAbiTest, OpenRefusesWhatIsWrongWithTheFileOrTheCall) {
  EXPECT_EQ(driftless_open(nullptr, nullptr, 0, nullptr, &receiver_, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_open(config_.c_str(), nullptr, 0, nullptr, nullptr, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_open(config_.c_str(), nullptr, 1, nullptr, &receiver_, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(open({nullptr}), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.says("overrides[0]")) << error_.message();
  EXPECT_EQ(driftless_open("/not/there.yaml", nullptr, 0, nullptr, &receiver_, error_),
            DRIFTLESS_NOT_FOUND);
  std::ofstream(config_) << "road: {kind: shared_fs, dir: x}\nrecever: {id: a}\n";
  EXPECT_EQ(open(), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.says("recever") && error_.says(":2")) << error_.message();
  std::ofstream(config_) << "road: [\n";
  EXPECT_EQ(open(), DRIFTLESS_INVALID_ARGUMENT);
  std::ofstream(config_) << "road: {kind: loopback}\n";
  EXPECT_EQ(receiver_, nullptr);
  auto options = sized<driftless_options>();
  options.launched = 3;
  EXPECT_EQ(driftless_open(config_.c_str(), nullptr, 0, &options, &receiver_, error_),
            DRIFTLESS_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, TheTrainersPartOfTheFileNeedsNoBackend) {
  std::ofstream(config_) << "snapshot: pinned\nroad: {kind: shared_fs, dir: " << road_
                         << "}\nreceiver: {target: device}\n";
  EXPECT_EQ(open(), DRIFTLESS_OK) << error_.message();
}

TEST_F(CAbiTest, StructsFromOtherHeaders) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  auto& [name, tensor] = *held_.begin();
  driftless_tensor told = describe(name, tensor);
  for (const std::size_t size : {std::size_t{0}, sizeof(told) - 1, std::size_t{1} << 40}) {
    told.struct_size = size;
    EXPECT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_INVALID_ARGUMENT) << size;
    EXPECT_TRUE(error_.says("struct_size")) << error_.message();
  }
  struct Newer {
    driftless_tensor known;
    uint64_t setting;
  } newer{describe(name, tensor), 1};
  newer.known.struct_size = sizeof(newer);
  EXPECT_EQ(driftless_register(receiver_, &newer.known, error_), DRIFTLESS_UNSUPPORTED);
  newer.setting = 0;
  EXPECT_EQ(driftless_register(receiver_, &newer.known, error_), DRIFTLESS_OK) << error_.message();
  struct NewerState {
    driftless_state known;
    uint64_t unknown;
  } larger{sized<driftless_state>(), 5};
  larger.known.struct_size = sizeof(larger);
  EXPECT_EQ(driftless_get_state(receiver_, &larger.known, error_), DRIFTLESS_OK);
  EXPECT_EQ(larger.unknown, 0U);
  EXPECT_EQ(larger.known.struct_size, sizeof(larger));
  EXPECT_EQ(driftless_get_state(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_get_metrics(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_register(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  driftless_callbacks callbacks{};
  EXPECT_EQ(driftless_set_callbacks(receiver_, &callbacks, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_set_callbacks(receiver_, nullptr, error_), DRIFTLESS_OK);
}

TEST_F(CAbiTest, TensorsThatCannotBeTakenAreNamed) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  TestTensor& tensor = held_["model.layers.0.up.weight"];
  const driftless_tensor good = describe("model.layers.0.up.weight", tensor);
  const auto refused = [&](const std::function<void(driftless_tensor&)>& spoil) {
    driftless_tensor told = good;
    spoil(told);
    const driftless_code code = driftless_register(receiver_, &told, error_);
    EXPECT_TRUE(told.name == nullptr || error_.says(told.name)) << error_.message();
    return code;
  };
  EXPECT_EQ(refused([](auto& t) { t.name = nullptr; }), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& t) { t.name = ""; }), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& t) { t.dtype = nullptr; }), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& t) { t.dtype = "bf17"; }), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& t) { t.shape = nullptr; }), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& t) { t.dims = 1000; }), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& t) { t.data = nullptr; }), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& t) { t.data = static_cast<char*>(t.data) + 1; }),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused([](auto& t) { t.place = 9; }), DRIFTLESS_INVALID_ARGUMENT);
  const std::array<int64_t, 2> negative{-1, 2};
  EXPECT_EQ(refused([&](auto& t) { t.shape = negative.data(); }), DRIFTLESS_INVALID_ARGUMENT);
  const std::array<int64_t, 2> huge{int64_t{1} << 62, int64_t{1} << 62};
  EXPECT_EQ(refused([&](auto& t) { t.shape = huge.data(); }), DRIFTLESS_INVALID_ARGUMENT);
  const std::array<int64_t, 2> transposed{1, 40};
  EXPECT_EQ(refused([&](auto& t) { t.strides = transposed.data(); }), DRIFTLESS_UNSUPPORTED);
  const std::array<int64_t, 2> contiguous{96, 1};
  driftless_tensor told = good;
  told.strides = contiguous.data();
  told.dtype = "bfloat16";
  EXPECT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_EQ(refused([](auto&) {}), DRIFTLESS_ALREADY_EXISTS);
}

TEST_F(CAbiTest, GpuTensorsAreRefusedWithTheReasonWhereThereIsNoGpu) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  auto& [name, tensor] = *held_.begin();
  driftless_tensor told = describe(name, tensor);
  told.place = DRIFTLESS_CUDA;
  told.device = 4711;  // where there are GPUs, there are fewer
  EXPECT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_UNSUPPORTED);
  EXPECT_TRUE(error_.says("CUDA")) << error_.message();
  told.place = DRIFTLESS_HOST;
  EXPECT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_OK) << error_.message();
  auto& [other_name, other] = *std::next(held_.begin());
  driftless_tensor elsewhere = describe(other_name, other);
  elsewhere.place = DRIFTLESS_CUDA;
  EXPECT_EQ(driftless_register(receiver_, &elsewhere, error_), DRIFTLESS_UNSUPPORTED);
  EXPECT_TRUE(error_.says(name)) << error_.message();
}

TEST_F(CAbiTest, StartRefusesAndMayBeCalledAgain) {
  trainer_.open();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 0, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.says("no tensor")) << error_.message();
  TestTensor last = held_["model.norm.weight"];
  held_.erase("model.norm.weight");
  add_all();
  EXPECT_EQ(driftless_start(receiver_, 7, 2000, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, -2, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_WRONG_LAYOUT);
  EXPECT_TRUE(error_.says("model.norm.weight")) << error_.message();
  int32_t staged = 0;
  EXPECT_EQ(driftless_stage(receiver_, 0, &staged, error_), DRIFTLESS_INVALID_ARGUMENT);
  held_["model.norm.weight"] = last;
  const driftless_tensor told = describe("model.norm.weight", held_["model.norm.weight"]);
  ASSERT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_OK);
  held_.begin()->second.bytes[0] ^= std::byte{1};
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_WRONG_BASE);
  held_.begin()->second.bytes[0] ^= std::byte{1};
  ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_OK)
      << error_.message();
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_set_callbacks(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, OtherTypesAndShapesAreAnotherLayout) {
  trainer_.open();
  for (const bool dtype : {true, false}) {
    ASSERT_EQ(open(), DRIFTLESS_OK);
    for (auto& [name, tensor] : held_) {
      driftless_tensor told = describe(name, tensor);
      const std::array<int64_t, 2> reshaped{4, 24};
      if (name == "model.norm.weight" && dtype) told.dtype = "F16";
      if (name == "model.norm.weight" && !dtype) {
        told.dims = 2;
        told.shape = reshaped.data();
      }
      ASSERT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_OK);
    }
    EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_),
              DRIFTLESS_WRONG_LAYOUT);
    EXPECT_TRUE(error_.says("model.norm.weight")) << error_.message();
    EXPECT_EQ(driftless_close(&receiver_, 0, error_), DRIFTLESS_OK);
  }
}

TEST_F(CAbiTest, TensorsThatShareMemoryAreRefused) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  std::vector<std::byte> memory(256);
  const std::array<int64_t, 1> shape{64};
  auto told = sized<driftless_tensor>();
  told.dtype = "U8";
  told.dims = 1;
  told.shape = shape.data();
  told.name = "a";
  told.data = memory.data();
  ASSERT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_OK);
  told.name = "b";
  told.data = memory.data() + 63;
  ASSERT_EQ(driftless_register(receiver_, &told, error_), DRIFTLESS_OK);
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_NOTHING, 0, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.says("'a'") && error_.says("'b'")) << error_.message();
}

TEST_F(CAbiTest, WaitsEndAndMayBeTakenUpAgain) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  add_all();
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 30, error_),
            DRIFTLESS_DEADLINE_EXCEEDED);
  trainer_.open();
  ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, DRIFTLESS_BY_CONFIG, error_),
            DRIFTLESS_OK)
      << error_.message();
  int32_t staged = 5;
  for (const int64_t wrong : {int64_t{-1}, int64_t{-7}, int64_t{1} << 62}) {
    EXPECT_EQ(driftless_stage(receiver_, wrong, &staged, error_), DRIFTLESS_INVALID_ARGUMENT);
    EXPECT_EQ(driftless_poll(receiver_, wrong, nullptr, nullptr, error_),
              DRIFTLESS_INVALID_ARGUMENT);
  }
  EXPECT_EQ(staged, 5);
  EXPECT_EQ(driftless_stage(receiver_, 5, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_stage(receiver_, 20, &staged, error_), DRIFTLESS_OK);
  EXPECT_EQ(staged, 0);
  EXPECT_EQ(driftless_poll(receiver_, 20, nullptr, nullptr, error_), DRIFTLESS_OK);
}

TEST_F(CAbiTest, AClosedReceiverIsFoundOut) {
  trainer_.open();
  follow();
  driftless_receiver* const copy = receiver_;
  EXPECT_EQ(driftless_close(&receiver_, -3, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_NE(receiver_, nullptr) << "the call was wrong, and nothing happened";
  EXPECT_EQ(driftless_close(&receiver_, DRIFTLESS_BY_CONFIG, error_), DRIFTLESS_OK)
      << error_.message();
  EXPECT_EQ(receiver_, nullptr);
  EXPECT_EQ(driftless_close(&receiver_, 0, error_), DRIFTLESS_OK) << "closed twice";
  EXPECT_EQ(driftless_close(nullptr, 0, error_), DRIFTLESS_INVALID_ARGUMENT);
  ASSERT_EQ(open(), DRIFTLESS_OK);
  EXPECT_NE(receiver_, copy) << "a ticket was given out twice";
  driftless_receiver* stale = copy;
  EXPECT_EQ(driftless_close(&stale, 0, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.says("closed")) << error_.message();
}

TEST_F(CAbiTest, EveryFunctionRefusesWhatIsNoReceiver) {
  const auto number = std::uintptr_t{0xdead};
  int32_t flag = 0;
  uint64_t version = 0;
  char* text = nullptr;
  std::array<char, 33> hex{};
  auto report = sized<driftless_report>();
  auto end = sized<driftless_end>();
  auto state = sized<driftless_state>();
  auto metrics = sized<driftless_metrics>();
  auto tensor = sized<driftless_tensor>();
  for (driftless_receiver* const none :
       {static_cast<driftless_receiver*>(nullptr), reinterpret_cast<driftless_receiver*>(number)}) {
    const std::vector<driftless_code> codes = {
        driftless_set_callbacks(none, nullptr, error_),
        driftless_register(none, &tensor, error_),
        driftless_start(none, DRIFTLESS_HOLDS_BASE, 0, error_),
        driftless_start_at(none, nullptr, 0, 0, error_),
        driftless_poll(none, 0, &flag, &version, error_),
        driftless_stage(none, 0, &flag, error_),
        driftless_commit(none, &report, error_),
        driftless_rollback(none, error_),
        driftless_keep_alive(none, error_),
        driftless_look_for_end(none, &end, error_),
        driftless_get_state(none, &state, error_),
        driftless_weights_version(none, &version, error_),
        driftless_weights_digest(none, hex.data(), error_),
        driftless_run_id(none, hex.data(), error_),
        driftless_get_metrics(none, &metrics, error_),
        driftless_metrics_json(none, &text, error_),
        driftless_last_report(none, &report, error_),
        driftless_last_report_json(none, &text, error_),
        driftless_rollback(none, nullptr),
    };
    for (const driftless_code code : codes) EXPECT_EQ(code, DRIFTLESS_INVALID_ARGUMENT);
  }
}

TEST_F(CAbiTest, BeforeStartNothingCanBeFollowed) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  int32_t flag = 0;
  auto end = sized<driftless_end>();
  EXPECT_EQ(driftless_poll(receiver_, 0, &flag, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_stage(receiver_, 0, &flag, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_rollback(receiver_, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_keep_alive(receiver_, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_close(&receiver_, DRIFTLESS_BY_CONFIG, error_), DRIFTLESS_OK);
}

TEST_F(CAbiTest, OneCallAtATimeAndLooksAnyTime) {
  trainer_.open();
  follow();
  trainer_.step();
  stage();
  std::vector<driftless_code> codes;
  engine_.during_pause = [&] {
    int32_t staged = 0;
    codes.push_back(driftless_stage(receiver_, 0, &staged, nullptr));
    codes.push_back(driftless_rollback(receiver_, nullptr));
    driftless_receiver* copy = receiver_;
    codes.push_back(driftless_close(&copy, 0, nullptr));
    EXPECT_NE(copy, nullptr);
    std::thread other([&] { codes.push_back(driftless_commit(receiver_, nullptr, nullptr)); });
    other.join();
    EXPECT_EQ(state().version, 0U) << "as after the last call that ended";
  };
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_EQ(codes, std::vector<driftless_code>(4, DRIFTLESS_BUSY));
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, StagingOnAThreadWhileOthersLook) {
  trainer_.open();
  follow();
  std::atomic<bool> done{false};
  std::thread staging([&] {
    int32_t staged = 0;
    const driftless_code code = driftless_stage(receiver_, 20'000, &staged, nullptr);
    EXPECT_EQ(code, DRIFTLESS_OK);
    EXPECT_EQ(staged, 1);
    done = true;
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(state().version, 0U);
  trainer_.step();
  while (!done) std::this_thread::yield();
  staging.join();
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, TwoReceiversInOneProcess) {
  trainer_.open();
  follow();
  driftless_receiver* other = std::exchange(receiver_, nullptr);
  Weights of_other = held_;
  of_other.swap(held_);  // its tensors keep their memory; the copies are for the second one
  auto options = sized<driftless_options>();
  options.id = "two";
  options.launched = DRIFTLESS_LAUNCHED_NO;
  ASSERT_EQ(driftless_open(config_.c_str(), nullptr, 0, &options, &receiver_, error_),
            DRIFTLESS_OK);
  add_all();
  ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_OK);
  trainer_.step();
  update();
  EXPECT_TRUE(same(held_, trainer_.weights));
  EXPECT_FALSE(same(of_other, trainer_.weights));
  std::swap(receiver_, other);
  update();
  EXPECT_TRUE(same(of_other, trainer_.weights));
  EXPECT_EQ(driftless_close(&other, 0, error_), DRIFTLESS_OK);
}

}  // namespace
}  // namespace driftless::testing
