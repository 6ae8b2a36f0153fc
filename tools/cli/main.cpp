// SPDX-License-Identifier: Apache-2.0
// The `driftless` command: what may be typed, and what it runs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <tuple>

#include <nlohmann/json.hpp>
#include "core/line_log.h"
#include "core/version.h"
#include "tools/cli/commands.h"
#include "tools/cli/help_pages.h"
#include "tools/doctor/doctor.h"

namespace driftless::cli {
namespace {

// All that was typed. Lives until the command has run.
struct Arguments {
  Common common;
  SynthOptions synth;
  DiffArguments diff;
  ApplyArguments apply;
  VerifyArguments verify;
  VerifyEngineArguments verify_engine;
  CompareArguments compare;
  ReportArguments report;
  std::string inspect;
  BenchArguments bench;
  DemoArguments demo;
  JobArguments check;
  bool check_all = false;
  ConfigInitArguments init;
  StatusArguments status;
  std::string shell;  // completion
  TrainerArguments trainer;
  RolloutArguments rollout;
  AgentArguments agent;
  PresignArguments presign;
  DoctorArguments doctor;
  PlanArguments plan;
  std::function<Result<int>()> run;
};

void runs(CLI::App& command, Arguments& all, std::function<Result<int>()> run) {
  command.callback([&all, run = std::move(run)] { all.run = run; });
}

// A number within bounds, whose default is shown.
template <typename Number, typename Bound>
CLI::Option* add_number(CLI::App& command, const char* name, Number& number, const char* help,
                        Bound least, Bound most) {
  return command.add_option(name, number, help)
      ->check(CLI::Range(least, most))
      ->capture_default_str();
}

void add_version(CLI::App& command, const char* name, std::optional<std::uint64_t>& version,
                 const char* help, std::uint64_t most = kMaxVersion) {
  command.add_option(name, version, help)
      ->check(CLI::NonNegativeNumber)
      ->check(CLI::Range(std::uint64_t{0}, most));
}

void add_synth(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "synth", "Write a Qwen3-shaped checkpoint and its successors, as RL training makes them");
  SynthOptions& options = all.synth;
  command->add_option("--out", options.out, "Directory that gets step_000000/, step_000001/, ...")
      ->required();
  command->add_option("--params", options.params, "Number of parameters, about")
      ->required()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 44));
  add_number(*command, "--steps", options.steps, "Successors to write", 0U, kMaxSynthSteps);
  add_number(*command, "--lr", options.lr, "Learning rate: how far a step moves a weight", 0.0,
             1.0);
  command->add_option("--seed", options.seed, "The same seed gives the same bytes")
      ->capture_default_str();
  add_number(*command, "--shard-bytes", options.shard_bytes, "Largest size of one file",
             std::uint64_t{1} << 16, std::uint64_t{1} << 44);
  runs(*command, all, [&all] { return run_synth(all.common, all.synth); });
}

void add_diff(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "diff", "Publish the exact delta between two checkpoints as a version directory");
  DiffArguments& options = all.diff;
  command->add_option("OLD", options.delta.old_checkpoint, "Checkpoint that the receivers have")
      ->required();
  command->add_option("NEW", options.delta.new_checkpoint, "Checkpoint that they are to get")
      ->required();
  command->add_option("--out", options.delta.directory, "Directory that gets weight_v{N:06d}/")
      ->required();
  command->add_option("--layout", options.layout, "hf_delta, flush or frames")
      ->capture_default_str();
  command->add_option("--encoding", options.encoding,
                      "hf_delta: xor (default), overwrite, full; flush: deltas_zstd (default), "
                      "deltas, indices; frames: compact (default), deltas_zstd, deltas, indices");
  command->add_option("--checksum", options.checksum, "xxh3-128, blake3 or adler32")
      ->capture_default_str();
  add_version(*command, "--version", options.delta.version,
              "Number of the version (default: one past the newest in --out)");
  add_version(*command, "--base", options.delta.base_version,
              "Version that it builds on (default: the one before)");
  add_number(*command, "--buffer-bytes", options.delta.buffer_bytes,
             "Size of a flush file before compression", std::uint64_t{1} << 16,
             std::uint64_t{1} << 34);
  runs(*command, all, [&all] { return run_diff(all.common, all.diff); });
}

