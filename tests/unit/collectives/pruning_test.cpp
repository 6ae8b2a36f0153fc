// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/receiver_file.h"

#include <gtest/gtest.h>

namespace driftless::shared_fs {
namespace {

PublicationId step(std::uint64_t version) { return {version, PublicationKind::kVersion}; }
PublicationId anchor(std::uint64_t version) { return {version, PublicationKind::kAnchor}; }
using Ids = std::vector<PublicationId>;
using Receivers = std::vector<ReceiverWatch::Receiver>;

const Ids kThere{step(4), step(1), anchor(1), step(2), step(3), anchor(3)};

TEST(PruningTest, WithoutReceiversTheRequestedVersionsGoOldestFirst) {
  EXPECT_EQ(prunable(kThere, 3, {}), (Ids{step(1), anchor(1), step(2), step(3)}));
  EXPECT_EQ(prunable(kThere, 4, {}),
            (Ids{step(1), anchor(1), step(2), step(3), anchor(3), step(4)}));
  EXPECT_EQ(prunable(kThere, 0, {}), Ids());
}

TEST(PruningTest, TheSlowestReceiverDecides) {
  const Receivers receivers{{{"fast", 4, "p"}, true}, {{"slow", 1, "p"}, true}};
  EXPECT_EQ(prunable(kThere, 4, receivers), (Ids{step(1), anchor(1), anchor(3)}));
}

TEST(PruningTest, AReceiverWithoutAVersionKeepsTheOldestAnchorAndItsSteps) {
  EXPECT_EQ(prunable(kThere, 4, {{{"new", 0, ""}, true}}), (Ids{step(1), anchor(3)}));
  EXPECT_EQ(prunable({step(1), step(2)}, 2, {{{"new", 0, ""}, true}}), Ids()) << "no anchor";
}

TEST(PruningTest, AReceiverAtTheBaseKeepsAllSteps) {
  EXPECT_EQ(prunable(kThere, 4, {{{"base", 0, "p"}, true}}), (Ids{anchor(1), anchor(3)}));
}

TEST(PruningTest, AnUnreadableReceiverKeepsEverything) {
  EXPECT_EQ(prunable(kThere, 4, {{{"damaged", 0, ""}, false}}), Ids());
}

}  // namespace
}  // namespace driftless::shared_fs
