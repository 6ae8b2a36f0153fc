// SPDX-License-Identifier: Apache-2.0
// Publishers that take a prefix over from each other, and lists of more than one page, over the
// server that DRIFTLESS_TEST_S3 names.
#include <cstdlib>
#include <functional>

#include "collectives/object_store/claim.h"
#include "core/parallel.h"
#include "support/road_contract.h"

namespace driftless::testing {
namespace {

// Forwards every call. A test may run a function just before a put(), and may make it ignore
// conditions.
class HookedStore final : public ObjectStore {
 public:
  explicit HookedStore(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}
  std::function<void(const std::string& key)> before_put;
  bool refuses = true, replaces = true;  // honours If-None-Match, If-Match
  std::string lost;  // in a key: the answer to the first such put() is lost, and it is sent again

  [[nodiscard]] const std::string& name() const override { return store_->name(); }
  Status put(const std::string& key, std::span<const std::byte> bytes, bool only_new,
             const Deadline& deadline) override {
    if (before_put) before_put(key);
    if (!lost.empty() && key.find(lost) != std::string::npos) {
      lost.clear();
      const Status lost_answer = store_->put(key, bytes, only_new, deadline);
    }
    return store_->put(key, bytes, only_new && refuses, deadline);
  }
  Status replace(const std::string& key, std::span<const std::byte> bytes, const std::string& tag,
                 const Deadline& deadline) override {
    if (before_put) before_put(key);
    if (!replaces) return store_->put(key, bytes, false, deadline);
    return store_->replace(key, bytes, tag, deadline);
  }
  Result<std::unique_ptr<Upload>> upload(const std::string& key,
                                         const Deadline& deadline) override {
    return store_->upload(key, deadline);
  }
  Status drop_uploads(const std::string& prefix, const Deadline& deadline) override {
    return store_->drop_uploads(prefix, deadline);
  }
  Result<std::uint64_t> size(const std::string& key, const Deadline& deadline) override {
    return store_->size(key, deadline);
  }
  Result<std::uint64_t> get(const std::string& key, std::uint64_t offset,
                            std::span<std::byte> bytes, const Deadline& deadline) override {
    return store_->get(key, offset, bytes, deadline);
  }
  Result<TaggedText> get_tagged(const std::string& key, std::size_t max_bytes,
                                const Deadline& deadline) override {
    return store_->get_tagged(key, max_bytes, deadline);
  }
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, const std::string& after,
                                       const Deadline& deadline) override {
    return store_->list(prefix, after, deadline);
  }
  Status remove(const std::string& key, const Deadline& deadline) override {
    return store_->remove(key, deadline);
  }
  Result<Presigned> presign(std::span<const std::string> keys, std::chrono::seconds valid,
                            const Deadline& deadline) override {
    return store_->presign(keys, valid, deadline);
  }

 private:
  const std::shared_ptr<ObjectStore> store_;
};

class TakeoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* const endpoint = std::getenv("DRIFTLESS_TEST_S3");
    if (endpoint == nullptr) GTEST_SKIP() << "DRIFTLESS_TEST_S3 names no server";
    options_.url = concat("s3://road/", to_hex(random_hash128()));
    options_.endpoint = endpoint;
    options_.poll_first = options_.poll_longest = std::chrono::milliseconds(2);
    store_ = *open_object_store(options_);
  }

  std::unique_ptr<SendRoad> sender() {
    return std::move(*make_object_store_sender(store_, options_, 0, 1));
  }
  // Opens a publisher that has announced the run.
  std::unique_ptr<SendRoad> open_and_announce() {
    auto made = sender();
    EXPECT_TRUE(is_ok(made->announce("run", soon())));
    return made;
  }
  // Does everything except the seal.
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
    const auto old = open_and_announce();
    write(*old, id, "old");
    const auto successor = open_and_announce();
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
  const auto first = open_and_announce();
  write(*first, step(1));
  const auto second = open_and_announce();
  write(*second, step(1));
  const auto third = open_and_announce();
  EXPECT_EQ(first->seal("first", soon()).code(), StatusCode::kWrongRun);
  EXPECT_EQ(second->seal("second", soon()).code(), StatusCode::kWrongRun);
  publish(*third, step(1));
  publish(*third, step(2));
  EXPECT_EQ(listed(), (std::vector{step(1), step(2)}));
}

