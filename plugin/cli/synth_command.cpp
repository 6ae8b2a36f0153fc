#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "plugin/cli/commands.h"
#include "plugin/synth.h"

namespace driftless::cli {
namespace {

int run(const Common& common, SynthOptions& options) {
  ProgressBar bar("synthesizing");
  options.threads = common.thread_count();
  options.progress = bar.callback();
  const Result<SynthReport> done = synthesize(posix_file_system(), options);
  if (!done.ok()) return report(common, done.status());
  if (common.json) {
    nlohmann::ordered_json json;
    json["params"] = done->params;
    json["bytes_per_step"] = done->bytes_per_step;
    json["directories"] = done->directories;
    json["density"] = done->density;
    print_json(json);
    return kExitOk;
  }
  std::cout << done->directories.front() << ": " << done->params << " parameters, "
            << human_bytes(done->bytes_per_step) << "\n";
  for (std::size_t step = 0; step < done->density.size(); ++step) {
    std::cout << done->directories[step + 1] << ": " << fixed(100 * done->density[step], 3)
              << " % of the weights changed\n";
  }
  return kExitOk;
}

}  // namespace

void add_synth(CLI::App& app, const Common& common, Action& action) {
  auto options = std::make_shared<SynthOptions>();
  CLI::App* command = app.add_subcommand(
      "synth", "Write a Qwen3-shaped checkpoint and its successors, as RL training makes them");
  command->add_option("--out", options->out, "Directory that gets step_000000/, step_000001/, ...")
      ->required();
  command->add_option("--params", options->params, "Number of parameters, about")
      ->required()
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 44));
  command->add_option("--steps", options->steps, "Successors to write")
      ->check(CLI::Range(0, 100000))
      ->capture_default_str();
  command->add_option("--lr", options->lr, "Learning rate: how far a step moves a weight")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "The same seed gives the same bytes")
      ->capture_default_str();
  command->add_option("--shard-bytes", options->shard_bytes, "Largest size of one file")
      ->check(CLI::Range(std::uint64_t{1} << 16, std::uint64_t{1} << 44))
      ->capture_default_str();
  command->callback([&common, &action, options] {
    action = [&common, options] { return run(common, *options); };
  });
}

}  // namespace driftless::cli
