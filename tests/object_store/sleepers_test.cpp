// SPDX-License-Identifier: Apache-2.0
// Publishers that stop at any request, are fenced by others, and continue late or die, over a store
// with and without If-Match. Once another publisher has started and published, every publication
// that readers see is whole.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "collectives/object_store/medium.h"

namespace driftless::testing {
namespace {

using object_store::kRunKey;

Deadline in_time() { return Deadline::after(std::chrono::seconds(5)); }

struct Objects {
  std::map<std::string, std::string> texts;
  bool replaces = false;  // honours If-Match; it always honours If-None-Match
};

// One publisher's access to the objects. At a chosen request it sleeps while others work; from
// another request on it is dead.
class SleepyStore final : public ObjectStore {
 public:
  explicit SleepyStore(Objects& objects) : objects_(objects) {}
  std::uint64_t sleeps_at = 0, dies_at = ~std::uint64_t{0};
  std::function<void()> meanwhile;

  [[nodiscard]] const std::string& name() const override { return name_; }
  Status put(const std::string& key, std::span<const std::byte> bytes, bool only_new,
             const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(request());
    if (only_new && objects_.texts.contains(key)) {
      return error(StatusCode::kAlreadyExists, key);
    }
    objects_.texts[key].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }
  Status replace(const std::string& key, std::span<const std::byte> bytes, const std::string& tag,
                 const Deadline& deadline) override {
    if (objects_.replaces) {
      DRIFTLESS_ASSIGN_OR_RETURN(const TaggedText now, get_tagged(key, 0, deadline));
      if (now.tag != tag) return error(StatusCode::kAlreadyExists, key);
      objects_.texts[key].assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return {};
    }
    return put(key, bytes, false, deadline);
  }
  Result<std::unique_ptr<Upload>> upload(const std::string&, const Deadline&) override {
    return error(StatusCode::kUnsupported, "parts are small here");
  }
  Status drop_uploads(const std::string&, const Deadline&) override { return request(); }
  Result<std::uint64_t> size(const std::string& key, const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const TaggedText now, get_tagged(key, 0, deadline));
    return now.text.size();
  }
  Result<std::uint64_t> get(const std::string& key, std::uint64_t offset,
                            std::span<std::byte> bytes, const Deadline& deadline) override {
    DRIFTLESS_ASSIGN_OR_RETURN(const TaggedText now, get_tagged(key, 0, deadline));
    if (offset >= now.text.size()) return std::uint64_t{0};
    const std::uint64_t count = std::min<std::uint64_t>(bytes.size(), now.text.size() - offset);
    std::memcpy(bytes.data(), now.text.data() + offset, count);
    return count;
  }
  Result<TaggedText> get_tagged(const std::string& key, std::size_t, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(request());
    const auto found = objects_.texts.find(key);
    if (found == objects_.texts.end()) return error(StatusCode::kNotFound, key);
    return TaggedText{found->second, to_hex(xxh3_128(bytes_of(found->second)))};
  }
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, const std::string& after,
                                       const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(request());
    std::vector<ObjectInfo> found;
    for (const auto& [key, text] : objects_.texts) {
      if (key.starts_with(prefix) && key > after) found.push_back({key, text.size()});
    }
    return found;
  }
  Status remove(const std::string& key, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(request());
    objects_.texts.erase(key);
    return {};
  }
  Result<Presigned> presign(std::span<const std::string>, std::chrono::seconds,
                            const Deadline&) override {
    return error(StatusCode::kUnsupported, "nobody asks");
  }

 private:
  Status request() {
    ++requests_;
    if (requests_ == sleeps_at && meanwhile) std::exchange(meanwhile, nullptr)();
    return requests_ < dies_at ? Status() : error(StatusCode::kInvalidArgument, "dead");
  }

  Objects& objects_;
  std::string name_ = "memory";
  std::uint64_t requests_ = 0;
};

class Publisher {
 public:
  Publisher(Objects& objects, std::string name)
      : store_(std::make_shared<SleepyStore>(objects)), name_(std::move(name)) {
    options_.streams = 1;
    road_ = std::move(*make_object_store_sender(store_, options_, 0, 1));
  }
  SleepyStore& store() { return *store_; }