void add_apply(CLI::App& app, Arguments& all) {
  CLI::App* command =
      app.add_subcommand("apply", "Bring a checkpoint directory to a published version, in place");
  ApplyArguments& options = all.apply;
  command->add_option("DIR", options.directory, "Directory that holds weight_v*/")->required();
  command->add_option("--to", options.checkpoint, "Checkpoint directory to patch")->required();
  add_version(*command, "--to-version", options.to_version,
              "Version to bring it to (default: the newest in DIR)");
  command
      ->add_option(
          "--verify", options.verify,
          "touched: the checksum of every tensor that changes; full: also the digest of all "
          "weights, before and after")
      ->check(CLI::IsMember({"touched", "full"}))
      ->capture_default_str();
  add_number(*command, "--wait", options.wait_seconds,
             "Seconds to wait for another process that patches the same checkpoint", 0.0, 1e6);
  runs(*command, all, [&all] { return run_apply(all.common, all.apply); });
}

void add_verify_engine(CLI::App& command, CLI::Option* checkpoint, Arguments& all) {
  VerifyEngineArguments& options = all.verify_engine;
  CLI::Option* engine =
      command
          .add_option("--engine", options.url,
                      "A running engine's address: every rank reads its weights, and their shares "
                      "must add up to the version's digests; 0: proven, 1: differs, 2: cannot tell")
          ->excludes(checkpoint);
  command.add_option("--kind", options.kind, "The engine")
      ->check(CLI::IsMember({"auto", "vllm", "sglang"}))
      ->capture_default_str()
      ->needs(engine);
  command.add_option("--token-file", options.token_file, "File with the engine's API key")
      ->needs(engine);
  command.add_option("--loader", options.loader, "SGLang: what its --custom-weight-loader names")
      ->capture_default_str()
      ->needs(engine);
  command.add_option("--shm-dir", options.shm_dir, "SGLang: where its ranks answer, on its host")
      ->capture_default_str()
      ->needs(engine);
  add_number(command, "--timeout", options.timeout_seconds, "Seconds for the engine's answer", 1.0,
             1e6)
      ->needs(engine);
  command
      .add_option("--checkpoint", options.checkpoint,
                  "A checkpoint of the version that the engine should hold: elements that differ "
                  "are named, with their rank and parameter")
      ->needs(engine);
  command.add_flag("--all", options.all, "Show every tensor, not only those that are not proven")
      ->needs(engine);
  runs(command, all, [&all]() -> Result<int> {
    if (!all.verify_engine.url.empty()) return run_verify_engine(all.common, all.verify_engine);
    if (!all.verify.checkpoint.empty()) return run_verify(all.common, all.verify);
    return error(StatusCode::kInvalidArgument, "verify: say what: a checkpoint, or --engine URL");
  });
}

void add_verify(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "verify",
      "Prove that a checkpoint, or a running engine, holds exactly the weights it should");
  VerifyArguments& options = all.verify;
  CLI::Option* checkpoint = command->add_option("CKPT", options.checkpoint, "Checkpoint directory");
  CLI::Option* like = command->add_option(
      "--like", options.like,
      "Another checkpoint, compared bit for bit: the first difference is named");
  command
      ->add_option(
          "--manifest", options.manifest,
          "A version's manifest.json or directory, whose digest it must have (default: its "
          "own state)")
      ->excludes(like);
  add_verify_engine(*command, checkpoint, all);
}

void add_compare(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "compare", "Show what changed between two checkpoints, and what each encoding would cost");
  CompareArguments& options = all.compare;
  command->add_option("OLD", options.before, "Checkpoint before the change")->required();
  command->add_option("NEW", options.after, "Checkpoint after it")->required();
  CLI::Option* html =
      command->add_option("--html", options.html, "Write the same as one HTML file, too");
  command->add_flag("--all", options.all, "Show every tensor that changed");
  command->add_flag("--force", options.force, "Replace the HTML file if it is there")->needs(html);
  runs(*command, all, [&all] { return run_compare(all.common, all.compare); });
}

