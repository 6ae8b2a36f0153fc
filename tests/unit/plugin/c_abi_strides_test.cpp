// SPDX-License-Identifier: Apache-2.0
// driftless.h as a program uses it: tensors that are not contiguous.
#include <cstring>
#include <random>
#include <set>

#include "support/c_abi_fixture.h"

namespace driftless::testing {
namespace {

using Strides = std::vector<int64_t>;

// Offsets of a view's elements, in their order.
std::vector<std::size_t> offsets_of(const std::vector<std::uint64_t>& shape,
                                    const Strides& strides) {
  std::vector<std::size_t> offsets{0};
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    std::vector<std::size_t> longer;
    for (const std::size_t offset : offsets) {
      for (std::uint64_t i = 0; i < shape[dim]; ++i) {
        longer.push_back(offset + i * static_cast<std::size_t>(strides[dim]));
      }
    }
    offsets = std::move(longer);
  }
  return offsets;
}

class CAbiStridesTest : public CAbiTest {
 protected:
  static constexpr std::byte kPadding{0xA5};
  static constexpr const char* kUp = "model.layers.0.up.weight";  // BF16, [40, 96]
  static constexpr const char* kGate = "model.gate";              // BF16, [40, 10]
  static constexpr const char* kExperts = "model.experts";        // F32, [3, 5, 7]
  static constexpr const char* kScale = "model.layers.0.scale";   // F8, [40, 31]

  CAbiStridesTest() {
    std::mt19937_64 random(17);
    trainer_.weights[kGate] = random_tensor(DType::kBF16, {40, 10}, random);
    trainer_.weights[kExperts] = random_tensor(DType::kF32, {3, 5, 7}, random);
    held_ = trainer_.weights;
  }

  struct Place {
    std::string memory;
    std::size_t offset = 0;  // in elements
    Strides strides;
  };
  // Places the tensor in `memory`, which grows to hold it and is filled with padding at first.
  void place(const std::string& tensor, const std::string& memory, std::size_t offset,
             Strides strides) {
    places_[tensor] = {memory, offset, std::move(strides)};
    std::size_t end = 0;
    each_element(tensor, [&](std::size_t, std::size_t at, unsigned width) {
      end = std::max(end, at + width);
    });
    if (memory_[memory].size() < end) memory_[memory].resize(end, kPadding);
  }
  // Element by element: bytes in the tensor, bytes in the memory, width.
  template <typename Use>
  void each_element(const std::string& tensor, const Use& use) const {
    const Place& place = places_.at(tensor);
    const unsigned width = unit_bytes(held_.at(tensor).dtype);
    std::size_t element = 0;
    for (const std::size_t at : offsets_of(held_.at(tensor).shape, place.strides)) {
      use(width * element++, width * (place.offset + at), width);
    }
  }
  // The expected content of the memories for these weights, padding included.
  [[nodiscard]] std::map<std::string, std::vector<std::byte>> memory_with(
      const Weights& weights) const {
    auto made = memory_;
    for (auto& [name, bytes] : made) std::fill(bytes.begin(), bytes.end(), kPadding);
    for (const auto& [name, place] : places_) {
      each_element(name, [&](std::size_t from, std::size_t to, unsigned width) {
        std::memcpy(&made[place.memory][to], &weights.at(name).bytes[from], width);
      });
    }
    return made;
  }
  // Whether every tensor has the bytes of `weights` at its place, and the padding is unchanged.
  [[nodiscard]] bool holds(const Weights& weights) const {
    for (const auto& [name, tensor] : held_) {
      const bool elsewhere = places_.contains(name) || absent_.contains(name);
      if (!elsewhere && tensor.bytes != weights.at(name).bytes) return false;
    }
    return memory_ == memory_with(weights);
  }