  Status start() {
    DRIFTLESS_ASSIGN_OR_RETURN(next_, road_->highest_number());
    ++next_;
    return road_->announce("run", in_time());
  }
  // The first word of the manifest is its one part; the second word is the part's place.
  Status publish(PublicationKind kind) {
    const PublicationId id{next_, kind};
    DRIFTLESS_RETURN_IF_ERROR(road_->begin(id, in_time()));
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> part, road_->create_part("part"));
    const std::string text = concat(name_, is_version(id) ? ":v" : ":a", id.version);
    DRIFTLESS_RETURN_IF_ERROR(part->pwrite(0, bytes_of(text)));
    DRIFTLESS_RETURN_IF_ERROR(part->sync());
    part.reset();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PartReceipt> parts, road_->flush(in_time()));
    const Status sealed = road_->seal(concat(text, " ", parts[0].locator), in_time());
    return sealed.code() == StatusCode::kIncomplete ? Status() : sealed;  // it is there
  }
  Status work(std::uint64_t versions, std::mt19937_64& random) {
    DRIFTLESS_RETURN_IF_ERROR(start());
    for (; versions > 0; --versions, ++next_) {
      DRIFTLESS_RETURN_IF_ERROR(publish(PublicationKind::kVersion));
      if (random() % 2 == 0) DRIFTLESS_RETURN_IF_ERROR(publish(PublicationKind::kAnchor));
      if (random() % 2 == 0 && next_ > 2) {
        const Status pruned = road_->prune(next_ - 1).status();
        if (pruned.code() != StatusCode::kIncomplete) DRIFTLESS_RETURN_IF_ERROR(pruned);
      }
    }
    return {};
  }

 private:
  std::shared_ptr<SleepyStore> store_;
  std::string name_;
  ObjectStoreOptions options_;
  std::unique_ptr<SendRoad> road_;
  std::uint64_t next_ = 0;
};

void expect_whole(Objects& objects) {
  auto reader = make_object_store_receiver(std::make_shared<SleepyStore>(objects), {});
  const auto ids = (*reader)->list(in_time());
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(objects.texts[std::string(kRunKey)], "run");
  for (const PublicationId& id : *ids) {
    const auto manifest = (*reader)->fetch_manifest(id, in_time());
    ASSERT_TRUE(manifest.ok()) << to_string(id) << ": " << manifest.status().to_string();
    const std::size_t space = manifest->find(' ');
    const PartReceipt receipt{"part", 0, space, {}, std::stoull(manifest->substr(space))};
    const auto part = (*reader)->fetch_part(id, receipt, in_time());
    ASSERT_TRUE(part.ok()) << to_string(id) << ": " << part.status().to_string();
    EXPECT_EQ(std::memcmp(part->bytes().data(), manifest->data(), space), 0) << *manifest;
  }
}

class Sleepers : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(IfMatch, Sleepers, ::testing::Bool());

TEST_P(Sleepers, LeaveNothingUnfinished) {
  for (std::uint64_t seed = 0; seed < 700; ++seed) {
    std::mt19937_64 random(seed);
    Objects objects{{}, GetParam()};
    {
      Publisher first(objects, "first"), second(objects, "second"), third(objects, "third");
      const auto plan = [&](Publisher& sleeper, Publisher& other) {
        sleeper.store().sleeps_at = 1 + random() % 120;
        sleeper.store().meanwhile = [&] {
          const Status ended = other.work(1 + random() % 3, random);
        };
        if (random() % 2 == 0) sleeper.store().dies_at = sleeper.store().sleeps_at + random() % 40;
      };
      plan(first, second);
      plan(second, third);
      if (random() % 3 == 0) third.store().dies_at = 1 + random() % 150;
      const Status ended = first.work(1 + random() % 4, random);
    }
    Status started;
    for (int tries = 0; tries < 3; ++tries) {  // it may be told to start again
      Publisher last(objects, "last");
      started = last.start();
      if (!started.ok()) continue;
      const Status published = last.publish(PublicationKind::kVersion);
      ASSERT_TRUE(published.ok()) << seed << ": " << published.to_string();
      break;
    }
    ASSERT_TRUE(started.ok()) << seed << ": " << started.to_string();
    expect_whole(objects);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace driftless::testing
