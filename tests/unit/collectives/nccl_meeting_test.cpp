// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/message.h"

#include <gtest/gtest.h>

namespace driftless::nccl {
namespace {

TEST(NcclMeeting, GivesTheIdBackToTheSameVersion) {
  const std::string id("an id with \0 in it", 18);
  const std::string meeting = make_meeting(id, 22809);
  EXPECT_EQ(*read_meeting(meeting, 22809), id);
}

TEST(NcclMeeting, RefusesAnotherVersionByBothNumbers) {
  const std::string meeting = make_meeting("id", 22809);
  const Status status = read_meeting(meeting, 22803).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("2.28.9"), std::string::npos) << status.to_string();
  EXPECT_NE(status.message().find("2.28.3"), std::string::npos) << status.to_string();
}

TEST(NcclMeeting, RefusesWhatIsTooShort) {
  EXPECT_EQ(read_meeting("", 22809).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(read_meeting("1234", 22809).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace driftless::nccl
