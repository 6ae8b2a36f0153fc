// SPDX-License-Identifier: Apache-2.0
// The commands on checkpoints and the versions between them: synth, diff, apply, verify, inspect.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "formats/version_dir.h"
#include "plugin/checkpoint/checkpoint_patcher.h"
#include "plugin/checkpoint/delta_writer.h"
#include "plugin/checkpoint/inspect.h"
#include "plugin/checkpoint/journal.h"
#include "plugin/checkpoint/verify.h"
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
    json["notes"] = report.notes;
    print_json(json);
    return;
  }
  std::cout << report.path << ": version " << manifest.id.version << " on " << manifest.base_version
            << " of run " << to_hex(manifest.id.run) << "\n"
            << manifest.changed_units << " of " << manifest.total_units << " weights changed ("
            << fixed(100 * density, 3) << " %) in " << counted(manifest.changed_tensors, "tensor")
            << "\n"
            << human_bytes(manifest.payload_bytes) << " of payload as "
            << info(manifest.encoding).name << ", "
            << fixed(ratio(manifest.full_bytes, manifest.payload_bytes), 1)
            << " times smaller than all weights, " << fixed(bits, 2)
            << " bits per change; the whole directory: " << human_bytes(report.total_bytes) << ", "
            << fixed(report.seconds, 2) << " s\ndigest " << to_hex(manifest.digest) << "\n";
}

void print_report(const Common& common, const ApplyArguments& options, const ApplyReport& done) {
  if (common.json) {
    nlohmann::ordered_json json;
    json["checkpoint"] = options.checkpoint;
    json["from_version"] = done.from_version;
    json["version"] = done.to_version;
    json["recovered"] = done.recovered;
    json["verified"] = options.verify;
    json["other_files"] = done.other_files;
    json["applied"] = nlohmann::ordered_json::array();
    for (const AppliedVersion& version : done.applied) {
      json["applied"].push_back({{"version", version.version},
                                 {"base_version", version.base_version},
                                 {"encoding", version.encoding},
                                 {"changed_tensors", version.changed_tensors},
                                 {"changed_units", version.changed_units},
                                 {"touched_bytes", version.touched_bytes},
                                 {"payload_bytes", version.payload_bytes},
                                 {"stage_ms", version.stage_ms},
                                 {"commit_ms", version.commit_ms}});
    }
    print_json(json);
    return;
  }
  if (done.recovered) {
    std::cout << "finished an interrupted apply: " << options.checkpoint << " is at version "
              << done.from_version << "\n";
  }
  for (const AppliedVersion& version : done.applied) {
    std::cout << "version " << version.version << ": " << counted(version.changed_units, "weight")
              << " in " << counted(version.changed_tensors, "tensor") << ", "
              << human_bytes(version.payload_bytes) << ", checked in " << fixed(version.stage_ms, 0)
              << " ms, written in " << fixed(version.commit_ms, 0) << " ms\n";
  }
  std::cout << options.checkpoint << (done.applied.empty() ? " is already" : " is now")
            << " at version " << done.to_version << "\n";
}

int answer(const Common& common, bool identical, const std::string& text,
           nlohmann::ordered_json details) {
  if (common.json) {
    details["identical"] = identical;
    if (!identical) details["message"] = text;
    print_json(details);
  } else {
    std::cout << text << "\n";
  }
  return identical ? kExitOk : kExitDifferent;
}

// Opens the checkpoint without the tensors that the run does not publish, according to its state.
Result<Checkpoint> open_published(FileSystem& fs, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(fs, path));
  DRIFTLESS_ASSIGN_OR_RETURN(const CheckpointState state, load_state(fs, path));
  DRIFTLESS_RETURN_IF_ERROR(leave_others(state, checkpoint));
  return checkpoint;
}

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::cerr << "driftless: note: " << note << "\n";
}

// "config.json, merges.txt"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += concat(text.empty() ? "" : ", ", name);
  return text;
}

// Prints notes on the files beside the weights that differ, and returns them.
std::vector<std::string> compare_files(FileSystem& fs, const VerifyArguments& options) {
  CompanionDifferences found = compare_companions(fs, options.checkpoint, options.like);
  const auto print_names = [](const std::vector<std::string>& names, const std::string& text) {
    if (!names.empty()) print_notes({concat("beside the weights: ", text, ": ", listed(names))});
  };
  print_names(found.others, "different content");
  print_names(found.here_alone, concat("only in ", options.checkpoint));
  print_names(found.there_alone, concat("only in ", options.like));
  print_names(found.not_compared, "not compared");
  std::vector<std::string> all = std::move(found.others);
  std::ranges::move(found.here_alone, std::back_inserter(all));
  std::ranges::move(found.there_alone, std::back_inserter(all));
  std::ranges::sort(all);
  return all;
}