  [[nodiscard]] driftless_tensor describe_placed(const std::string& name) {
    driftless_tensor registered = describe(name, held_[name]);
    if (absent_.contains(name)) {
      registered.place = DRIFTLESS_ABSENT;
      registered.data = nullptr;
    } else if (const auto found = places_.find(name); found != places_.end()) {
      const auto& [memory, offset, strides] = found->second;
      registered.strides = strides.data();
      registered.data = memory_[memory].data() + offset * unit_bytes(held_[name].dtype);
    }
    return registered;
  }
  void register_all() {
    memory_ = memory_with(held_);
    ASSERT_EQ(open(), DRIFTLESS_OK) << error_.message();
    use_engine();
    for (const auto& [name, tensor] : held_) {
      const driftless_tensor registered = describe_placed(name);
      ASSERT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK)
          << error_.message();
    }
  }
  void follow_placed(int32_t holds = DRIFTLESS_HOLDS_BASE) {
    register_all();
    ASSERT_EQ(driftless_start(receiver_, holds, 2000, error_), DRIFTLESS_OK) << error_.message();
  }
  // One version after the other, a rollback, and two versions at once: the weights are always the
  // trainer's.
  void expect_follows() {
    trainer_.open();
    follow_placed();
    EXPECT_EQ(state().digest, trainer_.digest());
    EXPECT_EQ(state().partial, 0);
    Weights before = trainer_.weights;
    trainer_.step();
    update();
    EXPECT_TRUE(holds(trainer_.weights));
    EXPECT_EQ(state().version, 1U);
    EXPECT_EQ(state().digest, trainer_.digest());
    ASSERT_EQ(driftless_rollback(receiver_, error_), DRIFTLESS_OK) << error_.message();
    EXPECT_TRUE(holds(before));
    EXPECT_EQ(state().version, 0U);
    trainer_.step();
    trainer_.step();
    update();
    EXPECT_TRUE(holds(trainer_.weights));
    auto report = sized<driftless_report>();
    ASSERT_EQ(driftless_last_report(receiver_, &report, error_), DRIFTLESS_OK);
    EXPECT_EQ(report.versions, 3U);
    EXPECT_EQ(report.digest, trainer_.digest());
  }
  [[nodiscard]] driftless_code try_strides(const Strides& strides, int32_t where = DRIFTLESS_HOST) {
    driftless_tensor registered = describe(kUp, held_[kUp]);
    registered.strides = strides.data();
    registered.place = where;
    return driftless_register(receiver_, &registered, error_);
  }

  std::map<std::string, std::vector<std::byte>> memory_;
  std::map<std::string, Place> places_;
  std::set<std::string> absent_;
};

// --- following

TEST_F(CAbiStridesTest, Transposed) {
  place(kUp, "up", 0, {1, 40});
  expect_follows();
}

TEST_F(CAbiStridesTest, RowsAndColumnsOfAWiderMatrix) {
  place(kUp, "wide", 5 * 128 + 3, {128, 1});
  expect_follows();
}

TEST_F(CAbiStridesTest, TwoColumnSlicesOfOneMatrix) {
  place(kUp, "fused", 0, {106, 1});
  place(kGate, "fused", 96, {106, 1});
  expect_follows();
}

TEST_F(CAbiStridesTest, EveryOtherColumnOfOneMatrix) {
  place(kGate, "fused", 1, {20, 2});
  trainer_.weights["model.gate2"] = trainer_.weights[kGate];
  held_ = trainer_.weights;
  place("model.gate2", "fused", 0, {20, 2});
  expect_follows();
}

TEST_F(CAbiStridesTest, ThePaddingOfRowsIsNotTouched) {
  place(kUp, "up", 0, {128, 1});
  place(kScale, "scale", 0, {32, 1});
  place(kExperts, "experts", 0, {64, 8, 1});
  expect_follows();
}

TEST_F(CAbiStridesTest, ThreeDimensionsInAnotherOrder) {
  place(kExperts, "experts", 2, {1, 21, 3});
  expect_follows();
}

TEST_F(CAbiStridesTest, ATensorInThePaddingOfAnother) {
  place(kUp, "both", 0, {128, 1});
  place(kGate, "both", 128 + 100, {128, 1});  // from the second row on
  expect_follows();
}

TEST_F(CAbiStridesTest, FromNothingAnAnchorIsWritten) {
  place(kUp, "fused", 0, {1, 80});
  place(kGate, "fused", 40, {1, 80});
  trainer_.open(true);
  trainer_.step();
  held_ = changed_weights(held_, 5, 0.5, "none");
  follow_placed(DRIFTLESS_HOLDS_NOTHING);
  EXPECT_EQ(state().valid, 0);
  update();
  if (state().version == 0) update();
  EXPECT_TRUE(holds(trainer_.weights));
  EXPECT_EQ(state().digest, trainer_.digest());
  EXPECT_EQ(state().partial, 0);
}

