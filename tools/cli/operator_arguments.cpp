// SPDX-License-Identifier: Apache-2.0
// Subcommands that show the state of a run, the abilities of a host, and the expected performance.
#include "tools/cli/arguments.h"

#include <functional>
#include <iostream>
#include <tuple>

#include "tools/cli/help_pages.h"
#include "tools/doctor/doctor.h"

namespace driftless::cli {
namespace {

// Prints a text unchanged; with --json it is the member `text`.
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
  shell->add_option("SHELL", all.shell, "The shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  runs(*shell, all, [&] { return print_text(all.common, completion(app, all.shell)); });
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
  CLI::Option* watch = command->add_flag("--watch", status.watch,
                                         "Look again and again, until the run's end or Ctrl-C");
  add_number(*command, "--interval", status.interval_seconds, "Seconds between two looks", 0.1,
             86'400.0)
      ->needs(watch);
  add_number(*command, "--patience", status.patience_seconds,
             "Seconds that a watch goes on while something is wrong at the run's end, or while the "
             "source cannot be read",
             0.0, 86'400.0)
      ->needs(watch);
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
  command->add_option("--only", options.only, "Only these groups, with commas between them")
      ->delimiter(',')
      ->check(one_of(doctor::all_groups(), std::identity()));
  command->add_flag("--mpi-probe", options.mpi_probe)->group("");  // used only by doctor itself
  runs(*command, all, [&all] { return run_doctor(all.common, all.doctor); });
}

// Options on the trainer, the engines and the links.
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
      ->check(CLI::Range(1e-6, 1e6))
      ->check(is_number());
  command.add_option("--link", options.link, "Speed of one NIC: 1Gbit, 400Gbit, 12.5GB/s")
      ->capture_default_str();
  add_count("--nic-per-host", input.nics_per_host, "NICs of a host");
  command
      .add_option("--carrier", options.carrier,
                  "Protocol on the link; auto: rdma from 100 Gbit/s on")
      ->check(CLI::IsMember({"auto", "rdma", "tcp"}))
      ->capture_default_str();
  const std::tuple<const char*, std::optional<double>&, const char*> rates[] = {
      {"--fs-write", options.fs_write, "GB/s that a trainer host writes to the file system"},
      {"--fs-read", options.fs_read, "GB/s that an engine host reads from it"},
      {"--store-write", options.store_write, "GB/s that a trainer host puts into the store"},
      {"--store-read", options.store_read, "GB/s that an engine host gets from it"}};
  for (const auto& [name, value, help] : rates) {
    command.add_option(name, value, help)->check(CLI::Range(1e-6, 1e6))->check(is_number());
  }
}

void add_plan(CLI::App& app, Arguments& all) {
  CLI::App* command = app.add_subcommand(
      "plan",
      "Predict the time (by phase), bytes and memory of a sync, for each road and encoding");
  PlanArguments& options = all.plan;
  CLI::Option* params = command->add_option("--params", options.params, "Weights of the model");
  params->check(CLI::Range(std::uint64_t{100'000}, std::uint64_t{10'000'000'000'000}));
  command->add_option("--model", options.model, "The model's Hugging Face config.json")
      ->excludes(params);
  add_plan_layout(*command, options);
  add_number(*command, "--density", options.input.density, "Share of the weights that change", 1e-9,
             1.0);
  command
      ->add_option("--precision", options.precision,
                   "Weights of the engines; fp8: blocks of 128x128, which the trainer quantizes")
      ->check(CLI::IsMember({"bf16", "fp8"}))
      ->capture_default_str();
  command->add_option("--device", options.device, "Where both sides keep the weights")
      ->check(CLI::IsMember({"gpu", "cpu"}))
      ->capture_default_str();
  options.input.snapshot.clear();
  command
      ->add_option(
          "--snapshot", options.input.snapshot,
          "Where the trainer keeps its snapshot (default: none; with fp8: device; on a CPU: host)")
      ->check(CLI::IsMember({"none", "device", "pinned", "host"}));
  command
      ->add_option(
          "--hand-over", options.hand_over,
          "host_shm: one agent per host hands over; none: every receiver reads the road itself")
      ->check(CLI::IsMember({"host_shm", "none"}))
      ->capture_default_str();
  command->add_option("--road", options.road, "One road (default: all)")
      ->check(one_of(planned_roads(), [](const RoadKind* each) { return each->name; }));
  command->add_option("--encoding", options.encoding, "One encoding, or full (default: all)")
      ->check(one_of_the_encodings());
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

}  // namespace

void add_operator_commands(CLI::App& app, Arguments& all) {
  add_status(app, all);
  add_report(app, all);
  add_doctor(app, all);
  add_plan(app, all);
  add_help_pages(app, all);
}

}  // namespace driftless::cli
