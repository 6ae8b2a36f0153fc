// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/message.h"

#include <gtest/gtest.h>

#include "collectives/held_publications.h"
#include "support/road_contract.h"

namespace driftless::testing {
namespace {

using nccl::Message;
using nccl::MessageKind;

Message full_message() {
  Message message;
  message.kind = MessageKind::kReceive;
  message.code = StatusCode::kBusy;
  message.rank = 3;
  message.index = 4;
  message.count = 5;
  message.request = 6;
  message.session = ~std::uint64_t{0};
  message.attempt = 7;
  message.generation = 8;
  message.wait_ms = 9;
  message.id = {10, PublicationKind::kAnchor};
  message.name = "name";
  message.meeting = std::string(128, '\0');
  message.text = "text";
  message.parts = {{"part", 1, 2, {3, 4}, 0}, {"other", 5, ~std::uint64_t{0}, {6, 7}, 0}};
  message.ids = {{1, PublicationKind::kVersion}, {1, PublicationKind::kAnchor}};
  return message;
}

TEST(NcclMessage, ComesBackAsItWas) {
  for (const Message& message : {Message(), full_message()}) {
    const auto parsed = nccl::parse_message(nccl::to_bytes(message));
    ASSERT_OK(parsed);
    EXPECT_EQ(*parsed, message);
  }
}

TEST(NcclMessage, CutOrLongerIsRefused) {
  const std::string bytes = nccl::to_bytes(full_message());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(nccl::parse_message(bytes.substr(0, size)).status().code(), StatusCode::kCorrupt);
  }
  EXPECT_FALSE(nccl::parse_message(bytes + "x").ok());
}

TEST(NcclMessage, AnyChangedByteIsRefusedOrHarmless) {
  const std::string bytes = nccl::to_bytes(full_message());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const char with : {'\xff', '\x7f', '\0', '/'}) {
      std::string changed = bytes;
      changed[at] = with;
      const auto parsed = nccl::parse_message(changed);
      if (!parsed.ok()) continue;
      EXPECT_EQ(nccl::to_bytes(*parsed), changed) << "byte " << at;
    }
  }
}

TEST(NcclMessage, PartNamesThatAreNotPlainAreRefused) {
  Message message = full_message();
  message.parts[0].name = "../up";
  EXPECT_FALSE(nccl::parse_message(nccl::to_bytes(message)).ok());
}

TEST(RetentionRing, TheNewestStepStaysWhateverItTakes) {
  RetentionRing ring("nccl", 100, 8);
  const Hash128 hash = xxh3_128("a manifest");
  ring.add(step(1), hash, {{0, 60}});
  ring.add(step(2), hash, {{0, 30}, {1, 90}});
  EXPECT_EQ(ring.ids(), (std::vector{step(1), step(2)}));
  ring.add(step(3), hash, {{1, 20}});  // rank 1 alone is over: both older steps with it may go
  EXPECT_EQ(ring.manifest(step(3)), hash);
  EXPECT_EQ(ring.manifest(step(2)), std::nullopt);
  ring.add(step(4), hash, {{0, 1'000}});
  EXPECT_EQ(ring.ids(), std::vector{step(4)});
  EXPECT_EQ(ring.check_new(step(4)).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(ring.check_new(step(2)).code(), StatusCode::kAlreadyExists) << "it was there";
  EXPECT_TRUE(ring.check_new(step(5)).ok());
  EXPECT_TRUE(ring.check_new(anchor(4)).ok());
}

}  // namespace
}  // namespace driftless::testing
