// SPDX-License-Identifier: Apache-2.0
// driftless.h as a program uses it: wrong calls, other headers, threads.
#include "support/c_abi_fixture.h"

namespace driftless::testing {
namespace {

// --- wrong use

TEST_F(CAbiTest, OpenRefusesWhatIsWrongWithTheFileOrTheCall) {
  EXPECT_EQ(driftless_open(nullptr, nullptr, 0, nullptr, &receiver_, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_open(config_.c_str(), nullptr, 0, nullptr, nullptr, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_open(config_.c_str(), nullptr, 1, nullptr, &receiver_, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(open({nullptr}), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.contains("overrides[0]")) << error_.message();
  EXPECT_EQ(driftless_open("/not/there.yaml", nullptr, 0, nullptr, &receiver_, error_),
            DRIFTLESS_NOT_FOUND);
  std::ofstream(config_) << "road: {kind: shared_fs, shared_fs: { dir: x }}\nrecever: {id: a}\n";
  EXPECT_EQ(open(), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.contains("recever") && error_.contains(":2")) << error_.message();
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
  std::ofstream(config_) << "snapshot: pinned\nroad: {kind: shared_fs, shared_fs: { dir: " << road_
                         << " }}\nreceiver: {target: device}\n";
  EXPECT_EQ(open(), DRIFTLESS_OK) << error_.message();
}

TEST_F(CAbiTest, StructsFromOtherHeaders) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  auto& [name, tensor] = *held_.begin();
  driftless_tensor registered = describe(name, tensor);
  for (const std::size_t size : {std::size_t{0}, sizeof(registered) - 1, std::size_t{1} << 40}) {
    registered.struct_size = size;
    EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_INVALID_ARGUMENT)
        << size;
    EXPECT_TRUE(error_.contains("struct_size")) << error_.message();
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
    driftless_tensor registered = good;
    spoil(registered);
    const driftless_code code = driftless_register(receiver_, &registered, error_);
    EXPECT_TRUE(registered.name == nullptr || error_.contains(registered.name)) << error_.message();
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
  const std::array<int64_t, 2> contiguous{96, 1};
  driftless_tensor registered = good;
  registered.strides = contiguous.data();
  registered.dtype = "bfloat16";
  EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_EQ(refused([](auto&) {}), DRIFTLESS_ALREADY_EXISTS);
}

TEST_F(CAbiTest, GpuTensorsAreRefusedWithTheReasonWhereThereIsNoGpu) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  auto& [name, tensor] = *held_.begin();
  driftless_tensor registered = describe(name, tensor);
  registered.place = DRIFTLESS_CUDA;
  registered.device = 4711;  // no machine has so many GPUs
  EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_UNSUPPORTED);
  EXPECT_TRUE(error_.contains("CUDA")) << error_.message();
  registered.place = DRIFTLESS_HOST;
  EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK) << error_.message();
  auto& [other_name, other] = *std::next(held_.begin());
  driftless_tensor elsewhere = describe(other_name, other);
  elsewhere.place = DRIFTLESS_CUDA;
  EXPECT_EQ(driftless_register(receiver_, &elsewhere, error_), DRIFTLESS_UNSUPPORTED);
  EXPECT_TRUE(error_.contains(name)) << error_.message();
}

TEST_F(CAbiTest, StartRefusesAndMayBeCalledAgain) {
  trainer_.open();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 0, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.contains("no tensor")) << error_.message();
  TestTensor last = held_["model.norm.weight"];
  held_.erase("model.norm.weight");
  add_all();
  EXPECT_EQ(driftless_start(receiver_, 7, 2000, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, -2, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_WRONG_LAYOUT);
  EXPECT_TRUE(error_.contains("model.norm.weight")) << error_.message();
  int32_t staged = 0;
  EXPECT_EQ(driftless_stage(receiver_, 0, &staged, error_), DRIFTLESS_INVALID_ARGUMENT);
  held_["model.norm.weight"] = last;
  const driftless_tensor registered = describe("model.norm.weight", held_["model.norm.weight"]);
  ASSERT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK);
  held_.begin()->second.bytes[0] ^= std::byte{1};
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_WRONG_BASE);
  held_.begin()->second.bytes[0] ^= std::byte{1};
  ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_OK)
      << error_.message();
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_set_callbacks(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, OtherTypesAndShapesAreAnotherLayout) {
  trainer_.open();
  for (const bool dtype : {true, false}) {
    ASSERT_EQ(open(), DRIFTLESS_OK);
    for (auto& [name, tensor] : held_) {
      driftless_tensor registered = describe(name, tensor);
      const std::array<int64_t, 2> reshaped{4, 24};
      if (name == "model.norm.weight" && dtype) registered.dtype = "F16";
      if (name == "model.norm.weight" && !dtype) {
        registered.dims = 2;
        registered.shape = reshaped.data();
      }
      ASSERT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK);
    }
    EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_),
              DRIFTLESS_WRONG_LAYOUT);
    EXPECT_TRUE(error_.contains("model.norm.weight")) << error_.message();
    EXPECT_EQ(driftless_close(&receiver_, 0, error_), DRIFTLESS_OK);
  }
}

TEST_F(CAbiTest, TensorsThatShareMemoryAreRefused) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  std::vector<std::byte> memory(256);
  const std::array<int64_t, 1> shape{64};
  auto registered = sized<driftless_tensor>();
  registered.dtype = "U8";
  registered.dims = 1;
  registered.shape = shape.data();
  registered.name = "a";
  registered.data = memory.data();
  ASSERT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK);
  registered.name = "b";
  registered.data = memory.data() + 63;
  ASSERT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK);
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_NOTHING, 0, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.contains("'a'") && error_.contains("'b'")) << error_.message();
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
  EXPECT_TRUE(error_.contains("closed")) << error_.message();
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
  of_other.swap(held_);  // its tensors keep their memory; the copies are for the second follower
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
