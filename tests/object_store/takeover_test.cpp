// SPDX-License-Identifier: Apache-2.0
// Publishers that take a prefix over from each other, and lists of more than one page. Over the
// server of DRIFTLESS_TEST_S3, as the contract.
#include <cstdlib>

#include "collectives/object_store/claim.h"
#include "core/parallel.h"
#include "support/road_contract.h"

namespace driftless::testing {
namespace {

class TakeoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const endpoint = std::getenv("DRIFTLESS_TEST_S3");
    if (endpoint == nullptr) GTEST_SKIP() << "DRIFTLESS_TEST_S3 names no server";
    options_.url = concat("s3://road/", to_hex(random_hash128()));
    options_.endpoint = endpoint;
    options_.single_writer = std::getenv("DRIFTLESS_TEST_S3_SINGLE_WRITER") != nullptr;
    options_.poll_first = options_.poll_longest = std::chrono::milliseconds(2);
    store_ = *open_object_store(options_);
  }

  std::unique_ptr<SendRoad> sender() {
    return std::move(*make_object_store_sender(store_, options_, 0, 1));
  }
  // One that has announced the run.
  std::unique_ptr<SendRoad> announced() {
    auto made = sender();
    EXPECT_TRUE(is_ok(made->announce("run", soon())));
    return made;
  }
  // All but the seal.
  static void write(SendRoad& road, const PublicationId& id, std::string_view text = "part") {
    ASSERT_OK(road.begin(id, soon()));
    auto part = road.create_part("part");
    ASSERT_OK(part);
    ASSERT_OK((*part)->pwrite(0, bytes_of(text)));
    ASSERT_OK((*part)->sync());
    part->reset();
    ASSERT_OK(road.flush(soon()));
  }
  static void publish(SendRoad& road, const PublicationId& id) {
    write(road, id);
    ASSERT_OK(road.seal("manifest", soon()));
  }
  std::vector<PublicationId> listed() {
    auto receiver = make_object_store_receiver(store_, options_);
    auto ids = (*receiver)->list(soon());
    EXPECT_TRUE(is_ok(ids));
    return ids.ok() ? *ids : std::vector<PublicationId>();
  }
  std::size_t parts() { return store_->list("parts/", "", soon())->size(); }

  ObjectStoreOptions options_;
  std::shared_ptr<ObjectStore> store_;
};

TEST_F(TakeoverTest, AnOvertakenPublisherDoesNotWinTheVersionItWasWriting) {
  for (const PublicationId& id : {step(1), anchor(0)}) {
    options_.url = concat("s3://road/", to_hex(random_hash128()));
    store_ = *open_object_store(options_);
    const auto old = announced();
    write(*old, id, "old");
    const auto successor = announced();
    EXPECT_EQ(old->seal("old", soon()).code(), StatusCode::kWrongRun);
    EXPECT_TRUE(listed().empty());
    EXPECT_EQ(old->begin(step(2), soon()).code(), StatusCode::kWrongRun) << "fenced for good";
    publish(*successor, id);
    EXPECT_EQ(listed(), std::vector{id});
    EXPECT_EQ(*successor->published(id, soon()), xxh3_128("manifest"));
    EXPECT_EQ(parts(), 1U) << "what the old one wrote is gone";
  }
}

TEST_F(TakeoverTest, AThirdOneOvertakesTheSecond) {
  const auto first = announced();
  write(*first, step(1));
  const auto second = announced();
  write(*second, step(1));
  const auto third = announced();
  EXPECT_EQ(first->seal("first", soon()).code(), StatusCode::kWrongRun);
  EXPECT_EQ(second->seal("second", soon()).code(), StatusCode::kWrongRun);
  publish(*third, step(1));
  publish(*third, step(2));
  EXPECT_EQ(listed(), (std::vector{step(1), step(2)}));
}