TEST_F(TakeoverTest, AVersionThatWasSealedInTimeCounts) {
  const auto old = open_and_announce();
  publish(*old, step(1));
  publish(*old, anchor(1));
  const auto successor = open_and_announce();
  EXPECT_EQ(*successor->highest_number(), 1U) << "what is reserved was never visible";
  EXPECT_EQ(old->begin(step(2), soon()).code(), StatusCode::kWrongRun);
  publish(*successor, step(2));
  EXPECT_EQ(listed().size(), 3U);
}

TEST_F(TakeoverTest, AVersionThatAppearsWhileOneStartsIsNoticed) {
  const auto old = open_and_announce();
  publish(*old, step(1));
  const auto successor = sender();
  EXPECT_EQ(*successor->highest_number(), 1U);
  publish(*old, step(2));
  const Status started = successor->announce("run", soon());
  EXPECT_EQ(started.code(), StatusCode::kBusy) << started.message();
  publish(*open_and_announce(), step(3));
}

TEST_F(TakeoverTest, AReservationOfOneThatWasOvertakenMeanwhileIsTakenBack) {
  const auto road = open_and_announce();
  write(*road, step(1));
  // Another publisher that took publisher.json earlier, and reserves only now.
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
    const auto dies = open_and_announce();
    write(*dies, id, "died");
    publish(*open_and_announce(), id);
  }
  const auto road = open_and_announce();
  write(*road, anchor(2), "died");
  const auto last = open_and_announce();
  publish(*last, step(3));
  const auto removed = last->prune(3);
  ASSERT_OK(removed);
  EXPECT_TRUE(listed().empty());
  EXPECT_EQ(parts(), 0U);
  publish(*last, step(4));
  EXPECT_EQ(listed().size(), 1U);
}

TEST_F(TakeoverTest, AProbeWhoseAnswerWasLostIsNoRefusal) {
  const auto hooked = std::make_shared<HookedStore>(store_);
  hooked->lost = "probe-";
  const auto road = make_object_store_sender(hooked, options_, 0, 1);
  ASSERT_OK((*road)->announce("run", soon()));
  EXPECT_TRUE(hooked->lost.empty());
  publish(**road, step(1));
}

TEST_F(TakeoverTest, OfTwoRunsThatBeginAtOnceOneIsRefused) {
  const auto hooked = std::make_shared<HookedStore>(store_);
  hooked->before_put = [&](const std::string& key) {
    // The other publisher found no run.json either, and writes it a moment earlier.
    if (key != "run.json") return;
    ASSERT_OK(store_->put("run.json", bytes_of("other"), false, soon()));
  };
  const auto road = make_object_store_sender(hooked, options_, 0, 1);
  EXPECT_EQ((*road)->announce("run", soon()).code(), StatusCode::kAlreadyExists);
}

// A bucket without conditions: a put of a new object checks first and then writes, so two
// publishers may check at the same moment.
TEST_F(TakeoverTest, WithoutConditionsOneOfTwoRunsThatBeginAtOnceIsRefused) {
  const auto hooked = std::make_shared<HookedStore>(store_);
  hooked->replaces = false;
  hooked->before_put = [&](const std::string& key) {
    if (key != "publisher.json") return;
    ASSERT_OK(store_->put("run.json", bytes_of("other"), false, soon()));
    ASSERT_OK(store_->put("publisher.json", bytes_of("{}"), false, soon()));
  };
  const auto road = make_object_store_sender(hooked, options_, 0, 1);
  const Status second = (*road)->announce("run", soon());
  EXPECT_EQ(second.code(), StatusCode::kAlreadyExists) << second.message();
}