TEST_F(CAbiStridesTest, OthersMayBeAbsent) {
  place(kUp, "up", 0, {1, 40});
  absent_ = {"model.embed.weight", kScale};
  for (const bool base : {true, false}) {
    SCOPED_TRACE(base);
    if (base) trainer_.open(true);
    follow_placed(base ? DRIFTLESS_HOLDS_BASE : DRIFTLESS_HOLDS_NOTHING);
    EXPECT_EQ(state().partial, 1);
    trainer_.step();
    const uint64_t newest = base ? 1 : 2;
    for (int tries = 0; tries < 3 && state().version < newest; ++tries) update();
    EXPECT_EQ(state().version, newest);
    EXPECT_TRUE(holds(trainer_.weights));
    Weights present = trainer_.weights;
    for (const std::string& name : absent_) present.erase(name);
    EXPECT_EQ(state().digest, to_hex(digest_of(present))) << "whoever holds the rest adds up";
    EXPECT_EQ(state().partial, 1);
    ASSERT_EQ(driftless_close(&receiver_, 0, error_), DRIFTLESS_OK);
  }
}

// --- refusing

TEST_F(CAbiStridesTest, AnotherBaseIsRefusedWhateverThePaddingIs) {
  place(kUp, "up", 1, {128, 1});
  trainer_.open();
  register_all();
  std::vector<std::byte>& memory = memory_["up"];
  memory[4] ^= std::byte{1};  // of an element
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_WRONG_BASE);
  memory[4] ^= std::byte{1};
  memory[0] = memory[2 * 100] = std::byte{7};
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_OK)
      << error_.message();
  trainer_.step();
  update();
  EXPECT_EQ(memory[0], std::byte{7});
  memory[0] = memory[2 * 100] = kPadding;
  EXPECT_TRUE(holds(trainer_.weights));
}

TEST_F(CAbiStridesTest, AForeignWriteIsFoundAndNoVersionIsHeld) {
  place(kUp, "up", 0, {1, 40});
  trainer_.open();
  follow_placed();
  trainer_.step();
  stage();
  for (std::byte& byte : memory_["up"]) byte ^= std::byte{0x55};
  const auto written = memory_;
  const Weights rest = held_;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_MISMATCH);
  EXPECT_TRUE(error_.contains(kUp)) << error_.message();
  EXPECT_EQ(memory_, written);
  EXPECT_TRUE(same(held_, rest));
  EXPECT_EQ(state().valid, 0);
  EXPECT_EQ(engine_.resumes, 0);
}

TEST_F(CAbiStridesTest, EncodingsOfWholeTensorsGoIntoStridedOnes) {
  trainer_.publish_as(DirectoryLayout::kHfDelta, Encoding::kXor);
  place(kUp, "up", 0, {1, 40});
  expect_follows();
}

TEST_F(CAbiStridesTest, StridesThatCannotBeWrittenThroughAreNamed) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  const auto refused = [&](const Strides& strides, const std::vector<const char*>& words,
                           int32_t where = DRIFTLESS_HOST) {
    const driftless_code code = try_strides(strides, where);
    EXPECT_TRUE(error_.contains(kUp)) << error_.message();
    for (const char* each : words) EXPECT_TRUE(error_.contains(each)) << error_.message();
    return code;
  };
  EXPECT_EQ(refused({96, 0}, {"strides[1] is 0", "share memory"}), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused({0, 1}, {"strides[0] is 0", "share memory"}), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused({95, 1}, {"strides[0] is 95", "more than 95"}), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused({1, 39}, {"strides[1] is 39", "more than 39"}), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused({96, -1}, {"strides[1] is -1", "negative"}), DRIFTLESS_UNSUPPORTED);
  EXPECT_EQ(refused({-96, 1}, {"strides[0] is -96", "negative"}), DRIFTLESS_UNSUPPORTED);
  EXPECT_EQ(refused({int64_t{1} << 62, 1}, {"strides[0]", "past the end"}),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused({1, 39}, {"strides[1] is 39", "more than 39"}, DRIFTLESS_CUDA),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(refused({96, 1}, {"DRIFTLESS_ABSENT"}, DRIFTLESS_ABSENT), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(try_strides({100, 1}), DRIFTLESS_OK) << error_.message();
}

TEST_F(CAbiStridesTest, StridesOfWhatHasNoElementsOrIsNotHereSayNothing) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  const Strides none{-5, 0};
  driftless_tensor registered = describe("model.empty", held_["model.empty"]);
  registered.strides = none.data();
  EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK) << error_.message();
  registered = describe(kUp, held_[kUp]);
  registered.strides = none.data();
  registered.place = DRIFTLESS_ABSENT;
  registered.data = nullptr;
  EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK) << error_.message();
}

