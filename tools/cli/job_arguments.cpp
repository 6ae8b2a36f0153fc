// SPDX-License-Identifier: Apache-2.0
// Subcommands of a job: its configuration and its processes.
#include "tools/cli/arguments.h"

namespace driftless::cli {
namespace {

void add_config(CLI::App& app, Arguments& all) {
  CLI::App* config = app.add_subcommand("config", "Work with configuration files");
  config->require_subcommand(1);
  CLI::App* check =
      config->add_subcommand("check", "Check a configuration, and show the values that it sets");
  check->add_option("FILE", all.check.config, "YAML file")->required();
  add_set(*check, all.check);
  check->add_flag("--all", all.check_all, "Show every key, not only those that were changed");
  runs(*check, all, [&all] { return run_config_check(all.common, all.check, all.check_all); });
  CLI::App* init = config->add_subcommand(
      "init", "Write a commented configuration for a road: every key, its help and its default");
  init->add_option("--road", all.init.road, "road.kind")
      ->required()
      ->check(one_of(config_table().kinds(), [](const RoadKind* each) { return each->name; }));
  init->add_option("--role", all.init.role, "Only the keys that this role reads")
      ->check(CLI::IsMember({"trainer", "rollout", "agent"}));
  init->add_option("--out", all.init.out, "A new file (default: standard output)");
  runs(*init, all, [&all] { return run_config_init(all.common, all.init); });
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
  command
      ->add_option("--base", options.base,
                   "The checkpoint that the rollouts have (default: step_000000/): in FP8 blocks, "
                   "if the replay is in bfloat16 and to be quantized")
      ->needs(replay);
  add_version(*command, "--steps", options.steps, "Versions (default: 10, or all to replay)",
              std::uint64_t{1} << 32);
  add_number(*command, "--params", options.synth.params,
             "Parameters of the run that is made up, about", std::uint64_t{100'000},
             std::uint64_t{1} << 40)
      ->excludes(replay);
  command->add_option("--seed", options.synth.seed, "Seed of the run that is made up")
      ->excludes(replay)
      ->capture_default_str();
  add_number(*command, "--lr", options.synth.lr,
             "Learning rate of that run: how far a step moves a weight", 0.0, 1.0)
      ->excludes(replay);
  add_number(*command, "--interval-ms", options.interval_ms, "Pause between two versions",
             std::uint64_t{0}, std::uint64_t{86'400'000});
  command
      ->add_option("--rollouts", options.rollouts,
                   "Number of rollouts to wait for at the start and the end, if mpirun did not "
                   "start them beside the trainer (default: at the end, all that have reported and "
                   "not signed off)")
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
              "End at this version (default: the last one of the run)");
  command->add_option("--timeout", options.timeout_text,
                      "Fail after this time, for example 10min (default: never)");
  command->add_flag("--verbose", options.verbose, "A line per version");
  runs(*command, all, [&all] { return run_rollout(all.common, all.rollout); });
}

void add_agent(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "agent", "Follow a run for all engines of this host: hand versions over, drive the engines");
  AgentArguments& options = all.agent;
  add_job(*command, options.job);
  command->add_option("--base", options.base,
                      "With agent.hand_over: checkpoint: the checkpoint to copy to "
                      "agent.checkpoint_dir if that is missing");
  command->add_flag("--once", options.once,
                    "End once all engines and workers hold the newest version on the road");
  command->add_flag("--verbose", options.verbose, "A line per version and engine");
  runs(*command, all, [&all] { return run_agent(all.common, all.agent); });
}

void add_presign(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand("presign",
                                         "Print a road.object_store.url that opens a run in an S3 "
                                         "store to rollouts without credentials");
  add_job(*command, all.presign.job);
  command->add_option("--for", all.presign.valid, "How long the URL is valid, at most 168h")
      ->capture_default_str();
  runs(*command, all, [&all] { return run_presign(all.common, all.presign); });
}

}  // namespace

void add_set(CLI::App& command, JobArguments& job) {
  command
      .add_option("--set", job.set,
                  "Override a key of the configuration: --set road.shared_fs.dir=/mnt/w")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
}

void add_job(CLI::App& command, JobArguments& job) {
  command.add_option("--config", job.config, "YAML file; see configs/ and driftless info")
      ->required();
  add_set(command, job);
}

void add_job_commands(CLI::App& app, Arguments& all) {
  add_config(app, all);
  add_info(app, all);
  add_trainer(app, all);
  add_rollout(app, all);
  add_agent(app, all);
  add_presign(app, all);
}

}  // namespace driftless::cli
