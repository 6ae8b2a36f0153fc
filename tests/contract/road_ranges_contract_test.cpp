// SPDX-License-Identifier: Apache-2.0
// What every road must do if a receiver fetches ranges of a part.
#include <algorithm>
#include <future>

#include "support/road_contract.h"

namespace driftless::testing {
namespace {

using Ranges = std::vector<ByteRange>;

// Expects that each range has the bytes that were written there, and the same address modulo
// kRangeAlignment as its offset in the part.
void expect_ranges(ReceiveRoad& road, const PublicationId& id, const PartReceipt& receipt,
                   const TestPart& part, const Ranges& ranges) {
  const auto got = road.fetch_ranges(id, receipt, ranges, soon());
  ASSERT_TRUE(got.ok()) << got.status().to_string();
  ASSERT_EQ(got->size(), ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto expected = std::span(part.bytes).subspan(ranges[i].offset, ranges[i].size_bytes);
    const std::span<const std::byte> found = (*got)[i].bytes();
    ASSERT_TRUE(std::ranges::equal(found, expected))
        << part.name << ": " << ranges[i].size_bytes << " bytes at " << ranges[i].offset;
    if (found.empty() || (*got)[i].memory_kind() != MemoryKind::kHost) continue;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(found.data()) % kRangeAlignment,
              ranges[i].offset % kRangeAlignment);
  }
}

TEST_P(RoadContractTest, ARangeIsWhatWasWrittenThere) {
  MAKE_WORLD(world);
  const RankParts parts = some_parts(1, 1, 70'001, 40);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  const std::uint64_t size = parts[0][0].bytes.size();
  for (const ByteRange& range :
       Ranges{{0, 1}, {0, size}, {size - 1, 1}, {12'345, 6'789}, {1, size - 2}, {4'096, 4'096}}) {
    expect_ranges(*receiver, step(1), receipts->front(), parts[0][0], {range});
  }
}

TEST_P(RoadContractTest, ManyRangesComeInTheOrderOfTheCall) {
  MAKE_WORLD(world, {.ranks = 2});
  const RankParts parts = some_parts(2, 2, 50'000, 41);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  std::mt19937_64 random(42);
  std::size_t next = 0;
  for (const auto& of_rank : parts) {
    for (const TestPart& part : of_rank) {
      Ranges ranges;
      for (int i = 0; i < 300; ++i) {
        const std::uint64_t offset = random() % part.bytes.size();
        ranges.push_back(
            {offset, random() % std::min<std::uint64_t>(1'000, part.bytes.size() - offset + 1)});
      }
      expect_ranges(*receiver, step(1), (*receipts)[next++], part, ranges);
    }
  }
}

TEST_P(RoadContractTest, RangesMayTouchOverlapRepeatOrBeEmpty) {
  MAKE_WORLD(world);
  const RankParts parts = some_parts(1, 1, 10'000, 43);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  const auto expect = [&](const Ranges& ranges) {
    expect_ranges(*receiver, step(1), receipts->front(), parts[0][0], ranges);
  };
  expect({});
  expect({{0, 0}});
  expect({{10'000, 0}});  // at the end of the part
  expect({{0, 100}, {100, 100}, {200, 1}, {201, 999}});
  expect({{500, 1'000}, {700, 1'000}, {0, 10'000}, {500, 1'000}});
  expect({{9'000, 1'000}, {0, 0}, {0, 1'000}, {4'000, 0}});
}

TEST_P(RoadContractTest, RangesOfAnEmptyPartAreEmpty) {
  MAKE_WORLD(world);
  const RankParts parts{{{"empty", {}}}};
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  expect_ranges(*receiver, step(1), receipts->front(), parts[0][0], {{0, 0}, {0, 0}});
  EXPECT_FALSE(receiver->fetch_ranges(step(1), receipts->front(), Ranges{{0, 1}}, soon()).ok());
}

TEST_P(RoadContractTest, ARangeOfALargePartIsFetched) {
  MAKE_WORLD(world);
  const TestPart part{"large", random_part(33'000'001, 44)};
  ASSERT_OK(world.sender(0).begin(step(1), soon()));
  ASSERT_OK(write_part(world.sender(0), part, std::size_t{1} << 20));
  const auto receipts = world.sender(0).flush(soon());
  ASSERT_OK(receipts);
  ASSERT_OK(world.sender(0).seal(manifest_of(step(1)), soon()));
  const auto receiver = world.receiver();
  expect_ranges(*receiver, step(1), receipts->front(), part,
                {{3, 20'000'000}, {20'000'003, 12'999'998}, {31'000'000, 5}});
}

TEST_P(RoadContractTest, ARangeThatLeavesThePartIsRefused) {
  MAKE_WORLD(world);
  const RankParts parts = some_parts(1, 1, 1'000, 45);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  for (const ByteRange& range : Ranges{{0, 1'001},
                                       {999, 2},
                                       {1'000, 1},
                                       {1'001, 0},
                                       {kHuge, 1},
                                       {1, kHuge},
                                       {kHuge, kHuge},
                                       {std::uint64_t{1} << 62, 0}}) {
    const auto got =
        receiver->fetch_ranges(step(1), receipts->front(), Ranges{{0, 10}, range}, soon());
    ASSERT_EQ(got.status().code(), StatusCode::kCorrupt) << range.offset << " " << range.size_bytes;
    for (const std::string& expected :
         {receipts->front().name, concat(range.offset), concat(range.size_bytes), concat(1'000)}) {
      EXPECT_NE(got.status().message().find(expected), std::string::npos)
          << got.status().to_string();
    }
  }
  expect_ranges(*receiver, step(1), receipts->front(), parts[0][0], {{0, 1'000}});
}

TEST_P(RoadContractTest, RangesOfAPartOfAnotherSizeThanTheReceiptAreRefused) {
  MAKE_WORLD(world);
  const auto receipts = publish(world, step(1), some_parts(1, 1, 100, 46));
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  for (const std::uint64_t size : {std::uint64_t{50}, std::uint64_t{101}, std::uint64_t{1} << 62}) {
    PartReceipt wrong = receipts->front();
    wrong.size_bytes = size;
    const StatusCode code =
        receiver->fetch_ranges(step(1), wrong, Ranges{{10, 20}}, soon()).status().code();
    EXPECT_TRUE(code == StatusCode::kIncomplete || code == StatusCode::kCorrupt) << size;
  }
  PartReceipt hostile = receipts->front();
  hostile.name = "../" + hostile.name;
  EXPECT_FALSE(receiver->fetch_ranges(step(1), hostile, Ranges{{0, 1}}, soon()).ok());
}

TEST_P(RoadContractTest, RangesOfWhatIsNotThereAreNotFound) {
  MAKE_WORLD(world, {.ranks = 1, .ring_versions = 2});
  const RankParts parts = some_parts(1, 1, 100'000, 47);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  const Ranges ranges{{10, 20}, {50'000, 40'000}};
  const auto code = [&](const PublicationId& id) {
    return receiver->fetch_ranges(id, receipts->front(), ranges, soon()).status().code();
  };
  EXPECT_EQ(code(step(2)), StatusCode::kNotFound);
  const auto held = receiver->fetch_ranges(step(1), receipts->front(), ranges, soon());
  ASSERT_OK(held);
  for (std::uint64_t v = 2; v <= 5; ++v) {
    ASSERT_OK(publish(world, step(v), some_parts(1, 1, 100'000, v)));
  }
  ASSERT_OK(world.sender(0).prune(4));
  EXPECT_EQ(code(step(1)), StatusCode::kNotFound) << "it was removed";
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(
        (*held)[i].bytes(),
        std::span(parts[0][0].bytes).subspan(ranges[i].offset, ranges[i].size_bytes)))
        << "bytes that a receiver holds stay";
  }
}

TEST_P(RoadContractTest, NoRangeIsSeenBeforeTheSeal) {
  MAKE_WORLD(world);
  const RankParts parts = some_parts(1, 1, 1'000, 48);
  const auto receiver = world.receiver();
  const auto receipts = write_all(world, step(1), parts);
  ASSERT_OK(receipts);
  EXPECT_FALSE(receiver->fetch_ranges(step(1), receipts->front(), Ranges{{0, 10}}, soon()).ok());
  ASSERT_OK(world.sender(0).seal(manifest_of(step(1)), soon()));
  expect_ranges(*receiver, step(1), receipts->front(), parts[0][0], {{0, 10}});
}

TEST_P(RoadContractTest, RangesAreFetchedByManyThreadsIfTheRoadAllowsIt) {
  MAKE_WORLD(world);
  const RankParts parts = some_parts(1, 2, 200'000, 49);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  if (!receiver->fetches_at_once()) GTEST_SKIP() << "one thread at a time fetches over this road";
  std::vector<std::future<void>> readers;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    readers.push_back(std::async(std::launch::async, [&, thread] {
      for (std::uint64_t i = 0; i < 20; ++i) {
        const std::uint64_t at = (thread * 20 + i) * 2'000;
        const std::size_t part = thread % 2;
        expect_ranges(*receiver, step(1), (*receipts)[part], parts[0][part],
                      {{at, 2'000}, {at + 10'000, 333}});
        const auto whole = receiver->fetch_part(step(1), (*receipts)[part], soon());
        ASSERT_TRUE(whole.ok()) << whole.status().to_string();
        EXPECT_TRUE(std::ranges::equal(whole->bytes(), parts[0][part].bytes));
      }
    }));
  }
  for (auto& reader : readers) reader.get();
}

}  // namespace
}  // namespace driftless::testing
