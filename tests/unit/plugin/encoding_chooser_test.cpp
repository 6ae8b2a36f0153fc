// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/encoding_chooser.h"

#include <gtest/gtest.h>

#include "formats/receiver_needs.h"

namespace driftless {
namespace {

constexpr double kMbit = 1e6 / 8;
constexpr std::uint64_t kWeightUnits = 500'000'000;

// The time that two cores take for 1 GB of bfloat16 with 1.05 % changed.
struct Codec {
  double bytes_per_change, make_ms, decode_ms;
};
const std::map<Encoding, Codec> kCodecs{{Encoding::kDeltas, {4, 300, 60}},
                                        {Encoding::kDeltasZstd, {2.9, 400, 80}},
                                        {Encoding::kCompact, {0.91, 650, 360}}};

class Chosen : public ::testing::Test {
 protected:
  // Publishes a version in the chosen encoding. Returns the choice for the next one.
  Encoding after_a_version(double bytes_per_s) {
    const Codec& codec = kCodecs.at(now_);
    const auto changes = static_cast<std::uint64_t>(changed_ * kWeightUnits);
    chooser_.note({now_, changes, kWeightUnits,
                   static_cast<std::uint64_t>(codec.bytes_per_change * double(changes)),
                   codec.make_ms, 0});
    const LinkSpeed speed{rounded_speed(bytes_per_s),
                          rounded_speed(kWeightUnits / codec.decode_ms * 1e3)};
    now_ = chooser_.choose(speed, [&](Encoding each) { return each != forbidden_; });
    return now_;
  }