TEST_F(CAbiStridesTest, WhatAMapCannotSayIsUnsupported) {
  ASSERT_EQ(open(), DRIFTLESS_OK);
  std::vector<std::byte> memory(1U << 16);
  const std::vector<int64_t> shape(7, 2);
  auto registered = sized<driftless_tensor>();
  registered.name = "seven";
  registered.dtype = "U8";
  registered.dims = 7;
  registered.shape = shape.data();
  const Strides gaps{1, 3, 9, 27, 81, 243, 729};
  registered.strides = gaps.data();
  registered.data = memory.data();
  EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_UNSUPPORTED);
  EXPECT_TRUE(error_.contains("'seven'") && error_.contains("at most 6")) << error_.message();
  registered.name = "nibbles";
  registered.dtype = "F4";
  registered.dims = 2;
  EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_UNSUPPORTED);
  EXPECT_TRUE(error_.contains("smaller than a byte")) << error_.message();
}

// --- which tensors share memory

// Random tensors over bytes [0, 64) of a memory; the expected result is computed in the obvious
// way.
TEST_F(CAbiStridesTest, SharedMemoryIsFoundExactly) {
  alignas(8) std::array<std::byte, 256> memory{};
  std::mt19937_64 random(2);
  const auto below = [&](std::uint64_t end) { return random() % end; };
  int apart = 0, together = 0;
  for (int round = 0; round < 1500; ++round) {
    ASSERT_EQ(open(), DRIFTLESS_OK);
    std::multiset<std::size_t> bytes;
    const std::uint64_t common = 4 + below(16);  // a stride that some of them share
    const std::array<const char*, 3> names{"a", "b", "c"};
    for (std::size_t tensor = 0; tensor < 2 + below(2); ++tensor) {
      const unsigned width = 1U << below(2);
      const std::array<int64_t, 2> shape{static_cast<int64_t>(1 + below(5)),
                                         static_cast<int64_t>(1 + below(4))};
      const Strides strides{static_cast<int64_t>(below(3) == 0 ? 1 + below(20) : common / width),
                            static_cast<int64_t>(1 + below(3))};
      const std::size_t offset = below(24) * width;
      auto registered = sized<driftless_tensor>();
      registered.name = names[tensor];
      registered.dtype = width == 1 ? "U8" : "U16";
      registered.dims = 2;
      registered.shape = shape.data();
      registered.strides = strides.data();
      registered.data = memory.data() + offset;
      if (driftless_register(receiver_, &registered, error_) != DRIFTLESS_OK) continue;
      for (const std::size_t at :
           offsets_of({static_cast<std::uint64_t>(shape[0]), static_cast<std::uint64_t>(shape[1])},
                      strides)) {
        for (unsigned byte = 0; byte < width; ++byte) bytes.insert(offset + at * width + byte);
      }
    }
    const bool shared = std::set<std::size_t>(bytes.begin(), bytes.end()).size() != bytes.size();
    const driftless_code code = driftless_start(receiver_, DRIFTLESS_HOLDS_NOTHING, 0, error_);
    if (!bytes.empty()) {
      EXPECT_EQ(code, shared ? DRIFTLESS_INVALID_ARGUMENT : DRIFTLESS_DEADLINE_EXCEEDED)
          << round << ": " << error_.message();
      EXPECT_EQ(error_.contains("share memory"), shared) << error_.message();
      ++(shared ? together : apart);
    }
    ASSERT_EQ(driftless_close(&receiver_, 0, error_), DRIFTLESS_OK);
  }
  EXPECT_GT(apart, 100);
  EXPECT_GT(together, 100);
}

}  // namespace
}  // namespace driftless::testing