void add_set(CLI::App& command, JobArguments& job) {
  command
      .add_option("--set", job.set,
                  "Override a key of the configuration: --set road.shared_fs.dir=/mnt/w")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

void add_report(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "report", "Write one HTML file about a run: density, encodings, times, settings to use");
  ReportArguments& options = all.report;
  command->add_option("RUN", options.run,
                      "Directory of versions, or an object store's URL (default: metrics alone)");
  command->add_option("--out", options.out, "HTML file to write")->required();
  command->add_option("--base", options.base,
                      "Checkpoint to replay the run from (default: its oldest whole version)");
  command->add_option("--metrics", options.metrics, "Files that metrics.file wrote, of any role");
  command->add_flag("--force", options.force, "Replace the file if it is there");
  add_set(*command, options.job);
  runs(*command, all, [&all] { return run_report(all.common, all.report); });
}

void add_inspect(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "inspect", "Show what a checkpoint, version, frame, flush file, manifest or journal holds");
  command->add_option("PATH", all.inspect, "File or directory")->required();
  runs(*command, all, [&all] { return run_inspect(all.common, all.inspect); });
}

void add_bench(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "bench", "Measure this build on this machine, as ratios to reading memory and to numpy");
  BenchArguments& options = all.bench;
  add_number(*command, "--bytes", options.bench.side_bytes, "Size of the weights to compare",
             std::uint64_t{1} << 20, std::uint64_t{1} << 40);
  add_number(*command, "--repeats", options.bench.repeats, "Medians of so many runs", 1, 1000);
  command->add_option("--python", options.bench.python,
                      "Python with numpy and zstandard (default: the first found)");
  command->add_option("--trace", options.trace,
                      "Measure the encodings on a recorded run instead: a directory with "
                      "base.safetensors and trace.safetensors");
  command->add_flag("--all", options.all, "With --trace: both");
  runs(*command, all, [&all] { return run_bench_command(all.common, all.bench); });
}

