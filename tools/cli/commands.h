// SPDX-License-Identifier: Apache-2.0
// The subcommands of `driftless`: their arguments and the functions that run them. Every run_
// function prints its result and returns the exit code; the caller reports failures. The files
// *_arguments.cpp fill the structs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "collectives/host_shm/host_shm_road.h"
#include "plugin/checkpoint/checkpoint_quantizer.h"
#include "plugin/checkpoint/delta_writer.h"
#include "tools/bench/bench.h"
#include "tools/cli/console.h"
#include "tools/cli/job.h"
#include "tools/plan/measure.h"
#include "tools/plan/plan.h"
#include "tools/status/status_reader.h"
#include "tools/synth.h"

namespace driftless::cli {

struct DiffArguments {
  DeltaOptions delta;
  std::string layout = "hf_delta";
  std::string encoding;
  std::string checksum = "xxh3-128";
};

struct QuantizeArguments {
  QuantizeOptions quantize;
  std::string scheme = "fp8_block";
  std::string rule = "linear";
  unsigned group = 32;  // for int4_group
};

struct ApplyArguments {
  std::string directory;
  std::string checkpoint;
  std::optional<std::uint64_t> to_version;
  std::string verify = "touched";
  double wait_seconds = 10;
};

struct VerifyArguments {
  std::string checkpoint;
  std::string like;
  std::string manifest;
};

struct VerifyEngineArguments {
  std::string url;
  std::string kind = "auto";
  std::string token_file;
  std::string loader = "driftless.engines.sglang.load";
  std::string shm_dir = HostShmOptions().dir;
  double timeout_seconds = 120;
  bool all = false;
  std::string checkpoint;  // the version's checkpoint; empty: none is available
};

struct CompareArguments {
  std::string before, after;
  std::string html;  // empty: no file
  bool all = false;
  bool force = false;
};

struct ReportArguments {
  std::string run;   // a directory or an object store's URL; empty: only metrics files
  JobArguments job;  // settings of its road; without a file
  std::string out;
  std::string base;  // empty: the run's oldest full version
  std::vector<std::string> metrics;
  bool force = false;
};

struct BenchArguments {
  BenchOptions bench;
  std::string trace;
  bool all = false;
};

struct DemoArguments {
  std::string directory;
  SynthOptions synth;
};

inline constexpr std::uint64_t kDefaultSteps = 10;

struct TrainerArguments {
  JobArguments job;
  std::string replay;                  // empty: makes up a run
  std::string base;                    // base of a replay; empty: its step 0
  std::optional<std::uint64_t> steps;  // empty: kDefaultSteps, or all steps of the replay
  SynthOptions synth;                  // the run to make up
  std::uint64_t interval_ms = 0;
  std::optional<unsigned> rollouts;  // how many to wait for, if they are not part of the job
};

struct RolloutArguments {
  JobArguments job;
  std::string base;  // empty: the run's first anchor
  std::string save;
  std::optional<std::uint64_t> target_version;
  std::optional<std::chrono::milliseconds> timeout;
  std::string timeout_text;
  bool verbose = false;
};

struct PresignArguments {
  JobArguments job;
  std::string valid = "24h";
};

struct DoctorArguments {
  JobArguments job;  // config empty: no configuration
  std::vector<std::string> engines;
  std::string token_file;
  std::string python;             // empty: python3
  std::vector<std::string> only;  // groups; empty: all
  bool mpi_probe = false;         // this process is one of the ranks that doctor itself starts
};

struct StatusArguments {
  StatusOptions options;
  bool all = false;
  bool watch = false;
  double interval_seconds = 2, patience_seconds = 60;
};

struct ConfigInitArguments {
  std::string road;
  std::string role;  // empty: the keys of every role
  std::string out;   // empty: stdout
};

struct AgentArguments {
  JobArguments job;
  std::string base;  // checkpoint to hand over: copied if the directory is missing
  bool once = false;
  bool verbose = false;
};

struct PlanArguments {
  PlanInput input;    // filled from the options, as far as they go
  std::string model;  // a config.json; empty: `params`
  std::optional<std::uint64_t> params;
  std::string link = "100Gbit";
  std::string carrier = "auto";
  std::string device = "gpu";
  std::string precision = "bf16";
  std::string hand_over = "host_shm";
  std::string road, encoding;                                        // empty: all
  std::optional<double> engines_per_host;                            // empty: 8 workers
  std::optional<double> fs_write, fs_read, store_write, store_read;  // GB/s
  std::string figures;
  std::vector<std::string> set_figures;  // "name=value"
  bool explain = false;
  bool measure = false;
  std::uint64_t bytes = MeasureOptions().side_bytes;  // size of the weights to measure with
};

[[nodiscard]] Result<int> run_synth(const Common& common, SynthOptions options);
[[nodiscard]] Result<int> run_diff(const Common& common, DiffArguments options);
[[nodiscard]] Result<int> run_quantize(const Common& common, QuantizeArguments arguments);
[[nodiscard]] Result<int> run_apply(const Common& common, const ApplyArguments& options);
[[nodiscard]] Result<int> run_verify(const Common& common, const VerifyArguments& options);
[[nodiscard]] Result<int> run_verify_engine(const Common& common,
                                            const VerifyEngineArguments& options);
[[nodiscard]] Result<int> run_compare(const Common& common, const CompareArguments& arguments);
[[nodiscard]] Result<int> run_report(const Common& common, const ReportArguments& arguments);
[[nodiscard]] Result<int> run_inspect(const Common& common, const std::string& path);
[[nodiscard]] Result<int> run_bench_command(const Common& common, BenchArguments options);
[[nodiscard]] Result<int> run_demo(const Common& common, DemoArguments options);
// `all`: also keys with default values.
[[nodiscard]] Result<int> run_config_check(const Common& common, const JobArguments& arguments,
                                           bool all);
[[nodiscard]] Result<int> run_config_init(const Common& common,
                                          const ConfigInitArguments& arguments);
[[nodiscard]] Result<int> run_status(const Common& common, StatusArguments arguments);
[[nodiscard]] Result<int> run_presign(const Common& common, const PresignArguments& arguments);
[[nodiscard]] Result<int> run_doctor(const Common& common, const DoctorArguments& arguments);
[[nodiscard]] Result<int> run_plan(const Common& common, const PlanArguments& arguments);
[[nodiscard]] Result<int> run_info(const Common& common);
// The release, and every backend: built, or why it is not.
[[nodiscard]] std::string version_text();
[[nodiscard]] Result<int> run_trainer(const Common& common, const TrainerArguments& arguments);
[[nodiscard]] Result<int> run_rollout(const Common& common, RolloutArguments arguments);
[[nodiscard]] Result<int> run_agent(const Common& common, const AgentArguments& arguments);

}  // namespace driftless::cli
