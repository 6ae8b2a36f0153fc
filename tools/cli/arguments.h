// SPDX-License-Identifier: Apache-2.0
// The options of the subcommands, filled in by CLI11. Each file *_arguments.cpp adds the
// subcommands of one kind.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <functional>

#include "core/version.h"
#include "tools/cli/commands.h"

namespace driftless::cli {

// All options of a command line. It lives until the command has ended.
struct Arguments {
  Common common;
  SynthOptions synth;
  DiffArguments diff;
  QuantizeArguments quantize;
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

inline void runs(CLI::App& command, Arguments& all, std::function<Result<int>()> run) {
  command.callback([&all, run = std::move(run)] { all.run = run; });
}

// Needed because CLI::Range accepts NaN.
inline CLI::Validator is_number() {
  return {[](const std::string& text) {
            double number = 0;
            const bool is = CLI::detail::lexical_cast(text, number) && !std::isnan(number);
            return is ? std::string() : concat("'", text, "' is no number");
          },
          ""};
}

// Adds a number with bounds; the help shows its default.
template <typename Number, typename Bound>
CLI::Option* add_number(CLI::App& command, const char* name, Number& number, const char* help,
                        Bound least, Bound most) {
  return command.add_option(name, number, help)
      ->check(CLI::Range(least, most))
      ->check(is_number())
      ->capture_default_str();
}
// The check of an option that takes one of these words; help, man page and completion list them.
template <typename List, typename Name>
CLI::IsMember one_of(const List& list, const Name& name) {
  std::vector<std::string> words;
  for (const auto& each : list) words.emplace_back(name(each));
  return CLI::IsMember(std::move(words));
}
inline CLI::IsMember one_of_the_encodings() {
  return one_of(all_encodings(), [](const EncodingInfo& each) { return each.name; });
}
inline void add_version(CLI::App& command, const char* name, std::optional<std::uint64_t>& version,
                        const char* help, std::uint64_t most = kMaxVersion) {
  command.add_option(name, version, help)
      ->check(CLI::NonNegativeNumber)
      ->check(CLI::Range(std::uint64_t{0}, most));
}
void add_set(CLI::App& command, JobArguments& job);
void add_job(CLI::App& command, JobArguments& job);  // the configuration of a job

void add_checkpoint_commands(CLI::App& app, Arguments& all);
void add_job_commands(CLI::App& app, Arguments& all);
void add_operator_commands(CLI::App& app, Arguments& all);

}  // namespace driftless::cli
