// SPDX-License-Identifier: Apache-2.0
// driftless.h with tensors on the GPU: libdriftless.so loads what it needs, waits for the caller's
// streams, and leaves the caller's device alone.
#include <driftless/driftless.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <fstream>
#include <functional>

#include "collectives/shared_fs/shared_fs_road.h"
#include "gpu/arrival.h"
#include "plugin/publish/publisher.h"
#include "support/published_run.h"
#include "support/temp_dir.h"
#include "support/weight_source.h"

namespace driftless::testing {
namespace {

class CAbiDevice : public ::testing::Test {
 protected:
  CAbiDevice() {
    std::ofstream(config_) << "road: {kind: shared_fs, shared_fs: { dir: " << road_ << " }}\n";
    SharedFsOptions files;
    files.dir = road_;
    sender_ = std::move(*make_shared_fs_sender(posix_file_system(), files, 0, 1));
    MemorySource base(weights_);
    PublisherOptions options;
    options.threads = 1;
    publisher_ = std::move(*Publisher::open(options, group_, *sender_, nullptr, base));
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CAbiDevice() override {
    driftless_close(&receiver_, 0, nullptr);
    driftless_error_free(error_);
    cudaStreamDestroy(stream_);
  }
  [[nodiscard]] std::string message() const { return driftless_error_message(error_); }

  void step() {
    weights_ = changed_weights(weights_, ++seed_, 0.02);
    MemorySource source(weights_);
    const auto published = publisher_->publish(source);
    ASSERT_TRUE(published.ok()) << published.status().to_string();
  }
  void open() {
    auto options = driftless_options{};
    options.struct_size = sizeof(options);
    options.launched = DRIFTLESS_LAUNCHED_NO;
    ASSERT_EQ(driftless_open(config_.c_str(), nullptr, 0, &options, &receiver_, &error_),
              DRIFTLESS_OK)
        << message();
  }
  [[nodiscard]] driftless_code add(const TensorSpec& spec, void* data,
                                   const int64_t* strides = nullptr) {
    const std::vector<int64_t> shape(spec.shape.begin(), spec.shape.end());
    driftless_tensor tensor{};
    tensor.struct_size = sizeof(tensor);
    tensor.name = spec.name.c_str();
    tensor.dtype = info(spec.dtype).name.data();
    tensor.dims = static_cast<uint32_t>(shape.size());
    tensor.shape = shape.data();
    tensor.place = DRIFTLESS_CUDA;
    tensor.data = data;
    tensor.strides = strides;
    tensor.stream = stream_;
    return driftless_register(receiver_, &tensor, &error_);
  }
  // Three versions, and one back; `holds` looks at the registered tensors.
  void follows(const std::function<bool(const Weights&)>& holds) {
    ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 10'000, &error_), DRIFTLESS_OK)
        << message();
    Weights before;
    for (int version = 1; version <= 3; ++version) {
      before = weights_;
      step();
      int32_t staged = 0;
      ASSERT_EQ(driftless_stage(receiver_, 10'000, &staged, &error_), DRIFTLESS_OK) << message();
      ASSERT_EQ(staged, 1);
      driftless_report report{};
      report.struct_size = sizeof(report);
      ASSERT_EQ(driftless_commit(receiver_, &report, &error_), DRIFTLESS_OK) << message();
      EXPECT_EQ(report.digest, to_hex(publisher_->digest()));
      EXPECT_TRUE(holds(weights_)) << "version " << version;
    }
    ASSERT_EQ(driftless_rollback(receiver_, &error_), DRIFTLESS_OK) << message();
    EXPECT_TRUE(holds(before)) << "rolled back";
  }

  TempDir folder_;
  std::string road_ = folder_.file("road"), config_ = folder_.file("job.yaml");
  Weights weights_ = random_weights(9, 200);
  SoloGroup group_;
  std::unique_ptr<SendRoad> sender_;
  std::unique_ptr<Publisher> publisher_;
  cudaStream_t stream_ = nullptr;
  std::uint64_t seed_ = 0;
  driftless_receiver* receiver_ = nullptr;
  driftless_error* error_ = nullptr;
};

TEST_F(CAbiDevice, FollowsOnTheGpu) {
  DeviceModel model(weights_);
  const WeightLayout layout = layout_of(weights_);
  open();
  for (std::size_t i = 0; i < layout.size(); ++i) {
    ASSERT_EQ(add(layout[i], model.pointers()[i]), DRIFTLESS_OK) << message();
  }
  follows([&](const Weights& weights) { return model.holds(weights); });
}

// A matrix lies transposed, in rows of three elements more than it has; others as they are.
struct Strided {
  explicit Strided(const TensorSpec& given) : spec(given), width(unit_bytes(given.dtype)) {
    if (spec.shape.size() != 2) return;
    pitch = spec.shape[0] + 3;
    strides = {1, static_cast<int64_t>(pitch)};
  }
  // As it must lie in memory that had `fill` in every byte.
  [[nodiscard]] std::vector<std::byte> placed(const TestTensor& tensor, std::byte fill) const {
    if (strides.empty()) return tensor.bytes;
    std::vector<std::byte> memory(spec.shape[1] * pitch * width, fill);
    for (std::uint64_t row = 0; row < spec.shape[0]; ++row) {
      for (std::uint64_t column = 0; column < spec.shape[1]; ++column) {
        std::memcpy(&memory[(column * pitch + row) * width],
                    &tensor.bytes[(row * spec.shape[1] + column) * width], width);
      }
    }
    return memory;
  }
  TensorSpec spec;
  unsigned width;
  std::uint64_t pitch = 0;
  std::vector<int64_t> strides;
};

TEST_F(CAbiDevice, FollowsThroughStridesOnTheGpu) {
  constexpr std::byte kBetween{0x5a};
  const WeightLayout layout = layout_of(weights_);
  std::vector<Strided> tensors;
  std::deque<DeviceBytes> memory;
  open();
  for (std::size_t i = 0; i < layout.size(); ++i) {
    const Strided& strided = tensors.emplace_back(layout[i]);
    memory.emplace_back(strided.placed(weights_.at(layout[i].name), kBetween));
    ASSERT_EQ(add(layout[i], memory.back().data(),
                  strided.strides.empty() ? nullptr : strided.strides.data()),
              DRIFTLESS_OK)
        << message();
  }
  const auto holds = [&](const Weights& weights) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string& name = tensors[i].spec.name;
      if (!memory[i].intact() ||
          memory[i].copy() != tensors[i].placed(weights.at(name), kBetween)) {
        return false;
      }
    }
    return true;
  };
  follows(holds);
}

TEST_F(CAbiDevice, HostMemoryIsNotTheGpus) {
  open();
  const WeightLayout layout = layout_of(weights_);
  std::vector<std::byte> host(layout[1].size_bytes + 8);
  EXPECT_EQ(add(layout[1], host.data()), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_NE(message().find(layout[1].name), std::string::npos) << message();
}

}  // namespace
}  // namespace driftless::testing
