// SPDX-License-Identifier: Apache-2.0
// Publishers that turn bfloat16 weights into the codes and scales of a base with FP8 blocks or INT4
// groups.
// However ranks divide the matrices, receivers get what the reference computes from the whole ones.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/fp8_base.h"
#include "support/loopback_job.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using namespace testing;

enum class Cut : unsigned char { kWhole, kRows, kColumns, kBoth, kFlat, kFlatOfColumns };

struct QuantizedWay {
  unsigned ranks;
  Cut cut;
  QuantizeRule rule = QuantizeRule::kLinear;
  bool snapshot = true;
  Encoding encoding = Encoding::kDeltas;
  unsigned int4_group = 0;

  [[nodiscard]] BaseKind kind() const { return {rule, int4_group}; }
};

QuantizedWay int4_way(unsigned ranks, Cut cut, bool snapshot, Encoding encoding, unsigned group) {
  return {ranks, cut, QuantizeRule::kLinear, snapshot, encoding, group};
}

// Elements [begin, end) of a shard, as boxes of the shard's tensor: the rest of a row, whole rows,
// the start of a row.
std::vector<TensorBox> flat_boxes(const TensorBox& shard, std::uint64_t begin, std::uint64_t end) {
  std::vector<TensorBox> boxes;
  const std::uint64_t wide = shard.sizes[1];
  while (begin < end) {
    const std::uint64_t row = begin / wide, inside = begin % wide;
    const std::uint64_t rows = inside > 0 ? 0 : (end - begin) / wide;
    const std::uint64_t stop = rows > 0 ? begin + rows * wide : std::min(end, (row + 1) * wide);
    boxes.push_back({{shard.offsets[0] + row, shard.offsets[1] + inside},
                     {rows > 0 ? rows : 1, rows > 0 ? wide : stop - begin}});
    begin = stop;
  }
  return boxes;
}

std::vector<TensorBox> boxes_of(Cut cut, const TensorBox& all, unsigned rank, unsigned ranks) {
  switch (cut) {
    case Cut::kRows: return {part_of(all, 0, rank, ranks)};
    case Cut::kColumns: return {part_of(all, 1, rank, ranks)};
    case Cut::kBoth: return {part_of(part_of(all, 0, rank % 2, 2), 1, rank / 2, ranks / 2)};
    case Cut::kFlat: {
      const std::uint64_t count = all.sizes[0] * all.sizes[1];
      return flat_boxes(all, count * rank / ranks, count * (rank + 1) / ranks);
    }
    case Cut::kFlatOfColumns: {  // two columns of ranks; each divides its shard by elements
      const TensorBox shard = part_of(all, 1, rank % 2, 2);
      const std::uint64_t count = shard.sizes[0] * shard.sizes[1], half = ranks / 2;
      return flat_boxes(shard, count * (rank / 2) / half, count * (rank / 2 + 1) / half);
    }
    case Cut::kWhole: break;
  }
  return {};
}

class QuantizedPublisher : public ::testing::TestWithParam<QuantizedWay> {
 protected:
  QuantizedPublisher() {
    const auto [ranks, cut, rule, snapshot, encoding, int4_group] = GetParam();
    Trainer::offer_as([ranks, cut](const Weights& weights, unsigned rank) {
      MemorySource source({}, 2);
      for (const auto& [name, tensor] : weights) {
        const bool whole = cut == Cut::kWhole || !has_fp8_blocks(tensor) || tensor.bytes.empty();
        if (whole && rank == 0) source.add(name, tensor);
        if (whole) continue;
        for (const TensorBox& box : boxes_of(cut, {{0, 0}, tensor.shape}, rank, ranks)) {
          source.add(name, tensor, box);
        }
      }
      return source;
    });
    options_.keep_snapshot = snapshot;
    options_.encoding = encoding;
    options_.quantize.rule = rule;
    options_.base_checkpoint = dir_.file("base");
    options_.full_above_density = 0.6;
    options_.deadline = std::chrono::seconds(60);
  }
  ~QuantizedPublisher() override {
    Trainer::offer_as({});
    Trainer::hold_at_first({});
  }

