// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/file_system.h"
#include "support/checkout_paths.h"
#include "tools/plan/measure.h"

namespace driftless {
namespace {

ModelShape published(const std::string& name) {
  const std::string path = concat(testing::test_data(), "/python/models/", name, ".json");
  const auto text = read_text(posix_file_system(), path, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  const auto shape = model_shape(text.ok() ? *text : "", name);
  EXPECT_TRUE(shape.ok()) << shape.status().to_string();
  return shape.ok() ? *shape : ModelShape();
}

TEST(ModelShape, CountsAsPublished) {
  EXPECT_EQ(published("qwen3_8b").weights, 8'190'735'360U);
  EXPECT_EQ(published("qwen3_30b_a3b").weights, 30'532'122'624U);
  EXPECT_EQ(published("qwen3_235b_a22b").weights, 235'093'634'560U);
  EXPECT_EQ(published("qwen2_5_7b").weights, 7'615'616'512U);
  EXPECT_EQ(published("llama_3_1_8b").weights, 8'030'261'248U);
  EXPECT_EQ(published("mixtral_8x7b").weights, 46'702'792'704U);
  EXPECT_EQ(published("deepseek_v3").weights, 671'026'419'200U);
  EXPECT_NEAR(static_cast<double>(published("kimi_k2").weights), 1.03e12, 0.01e12);
}

TEST(ModelShape, KnowsWhatIsInExperts) {
  EXPECT_EQ(published("qwen3_8b").experts, 0U);
  EXPECT_EQ(published("qwen3_30b_a3b").experts, 48ULL * 128 * 3 * 2048 * 768);
  EXPECT_EQ(published("deepseek_v3").experts, 58ULL * 256 * 3 * 7168 * 2048);
}

TEST(ModelShape, KnowsWhatAnFp8BaseHoldsAsCodes) {
  // q, k, v, o and the ffn of each layer; the tables, norms and routers are not
  EXPECT_EQ(published("qwen3_8b").matrices, 36ULL * 4096 * (128 * (2 * 32 + 2 * 8) + 3 * 12288));
  EXPECT_EQ(published("qwen3_30b_a3b").matrices,
            published("qwen3_30b_a3b").experts + 48ULL * 2048 * 128 * (2 * 32 + 2 * 4));
  const ModelShape deepseek = published("deepseek_v3");
  const std::uint64_t attention = 7168ULL * 1536 + 1536ULL * 128 * 192 + 7168ULL * 576 +
                                  512ULL * 128 * 256 + 128ULL * 128 * 7168;
  EXPECT_EQ(deepseek.matrices,
            61 * attention + 3ULL * 3 * 7168 * 18432 + 58ULL * 3 * 7168 * 2048 + deepseek.experts);
  const ModelShape dense = model_shape(500'000'000).value();
  EXPECT_GT(dense.matrices, dense.weights / 2);
  EXPECT_LT(dense.matrices, dense.weights);
}

TEST(ModelShape, TiedTablesCountOnce) {
  constexpr const char* kConfig = R"({"model_type":"qwen2","hidden_size":8,"num_hidden_layers":1,
    "intermediate_size":16,"num_attention_heads":2,"vocab_size":100,"tie_word_embeddings":TIED})";
  const auto with = [&](const std::string& tied) {
    std::string text = kConfig;
    return model_shape(text.replace(text.find("TIED"), 4, tied), "c").value().weights;
  };
  EXPECT_EQ(with("false") - with("true"), 800U);
  // tables, q k v with biases and o, the ffn, three norms
  EXPECT_EQ(with("true"), 800U + 4 * 64 + 3 * 8 + 3 * 8 * 16 + 3 * 8);
}

TEST(ModelShape, RefusesWhatItCannotCount) {
  const auto status = [](const char* text) { return model_shape(text, "config.json").status(); };
  const Status unknown = status(R"({"model_type":"mamba"})");
  EXPECT_EQ(unknown.code(), StatusCode::kUnsupported);
  EXPECT_NE(unknown.message().find("--params"), std::string_view::npos);
  EXPECT_NE(unknown.message().find("mamba"), std::string_view::npos);
  const Status missing = status(R"({"model_type":"llama","num_hidden_layers":1})");
  EXPECT_EQ(missing.code(), StatusCode::kCorrupt);
  EXPECT_NE(missing.message().find("hidden_size"), std::string_view::npos);
  for (const char* text :
       {"", "[]", "{", R"({"model_type":3})", R"({"model_type":"llama","hidden_size":-1})",
        R"({"model_type":"llama","hidden_size":1e30})", R"({"model_type":"llama","hidden_size":0})",
        R"({"model_type":"mixtral","hidden_size":16777216,"num_hidden_layers":16777216,
            "intermediate_size":16777216,"num_attention_heads":1,"vocab_size":1,
            "num_local_experts":16777216})"}) {
    EXPECT_EQ(status(text).code(), StatusCode::kCorrupt) << text;
  }
}

TEST(Term, ShowsItsFormulaWithNumbers) {
  const Term sum = Term("a", 3, "B") + Term("b", 4, "B");
  const Term all = sum * Term("c", 2, "") / (Term("d", 2, "s") * Term("e", 5, ""));
  EXPECT_DOUBLE_EQ(all.value(), 1.4);
  EXPECT_EQ(all.formula(), "(a (3.00 B) + b (4.00 B)) x c (2) / (d (2.00 s) x e (5))");
  EXPECT_EQ(larger(Term("a", 1, ""), Term("b", 2, "")).formula(), "max(a (1), b (2))");
  EXPECT_DOUBLE_EQ(smaller(Term("a", 1, ""), Term("b", 2, "")).value(), 1);
  EXPECT_EQ((Term("a", 1, "") + Term()).formula(), "a (1)");
}

TEST(Term, ChoosesAPrefix) {
  EXPECT_EQ(with_prefix(12.5e9, "B/s"), "12.5 GB/s");
  EXPECT_EQ(with_prefix(0.8521, "B"), "0.85 B");
  EXPECT_EQ(with_prefix(2.44e-12, "s"), "2.44 ps");
  EXPECT_EQ(with_prefix(0.9999, "s"), "1.00 s");
  EXPECT_EQ(with_prefix(4321, "s"), "4321 s");
  EXPECT_EQ(with_prefix(81.9e6, ""), "81.9 M");
  EXPECT_EQ(with_prefix(8, ""), "8");
}

TEST(ParseLink, TakesBitsAndBytes) {
  EXPECT_DOUBLE_EQ(parse_link("100Gbit").value(), 12.5e9);
  EXPECT_DOUBLE_EQ(parse_link("400 Gbit/s").value(), 50e9);
  EXPECT_DOUBLE_EQ(parse_link("1gbit").value(), 125e6);
  EXPECT_DOUBLE_EQ(parse_link("12.5GB/s").value(), 12.5e9);
  for (const char* text : {"", "100", "Gbit", "-1Gbit", "1 parsec", "0Gbit", "1e9Gbit"}) {
    EXPECT_EQ(parse_link(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
}

// Numbers that are easy to calculate with.
Figures simple(Device device) {
  Figures figures = Figures::built_in(device);
  const std::map<std::string_view, double> values = {
      {"bytes.deltas", 4},       {"bytes.compact", 1},         {"compare.device", 1e12},
      {"compare.host", 1e10},    {"encode.deltas", 1e-9},      {"encode.compact", 1e-9},
      {"encode.captured", 2e-9}, {"compare.none", 1e12},       {"bus", 20e9},
      {"mpi_rma.put", 10e9},     {"seal.rank", 1e-3},          {"link.payload", 0.5},
      {"mpi_rma.get", 10e9},     {"mpi_rma.get_tcp", 1e8},     {"hash", 4e9},
      {"hand_over.read", 1e9},   {"decode.deltas", 1e-9},      {"decode.compact", 1e-9},
      {"sweep", 1e-12},          {"apply.fixed", 1e-3},        {"apply.change", 1e-10},
      {"nccl.hash", 20e9},       {"nccl.acknowledge", 40e9},   {"shared_fs.write", 1e9},
      {"shared_fs.read", 2e9},   {"nccl.broadcast_tcp", 1e8},  {"apply.full", 1e-10},
      {"shared_fs.sync", 1e-3},  {"encode.full", 1e-11},       {"decode.full", 1e-11},
      {"peer.get_tcp", 1e8},     {"quantize", 1e-9},           {"fp8.changed", 0.1},
      {"fp8.bytes.deltas", 3},   {"host.encode.deltas", 1e-9}, {"quantize.device", 1e-11}};
  for (const auto& [name, value] : values) {
    if (!figures.has(name)) continue;
    EXPECT_TRUE(figures.set(name, value, "test").ok()) << name;
  }
  return figures;
}

PlanInput two_ranks() {
  PlanInput input;
  input.model = {.family = "dense", .weights = 1'000'000'000, .experts = 0, .layers = 10};
  input.snapshot = "device";
  input.tp = 2;
  input.link_bytes_per_s = 1e9;
  input.hand_over = false;
  return input;
}

PlanRow plan(const PlanInput& input, std::string_view road, Encoding encoding) {
  EXPECT_TRUE(check_plan(input).ok()) << check_plan(input).to_string();
  const auto rows = make_plan(input, simple(input.device), road, encoding);
  EXPECT_EQ(rows.size(), 1U);
  return rows.front();
}

double part(const std::vector<PlanQuantity>& quantities, std::string_view name) {
  return std::ranges::find(quantities, name, &PlanQuantity::name)->amount.value();
}

TEST(Plan, IsWhatAHandComputes) {
  const PlanRow row = plan(two_ranks(), "mpi_rma", Encoding::kDeltas);
  ASSERT_EQ(row.why_not, "");
  EXPECT_TRUE(row.best);
  EXPECT_NEAR(part(row.phases, "compare"), 1e-3, 1e-9);      // 5e8 x 2 B / 1 TB/s
  EXPECT_NEAR(part(row.phases, "encode"), 5e-3, 1e-9);       // 5e6 x 1 ns
  EXPECT_NEAR(part(row.phases, "send"), 1e-3 + 4e-3, 1e-9);  // 20 MB: bus, put; 2 ranks
  EXPECT_NEAR(part(row.phases, "wait"), 25e-3, 1e-9);
  EXPECT_NEAR(part(row.phases, "fetch"), 80e-3 + 10e-3, 1e-9);  // 40 MB: 0.5 GB/s, hash 4 GB/s
  EXPECT_EQ(part(row.phases, "hand_over"), 0);
  EXPECT_NEAR(part(row.phases, "stage"), 10e-3 + 1e-3, 1e-9);
  EXPECT_NEAR(part(row.phases, "pause"), 2e-3, 1e-9);
  EXPECT_NEAR(row.seconds, 0.139, 1e-9);
  EXPECT_NEAR(part(row.bytes, "version"), 40e6, 1);
  EXPECT_NEAR(part(row.bytes, "into_engine_host"), 40e6, 1);
  EXPECT_NEAR(part(row.memory, "receiver_device"), 60e6, 1);
}

TEST(Plan, TcpIsAsFastAsAProcess) {
  PlanInput input = two_ranks();
  input.rdma = false;
  const PlanRow row = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(row.phases, "fetch"), 0.4 + 10e-3, 1e-9);  // 0.1 GB/s
  const PlanRow pushed = plan(input, "nccl", Encoding::kDeltas);
  EXPECT_NEAR(part(pushed.phases, "send"), 1e-3 + 40e6 / 0.2e9 + 1e-3 + 2e-3, 1e-9);  // two ranks
}

TEST(Plan, PeerReadsByTcpOverEveryLink) {
  const PlanRow row = plan(two_ranks(), "peer", Encoding::kDeltas);
  ASSERT_EQ(row.why_not, "");
  EXPECT_NEAR(part(row.phases, "send"), 1e-3 + 4e-3, 1e-9);  // as mpi_rma
  EXPECT_NEAR(part(row.phases, "wait"), 25e-3, 1e-9);
  EXPECT_NEAR(part(row.phases, "fetch"), 0.4 + 10e-3, 1e-9);  // 0.1 GB/s
  EXPECT_NEAR(part(row.bytes, "out_of_trainer_host"), 40e6, 1);
}

TEST(Plan, CodesForFp8EnginesAreMadeAndComparedByTheProcessor) {
  PlanInput input = two_ranks();
  input.fp8 = true;
  input.snapshot = "host";
  input.model.matrices = 800'000'000;  // codes; 200 M weights stay in bf16
  for (const Device device : {Device::kGpu, Device::kCpu}) {
    input.device = device;
    const PlanRow row = plan(input, "mpi_rma", Encoding::kDeltas);
    ASSERT_EQ(row.why_not, "");
    const double all = 8e8 * (1 + 1.0 / 4096) + 4e8;  // bytes
    EXPECT_NEAR(part(row.phases, "compare"), 0.8 + 4e8 / 1e10, 1e-9);
    EXPECT_NEAR(part(row.phases, "encode"), 2.8e-3, 1e-9);  // of 0.8 M codes and 2 M weights
    EXPECT_NEAR(part(row.phases, "send"), 2e-3, 1e-9);      // nothing comes from a GPU
    EXPECT_NEAR(part(row.bytes, "version"), 8e5 * 3 + 2e6 * 4, 1);
    const PlanRow whole = plan(input, "mpi_rma", Encoding::kFull);
    EXPECT_NEAR(part(whole.bytes, "version"), all, 1);
    EXPECT_NE(plan(input, "nccl", Encoding::kDeltas).why_not, "");
  }
  input.device = Device::kGpu;
  input.snapshot = "device";  // then each rank's GPU does it
  const PlanRow there = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(there.phases, "compare"), 4e8 * 1e-11 + 1e8 * 2 / 1e12, 1e-9);
  EXPECT_NEAR(part(there.phases, "encode"), 1.4e-3, 1e-9);
  EXPECT_NE(plan(input, "nccl", Encoding::kDeltas).why_not, "");
  input.snapshot = "pinned";
  EXPECT_EQ(check_plan(input).code(), StatusCode::kInvalidArgument);
  input.snapshot = "host";
  input.density = 0.002;  // of which a tenth changes its code: gaps do not fit into 16 bits
  const PlanRow row = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(row.bytes, "version"), 1.6e5 * 5 + 4e5 * 4, 1);
}

TEST(Plan, ManyHostsShareTheTrainersLink) {
  PlanInput input = two_ranks();
  input.engines = 4;
  const PlanRow pulled = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(pulled.phases, "fetch"), 0.32 + 10e-3, 1e-9);  // 4 x 40 MB out of one host
  EXPECT_NEAR(part(pulled.bytes, "out_of_trainer_host"), 160e6, 1);
  const PlanRow pushed = plan(input, "nccl", Encoding::kDeltas);
  EXPECT_NEAR(part(pushed.bytes, "out_of_trainer_host"), 40e6, 1);
}

TEST(Plan, AnEngineOfTwoHostsTakesHalfOfAVersionToEach) {
  PlanInput input = two_ranks();
  input.engine_tp = 16;
  input.engines_per_host = 0.5;
  input.hand_over = true;
  const PlanRow row = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(row.bytes, "into_engine_host"), 20e6, 1);
  EXPECT_NEAR(part(row.phases, "hand_over"), 25e-3 + 2.5e-3, 1e-9);  // 40 MB / 16 at 1 GB/s
  EXPECT_NEAR(part(row.phases, "stage"), (10e-3 + 1e-3) / 16, 1e-9);
}

TEST(Plan, CompactIsDecodedWhileItIsFetched) {
  PlanInput input = two_ranks();
  input.device = Device::kCpu;
  input.snapshot = "host";
  // 2 ranks on one processor compare 2 GB at 10 GB/s.
  PlanRow row = plan(input, "mpi_rma", Encoding::kCompact);
  EXPECT_NEAR(part(row.phases, "compare"), 0.2, 1e-9);
  const double bytes = 1e7 * (1 + std::log2(1.5) / 8);
  EXPECT_NEAR(part(row.phases, "fetch"), bytes / 0.5e9 + bytes / 4e9, 1e-9);
  EXPECT_NEAR(part(row.phases, "stage"), 1 + 1e-3 - bytes / 0.5e9, 1e-9);  // decoding takes longer
  input.link_bytes_per_s = 1e6;  // the link takes longer: the last frame is left
  row = plan(input, "mpi_rma", Encoding::kCompact);
  EXPECT_NEAR(part(row.phases, "stage"), 0.15, 1e-9);
}

TEST(Plan, FilesAreWrittenWhileComparing) {
  PlanInput input = two_ranks();
  const PlanRow row = plan(input, "shared_fs", Encoding::kDeltas);
  // Fetched from the GPU; 40 MB at 1 GB/s less the 6 ms of comparing and encoding; seal; 7 syncs.
  EXPECT_NEAR(part(row.phases, "send"), 1e-3 + 40e-3 - 6e-3 + 2e-3 + 7e-3, 1e-9);
  EXPECT_NEAR(part(row.phases, "fetch"), 20e-3 + 10e-3, 1e-9);
}

TEST(Plan, WithoutASnapshotEveryRankPublishesItsShare) {
  PlanInput input = two_ranks();
  input.model.experts = 800'000'000;
  input.dp = 4;
  input.ep = 8;
  const PlanRow with = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(with.phases, "compare"), (1e8 + 1e8) * 2 / 1e12, 1e-9);  // / TP, / EP
  input.snapshot = "none";
  const PlanRow without = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(without.phases, "compare"), 1.25e8 * 2 / 1e12, 1e-9);
  EXPECT_NEAR(part(without.phases, "encode"), 1.25e6 * 2e-9, 1e-9);
}

// If the trainer's processors do the work, the ranks of a host that publish share its processor.
TEST(Plan, AHostWorksForTheRanksThatPublishAlone) {
  PlanInput input = two_ranks();
  input.device = Device::kCpu;
  input.snapshot = "host";
  const auto compared = [&] {
    const PlanRow row = plan(input, "mpi_rma", Encoding::kDeltas);
    return part(row.phases, "compare") * 1e10 / 2;  // weights
  };
  EXPECT_NEAR(compared(), 1e9, 1);
  input.dp = 4;  // the second to fourth replica publish nothing
  EXPECT_NEAR(compared(), 1e9, 1);
  input.pp = 2;  // the second stage is on a host of its own
  EXPECT_NEAR(compared(), 5e8, 1);
  input.ranks_per_host = 16;
  EXPECT_NEAR(compared(), 1e9, 1);
  input.ranks_per_host = 8;
  input.model.experts = 800'000'000;
  input.ep = 4;  // ranks 0 to 3 of each stage publish its experts
  EXPECT_NEAR(compared(), 5e8, 1);
  input.ranks_per_host = 2;  // ranks 0 and 1: dense weights and half of the experts
  EXPECT_NEAR(compared(), 1e8 + 2e8, 1);
}

TEST(Plan, TheBusiestHostsLinkDecides) {
  PlanInput input = two_ranks();
  input.tp = 8;
  input.dp = 2;
  input.engines = 2;
  // Two hosts, and all blocks come from the first one: 2 x 40 MB.
  const PlanRow with = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(with.bytes, "out_of_trainer_host"), 80e6, 1);
  EXPECT_NEAR(part(with.phases, "fetch"), 0.16 + 10e-3, 1e-9);
  input.snapshot = "none";
  const PlanRow without = plan(input, "mpi_rma", Encoding::kDeltas);
  EXPECT_NEAR(part(without.bytes, "out_of_trainer_host"), 40e6, 1);
  EXPECT_NEAR(part(without.phases, "fetch"), 80e-3 + 10e-3, 1e-9);
}

TEST(Plan, FullVersionsDoNotDependOnTheDensity) {
  PlanInput input = two_ranks();
  const double seconds = plan(input, "mpi_rma", Encoding::kFull).seconds;
  input.density = 0.5;
  EXPECT_DOUBLE_EQ(plan(input, "mpi_rma", Encoding::kFull).seconds, seconds);
  EXPECT_NE(plan(input, "mpi_rma", Encoding::kDeltas).why_not, "");
}

TEST(Plan, NamesWhyItCannotBe) {
  PlanInput input = two_ranks();
  input.snapshot = "none";
  EXPECT_NE(plan(input, "mpi_rma", Encoding::kCompact).why_not, "");
  EXPECT_NE(plan(input, "mpi_rma", Encoding::kXor).why_not, "");
  EXPECT_NE(plan(input, "shared_fs", Encoding::kXor).why_not, "");
  input.snapshot = "pinned";
  EXPECT_EQ(plan(input, "shared_fs", Encoding::kXor).why_not, "");
}

TEST(Plan, RefusesLayoutsThatCannotBe) {
  const auto refused = [](auto change) {
    PlanInput input = two_ranks();
    change(input);
    return check_plan(input).code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](PlanInput& input) { input.ep = 2; }));  // no experts
  EXPECT_TRUE(refused([](PlanInput& input) { input.model.experts = 1, input.ep = 3; }));
  EXPECT_TRUE(refused([](PlanInput& input) { input.pp = 11; }));
  EXPECT_TRUE(refused([](PlanInput& input) { input.engines_per_host = 0.5; }));  // half a worker
  EXPECT_TRUE(refused([](PlanInput& input) { input.snapshot = "host"; }));
  EXPECT_TRUE(refused([](PlanInput& input) {
    input.fp8 = true;
    input.snapshot = "none";
  }));
  EXPECT_TRUE(refused([](PlanInput& input) { input.device = Device::kCpu; }));
  EXPECT_TRUE(refused([](PlanInput& input) { input.tp = 1 << 20, input.dp = 2; }));
}

// Compares every row that is possible with both inputs.
void expect_not_faster(const PlanInput& less, const PlanInput& more, const Figures& before,
                       const Figures& after, const std::string& what) {
  const auto first = make_plan(less, before, {}, std::nullopt);
  const auto second = make_plan(more, after, {}, std::nullopt);
  ASSERT_EQ(first.size(), second.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (!first[i].why_not.empty() || !second[i].why_not.empty()) continue;
    // At a low density gaps take 2 bytes more each, so more changes may need fewer bytes.
    if (part(second[i].bytes, "version") < part(first[i].bytes, "version")) continue;
    EXPECT_LE(first[i].seconds, second[i].seconds * (1 + 1e-12))
        << what << ": " << first[i].road << ", " << info(first[i].encoding).name;
  }
}

TEST(Plan, MoreBytesAreNeverFaster) {
  for (const Device device : {Device::kGpu, Device::kCpu}) {
    const Figures figures = Figures::built_in(device);
    PlanInput input = two_ranks();
    input.device = device;
    for (const char* snapshot : {"none", "device", "pinned", "host"}) {
      if ((device == Device::kCpu) != (std::string_view(snapshot) == "host")) continue;
      input.snapshot = snapshot;
      for (const bool hand_over : {false, true}) {
        input.hand_over = hand_over;
        for (double density = 1e-6; density < 0.1; density *= 2) {
          PlanInput more = input;
          input.density = density;
          more.density = density * 2;
          expect_not_faster(input, more, figures, figures, concat("density ", density));
        }
        for (double link = 1e6; link < 1e12; link *= 10) {
          PlanInput slower = input;
          slower.link_bytes_per_s = link;
          input.link_bytes_per_s = link * 10;
          expect_not_faster(input, slower, figures, figures, concat("link ", link));
        }
        PlanInput larger_model = input;
        larger_model.model.weights *= 2;
        expect_not_faster(input, larger_model, figures, figures, "weights");
        for (const Figure& figure : figures.all()) {  // every rate counts in the right direction
          Figures worse = figures;
          const bool rate = figure.unit == "B/s" || figure.unit.empty();
          ASSERT_TRUE(worse.set(figure.name, figure.value * (rate ? 0.9 : 1.1), "test").ok());
          if (figure.name.starts_with("encode") || figure.name.starts_with("compare")) continue;
          expect_not_faster(input, input, figures, worse, figure.name);
        }
      }
    }
  }
}

TEST(Figures, AreReplacedByName) {
  Figures figures = Figures::built_in(Device::kCpu);
  EXPECT_FALSE(figures.has("bus"));
  EXPECT_TRUE(figures.set_option("sweep=2e-12").ok());
  EXPECT_DOUBLE_EQ(figures.at("sweep").value, 2e-12);
  EXPECT_TRUE(figures.set_all(R"({"hash": 1e9, "encode.deltas": 0})", "f.json").ok());
  EXPECT_EQ(figures.at("hash").source, "f.json");
  const Status unknown = figures.set_option("hahs=1");
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.message().find("'hash'"), std::string_view::npos) << unknown.message();
  for (const char* text : {"hash", "hash=", "hash=0", "hash=-1", "hash=nan", "=1"}) {
    EXPECT_EQ(figures.set_option(text).code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(figures.set_all(R"({"hash": "1"})", "f").code(), StatusCode::kCorrupt);
  EXPECT_EQ(figures.set_all("[1]", "f").code(), StatusCode::kCorrupt);
}

TEST(Figures, OfAHostAreMeasuredUnderKnownNames) {
  const auto measured = measure_figures({.side_bytes = 1 << 22, .threads = 1, .repeats = 1});
  ASSERT_TRUE(measured.ok()) << measured.status().to_string();
  Figures figures = Figures::built_in(Device::kCpu);
  std::set<std::string> names;
  for (const Figure& figure : *measured) {
    EXPECT_TRUE(figures.set(figure.name, figure.value, "measured").ok()) << figure.name;
    names.insert(figure.name);
  }
  for (const char* name : {"compare.host", "sweep", "hash", "encode.compact", "decode.xor"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace driftless
