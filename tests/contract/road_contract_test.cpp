// SPDX-License-Identifier: Apache-2.0
// What every road must do, by whatever means it carries bytes: publishing and fetching.
// road_room_contract_test.cpp and group_contract_test.cpp have the rest of the contract;
// road_worlds_test.cpp has the roads.
#include <algorithm>
#include <future>
#include <thread>

#include "support/road_contract.h"

namespace driftless::testing {
namespace {

TEST_P(RoadContractTest, CarriesManifestAndPartsOfEveryRank) {
  MAKE_WORLD(world, {.ranks = 3});
  const RankParts parts = some_parts(3, 2, 5000, 1);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  expect_fetched(*receiver, step(1), parts, *receipts);
}

TEST_P(RoadContractTest, CarriesPartsOfOneRank) {
  MAKE_WORLD(world);
  const RankParts parts = some_parts(1, 3, 70'000, 2);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  expect_fetched(*world.receiver(), step(1), parts, *receipts);
}

TEST_P(RoadContractTest, ARankMayHaveNoParts) {
  MAKE_WORLD(world, {.ranks = 2});
  RankParts parts = some_parts(2, 1, 100, 3);
  parts[0].clear();
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  ASSERT_EQ(receipts->size(), 1U);
  expect_fetched(*world.receiver(), step(1), parts, *receipts);
}

TEST_P(RoadContractTest, APublicationWithoutPartsIsOne) {
  MAKE_WORLD(world);
  const auto receipts = publish(world, step(1), RankParts(1));
  ASSERT_OK(receipts);
  EXPECT_TRUE(receipts->empty());
  const auto receiver = world.receiver();
  EXPECT_EQ(listed(*receiver), std::vector{step(1)});
  expect_fetched(*receiver, step(1), RankParts(1), *receipts);
}

TEST_P(RoadContractTest, APartMayBeEmpty) {
  MAKE_WORLD(world);
  const RankParts parts{{{"empty", {}}, {"other", random_part(10, 4)}}};
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  expect_fetched(*world.receiver(), step(1), parts, *receipts);
}

TEST_P(RoadContractTest, CarriesALargePart) {
  MAKE_WORLD(world);
  const TestPart part{"large", random_part(33'000'001, 5)};
  ASSERT_OK(world.sender(0).begin(step(1), soon()));
  ASSERT_OK(write_part(world.sender(0), part, std::size_t{1} << 20));
  const auto receipts = world.sender(0).flush(soon());
  ASSERT_OK(receipts);
  ASSERT_OK(world.sender(0).seal(manifest_of(step(1)), soon()));
  expect_fetched(*world.receiver(), step(1), {{part}}, *receipts);
}

TEST_P(RoadContractTest, PartsMayBeWrittenInAnyOrderAndTwice) {
  MAKE_WORLD(world);
  const TestPart part{"shuffled", random_part(10'000, 6)};
  const std::span<const std::byte> bytes(part.bytes);
  ASSERT_OK(world.sender(0).begin(step(1), soon()));
  {
    auto file = world.sender(0).create_part(part.name);
    ASSERT_OK(file);
    ASSERT_OK((*file)->pwrite(6000, bytes.subspan(6000)));
    ASSERT_OK((*file)->pwrite(1000, random_part(5000, 7)));
    ASSERT_OK((*file)->pwrite(0, bytes.subspan(0, 3000)));
    ASSERT_OK((*file)->pwrite(2000, bytes.subspan(2000, 4000)));
    std::vector<std::byte> back(500);
    ASSERT_OK((*file)->pread(2900, back));
    EXPECT_TRUE(std::ranges::equal(back, bytes.subspan(2900, 500)));
    EXPECT_FALSE((*file)->pread(9900, back).ok()) << "past the end";
    ASSERT_OK((*file)->sync());
  }
  const auto receipts = world.sender(0).flush(soon());
  ASSERT_OK(receipts);
  ASSERT_OK(world.sender(0).seal(manifest_of(step(1)), soon()));
  expect_fetched(*world.receiver(), step(1), {{part}}, *receipts);
}

TEST_P(RoadContractTest, SeveralPartsMayBeOpenAtOnceAndWrittenByOtherThreads) {
  MAKE_WORLD(world);
  RankParts parts = some_parts(1, 4, 50'000, 8);
  ASSERT_OK(world.sender(0).begin(step(1), soon()));
  std::vector<std::unique_ptr<File>> files;
  for (const TestPart& part : parts[0]) {
    auto file = world.sender(0).create_part(part.name);
    ASSERT_OK(file);
    files.push_back(std::move(*file));
  }
  std::vector<std::future<Status>> writers;
  for (std::size_t i = 0; i < files.size(); ++i) {
    writers.push_back(std::async(std::launch::async, [&, i]() -> Status {
      const std::unique_ptr<File> file = std::move(files[i]);
      DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, parts[0][i].bytes));
      return file->sync();
    }));
  }
  for (auto& writer : writers) ASSERT_OK(writer.get());
  const auto receipts = world.sender(0).flush(soon());
  ASSERT_OK(receipts);
  ASSERT_OK(world.sender(0).seal(manifest_of(step(1)), soon()));
  expect_fetched(*world.receiver(), step(1), parts, *receipts);
}

TEST_P(RoadContractTest, FlushRefusesAPartThatIsOpenOrNotSynced) {
  MAKE_WORLD(world);
  ASSERT_OK(world.sender(0).begin(step(1), soon()));
  auto file = world.sender(0).create_part("part");
  ASSERT_OK(file);
  ASSERT_OK((*file)->sync());
  EXPECT_FALSE(world.sender(0).flush(soon()).ok()) << "still open";
  ASSERT_OK((*file)->pwrite(0, random_part(10, 9)));
  file->reset();
  const auto flushed = world.sender(0).flush(soon());
  ASSERT_FALSE(flushed.ok()) << "not synced since the last write";
  EXPECT_NE(flushed.status().message().find("part"), std::string::npos);
  ASSERT_OK(world.sender(0).abort());
}

TEST_P(RoadContractTest, RefusesPartNamesThatAreNotPlainOrThere) {
  MAKE_WORLD(world);
  ASSERT_OK(world.sender(0).begin(step(1), soon()));
  ASSERT_OK(write_part(world.sender(0), {"part", random_part(10, 10)}));
  EXPECT_FALSE(world.sender(0).create_part("part").ok());
  for (const char* name : {"", ".", "..", "a/b", "../up", "a\nb"}) {
    EXPECT_FALSE(world.sender(0).create_part(name).ok()) << name;
  }
  ASSERT_OK(world.sender(0).abort());
}

TEST_P(RoadContractTest, NothingIsVisibleBeforeTheSeal) {
  MAKE_WORLD(world, {.ranks = 2});
  const auto receiver = world.receiver();
  const RankParts parts = some_parts(2, 1, 1000, 11);
  const auto receipts = write_all(world, step(1), parts);
  ASSERT_OK(receipts);
  EXPECT_TRUE(listed(*receiver).empty());
  EXPECT_EQ(receiver->fetch_manifest(step(1), soon()).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(receiver->fetch_part(step(1), receipts->front(), soon()).ok());
  EXPECT_EQ(receiver->wait_beyond(0, in_ms(30)).code(), StatusCode::kDeadlineExceeded);
  const auto before = world.sender(0).published(step(1), soon());
  ASSERT_OK(before);
  EXPECT_FALSE(*before);
  ASSERT_OK(world.sender(0).seal(manifest_of(step(1)), soon()));
  EXPECT_EQ(listed(*receiver), std::vector{step(1)});
  for (unsigned rank = 0; rank < 2; ++rank) {
    const auto after = world.sender(rank).published(step(1), soon());
    ASSERT_OK(after);
    EXPECT_EQ(*after, xxh3_128(manifest_of(step(1)))) << "rank " << rank;
  }
}

TEST_P(RoadContractTest, AbortLeavesNothingAndTheVersionCanBeBegunAgain) {
  MAKE_WORLD(world, {.ranks = 2});
  const auto receiver = world.receiver();
  ASSERT_OK(write_all(world, step(1), some_parts(2, 2, 1000, 12)));
  ASSERT_OK(abort_all(world));
  ASSERT_OK(abort_all(world)) << "nothing to abort is ok";
  EXPECT_TRUE(listed(*receiver).empty());
  const auto published = world.sender(1).published(step(1), soon());
  ASSERT_OK(published);
  EXPECT_FALSE(*published);
  const RankParts parts = some_parts(2, 1, 2000, 13);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  expect_fetched(*receiver, step(1), parts, *receipts);
}

TEST_P(RoadContractTest, AbortWithOpenPartsIsHarmless) {
  MAKE_WORLD(world);
  ASSERT_OK(world.sender(0).begin(step(1), soon()));
  auto file = world.sender(0).create_part("part");
  ASSERT_OK(file);
  ASSERT_OK((*file)->pwrite(0, random_part(100, 14)));
  ASSERT_OK(world.sender(0).abort());
  const Status late = (*file)->pwrite(100, random_part(100, 15));  // ok or not, it changes nothing
  file->reset();
  const RankParts parts = some_parts(1, 1, 100, 16);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  expect_fetched(*world.receiver(), step(1), parts, *receipts);
}

TEST_P(RoadContractTest, BeginDropsAnUnfinishedPublication) {
  MAKE_WORLD(world, {.ranks = 2});
  ASSERT_OK(write_all(world, step(1), some_parts(2, 2, 1000, 17)));
  const RankParts parts = some_parts(2, 1, 500, 18);
  const auto receipts = publish(world, step(2), parts);
  ASSERT_OK(receipts);
  EXPECT_EQ(receipts->size(), 2U) << "parts of the dropped one came along";
  const auto receiver = world.receiver();
  EXPECT_EQ(listed(*receiver), std::vector{step(2)});
  expect_fetched(*receiver, step(2), parts, *receipts);
}

TEST_P(RoadContractTest, APublicationIsNeverReplaced) {
  MAKE_WORLD(world, {.ranks = 2});
  const RankParts parts = some_parts(2, 1, 1000, 19);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  for (unsigned rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.sender(rank).begin(step(1), soon()).code(), StatusCode::kAlreadyExists);
  }
  expect_fetched(*world.receiver(), step(1), parts, *receipts);
  ASSERT_OK(abort_all(world));
  ASSERT_OK(publish(world, anchor(1), some_parts(2, 1, 10, 20))) << "the anchor is another one";
  expect_fetched(*world.receiver(), step(1), parts, *receipts);
}

TEST_P(RoadContractTest, CallsWithoutABeginAreRefused) {
  MAKE_WORLD(world);
  EXPECT_FALSE(world.sender(0).create_part("part").ok());
  EXPECT_FALSE(world.sender(0).flush(soon()).ok());
  EXPECT_FALSE(world.sender(0).seal("manifest", soon()).ok());
  ASSERT_OK(publish(world, step(1), some_parts(1, 1, 10, 21)));
  EXPECT_FALSE(world.sender(0).seal("manifest", soon()).ok()) << "sealed already";
}

TEST_P(RoadContractTest, ListsAscendingTheStepBeforeTheAnchor) {
  MAKE_WORLD(world);
  for (const auto& id : {anchor(0), step(1), step(2), anchor(2), step(3)}) {
    ASSERT_OK(publish(world, id, some_parts(1, 1, 100, 22)));
  }
  const auto ids = listed(*world.receiver());
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  for (const auto& id : {step(1), step(2), anchor(2), step(3)}) {
    EXPECT_TRUE(std::ranges::find(ids, id) != ids.end()) << to_string(id);
  }
}

TEST_P(RoadContractTest, WhatIsNotThereIsNotFound) {
  MAKE_WORLD(world);
  const auto receipts = publish(world, step(1), some_parts(1, 1, 100, 23));
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  EXPECT_EQ(receiver->fetch_manifest(step(2), soon()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(receiver->fetch_manifest(anchor(1), soon()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(receiver->fetch_part(step(2), receipts->front(), soon()).status().code(),
            StatusCode::kNotFound);
}

TEST_P(RoadContractTest, APartOfAnotherSizeThanTheReceiptIsRefused) {
  MAKE_WORLD(world);
  const auto receipts = publish(world, step(1), some_parts(1, 1, 100, 24));
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{99}, std::uint64_t{101},
                                   std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    PartReceipt wrong = receipts->front();
    wrong.size_bytes = size;
    const StatusCode code = receiver->fetch_part(step(1), wrong, soon()).status().code();
    EXPECT_TRUE(code == StatusCode::kIncomplete || code == StatusCode::kCorrupt) << size;
  }
  PartReceipt hostile = receipts->front();
  hostile.name = "../" + hostile.name;
  EXPECT_FALSE(receiver->fetch_part(step(1), hostile, soon()).ok());
}

TEST_P(RoadContractTest, AnnouncementIsWaitedForAndNeverChanged) {
  MAKE_WORLD(world);
  const auto receiver = world.receiver();
  const auto early = receiver->run_info(in_ms(30));
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.status().code(), StatusCode::kDeadlineExceeded);
  auto waiting = std::async(std::launch::async, [&] { return receiver->run_info(soon()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_OK(world.sender(0).announce("{\"run\": 1}", soon()));
  const auto info = waiting.get();
  ASSERT_OK(info);
  EXPECT_EQ(*info, "{\"run\": 1}");
  ASSERT_OK(world.sender(0).announce("{\"run\": 1}", soon())) << "a resumed run says it again";
  EXPECT_EQ(world.sender(0).announce("{\"run\": 2}", soon()).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(*world.receiver()->run_info(soon()), "{\"run\": 1}");
}

TEST_P(RoadContractTest, WaitBeyondEndsWithTheDeadlineOrAStep) {
  MAKE_WORLD(world);
  const auto receiver = world.receiver();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(receiver->wait_beyond(0, in_ms(50)).code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
  auto waiting = std::async(std::launch::async, [&] { return receiver->wait_beyond(1, soon()); });
  ASSERT_OK(publish(world, step(1), some_parts(1, 1, 10, 25)));
  ASSERT_OK(publish(world, anchor(2), some_parts(1, 1, 10, 26)));
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout)
      << "neither version 1 nor an anchor is a version past 1";
  ASSERT_OK(publish(world, step(2), some_parts(1, 1, 10, 27)));
  ASSERT_OK(waiting.get());
  ASSERT_OK(receiver->wait_beyond(1, in_ms(0))) << "it is there already";
}

TEST_P(RoadContractTest, AReceiverThatFollowsSeesEveryVersionWholeAndInOrder) {
  MAKE_WORLD(world, {.ranks = 2});
  constexpr std::uint64_t kVersions = 20;
  std::vector<RankParts> parts(kVersions + 1);
  std::vector<std::promise<std::vector<PartReceipt>>> receipts(kVersions + 1);
  for (std::uint64_t v = 1; v <= kVersions; ++v) parts[v] = some_parts(2, 2, 3000, 100 + v);
  std::thread follower([&] {
    const auto receiver = world.receiver();
    for (std::uint64_t at = 0; at < kVersions;) {
      ASSERT_TRUE(receiver->wait_beyond(at, soon()).ok());
      const auto ids = receiver->list(soon());
      ASSERT_TRUE(ids.ok());
      for (const PublicationId& id : *ids) {
        if (id.version <= at) continue;
        ASSERT_EQ(id, step(at + 1)) << "a gap";
        expect_fetched(*receiver, id, parts[id.version], receipts[id.version].get_future().get());
        at = id.version;
      }
    }
  });
  for (std::uint64_t v = 1; v <= kVersions; ++v) {
    auto written = write_all(world, step(v), parts[v]);
    if (!written.ok()) ADD_FAILURE() << written.status().to_string();
    if (v % 5 == 0) {  // from time to time a version fails first
      EXPECT_TRUE(abort_all(world).ok());
      written = write_all(world, step(v), parts[v]);
    }
    receipts[v].set_value(written.ok() ? *written : std::vector<PartReceipt>());
    EXPECT_TRUE(world.sender(0).seal(manifest_of(step(v)), soon()).ok());
  }
  follower.join();
}

TEST_P(RoadContractTest, FetchedBytesStayAfterThePublicationHasGone) {
  MAKE_WORLD(world, {.ranks = 1, .ring_versions = 2});
  const RankParts parts = some_parts(1, 1, 100'000, 28);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world.receiver();
  const auto held = receiver->fetch_part(step(1), receipts->front(), soon());
  ASSERT_OK(held);
  for (std::uint64_t v = 2; v <= 5; ++v) {
    ASSERT_OK(publish(world, step(v), some_parts(1, 1, 100'000, v)));
  }
  ASSERT_OK(world.sender(0).prune(4));
  const auto gone = receiver->fetch_manifest(step(1), soon());
  ASSERT_EQ(gone.status().code(), StatusCode::kNotFound);
  EXPECT_NE(gone.status().message().find("take the newest anchor"), std::string::npos);
  EXPECT_EQ(receiver->fetch_part(step(1), receipts->front(), soon()).status().code(),
            StatusCode::kNotFound);
  const auto published = world.sender(0).published(step(1), soon());
  ASSERT_OK(published);
  EXPECT_FALSE(*published);
  EXPECT_TRUE(std::ranges::equal(held->bytes(), parts[0][0].bytes));
}

}  // namespace
}  // namespace driftless::testing