  // Makes a base by this rule.
  void make_base(QuantizeRule rule, std::size_t odd_codes = 0) {
    const BaseKind kind{rule, GetParam().int4_group};
    base_ = kind.made_of(weights_);
    for (std::size_t i = 0; i < odd_codes; ++i) {
      base_.at(kind.codes("m.d.weight")).bytes[i * 137] ^= std::byte{1};
    }
    write_base(options_.base_checkpoint, base_, kind);
  }
  void open() {
    trainer_.reset();
    trainer_ = std::make_unique<Trainer>(hub_, GetParam().ranks, options_, weights_);
    expect_ok(trainer_->opened());
    if (!rollout_) rollout_.emplace(hub_, base_);
  }
  // Follows to the newest version, however long the machine stalls.
  void follow() {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (rollout_->state().id.version < trainer_->report().version && !deadline.expired()) {
      ASSERT_EQ(rollout_->follow().to_string(), "ok");
    }
  }
  void heals_from_an_unseen_write(std::uint64_t sweep_every);
  [[nodiscard]] static Weights made_of(const Weights& weights) {
    return GetParam().kind().made_of(weights);
  }
  void expect_published(const Weights& weights) {
    expect_ok(trainer_->publish(weights));
    follow();
    EXPECT_TRUE(rollout_->holds(made_of(weights)));
    EXPECT_EQ(rollout_->state().digest, trainer_->rank(0).digest());
  }

  TempDir dir_{TempDir::Where::kMemory};
  PublisherOptions options_ = quick_options();
  LoopbackHub hub_{{}, GetParam().ranks};
  Weights weights_ = bf16_matrices(5), base_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<Rollout> rollout_;
};

INSTANTIATE_TEST_SUITE_P(
    Ways, QuantizedPublisher,
    ::testing::Values(
        QuantizedWay{1, Cut::kWhole}, QuantizedWay{2, Cut::kRows},
        QuantizedWay{3, Cut::kColumns, QuantizeRule::kUe8m0},
        QuantizedWay{4, Cut::kBoth, QuantizeRule::kLinear, true, Encoding::kCompact},
        QuantizedWay{2, Cut::kFlat, QuantizeRule::kLinearDiv}, QuantizedWay{1, Cut::kFlat},
        QuantizedWay{4, Cut::kFlatOfColumns, QuantizeRule::kUe8m0, true, Encoding::kDeltasZstd},
        QuantizedWay{1, Cut::kWhole, QuantizeRule::kUe8m0, false},
        QuantizedWay{2, Cut::kRows, QuantizeRule::kLinearDiv, false},
        QuantizedWay{3, Cut::kColumns, QuantizeRule::kLinear, false, Encoding::kIndices},
        QuantizedWay{4, Cut::kBoth, QuantizeRule::kUe8m0, false},
        QuantizedWay{2, Cut::kFlat, QuantizeRule::kLinear, false, Encoding::kDeltasZstd},
        QuantizedWay{4, Cut::kFlatOfColumns, QuantizeRule::kLinear, false},
        int4_way(1, Cut::kWhole, true, Encoding::kDeltas, 32),
        int4_way(2, Cut::kRows, true, Encoding::kDeltasZstd, 128),
        int4_way(2, Cut::kColumns, true, Encoding::kIndices, 32),
        int4_way(1, Cut::kWhole, false, Encoding::kDeltas, 32),
        int4_way(3, Cut::kRows, false, Encoding::kIndices, 128),
        int4_way(2, Cut::kColumns, false, Encoding::kDeltasZstd, 32)));

TEST_P(QuantizedPublisher, PublishesWhatOneRankWould) {
  make_base(GetParam().rule);
  open();
  Weights weights = weights_;
  for (std::uint64_t step = 1; step <= 7; ++step) {
    weights = stepped(weights, step);
    if (step == 3) {
      trainer_->road(0).arm(RoadFault::kSeal);
      for (const Status& status : trainer_->publish(weights)) EXPECT_FALSE(status.ok());
      weights = stepped(weights, 33);
    }
    expect_published(weights);
    EXPECT_EQ(trainer_->report().encoding, GetParam().encoding) << step;
  }
  expect_published(weights);
  EXPECT_EQ(trainer_->report().changed_units, 0U);
}

// Version 1 is the difference to the bytes of the base itself.
TEST_P(QuantizedPublisher, GoesOnFromABaseOfAnotherRule) {
  const bool div = GetParam().rule == QuantizeRule::kLinear;
  // The base comes from a tool that rounds some weights differently.
  make_base(div ? QuantizeRule::kLinearDiv : QuantizeRule::kLinear, 20);
  open();
  expect_published(weights_);
  EXPECT_GT(trainer_->report().changed_units, 0U);
  if (GetParam().rule != QuantizeRule::kUe8m0) {  // which has other scales
    EXPECT_LT(trainer_->report().changed_units, trainer_->report().total_units / 100);
  }
  expect_published(stepped(weights_, 2));
}