void add_demo(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "demo", "Synthesize a run, publish it in every encoding, follow it, prove bit identity");
  DemoArguments& options = all.demo;
  command->add_option("--dir", options.directory,
                      "Keep the files in this new directory (default: a temporary one, removed)");
  add_number(*command, "--params", options.synth.params, "Number of parameters, about",
             std::uint64_t{100'000}, std::uint64_t{1} << 40);
  add_number(*command, "--steps", options.synth.steps, "RL steps", 1, 1000);
  runs(*command, all, [&all] { return run_demo(all.common, all.demo); });
}

void add_job(CLI::App& command, JobArguments& job) {
  command.add_option("--config", job.config, "YAML file; see configs/ and driftless info")
      ->required();
  add_set(command, job);
}

void add_config(CLI::App& app, Arguments& all) {
  CLI::App* config = app.add_subcommand("config", "Work with configuration files");
  config->require_subcommand(1);
  CLI::App* check = config->add_subcommand(
      "check", "Say whether a configuration is right, and what it amounts to");
  check->add_option("FILE", all.check.config, "YAML file")->required();
  add_set(*check, all.check);
  check->add_flag("--all", all.check_all, "Show every key, not only those that were changed");
  runs(*check, all, [&all] { return run_config_check(all.common, all.check, all.check_all); });
  CLI::App* init = config->add_subcommand(
      "init", "Write a commented configuration for a road: every key, its help and its default");
  init->add_option("--road", all.init.road, "road.kind: shared_fs, object_store, mpi_rma, ...")
      ->required();
  init->add_option("--role", all.init.role, "Only the keys that this role reads")
      ->check(CLI::IsMember({"trainer", "rollout", "agent"}));
  init->add_option("--out", all.init.out, "A new file (default: standard output)");
  runs(*init, all, [&all] { return run_config_init(all.common, all.init); });
}

void add_status(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "status", "Show a run: its trainer, versions, engines and rollouts, and what is wrong");
  StatusArguments& status = all.status;
  command
      ->add_option("SOURCE", status.options.sources,
                   "A road's directory, a bucket's URL, metrics files, or http://host:port of a "
                   "publisher or an agent")
      ->required();
  command->add_flag("--watch", status.watch, "Look again and again, until Ctrl-C");
  add_number(*command, "--interval", status.interval_seconds, "Seconds between two looks", 0.1,
             86'400.0);
  command->add_flag("--all", status.all, "Show all versions, not only the last 10");
  command->add_option("--token-file", status.options.token_file,
                      "File with the token of an endpoint");
  command
      ->add_option("--set", status.options.set,
                   "A key of the road: --set road.object_store.endpoint=URL")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  runs(*command, all, [&all] { return run_status(all.common, all.status); });
}

// What is printed as it is, with --json as the member `text`.
Result<int> print_text(const Common& common, const Result<std::string>& text) {
  DRIFTLESS_RETURN_IF_ERROR(text.status());
  if (common.json) {
    print_json({{"text", *text}});
  } else {
    std::cout << *text;
  }
  return int{kExitOk};
}

void add_help_pages(CLI::App& app, Arguments& all) {
  CLI::App* man = app.add_subcommand("man", "Print the man page: driftless man > driftless.1");
  runs(*man, all, [&] { return print_text(all.common, man_page(app, DRIFTLESS_VERSION)); });
  CLI::App* shell = app.add_subcommand("completion", "Print a shell's completion of this command");
  shell->add_option("SHELL", all.shell, "bash, zsh or fish")->required();
  runs(*shell, all, [&] { return print_text(all.common, completion(app, all.shell)); });
}

void add_presign(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand("presign",
                                         "Print a road.object_store.url that opens a run in an S3 "
                                         "store to rollouts without credentials");
  add_job(*command, all.presign.job);
  command->add_option("--for", all.presign.valid, "How long it holds, at most 168h")
      ->capture_default_str();
  runs(*command, all, [&all] { return run_presign(all.common, all.presign); });
}

void add_doctor(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Check what this host, a configuration and engines can do; 1: a check failed");
  DoctorArguments& options = all.doctor;
  command->add_option("--config", options.job.config, "The YAML file of a job");
  add_set(*command, options.job);
  CLI::Option* engine = command->add_option("--engine", options.engines,
                                            "A running engine's address; may be repeated");
  command->add_option("--token-file", options.token_file, "File with the API key of --engine")
      ->needs(engine);
  command->add_option("--python", options.python,
                      "The Python of trainer or engine (default: python3)");
  const auto groups = doctor::all_groups();
  command
      ->add_option("--only", options.only,
                   "Only these groups: configuration, mpi, cuda, nccl, nixl, road, host, python, "
                   "engine")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(groups.begin(), groups.end())));
  command->add_flag("--mpi-probe", options.mpi_probe)->group("");  // what doctor itself starts
  runs(*command, all, [&all] { return run_doctor(all.common, all.doctor); });
}

// What the trainer, the engines and the links are like.
void add_plan_layout(CLI::App& command, PlanArguments& options) {
  PlanInput& input = options.input;
  const auto add_count = [&](const char* name, std::uint64_t& number, const char* help) {
    add_number(command, name, number, help, std::uint64_t{1}, std::uint64_t{1} << 20);
  };
  add_count("--tp", input.tp, "Tensor parallelism of the trainer");
  add_count("--pp", input.pp, "Pipeline parallelism");
  add_count("--ep", input.ep, "Expert parallelism, over the ranks of TP x DP");
  add_count("--dp", input.dp, "Data parallelism; the trainer has TP x PP x DP ranks");
  add_count("--ranks-per-host", input.ranks_per_host, "Trainer ranks of a host");
  add_count("--engines", input.engines, "Engines");
  add_count("--engine-tp", input.engine_tp, "Workers of an engine, each with its slices");
  command
      .add_option("--engines-per-host", options.engines_per_host,
                  "Engines of a host; 0.5: an engine has the GPUs of two (default: 8 workers)")
      ->check(CLI::Range(1e-6, 1e6));
  command.add_option("--link", options.link, "Of a NIC: 1Gbit, 400Gbit, 12.5GB/s")
      ->capture_default_str();
  add_count("--nic-per-host", input.nics_per_host, "NICs of a host");
  command.add_option("--carrier", options.carrier, "On the link; auto: rdma from 100 Gbit/s on")
      ->check(CLI::IsMember({"auto", "rdma", "tcp"}))
      ->capture_default_str();
  const std::tuple<const char*, std::optional<double>&, const char*> rates[] = {
      {"--fs-write", options.fs_write, "GB/s that a trainer host writes to the file system"},
      {"--fs-read", options.fs_read, "GB/s that an engine host reads from it"},
      {"--store-write", options.store_write, "GB/s that a trainer host puts into the store"},
      {"--store-read", options.store_read, "GB/s that an engine host gets from it"}};
  for (const auto& [name, value, help] : rates) {
    command.add_option(name, value, help)->check(CLI::Range(1e-6, 1e6));
  }
}

