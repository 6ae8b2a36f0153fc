// SPDX-License-Identifier: Apache-2.0
// The contract suite of roads (collectives/road.h, collectives/group.h): the same tests for every
// road that can run inside one process. tests/contract/*_contract_test.cpp have the tests.
//
// A road joins by a RoadWorld of its own and, in any source file of the binary `contract`
// (road_worlds_test.cpp shows two):
//   INSTANTIATE_TEST_SUITE_P(MyRoad, RoadContractTest, ::testing::Values(my_road_case()),
//                            road_case_name);
//   INSTANTIATE_TEST_SUITE_P(MyRoad, GroupContractTest, ...);      where it has a group
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/group.h"
#include "collectives/road.h"

namespace driftless {
inline void PrintTo(const PublicationId& id, std::ostream* out) { *out << to_string(id); }
}  // namespace driftless

namespace driftless::testing {

struct WorldOptions {
  unsigned ranks = 1;
  std::chrono::milliseconds patience{60'000};
  std::uint64_t ring_bytes = std::uint64_t{1} << 28;  // roads without a ring pass over these two
  unsigned ring_versions = 64;
};

// Publisher ranks and receivers of one road. Calls of different ranks come from different threads;
// a world is made and destroyed by the test's thread.
class RoadWorld {
 public:
  virtual ~RoadWorld() = default;
  [[nodiscard]] virtual unsigned ranks() const = 0;
  [[nodiscard]] virtual SendRoad& sender(unsigned rank) = 0;
  [[nodiscard]] virtual Group& group(unsigned rank) = 0;
  [[nodiscard]] virtual std::unique_ptr<ReceiveRoad> receiver() = 0;
};

// The properties of a road that the tests depend on.
struct RoadCase {
  std::string name;
  std::function<std::unique_ptr<RoadWorld>(const WorldOptions&)> make;  // null: too many ranks
  bool ring = false;  // makes room by itself; else prune() does
};
inline void PrintTo(const RoadCase& road, std::ostream* out) { *out << road.name; }
inline std::string road_case_name(const ::testing::TestParamInfo<RoadCase>& info) {
  return info.param.name;
}

inline ::testing::AssertionResult is_ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.to_string();
}
template <typename T>
::testing::AssertionResult is_ok(const Result<T>& result) {
  return result.ok() ? ::testing::AssertionSuccess() : is_ok(result.status());
}
#define ASSERT_OK(expr) ASSERT_TRUE(::driftless::testing::is_ok(expr))

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }
inline Deadline in_ms(int wait) { return Deadline::after(std::chrono::milliseconds(wait)); }

inline PublicationId step(std::uint64_t version) { return {version, PublicationKind::kVersion}; }
inline PublicationId anchor(std::uint64_t version) { return {version, PublicationKind::kAnchor}; }

inline std::vector<std::byte> random_part(std::uint64_t size_bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

struct TestPart {
  std::string name;
  std::vector<std::byte> bytes;
};
using RankParts = std::vector<std::vector<TestPart>>;  // by rank

// `count` parts on each rank, with the rank in their names.
inline RankParts some_parts(unsigned ranks, unsigned count, std::uint64_t size_bytes,
                            std::uint64_t seed) {
  RankParts parts(ranks);
  for (unsigned rank = 0; rank < ranks; ++rank) {
    for (unsigned i = 0; i < count; ++i) {
      parts[rank].push_back({concat("rank", rank, "_part", i),
                             random_part(size_bytes + i, seed * 1000 + rank * 10 + i)});
    }
  }
  return parts;
}

// A part, front to back in pieces.
inline Status write_part(SendRoad& road, const TestPart& part, std::size_t piece = 1000) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, road.create_part(part.name));
  for (std::size_t done = 0; done < part.bytes.size(); done += piece) {
    const std::size_t size = std::min(piece, part.bytes.size() - done);
    DRIFTLESS_RETURN_IF_ERROR(file->pwrite(done, std::span(part.bytes).subspan(done, size)));
  }
  return file->sync();
}

// Runs `call` on every rank at the same time, since a call of a road may synchronize all ranks.
inline Status on_all_ranks(RoadWorld& world, const std::function<Status(unsigned)>& call) {
  std::vector<Status> statuses(world.ranks());
  std::vector<std::thread> threads;
  for (unsigned rank = 1; rank < world.ranks(); ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = call(rank); });
  }
  statuses[0] = call(0);
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) DRIFTLESS_RETURN_IF_ERROR(status);
  return {};
}