  double changed_ = 0.0105;
  EncodingChooser chooser_{Encoding::kDeltas, 2};
  Encoding now_ = Encoding::kDeltas;
  Encoding forbidden_ = Encoding::kFull;
};

TEST_F(Chosen, StaysWithTheFirstUntilALinkIsKnown) {
  EXPECT_EQ(after_a_version(0), Encoding::kDeltas);
  EXPECT_TRUE(chooser_.why().empty());
}

TEST_F(Chosen, StaysOnFastLinks) {
  for (const double rate : {1000 * kMbit, 10'000 * kMbit, 100'000 * kMbit}) {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(after_a_version(rate), Encoding::kDeltas) << rate;
  }
}

class ChosenAt : public Chosen, public ::testing::WithParamInterface<double> {};
INSTANTIATE_TEST_SUITE_P(Rates, ChosenAt, ::testing::Values(10 * kMbit, 100 * kMbit));

TEST_P(ChosenAt, TurnsToCompactAfterOneVersionAndStaysThere) {
  EXPECT_EQ(after_a_version(GetParam()), Encoding::kCompact);
  EXPECT_NE(chooser_.why().find("'compact' from here on"), std::string::npos) << chooser_.why();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(after_a_version(GetParam()), Encoding::kCompact);
    EXPECT_TRUE(chooser_.why().empty());
  }
}

TEST_P(ChosenAt, TakesTheNextBestIfOneIsNotAllowed) {
  forbidden_ = Encoding::kCompact;
  after_a_version(GetParam());  // one version alone is not enough for a small gain
  EXPECT_EQ(after_a_version(GetParam()), Encoding::kDeltasZstd);
}

TEST_P(ChosenAt, LeavesAtOnceWhatIsNotAllowedAnyMoreAndComesBack) {
  EXPECT_EQ(after_a_version(GetParam()), Encoding::kCompact);
  forbidden_ = Encoding::kCompact;
  EXPECT_EQ(after_a_version(GetParam()), Encoding::kDeltasZstd);
  EXPECT_NE(chooser_.why().find("not all receivers"), std::string::npos) << chooser_.why();
  EXPECT_EQ(after_a_version(GetParam()), Encoding::kDeltasZstd);
  EXPECT_TRUE(chooser_.why().empty()) << chooser_.why();
  forbidden_ = Encoding::kFull;
  EXPECT_EQ(after_a_version(GetParam()), Encoding::kCompact);
}

TEST_F(Chosen, ComesBackWhenTheLinkIsFast) {
  EXPECT_EQ(after_a_version(10 * kMbit), Encoding::kCompact);
  int versions = 1;
  while (after_a_version(10'000 * kMbit) != Encoding::kDeltas) ASSERT_LT(++versions, 20);
}

// If the rate changes between two values at which different encodings win, the choice stays.
TEST_F(Chosen, DoesNotFollowALinkThatWavers) {
  unsigned switches = 0;
  for (int i = 0; i < 100; ++i) {
    after_a_version((i % 2 == 0 ? 150 : 250) * kMbit);
    switches += chooser_.why().empty() ? 0 : 1;
  }
  EXPECT_LE(switches, 2U);
}

// Measurements replace the estimate.
TEST_F(Chosen, LeavesACodecThatTurnsOutToBeSlow) {
  EncodingChooser chooser(Encoding::kDeltas, 64);  // more cores than there are
  const auto none = [](Encoding) { return true; };
  const auto changes = static_cast<std::uint64_t>(changed_ * kWeightUnits);
  const LinkSpeed speed{rounded_speed(400 * kMbit), 0};
  chooser.note({Encoding::kDeltas, changes, kWeightUnits, 4 * changes, 100, 0});
  ASSERT_EQ(chooser.choose(speed, none), Encoding::kCompact);
  for (int i = 0; i < 2; ++i) {
    chooser.note({Encoding::kCompact, changes, kWeightUnits, changes, 2000, 0});
    if (chooser.choose(speed, none) != Encoding::kCompact) return;
  }
  FAIL() << "still compact";
}

// It is left after one version, although the encoding before was measured only in its slow first
// version.
TEST_F(Chosen, ATrialThatFailsEndsAtOnce) {
  EncodingChooser chooser(Encoding::kDeltas, 64);  // more cores than there are
  const auto all = [](Encoding) { return true; };
  const auto changes = static_cast<std::uint64_t>(changed_ * kWeightUnits);
  const LinkSpeed speed{rounded_speed(200 * kMbit), rounded_speed(kWeightUnits / 0.2)};
  for (int i = 0; i < 2; ++i) {
    chooser.note({Encoding::kDeltas, changes, kWeightUnits, 4 * changes, 300, 0});
    if (chooser.choose(speed, all) == Encoding::kCompact) break;
  }
  ASSERT_NE(chooser.why().find("'compact' from here on"), std::string::npos) << chooser.why();
  chooser.note({Encoding::kCompact, changes, kWeightUnits, changes, 1200, 0});
  EXPECT_NE(chooser.choose(speed, all), Encoding::kCompact) << chooser.why();
}

// On a GPU a codec takes a few times as long as the comparison there, not as long as on cores.
TEST_F(Chosen, AQuickComparisonFavorsAQuickCodec) {
  const auto all = [](Encoding) { return true; };
  const auto changes = static_cast<std::uint64_t>(changed_ * kWeightUnits);
  const LinkSpeed speed{rounded_speed(5000 * kMbit), rounded_speed(kWeightUnits / 0.002)};
  chooser_.note({Encoding::kDeltas, changes, kWeightUnits, 4 * changes, 2, 0});
  EXPECT_EQ(chooser_.choose(speed, all), Encoding::kCompact) << chooser_.why();
}

TEST_F(Chosen, ARoadThatIsSlowToTakeAVersionCounts) {
  const auto changes = static_cast<std::uint64_t>(changed_ * kWeightUnits);
  chooser_.note({Encoding::kDeltas, changes, kWeightUnits, 4 * changes, 300 + 17'000, 17'000});
  EXPECT_EQ(chooser_.choose({}, [](Encoding) { return true; }), Encoding::kCompact);
}

TEST(RoundedSpeed, SeldomChanges) {
  EXPECT_EQ(rounded_speed(0), 0U);
  EXPECT_EQ(rounded_speed(1.05e6), rounded_speed(1.08e6));
  EXPECT_NE(rounded_speed(1e6), rounded_speed(1.1e6));
  EXPECT_NEAR(static_cast<double>(rounded_speed(1e6)), 1e6, 0.05e6);
}

}  // namespace
}  // namespace driftless