void add_plan(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "plan", "Predict what a sync takes: time by phase, bytes, memory, by road and encoding");
  PlanArguments& options = all.plan;
  CLI::Option* params = command->add_option("--params", options.params, "Weights of the model");
  params->check(CLI::Range(std::uint64_t{100'000}, std::uint64_t{10'000'000'000'000}));
  command->add_option("--model", options.model, "Its config.json, of Hugging Face")
      ->excludes(params);
  add_plan_layout(*command, options);
  add_number(*command, "--density", options.input.density, "Share of the weights that change", 1e-9,
             1.0);
  command->add_option("--precision", options.precision, "Of what is published")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->capture_default_str();
  command->add_option("--device", options.device, "Where both sides keep the weights")
      ->check(CLI::IsMember({"gpu", "cpu"}))
      ->capture_default_str();
  options.input.snapshot.clear();
  command
      ->add_option("--snapshot", options.input.snapshot,
                   "none, device or pinned (default: none); of a CPU: host")
      ->check(CLI::IsMember({"none", "device", "pinned", "host"}));
  command
      ->add_option("--hand-over", options.hand_over,
                   "host_shm: by one agent a host; none: every receiver is on the road itself")
      ->check(CLI::IsMember({"host_shm", "none"}))
      ->capture_default_str();
  command->add_option("--road", options.road, "One road (default: all)")
      ->check(
          CLI::IsMember(std::vector<std::string>(std::begin(kPlanRoads), std::end(kPlanRoads))));
  command->add_option("--encoding", options.encoding, "One encoding, or full (default: all)");
  command->add_option("--figures", options.figures, "File of figures, as --measure prints it");
  command->add_option("--figure", options.set_figures, "NAME=VALUE: replaces one figure")
      ->allow_extra_args(false);
  command->add_flag("--explain", options.explain,
                    "Also the formulae and figures behind each number");
  command->add_flag("--measure", options.measure,
                    "Measure the figures of this host's processor, and print them as JSON");
  add_number(*command, "--bytes", options.bytes, "Size of the weights to measure with",
             std::uint64_t{1} << 22, std::uint64_t{1} << 36);
  runs(*command, all, [&all] { return run_plan(all.common, all.plan); });
}

void add_info(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "info", "List every configuration key, every backend (built, or why not) and the kernels");
  runs(*command, all, [&all] { return run_info(all.common); });
}

void add_trainer(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "trainer", "Publish a run, replayed or made up, to rollouts; one of several under mpirun");
  TrainerArguments& options = all.trainer;
  options.synth.params = 4'000'000;
  add_job(*command, options.job);
  CLI::Option* replay =
      command->add_option("--replay", options.replay,
                          "Directory with the checkpoints step_000000/, step_000001/, ... "
                          "(default: a run is made up)");
  add_version(*command, "--steps", options.steps, "Versions (default: 10, or all to replay)",
              std::uint64_t{1} << 32);
  add_number(*command, "--params", options.synth.params,
             "Parameters of the run that is made up, about", std::uint64_t{100'000},
             std::uint64_t{1} << 40)
      ->excludes(replay);
  command->add_option("--seed", options.synth.seed, "Its seed")
      ->excludes(replay)
      ->capture_default_str();
  add_number(*command, "--lr", options.synth.lr, "Its learning rate: how far a step moves a weight",
             0.0, 1.0)
      ->excludes(replay);
  add_number(*command, "--interval-ms", options.interval_ms, "Pause between two versions",
             std::uint64_t{0}, std::uint64_t{86'400'000});
  command
      ->add_option("--rollouts", options.rollouts,
                   "Rollouts to wait for at the start and the end, if mpirun did not start them "
                   "beside the trainer (default: at the end, whoever reported and did not sign "
                   "off)")
      ->check(CLI::Range(0U, 1'000'000U));
  runs(*command, all, [&all] { return run_trainer(all.common, all.trainer); });
}

void add_rollout(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "rollout", "Follow a run and keep bit-identical weights; one of several under mpirun");
  RolloutArguments& options = all.rollout;
  add_job(*command, options.job);
  command->add_option("--base", options.base,
                      "Checkpoint to start from (default: the run's first anchor)");
  command->add_option("--save", options.save, "Leave the final weights as DIR/rollout_{rank:02d}/");
  add_version(*command, "--target-version", options.target_version,
              "End there (default: where the trainer ends)");
  command->add_option("--timeout", options.timeout_text,
                      "Fail after so long, for example 10min (default: never)");
  command->add_flag("--verbose", options.verbose, "A line per version");
  runs(*command, all, [&all] { return run_rollout(all.common, all.rollout); });
}