inline Status begin_all(RoadWorld& world, const PublicationId& id) {
  DRIFTLESS_RETURN_IF_ERROR(world.sender(0).begin(id, soon()));
  return on_all_ranks(world, [&](unsigned rank) {
    return rank == 0 ? Status() : world.sender(rank).begin(id, soon());
  });
}

inline Status abort_all(RoadWorld& world) {
  return on_all_ranks(world, [&](unsigned rank) { return world.sender(rank).abort(); });
}

// Does everything up to the seal. Returns the receipts of all ranks.
inline Result<std::vector<PartReceipt>> write_all(RoadWorld& world, const PublicationId& id,
                                                  const RankParts& parts) {
  DRIFTLESS_RETURN_IF_ERROR(begin_all(world, id));
  std::vector<std::vector<PartReceipt>> receipts(world.ranks());
  DRIFTLESS_RETURN_IF_ERROR(on_all_ranks(world, [&](unsigned rank) -> Status {
    if (rank < parts.size()) {
      for (const TestPart& part : parts[rank]) {
        DRIFTLESS_RETURN_IF_ERROR(write_part(world.sender(rank), part));
      }
    }
    DRIFTLESS_ASSIGN_OR_RETURN(receipts[rank], world.sender(rank).flush(soon()));
    return {};
  }));
  std::vector<PartReceipt> all;
  for (const auto& of_rank : receipts) all.insert(all.end(), of_rank.begin(), of_rank.end());
  return all;
}

inline std::string manifest_of(const PublicationId& id) {
  return concat("{\"manifest of\": \"", to_string(id), "\"}\n");
}

inline Result<std::vector<PartReceipt>> publish(RoadWorld& world, const PublicationId& id,
                                                const RankParts& parts) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PartReceipt> receipts, write_all(world, id, parts));
  DRIFTLESS_RETURN_IF_ERROR(world.sender(0).seal(manifest_of(id), soon()));
  return receipts;
}

// Expects that a receiver gets manifest and parts of a publication exactly as they were written.
inline void expect_fetched(ReceiveRoad& road, const PublicationId& id, const RankParts& parts,
                           const std::vector<PartReceipt>& receipts) {
  const auto manifest = road.fetch_manifest(id, soon());
  ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
  EXPECT_EQ(*manifest, manifest_of(id));
  std::size_t next = 0;
  for (unsigned rank = 0; rank < parts.size(); ++rank) {
    for (const TestPart& part : parts[rank]) {
      ASSERT_LT(next, receipts.size());
      const PartReceipt& receipt = receipts[next++];
      EXPECT_EQ(receipt.name, part.name);
      EXPECT_EQ(receipt.rank, rank);
      EXPECT_EQ(receipt.size_bytes, part.bytes.size());
      EXPECT_EQ(receipt.hash, xxh3_128(part.bytes));
      const auto got = road.fetch_part(id, receipt, soon());
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      EXPECT_TRUE(std::ranges::equal(got->bytes(), part.bytes)) << part.name;
    }
  }
  EXPECT_EQ(next, receipts.size());
}

class RoadContractTest : public ::testing::TestWithParam<RoadCase> {
 protected:
  // Null, with the test skipped, if the world cannot have so many ranks.
  std::unique_ptr<RoadWorld> make(const WorldOptions& options = {}) {
    return GetParam().make(options);
  }
};

// The group's part of the contract, for worlds that have a group of their own. All of these worlds
// support at least 4 ranks.
// instantiated with it: at least 4.
class GroupContractTest : public RoadContractTest {};

// The world; skips the test if the world cannot have so many ranks.
#define MAKE_WORLD(world, ...)                                                 \
  const auto world##_owned = make(__VA_ARGS__);                                \
  if (world##_owned == nullptr) {                                              \
    GTEST_SKIP() << "the test wants more ranks than this world has processes"; \
  }                                                                            \
  RoadWorld& world = *world##_owned

inline std::vector<PublicationId> listed(ReceiveRoad& road) {
  const auto ids = road.list(soon());
  EXPECT_TRUE(ids.ok()) << ids.status().to_string();
  return ids.ok() ? *ids : std::vector<PublicationId>();
}

}  // namespace driftless::testing
