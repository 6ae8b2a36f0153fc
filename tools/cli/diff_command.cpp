// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "plugin/checkpoint/delta_writer.h"
#include "tools/cli/commands.h"

namespace driftless::cli {
namespace {

Status parse(DiffArguments& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(options.delta.directory_layout,
                             parse_directory_layout(options.layout));
  DRIFTLESS_ASSIGN_OR_RETURN(options.delta.checksum, parse_checksum_kind(options.checksum));
  if (options.encoding.empty()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(options.delta.encoding, parse_encoding(options.encoding));
  return {};
}

void print_report(const Common& common, const DeltaReport& report) {
  const Manifest& manifest = report.manifest;
  const double bits = 8.0 * ratio(manifest.payload_bytes, manifest.changed_units);
  const double density = ratio(manifest.changed_units, manifest.total_units);
  if (common.json) {
    nlohmann::ordered_json json;
    json["path"] = report.path;
    json["run"] = to_hex(manifest.id.run);
    json["version"] = manifest.id.version;
    json["base_version"] = manifest.base_version;
    json["layout"] = to_string(manifest.directory_layout);
    json["encoding"] = info(manifest.encoding).name;
    json["checksum"] = to_string(manifest.checksum);
    json["digest"] = to_hex(manifest.digest);
    json["changed_tensors"] = manifest.changed_tensors;
    json["changed_units"] = manifest.changed_units;
    json["total_units"] = manifest.total_units;
    json["density"] = density;
    json["full_bytes"] = manifest.full_bytes;
    json["payload_bytes"] = manifest.payload_bytes;
    json["total_bytes"] = report.total_bytes;
    json["bits_per_changed"] = bits;
    json["seconds"] = report.seconds;
    print_json(json);
    return;
  }
  std::cout << report.path << ": version " << manifest.id.version << " on " << manifest.base_version
            << " of run " << to_hex(manifest.id.run) << "\n"
            << manifest.changed_units << " of " << manifest.total_units << " units changed ("
            << fixed(100 * density, 3) << " %) in " << manifest.changed_tensors << " tensors\n"
            << human_bytes(report.total_bytes) << " as " << info(manifest.encoding).name << ", "
            << fixed(ratio(manifest.full_bytes, report.total_bytes), 1)
            << " times smaller than all weights, " << fixed(bits, 1) << " bits per changed unit, "
            << fixed(report.seconds, 2) << " s\ndigest " << to_hex(manifest.digest) << "\n";
}

}  // namespace

Result<int> run_diff(const Common& common, DiffArguments options) {
  DRIFTLESS_RETURN_IF_ERROR(parse(options));
  ProgressBar bar("comparing");
  options.delta.threads = common.thread_count();
  options.delta.progress = bar.callback();
  DRIFTLESS_ASSIGN_OR_RETURN(const DeltaReport done,
                             write_delta(posix_file_system(), options.delta));
  print_report(common, done);
  return int{kExitOk};
}

}  // namespace driftless::cli