void add_agent(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "agent", "Follow a run for all engines of this host: hand versions over, drive the engines");
  AgentArguments& options = all.agent;
  add_job(*command, options.job);
  command->add_option("--base", options.base,
                      "agent.hand_over: checkpoint: copied to agent.checkpoint_dir where that is "
                      "missing");
  command->add_flag("--once", options.once,
                    "End once everything that is there was handed over and taken");
  command->add_flag("--verbose", options.verbose, "A line per version and engine");
  runs(*command, all, [&all] { return run_agent(all.common, all.agent); });
}

void add_common(CLI::App& command, Common& common) {
  command.add_flag("--json", common.json, "Print JSON instead of text");
  command.add_option("--threads", common.threads, "Threads to use (default: one per core)")
      ->check(CLI::Range(1, 1024));
}

// Empty, or what is wrong with the first words of the line: "config WORD" has two.
std::string unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const auto known = at->get_subcommands([](const CLI::App*) { return true; });
    if (known.empty()) return {};
    const auto next = std::ranges::find_if(
        known, [&](const CLI::App* each) { return each->get_name() == argv[i]; });
    if (next == known.end()) {
      std::string names;
      for (const CLI::App* each : known) names += concat(" ", each->get_name());
      return concat("there is no command '", argv[i], "'; those are:", names);
    }
    at = *next;
  }
  return {};
}

// The exit code. What is wrong has been printed.
int run(int argc, char** argv) {
  CLI::App app{"Driftless ships exactly the changed weights, losslessly."};
  app.name("driftless");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  Arguments all;
  for (const auto add :
       {add_synth, add_diff, add_apply, add_verify, add_compare, add_report, add_inspect, add_bench,
        add_demo, add_config, add_info, add_trainer, add_rollout, add_agent, add_presign,
        add_doctor, add_plan, add_status, add_help_pages}) {
    add(app, all);
  }
  app.footer(exit_codes_text());  // subcommands would inherit it
  for (CLI::App* command : app.get_subcommands({})) {
    const auto below = command->get_subcommands({});
    if (below.empty()) add_common(*command, all.common);
    for (CLI::App* inner : below) add_common(*inner, all.common);
  }
  if (const std::string unknown = unknown_command(app, argc, argv); !unknown.empty()) {
    std::cerr << "driftless: usage: " << unknown << "; see driftless --help\n";
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& parse_error) {
    if (parse_error.get_exit_code() == 0) return app.exit(parse_error);  // --help, --version
    std::cerr << "driftless: usage: " << parse_error.what() << "; see driftless --help\n";
    return kExitUsage;
  }
  const Result<int> code = all.run();
  process_log().flush();
  return code.ok() ? *code : report(all.common, code.status());
}

}  // namespace
}  // namespace driftless::cli

int main(int argc, char** argv) {
  try {
    return driftless::cli::run(argc, argv);
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "driftless: internal: %s\n", exception.what());
    return driftless::cli::kExitInternal;
  }
}