Result<int> verify_like(const Common& common, const VerifyArguments& options,
                        Checkpoint& checkpoint, const Progress& progress) {
  FileSystem& fs = posix_file_system();
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, options.like));
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint other, Checkpoint::open(fs, options.like));
  Result<std::vector<std::string>> notes = std::vector<std::string>();
  if (!checkpoint.others().empty()) {
    DRIFTLESS_RETURN_IF_ERROR(other.keep_only(checkpoint.layout()));
  } else {
    notes = leave_out_copies(fs, checkpoint, other);
  }
  if (notes.ok()) print_notes(*notes);
  const auto result = notes.ok()
                          ? compare_weights(checkpoint, other, common.thread_count(), progress)
                          : notes.status();
  if (!result.ok() && result.status().code() == StatusCode::kWrongLayout) {
    return answer(common, false, concat("different: ", result.status().message()), {});
  }
  if (!result.ok()) return result.status();
  if (!*result) {
    return answer(common, true,
                  concat("identical: ", counted(checkpoint.layout().size(), "tensor"), ", ",
                         human_bytes(checkpoint.layout().total_bytes())),
                  {{"tensors", checkpoint.layout().size()},
                   {"bytes", checkpoint.layout().total_bytes()},
                   {"other_files", compare_files(fs, options)}});
  }
  const Difference& first = **result;
  return answer(common, false,
                concat("different: tensor '", first.tensor, "' at position ", first.position, ": ",
                       first.value, " in ", options.checkpoint, ", ", first.other_value, " in ",
                       options.like, " (", counted(first.units, "weight"), " in ",
                       counted(first.tensors, "tensor"), " different)"),
                {{"tensor", first.tensor},
                 {"position", first.position},
                 {"value", first.value},
                 {"other_value", first.other_value},
                 {"different_units", first.units},
                 {"different_tensors", first.tensors}});
}

struct Expected {
  Hash128 layout;  // zero: unknown
  Digest digest;
  std::string source;
  std::map<std::string, Digest> tensors = {};  // the known ones
};

// The digest from a manifest (the file, or its version directory), or from the checkpoint's own
// state.
Result<Expected> expected_digest(FileSystem& fs, const VerifyArguments& options) {
  if (options.manifest.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const CheckpointState state, load_state(fs, options.checkpoint));
    if (!state.digest) {
      return error(
          StatusCode::kInvalidArgument, options.checkpoint,
          ": it has no digest of its own; name what to compare it with: --like or --manifest");
    }
    return Expected{state.layout, *state.digest, concat("its state (version ", state.version, ")")};
  }
  std::string path = options.manifest;
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo file, fs.info(path));
  if (file.kind == FileKind::kDirectory) path = join_path(path, kManifestName);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, read_text(fs, path, kMaxManifestBytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest, parse_manifest(text, path));
  const auto version = std::filesystem::path(path).lexically_normal().parent_path();
  const std::string beside = (version / "..").string();
  return Expected{manifest.layout, manifest.digest, concat("version ", manifest.id.version),
                  tensor_digests_at(fs, version.empty() ? ".." : beside, manifest)};
}

Result<int> verify_digest(const Common& common, const VerifyArguments& options,
                          const Checkpoint& checkpoint, const Progress& progress) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Expected expected,
                             expected_digest(posix_file_system(), options));
  const Hash128& signature = checkpoint.layout().signature();
  if (!expected.layout.is_zero() && expected.layout != signature) {
    return answer(common, false,
                  concat("different: the weight layout is ", to_hex(signature), ", ",
                         expected.source, " has ", to_hex(expected.layout)),
                  {{"weight_layout", to_hex(signature)},
                   {"expected_weight_layout", to_hex(expected.layout)}});
  }
  const Digest found = digest_checkpoint(checkpoint, common.thread_count(), progress);
  nlohmann::ordered_json details{{"digest", to_hex(found)},
                                 {"expected_digest", to_hex(expected.digest)}};
  if (found == expected.digest) {
    return answer(common, true,
                  concat("identical to ", expected.source, ": digest ", to_hex(found)),
                  std::move(details));
  }
  const std::optional<std::string> tensor =
      first_different(checkpoint, expected.tensors, common.thread_count());
  if (tensor) details["tensor"] = *tensor;
  return answer(common, false,
                concat("different: ", tensor ? concat("tensor '", *tensor, "': ") : std::string(),
                       "the digest is ", to_hex(found), ", ", expected.source, " has ",
                       to_hex(expected.digest), "; --like a good copy names the first difference"),
                std::move(details));
}

}  // namespace

