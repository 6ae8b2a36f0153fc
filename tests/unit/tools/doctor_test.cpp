// SPDX-License-Identifier: Apache-2.0
// Tests how `driftless doctor` runs its checks. tests/python/test_doctor.py tests the checks.
#include "tools/doctor/doctor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "core/disk_space.h"
#include "plugin/job/job_process.h"
#include "tools/doctor/command_output.h"

namespace driftless::doctor {
namespace {

using enum FindingState;
using std::chrono::milliseconds;

std::vector<Row> run(std::vector<Check> checks, milliseconds wait = milliseconds(5'000)) {
  Context context;
  context.deadline = Deadline::after(wait);
  return run_checks(checks, context);
}

TEST(DoctorRunner, RowsComeInTheOrderOfTheChecksOnOneLineEach) {
  const auto slow = [](const Context&, const Report& report) {
    ::usleep(50'000);
    report({"slow", kOk, "two\nlines\x1b[31m", std::string(5'000, 'x')});
  };
  const auto quick = [](const Context&, const Report& report) {
    report({"quick", kSkip, "not UTF-8: \xff"});
    report({"second", kWarn, "b", "next"});
  };
  const std::vector<Row> rows = run({{"a", slow}, {"b", quick}});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].group, "a");
  EXPECT_EQ(rows[0].finding.finding, "two lines\\u001b[31m");
  EXPECT_LT(rows[0].finding.next.size(), 700U);
  EXPECT_EQ(rows[1].finding.state, kSkip);
  EXPECT_EQ(rows[2].finding.check, "second");
  EXPECT_EQ(rows[2].finding.next, "next");
}

TEST(DoctorRunner, AHungCheckAndACrashedOneCostOnlyThemselves) {
  const auto hangs = [](const Context&, const Report& report) {
    report({"first", kOk, "kept"});
    for (;;) ::pause();
  };
  const auto crashes = [](const Context&, const Report&) { ::raise(SIGKILL); };
  const auto works = [](const Context&, const Report& report) { report({"c", kOk, "done"}); };
  const auto begin = Deadline::Clock::now();
  const std::vector<Row> rows = run(
      {{"a", hangs, kFail, "look there"}, {"b", crashes, kWarn}, {"c", works}}, milliseconds(300));
  EXPECT_LT(Deadline::Clock::now() - begin, milliseconds(30'000));
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].finding.finding, "kept");
  EXPECT_EQ(rows[1].finding.state, kFail);
  EXPECT_NE(rows[1].finding.finding.find("after the check 'first'"), std::string::npos);
  EXPECT_EQ(rows[1].finding.next, "look there");
  EXPECT_EQ(rows[2].finding.state, kWarn);
  EXPECT_NE(rows[2].finding.finding.find("signal 9"), std::string::npos);
  EXPECT_EQ(rows[3].finding.finding, "done");
}

TEST(DoctorRunner, MoreThanAPipeHoldsComesThrough) {
  const auto talks = [](const Context&, const Report& report) {
    for (int i = 0; i < 1'000; ++i) report({concat(i), kOk, std::string(500, 'x')});
  };
  EXPECT_EQ(run({{"a", talks}}).size(), 1'000U);
}

// The roads and parts of this build, as if none of them had been built.
struct BareBuild {
  BareBuild() : table(road_table()) {
    roads.assign(table.roads.begin(), table.roads.end());
    for (Road& road : roads) {
      road.at.why_not = "left out";
      road.opener = nullptr;
    }
    parts.assign(table.parts.begin(), table.parts.end());
    for (Part& part : parts) part.why_not = "left out";
    table.roads = roads;
    table.parts = parts;
  }

  // What a check reports for a configuration; empty: none was given.
  std::vector<Finding> look(void (*check)(const Context&, const Report&),
                            const std::string& text) const {
    Context context;
    context.roads = &table;
    context.backends = backends(table);
    context.variables = [](const char*) { return std::optional<std::string>(); };
    context.deadline = Deadline::after(milliseconds(5'000));
    if (!text.empty()) {
      Result<Config> config = parse_config(text, "test", {});
      EXPECT_TRUE(config.ok()) << config.status().to_string();
      if (config.ok()) context.config = std::move(*config);
      context.configured = true;
    }
    std::vector<Finding> findings;
    check(context, [&](Finding finding) { findings.push_back(std::move(finding)); });
    return findings;
  }

  RoadTable table;
  std::vector<Road> roads;
  std::vector<Part> parts;
};

Finding find(const std::vector<Finding>& findings, std::string_view check) {
  const auto at = std::ranges::find(findings, check, &Finding::check);
  return at == findings.end() ? Finding{"", kSkip, "no such row"} : *at;
}

TEST(DoctorBuild, ABackendThatWasNotBuiltFailsOnlyIfItIsNeeded) {
  const BareBuild build;
  const auto rows = build.look(check_configuration, "road: { kind: mpi_rma }");
  for (const char* needed : {"road", "mpi_rma"}) {
    EXPECT_EQ(find(rows, needed).state, kFail) << needed;
    EXPECT_NE(find(rows, needed).finding.find("left out"), std::string::npos) << needed;
    EXPECT_NE(find(rows, needed).next.find("install what is missing"), std::string::npos);
  }
  for (const char* other : {"nccl", "object_store", "cuda", "engines"}) {
    EXPECT_EQ(find(rows, other).state, kSkip) << other;
    EXPECT_EQ(find(rows, other).finding, "not in this build: left out");
  }
  for (const Finding& row : build.look(check_configuration, "")) {
    EXPECT_NE(row.state, kFail) << row.check;
  }
}

TEST(DoctorBuild, MpiCudaAndNcclThatWereNotBuilt) {
  const BareBuild build;
  const char* const uses_mpi = "road: { kind: mpi_rma }\nsnapshot: pinned";
  const char* const uses_nccl = "road: { kind: nccl }";
  EXPECT_EQ(find(build.look(check_mpi, uses_mpi), "built").state, kFail);
  EXPECT_EQ(find(build.look(check_mpi, ""), "built").state, kSkip);
  EXPECT_EQ(find(build.look(check_cuda, uses_mpi), "built").state, kFail);
  EXPECT_EQ(find(build.look(check_cuda, ""), "built").state, kSkip);
  EXPECT_EQ(find(build.look(check_nccl, uses_nccl), "built").state, kFail);
  EXPECT_EQ(find(build.look(check_nccl, ""), "built").state, kSkip);
  EXPECT_NE(find(build.look(check_nccl, uses_nccl), "built").next, "");
}

// A road that was built into a library, which does not load because a dependency is missing.
TEST(DoctorBuild, ABackendThatLacksALibraryWasBuilt) {
  BareBuild build;
  for (Road& road : build.roads) {
    road.at = {.needs = "its library", .library = "libdriftless_nowhere.so", .why_not = ""};
  }
  const auto rows = build.look(check_configuration, "road: { kind: mpi_rma }");
  for (const char* name : {"mpi_rma", "object_store"}) {
    EXPECT_EQ(find(rows, name).finding.find("built, and cannot be used: "), 0U)
        << find(rows, name).finding;
  }
  EXPECT_EQ(find(rows, "mpi_rma").state, kFail);
  EXPECT_EQ(find(rows, "object_store").state, kSkip);
}

TEST(DoctorBuild, ARoadOrAFallbackThatWasNotBuilt) {
  BareBuild build;
  const char* const files = "road: { kind: shared_fs, shared_fs: { dir: /nowhere } }";
  EXPECT_EQ(find(build.look(check_road, files), "shared_fs").state, kFail);
  const std::string peer =
      "hub: { address: '127.0.0.1:1', token_file: /nowhere }\n"
      "road: { kind: peer, peer: { fallback: shared_fs }, shared_fs: { dir: /nowhere } }";
  const Finding fallback = find(build.look(check_road, peer), "fallback");
  EXPECT_EQ(fallback.state, kFail);
  EXPECT_NE(fallback.next.find("road.peer.fallback"), std::string::npos);
}

TEST(DoctorCommand, OutputIsKeptAndATimeoutKills) {
  const CommandOutput ran = run_command("echo \"$WORD\"; echo err >&2; exit 3",
                                        {{"WORD", "out; $(false)"}}, milliseconds(5'000));
  EXPECT_EQ(ran.status.code(), StatusCode::kIo);
  EXPECT_EQ(ran.text, "out; $(false)\nerr\n");
  const CommandOutput late = run_command("sleep 60", {}, milliseconds(100));
  EXPECT_EQ(late.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(first_line("\n ---- \nword\n"), "word");
  EXPECT_EQ(find_program("sh").substr(0, 1), "/");
  EXPECT_EQ(find_program("no-such-program-anywhere"), "");
}

TEST(DiskSpace, SizesKeepTwoDigits) {
  EXPECT_EQ(about(999), "999");
  EXPECT_EQ(about((std::uint64_t{12} << 30) + 5), "12GiB");
  EXPECT_EQ(about((std::uint64_t{19} << 29) + 5), "9728MiB");
  EXPECT_FALSE(disk_space("/nowhere/at/all").ok());
}

}  // namespace
}  // namespace driftless::doctor