TEST_P(QuantizedPublisher, ResumesByTheSameRuleOnly) {
  make_base(GetParam().rule);
  open();
  Weights weights = stepped(weights_, 2);
  expect_published(weights);
  if (!GetParam().snapshot) Trainer::hold_at_first(weights);
  open();
  ASSERT_TRUE(trainer_->rank(0).resumed());
  weights = stepped(weights, 3);
  expect_published(weights);
  trainer_.reset();
  options_.quantize.rule =
      GetParam().rule == QuantizeRule::kUe8m0 ? QuantizeRule::kLinear : QuantizeRule::kUe8m0;
  trainer_ = std::make_unique<Trainer>(hub_, GetParam().ranks, options_, weights_);
  for (const Status& status : trainer_->opened()) {
    EXPECT_NE(status.message().find("quantize"), std::string::npos) << status.to_string();
  }
}

TEST_P(QuantizedPublisher, SendsAllOfAVersionThatIsDense) {
  make_base(GetParam().rule);
  open();
  for (const std::uint64_t seed : {7, 8}) {
    const Weights other = bf16_matrices(seed);
    expect_published(other);
    EXPECT_EQ(trainer_->report().encoding, Encoding::kFull);
    expect_published(stepped(other, 2));
    EXPECT_EQ(trainer_->report().encoding, GetParam().encoding);
  }
  trainer_->rank(0).request_anchor();
  expect_published(stepped(bf16_matrices(8), 4));
  Rollout late(hub_, std::nullopt);
  EXPECT_EQ(late.follow().to_string(), "ok");
  EXPECT_TRUE(late.holds(made_of(stepped(bf16_matrices(8), 4))));
}

// If many scales change, one note names the tensors.
TEST_P(QuantizedPublisher, NamesTensorsOfWhichManyScalesChange) {
  if (GetParam().cut != Cut::kWhole) GTEST_SKIP() << "a rank has too few blocks of these matrices";
  if (GetParam().int4_group > 0) GTEST_SKIP() << "in INT4 scales change often";
  make_base(GetParam().rule);
  open();
  const auto notes = [&] {
    return std::ranges::count_if(trainer_->report().notes, [](const std::string& note) {
      return note.find("many scales changed in 'm.b.weight'") != std::string::npos &&
             note.find("'m.a.weight'") == std::string::npos;
    });
  };
  Weights weights = stepped(weights_, 2);
  expect_published(weights);
  EXPECT_EQ(notes(), 0);
  TestTensor& jumping = weights.at("m.b.weight");  // 8 blocks; all others have fewer
  for (std::size_t i = 0; i < jumping.bytes.size() / 2; ++i) {
    std::uint16_t& weight = bf16_weight(jumping, i);
    if ((weight & 0x7f80U) != 0 && (weight & 0x7f80U) < 0x7f00U) weight += 0x0080;  // doubled
  }
  expect_published(weights);
  EXPECT_EQ(notes(), 1);
  expect_published(bf16_matrices(7));  // dense
  EXPECT_EQ(trainer_->report().encoding, Encoding::kFull);
  // Without a snapshot, a tensor whose weights all changed is sent whole before its scales are
  // known.
  EXPECT_EQ(notes(), GetParam().snapshot ? 1 : 0);
  expect_published(stepped(bf16_matrices(7), 2));
  EXPECT_EQ(notes(), 0);
}

// Weights that were not captured are found, and captured ones cost as much as they changed.
TEST_P(QuantizedPublisher, FindsWhatWasNotCaptured) {
  if (GetParam().snapshot) GTEST_SKIP() << "a snapshot is compared with all weights";
  make_base(GetParam().rule);
  open();
  Weights weights = stepped(weights_, 2);
  trainer_->step(weights);
  expect_ok(trainer_->publish_live());
  EXPECT_EQ(trainer_->report().live.resent_tensors, 0U);
  follow();
  EXPECT_TRUE(rollout_->holds(made_of(weights)));
  for (std::uint64_t step = 4; step < 7; ++step) {
    weights = stepped(weights, step);
    trainer_->step(weights, "m.d.weight");
    expect_ok(trainer_->publish_live());
    follow();
    EXPECT_TRUE(rollout_->holds(made_of(weights))) << step;
  }
}

// Weights were written without capture() and have the same codes. The sweep finds them in the next
// version, and no later version fails because of them.
TEST_P(QuantizedPublisher, FindsWhatWasNotCapturedAndChangesNoCode) {
  if (GetParam().snapshot) GTEST_SKIP() << "a snapshot is compared with all weights";
  make_base(GetParam().rule);
  open();
  expect_published(weights_);
  const auto is_noted = [&] {
    return std::ranges::any_of(trainer_->report().notes, [](const std::string& note) {
      return note.find("'m.d.weight'") != std::string::npos &&
             note.find("its codes and scales are as they were") != std::string::npos;
    });
  };
  EXPECT_FALSE(is_noted());
  Weights weights = changed_below_codes(weights_, "m.d.weight", GetParam().kind());
  trainer_->step(weights, "m.d.weight");
  expect_ok(trainer_->publish_live());
  EXPECT_TRUE(is_noted()) << ::testing::PrintToString(trainer_->report().notes);
  EXPECT_EQ(trainer_->report().changed_units, 0U);
  bf16_weight(weights.at("m.d.weight"), 300) = 0x3f00;  // 0.5: its block is coded anew
  expect_published(weights);
  EXPECT_FALSE(is_noted());
  EXPECT_EQ(trainer_->report().live.resent_tensors, 0U);
}