TEST_F(TakeoverTest, WithoutIfMatchAnOvertakenPublisherLooksBeforeItSeals) {
  const auto hooked = std::make_shared<HookedStore>(store_);
  hooked->replaces = false;
  const auto make = [&] { return std::move(*make_object_store_sender(hooked, options_, 0, 1)); };
  const auto old = make();
  ASSERT_OK(old->announce("run", soon()));
  publish(*old, step(1));
  write(*old, step(2), "old");
  const auto successor = make();
  ASSERT_OK(successor->announce("run", soon()));
  EXPECT_EQ(old->seal("old", soon()).code(), StatusCode::kWrongRun);
  EXPECT_EQ(listed(), std::vector{step(1)});
  publish(*successor, step(2));
  EXPECT_EQ(*successor->published(step(2), soon()), xxh3_128("manifest"));
}

TEST_F(TakeoverTest, AStoreThatIgnoresIfNoneMatchIsRefusedByName) {
  const auto hooked = std::make_shared<HookedStore>(store_);
  hooked->refuses = false;
  const auto road = make_object_store_sender(hooked, options_, 0, 1);
  const Status refused = (*road)->announce("run", soon());
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find(options_.url), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("If-None-Match"), std::string::npos) << refused.message();
  EXPECT_TRUE(store_->list("", "", soon())->empty()) << "nothing of it stays";
}

TEST_F(TakeoverTest, AnOvertakenLeaderDoesNotMisleadTheRanksOfAnother) {
  const auto hooked = std::make_shared<HookedStore>(store_);
  const auto old = std::move(*make_object_store_sender(hooked, options_, 0, 2));
  ASSERT_OK(old->announce("run", soon()));
  const auto leader = std::move(*make_object_store_sender(store_, options_, 0, 2));
  const auto other = std::move(*make_object_store_sender(store_, options_, 1, 2));
  // Its last check has passed, and its write arrives late.
  hooked->before_put = [&](const std::string& key) {
    if (!key.starts_with("attempts/")) return;
    ASSERT_OK(leader->announce("run", soon()));
    ASSERT_OK(leader->begin(step(1), soon()));
  };
  ASSERT_OK(old->begin(step(1), soon()));
  ASSERT_OK(other->begin(step(1), soon()));
  std::vector<std::uint64_t> locators;
  for (SendRoad* const road : {leader.get(), other.get()}) {
    auto part = road->create_part(road == leader.get() ? "rank0" : "rank1");
    ASSERT_OK(part);
    ASSERT_OK((*part)->pwrite(0, bytes_of("part")));
    ASSERT_OK((*part)->sync());
    part->reset();
    const auto receipts = road->flush(soon());
    ASSERT_OK(receipts);
    locators.push_back(receipts->front().locator);
  }
  EXPECT_EQ(locators[0], locators[1]);
  ASSERT_OK(leader->seal("manifest", soon()));
  EXPECT_NE(old->seal("old", soon()).code(), StatusCode::kOk);
  ASSERT_OK(old->abort());
  EXPECT_EQ(parts(), 2U);
}

TEST_F(TakeoverTest, OneThatWakesUpInPruneDoesNotWriteAnOldIndex) {
  const auto hooked = std::make_shared<HookedStore>(store_);
  const auto old = std::move(*make_object_store_sender(hooked, options_, 0, 1));
  ASSERT_OK(old->announce("run", soon()));
  for (const std::uint64_t version : {1U, 2U, 3U}) publish(*old, step(version));
  // All its checks have passed, and its write arrives late.
  std::unique_ptr<SendRoad> successor;
  hooked->before_put = [&](const std::string& key) {
    if (key != "index.json" || successor != nullptr) return;
    successor = open_and_announce();
    publish(*successor, step(4));
  };
  const auto removed = old->prune(1);
  ASSERT_NE(successor, nullptr);
  const auto index = store_->get_text("index.json", 4096, soon());
  ASSERT_OK(index);
  EXPECT_NE(index->find(object_store::publication_name(step(4))), std::string::npos) << *index;
  EXPECT_EQ(old->begin(step(4), soon()).code(), StatusCode::kWrongRun);
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
