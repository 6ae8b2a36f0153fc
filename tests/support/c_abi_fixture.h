// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of driftless.h. The tests link libdriftless.so, as a program does, and
// publish with the library itself, over files.
#pragma once

#include <driftless/driftless.h>
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
#include "plugin/publish/publisher.h"
#include "plugin/receive/run_end.h"
#include "support/published_run.h"
#include "support/weight_source.h"

namespace driftless::testing {

template <typename Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof(Struct);
  return made;
}

// Owns an error, and returns its text.
class Error {
 public:
  Error() = default;
  Error(const Error&) = delete;
  Error& operator=(const Error&) = delete;
  ~Error() { driftless_error_free(error_); }
  operator driftless_error**() { return &error_; }  // NOLINT(google-explicit-constructor)
  [[nodiscard]] driftless_error* get() const { return error_; }
  [[nodiscard]] std::string message() const { return driftless_error_message(error_); }
  [[nodiscard]] bool contains(const std::string& words) const {
    return message().find(words) != std::string::npos;
  }

 private:
  driftless_error* error_ = nullptr;
};

inline std::string take_text(char* text) {
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
  void publish_as(DirectoryLayout layout, Encoding encoding) {
    options_.layout = layout;
    options_.encoding = encoding;
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

// The actions of the callbacks, and the arguments that they received.
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
    std::ofstream(config_) << "road: {kind: shared_fs, shared_fs: {dir: " << road_
                           << "}}\ndeadlines: {fetch: 2s, connect: 2s}\n";
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
    auto described = sized<driftless_tensor>();
    described.name = kept_name.c_str();
    described.dtype = info(tensor.dtype).name.data();
    described.dims = static_cast<uint32_t>(shape.size());
    described.shape = shape.data();
    described.data = tensor.bytes.data();
    return described;
  }
  void add_all() {
    for (auto& [name, tensor] : held_) {
      const driftless_tensor described = describe(name, tensor);
      ASSERT_EQ(driftless_register(receiver_, &described, error_), DRIFTLESS_OK)
          << error_.message();
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

}  // namespace driftless::testing
