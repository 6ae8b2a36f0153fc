// SPDX-License-Identifier: Apache-2.0
#include "kernels/tensor_ops.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "support/kernels_data.h"

namespace driftless {
namespace {

using namespace driftless::testing;

// Several tensors of mixed widths and sizes, each with some changes.
struct Model {
  std::vector<std::vector<std::byte>> before, after;
  std::vector<TensorPair> pairs;

  void add(unsigned width, std::size_t units, Pattern pattern) {
    Random random(pairs.size() + 1);
    before.emplace_back(units * width);
    fill_units(random, width, before.back().data(), units);
    after.push_back(before.back());
    change_units(random, pattern, width, after.back().data(), units);
    pairs.push_back({static_cast<std::uint32_t>(pairs.size() + 100), width, units,
                     before.back().data(), after.back().data()});
  }
};

Model mixed_model() {
  Model model;
  const std::size_t sizes[] = {0, 1, 3, 100, 5000, 70001, 2, 0, 9, 4096, 12288, 1};
  std::size_t turn = 0;
  for (const Pattern pattern : {Pattern::kOnePercent, Pattern::kLast, Pattern::kHalf,
                                Pattern::kNothing, Pattern::kEverything}) {
    for (const std::size_t units : sizes) model.add(kWidths[turn++ % 4], units, pattern);
  }
  return model;
}

void write(const DeltaView& delta, std::vector<std::byte>& tensor) {
  host_kernels().scatter(tensor.data() + delta.origin * delta.unit_bytes, delta.unit_bytes,
                         delta.offsets.data(), delta.count(), delta.values);
}

TEST(DiffTensors, PiecesComeInOrderAndRebuildTheNewTensors) {
  for (const unsigned threads : {1U, 2U, 5U}) {
    for (const std::uint64_t piece_bytes : {1U, 7U, 4096U, 1U << 20}) {
      if (piece_bytes < 4096 && threads != 2) continue;
      Model model = mixed_model();
      std::vector<std::pair<std::uint32_t, std::uint64_t>> seen;
      const Status status =
          diff_tensors(host_kernels(), model.pairs, {threads, piece_bytes}, nullptr,
                       [&](const DiffPiece& piece) -> Status {
                         EXPECT_GT(piece.delta.count(), 0U);
                         EXPECT_EQ(piece.delta.origin, piece.origin);
                         EXPECT_EQ(piece.delta.tensor, piece.pair->tensor);
                         EXPECT_LT(piece.delta.offsets.back(), piece.units);
                         seen.emplace_back(piece.delta.tensor, piece.delta.origin);
                         write(piece.delta, model.before[piece.delta.tensor - 100]);
                         return {};
                       });
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
      EXPECT_EQ(model.before, model.after) << threads << " threads, pieces of " << piece_bytes;
    }
  }
}

TEST(DiffTensors, InParallelSeesEveryUnitExactlyOnce) {
  const Model model = mixed_model();
  std::mutex mutex;
  std::map<std::uint32_t, std::map<std::uint64_t, std::uint64_t>> seen;  // tensor, origin, units
  std::uint64_t changed_in_parallel = 0, changed_in_order = 0;
  const Status status = diff_tensors(
      host_kernels(), model.pairs, {.threads = 3, .piece_bytes = 4096},
      [&](const DiffPiece& piece) -> Status {
        const std::scoped_lock lock(mutex);
        EXPECT_TRUE(seen[piece.pair->tensor].emplace(piece.origin, piece.units).second);
        changed_in_parallel += piece.delta.count();
        return {};
      },
      [&](const DiffPiece& piece) -> Status {
        changed_in_order += piece.delta.count();
        return {};
      });
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(changed_in_parallel, changed_in_order);
  for (const TensorPair& pair : model.pairs) {
    std::uint64_t next = 0;
    for (const auto& [origin, units] : seen[pair.tensor]) {
      EXPECT_EQ(origin, next);
      next += units;
    }
    EXPECT_EQ(next, pair.units);
  }
}

TEST(DiffTensors, PiecesCarryTheOldValuesIfRequested) {
  Model model = mixed_model();
  const Model original = model;
  const Status status = diff_tensors(host_kernels(), model.pairs,
                                     {.threads = 3, .piece_bytes = 4096, .old_values = true},
                                     nullptr, [&](const DiffPiece& piece) -> Status {
                                       DeltaView back = piece.delta;
                                       back.values = piece.old_values;
                                       write(back, model.after[piece.delta.tensor - 100]);
                                       return {};
                                     });
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(model.after, original.before);
}

TEST(DiffTensors, AFailureInOrderStopsTheWorkAndIsReturned) {
  Model model;
  for (int i = 0; i < 200; ++i) model.add(2, 4096, Pattern::kAlternating);
  std::atomic<int> compared = 0;
  int consumed = 0;
  const Status status = diff_tensors(
      host_kernels(), model.pairs, {.threads = 2, .piece_bytes = 4096},
      [&](const DiffPiece&) -> Status {
        ++compared;
        return {};
      },
      [&](const DiffPiece&) -> Status {
        return ++consumed == 3 ? error(StatusCode::kNoSpace, "full") : Status{};
      });
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_EQ(consumed, 3);
  EXPECT_LT(compared, 40) << "the rest was compared in vain";
}

TEST(DiffTensors, AFailureInParallelStopsTheWorkAndIsReturned) {
  Model model;
  for (int i = 0; i < 200; ++i) model.add(2, 4096, Pattern::kAlternating);
  std::atomic<int> compared = 0;
  const Status status = diff_tensors(
      host_kernels(), model.pairs, {.threads = 2, .piece_bytes = 4096},
      [&](const DiffPiece&) -> Status {
        return ++compared == 5 ? error(StatusCode::kMismatch, "no") : Status{};
      },
      [](const DiffPiece&) { return Status{}; });
  EXPECT_EQ(status.code(), StatusCode::kMismatch);
  EXPECT_LT(compared, 40);
}

TEST(DiffTensors, RefusesAWidthThatIsNone) {
  const TensorPair pair{.unit_bytes = 3, .units = 1};
  const Status status = diff_tensors(host_kernels(), std::span(&pair, 1), {}, nullptr,
                                     [](const DiffPiece&) { return Status{}; });
  EXPECT_EQ(status.code(), StatusCode::kInternal);
}

TEST(DiffTensors, NoPairsIsNoWork) {
  const Status status =
      diff_tensors(host_kernels(), {}, {}, nullptr, [](const DiffPiece&) { return Status{}; });
  EXPECT_TRUE(status.ok());
}

TEST(DigestTensor, DoesNotDependOnThreads) {
  const std::vector<std::byte> bytes = random_bytes(2, (std::size_t{5} << 20) + 13);
  const DigestTensorKey key = digest_tensor_key("w");
  const Digest one = digest_tensor(host_kernels(), key, bytes, 1);
  EXPECT_EQ(one, host_kernels().digest(key, 0, bytes));
  for (const unsigned threads : {0U, 2U, 16U}) {
    EXPECT_EQ(digest_tensor(host_kernels(), key, bytes, threads), one);
  }
  EXPECT_EQ(digest_tensor(host_kernels(), key, {}, 4), Digest{});
}

}  // namespace
}  // namespace driftless