Result<int> run_synth(const Common& common, SynthOptions options) {
  ProgressBar bar("synthesizing");
  options.threads = common.thread_count();
  options.progress = bar.callback();
  DRIFTLESS_ASSIGN_OR_RETURN(const SynthReport done, synthesize(posix_file_system(), options));
  if (common.json) {
    print_json({{"params", done.params},
                {"bytes_per_step", done.bytes_per_step},
                {"directories", done.directories},
                {"density", done.density}});
    return int{kExitOk};
  }
  std::cout << done.directories.front() << ": " << done.params << " parameters, "
            << human_bytes(done.bytes_per_step) << "\n";
  for (std::size_t step = 0; step < done.density.size(); ++step) {
    std::cout << done.directories[step + 1] << ": " << fixed(100 * done.density[step], 3)
              << " % of the weights changed\n";
  }
  return int{kExitOk};
}

Result<int> run_diff(const Common& common, DiffArguments options) {
  DRIFTLESS_RETURN_IF_ERROR(parse(options));
  ProgressBar bar("comparing");
  options.delta.threads = common.thread_count();
  options.delta.progress = bar.callback();
  DRIFTLESS_ASSIGN_OR_RETURN(const DeltaReport done,
                             write_delta(posix_file_system(), options.delta));
  print_notes(done.notes);
  print_report(common, done);
  return int{kExitOk};
}

Result<int> run_apply(const Common& common, const ApplyArguments& options) {
  ProgressBar bar("applying");
  ApplyOptions apply;
  apply.threads = common.thread_count();
  apply.verify = options.verify == "full" ? VerifyMode::kFull : VerifyMode::kTouched;
  apply.lock_wait = std::chrono::milliseconds(static_cast<long>(options.wait_seconds * 1000));
  apply.progress = bar.callback();
  DRIFTLESS_ASSIGN_OR_RETURN(const ApplyReport done,
                             apply_versions(posix_file_system(), options.directory,
                                            options.checkpoint, options.to_version, apply));
  if (options.verify == "full" && !done.digest_known) {
    std::cerr << "driftless: note: these versions carry no digest, so only the tensors that they "
                 "change could be checked\n";
  }
  if (!done.other_files.empty()) {
    print_notes(
        {concat("files beside the weights differ in the version, and were left as they are: ",
                listed(done.other_files), "; copy them if the model needs them")});
  }
  print_report(common, options, done);
  return int{kExitOk};
}

Result<int> run_verify(const Common& common, const VerifyArguments& options) {
  FileSystem& fs = posix_file_system();
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, options.checkpoint));
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint checkpoint, open_published(fs, options.checkpoint));
  ProgressBar bar("verifying");
  return options.like.empty() ? verify_digest(common, options, checkpoint, bar.callback())
                              : verify_like(common, options, checkpoint, bar.callback());
}

namespace {

// Numbers become JSON numbers, except in names and texts from others.
nlohmann::ordered_json inspected(const std::string& name, const std::string& value) {
  if (name == "tensor" || name == "file" || name == "dataset" || name.starts_with("metadata ")) {
    return value;
  }
  if (value == "-" || value == "?") return nullptr;
  const bool shape = name == "shape" && nlohmann::ordered_json::accept(value);
  return shape ? nlohmann::ordered_json::parse(value) : number_or_text(value);
}

}  // namespace

Result<int> run_inspect(const Common& common, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Inspection result, inspect_path(posix_file_system(), path));
  if (common.json) {
    nlohmann::ordered_json json;
    json["kind"] = result.kind;
    for (const auto& [name, value] : result.facts) json[name] = inspected(name, value);
    json["rows"] = nlohmann::ordered_json::array();
    for (const auto& row : result.rows) {
      nlohmann::ordered_json item;
      for (std::size_t i = 0; i < row.size(); ++i) {
        item[result.columns[i]] = inspected(result.columns[i], row[i]);
      }
      json["rows"].push_back(std::move(item));
    }
    print_json(json);
    return int{kExitOk};
  }
  std::cout << path << ": " << result.kind << "\n";
  for (const auto& [name, value] : result.facts) {
    std::cout << "  " << name << ": " << (value.size() > 200 ? value.substr(0, 200) + "..." : value)
              << "\n";
  }
  if (!result.rows.empty()) {
    std::cout << "\n";
    print_table(result.columns, result.rows);
  }
  return int{kExitOk};
}

}  // namespace driftless::cli
