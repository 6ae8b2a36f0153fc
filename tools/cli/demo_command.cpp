// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/stopwatch.h"
#include "plugin/checkpoint/checkpoint_patcher.h"
#include "plugin/checkpoint/delta_writer.h"
#include "plugin/checkpoint/verify.h"
#include "tools/cli/commands.h"
#include "tools/synth.h"
#include "tools/temporary_directory.h"

namespace driftless::cli {
namespace {

namespace stdfs = std::filesystem;

struct Row {
  DirectoryLayout layout;
  Encoding encoding;
  std::uint64_t bytes = 0;  // payload bytes of all versions
  std::uint64_t full_bytes = 0;
  std::uint64_t changed_units = 0;
  double publish_seconds = 0;
  double apply_seconds = 0;
};

// Publishes every step in one encoding.
Status publish(const Common& common, const SynthReport& run, const std::string& directory,
               Row& row) {
  for (std::size_t step = 1; step < run.directories.size(); ++step) {
    DeltaOptions delta;
    delta.old_checkpoint = run.directories[step - 1];
    delta.new_checkpoint = run.directories[step];
    delta.directory = directory;
    delta.directory_layout = row.layout;
    delta.encoding = row.encoding;
    delta.threads = common.thread_count();
    DRIFTLESS_ASSIGN_OR_RETURN(const DeltaReport done, write_delta(posix_file_system(), delta));
    row.bytes += done.manifest.payload_bytes;
    row.full_bytes += done.manifest.full_bytes;
    row.changed_units += done.manifest.changed_units;
    row.publish_seconds += done.seconds;
  }
  return {};
}

// Applies the published versions to a copy of the base, and proves that the result is the last
// step.
Status follow(const Common& common, const SynthReport& run, const std::string& directory,
              const std::string& copy, Row& row) {
  FileSystem& fs = posix_file_system();
  stdfs::copy(run.directories.front(), copy, stdfs::copy_options::recursive);
  ApplyOptions apply;
  apply.threads = common.thread_count();
  Stopwatch watch;
  DRIFTLESS_ASSIGN_OR_RETURN(const ApplyReport done,
                             apply_versions(fs, directory, copy, std::nullopt, apply));
  row.apply_seconds = watch.lap_ms() / 1000;
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint result, Checkpoint::open(fs, copy));
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint wanted, Checkpoint::open(fs, run.directories.back()));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Difference> difference,
                             compare_weights(result, wanted, common.thread_count(), {}));
  if (!difference) return {};
  return error(StatusCode::kMismatch, copy, ": differs from ", wanted.path(), " after version ",
               done.to_version, ", first in tensor '", difference->tensor, "' at ",
               difference->position);
}

void print_rows(const Common& common, const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells;
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    const double bits = 8.0 * ratio(row.bytes, row.changed_units);
    cells.push_back({std::string(info(row.encoding).name), std::string(to_string(row.layout)),
                     human_bytes(row.bytes),
                     fixed(100 * ratio(row.bytes, row.full_bytes), 2) + " %",
                     fixed(ratio(row.full_bytes, row.bytes), 1) + "x", fixed(bits, 1),
                     fixed(row.publish_seconds, 2), fixed(row.apply_seconds, 2), "bit-identical"});
    json.push_back({{"encoding", info(row.encoding).name},
                    {"layout", to_string(row.layout)},
                    {"bytes", row.bytes},
                    {"full_bytes", row.full_bytes},
                    {"changed_units", row.changed_units},
                    {"bits_per_changed", bits},
                    {"publish_seconds", row.publish_seconds},
                    {"apply_seconds", row.apply_seconds},
                    {"identical", true}});
  }
  if (common.json) {
    print_json({{"rows", std::move(json)}});
    return;
  }
  print_table({"encoding", "layout", "payload", "of full", "smaller", "bits per change",
               "publish s", "apply s", "result"},
              cells);
}

Result<std::vector<Row>> play(const Common& common, const DemoArguments& options) {
  SynthOptions synth = options.synth;
  synth.out = options.directory + "/run";
  synth.threads = common.thread_count();
  ProgressBar bar("synthesizing");
  synth.progress = bar.callback();
  DRIFTLESS_ASSIGN_OR_RETURN(const SynthReport run, synthesize(posix_file_system(), synth));
  if (!common.json) {
    std::cout << "A checkpoint of " << human_bytes(run.bytes_per_step) << " (" << run.params
              << " parameters) and " << counted(synth.steps, "RL step") << ", changing";
    for (const double density : run.density) std::cout << " " << fixed(100 * density, 2) << " %";
    std::cout << " of its weights.\nEach encoding: publish " << counted(synth.steps, "version")
              << ", apply them to a copy of the base, compare every bit.\n\n"
              << std::flush;
  }
  std::vector<Row> rows;
  for (const auto& [layout, encoding] : kFileEncodings) {
    Row& row = rows.emplace_back(Row{layout, encoding});
    const std::string name(info(row.encoding).name);
    const std::string copy = options.directory + "/copy_" + name;
    const std::string published = options.directory + "/published_" + name;
    DRIFTLESS_RETURN_IF_ERROR(publish(common, run, published, row));
    DRIFTLESS_RETURN_IF_ERROR(follow(common, run, published, copy, row));
    stdfs::remove_all(copy);
  }
  return rows;
}

}  // namespace

Result<int> run_demo(const Common& common, DemoArguments options) {
  std::optional<TemporaryDirectory> temporary;
  if (options.directory.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(TemporaryDirectory made, TemporaryDirectory::create());
    options.directory = temporary.emplace(std::move(made)).path();
  } else if (exists(posix_file_system(), options.directory)) {
    return error(StatusCode::kAlreadyExists, options.directory,
                 ": is there already; choose a directory that does not exist");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Row> rows, play(common, options));
  print_rows(common, rows);
  return int{kExitOk};
}

}  // namespace driftless::cli