// Without a sweep the version that reads the weights fails, and names the sweep since which they
// may have been written.
TEST_P(QuantizedPublisher, WithoutASweepNamesWhenWeightsMayHaveBeenWritten) {
  if (GetParam().snapshot) GTEST_SKIP() << "a snapshot is compared with all weights";
  options_.sweep_every = 0;
  make_base(GetParam().rule);
  open();
  expect_published(weights_);
  Weights weights = changed_below_codes(weights_, "m.d.weight", GetParam().kind());
  trainer_->step(weights, "m.d.weight");
  expect_ok(trainer_->publish_live());
  bf16_weight(weights.at("m.d.weight"), 300) = 0x3f00;
  trainer_->step(weights);
  bool named = false;
  for (const Status& status : trainer_->publish_live()) {
    EXPECT_FALSE(status.ok());
    named = named || (status.message().find("'m.d.weight'") != std::string::npos &&
                      status.message().find("or since the last sweep") != std::string::npos);
  }
  EXPECT_TRUE(named);
  expect_published(weights);
}

// Between two sweeps a weight is written without capture(), and then again with it. In FP8 the
// version of the second write has a digest that no receiver reaches. Receivers refuse it, name the
// cause and ask for an anchor; the publisher finds the tensor when a version quantizes a whole
// block again, which fails that version, or when it sweeps. INT4 reads the weights, so no such
// version is published.
void QuantizedPublisher::heals_from_an_unseen_write(std::uint64_t sweep_every) {
  if (GetParam().snapshot) GTEST_SKIP() << "a snapshot is compared with all weights";
  options_.sweep_every = sweep_every;
  Weights weights = weights_;
  std::uint16_t& weight = bf16_weight(weights.at("m.d.weight"), 300);
  weight = 0x3c00;
  make_base(GetParam().rule);
  open();
  expect_published(weights);
  weight = 0x3c80;
  trainer_->step(weights, "m.d.weight");
  weight = 0x3d00;
  trainer_->step(weights);
  const bool published =
      std::ranges::all_of(trainer_->publish_live(), [](const Status& each) { return each.ok(); });
  EXPECT_EQ(published, GetParam().int4_group == 0);
  if (published) {
    const Status refused = rollout_->follow();
    EXPECT_EQ(refused.code(), StatusCode::kMismatch);
    EXPECT_NE(refused.message().find("without capture() between two sweeps"), std::string::npos)
        << refused.to_string();
  }
  for (int version = 0; version < 5; ++version) {
    weights = stepped(weights, 2);  // quantizes whole blocks again: one version may fail
    trainer_->step(weights);
    static_cast<void>(trainer_->publish_live());
    for (int look = 0; look < 3; ++look) static_cast<void>(rollout_->follow());
  }
  EXPECT_EQ(rollout_->state().id.version, trainer_->report().version);
  EXPECT_TRUE(rollout_->holds(made_of(weights)));
}

TEST_P(QuantizedPublisher, HealsFromAnUnseenWriteAtTheNextSweep) { heals_from_an_unseen_write(4); }
TEST_P(QuantizedPublisher, HealsFromAnUnseenWriteWithoutSweeps) { heals_from_an_unseen_write(0); }

// A change that is changed back, and a version that failed, leave nothing behind.
TEST_P(QuantizedPublisher, DropsWhatIsAsItWas) {
  if (GetParam().snapshot) GTEST_SKIP() << "nothing is captured";
  make_base(GetParam().rule);
  open();
  const Weights there = stepped(weights_, 2);
  trainer_->step(there);
  trainer_->road(0).arm(RoadFault::kSeal);
  for (const Status& status : trainer_->publish_live()) EXPECT_FALSE(status.ok());
  trainer_->step(weights_);
  expect_ok(trainer_->publish_live());
  EXPECT_EQ(trainer_->report().changed_units, 0U);
  expect_published(there);
  trainer_->step(weights_);
  trainer_->step(stepped(weights_, 7));
  expect_ok(trainer_->publish_live());
  follow();
  EXPECT_TRUE(rollout_->holds(made_of(stepped(weights_, 7))));
}

}  // namespace
}  // namespace driftless