TEST_F(TakeoverTest, AVersionThatWasSealedInTimeCounts) {
  const auto old = announced();
  publish(*old, step(1));
  publish(*old, anchor(1));
  const auto successor = announced();
  EXPECT_EQ(*successor->highest_number(), 1U) << "what is reserved was never visible";
  EXPECT_EQ(old->begin(step(2), soon()).code(), StatusCode::kWrongRun);
  publish(*successor, step(2));
  EXPECT_EQ(listed().size(), 3U);
}

TEST_F(TakeoverTest, AVersionThatAppearsWhileOneStartsIsNoticed) {
  const auto old = announced();
  publish(*old, step(1));
  const auto successor = sender();
  EXPECT_EQ(*successor->highest_number(), 1U);
  publish(*old, step(2));
  const Status started = successor->announce("run", soon());
  if (options_.single_writer) GTEST_SKIP() << "the store has no conditions: begin() notices it";
  EXPECT_EQ(started.code(), StatusCode::kBusy) << started.message();
  publish(*announced(), step(3));
}

TEST_F(TakeoverTest, AReservationOfOneThatWasOvertakenMeanwhileIsTakenBack) {
  if (options_.single_writer) GTEST_SKIP() << "the store has no conditions: nothing is reserved";
  const auto road = announced();
  write(*road, step(1));
  // Another one that took publisher.json before, and comes to reserve only now.
  const std::string late = object_store::reservation_text(to_hex(random_hash128()));
  const std::string key = object_store::version_key(step(1));
  ASSERT_OK(store_->put(key, bytes_of(late), false, soon()));
  ASSERT_OK(road->seal("manifest", soon()));
  write(*road, step(2));
  ASSERT_OK(store_->put(object_store::version_key(step(2)), bytes_of(late), false, soon()));
  ASSERT_OK(road->seal("manifest", soon()));
  EXPECT_EQ(listed(), (std::vector{step(1), step(2)}));
}

TEST_F(TakeoverTest, ReservedNamesOfTheDeadDoNotStopPruning) {
  for (const PublicationId& id : {anchor(0), step(1), step(2)}) {
    const auto dies = announced();
    write(*dies, id, "died");
    publish(*announced(), id);
  }
  const auto road = announced();
  write(*road, anchor(2), "died");
  const auto last = announced();
  publish(*last, step(3));
  const auto removed = last->prune(3);
  ASSERT_OK(removed);
  EXPECT_TRUE(listed().empty());
  EXPECT_EQ(parts(), 0U);
  publish(*last, step(4));
  EXPECT_EQ(listed().size(), 1U);
}

TEST_F(TakeoverTest, ListsOfMoreThanAPageAreWhole) {
  constexpr std::size_t kObjects = 2345;
  const auto key = [](std::size_t i) { return concat("many/", 10'000 + i, " +&%"); };
  ASSERT_OK(parallel_for(kObjects, 8, [&](std::size_t i, unsigned) {
    return store_->put(key(i), bytes_of("x"), false, soon());
  }));
  const auto all = store_->list("many/", "", soon());
  ASSERT_OK(all);
  ASSERT_EQ(all->size(), kObjects);
  for (std::size_t i = 0; i < kObjects; ++i) ASSERT_EQ((*all)[i], (ObjectInfo{key(i), 1}));
  const auto rest = store_->list("many/", key(99), soon());
  ASSERT_OK(rest);
  ASSERT_EQ(rest->size(), kObjects - 100);
  EXPECT_EQ(rest->front().key, key(100));
  EXPECT_TRUE(store_->list("many/", key(kObjects), soon())->empty());
}

TEST_F(TakeoverTest, UploadsThatOthersLeftAreDropped) {
  auto left = store_->upload("parts/left", soon());
  ASSERT_OK(left);
  const std::vector<std::byte> piece(kPieceBytes);
  ASSERT_OK((*left)->put(0, piece, soon()));
  ASSERT_OK(store_->drop_uploads("parts/", soon()));
  const Status finished = (*left)->finish(1, in_ms(1000));
  if (finished.ok()) GTEST_SKIP() << "the server does not tell of unfinished uploads";
  EXPECT_EQ(store_->size("parts/left", soon()).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace driftless::testing
