// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "formats/version_dir.h"
#include "plugin/checkpoint/journal.h"
#include "plugin/checkpoint/verify.h"
#include "tools/cli/commands.h"

namespace driftless::cli {
namespace {

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

Result<int> verify_like(const Common& common, const VerifyArguments& options,
                        const Checkpoint& checkpoint, const Progress& progress) {
  FileSystem& fs = posix_file_system();
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, options.like));
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint other, Checkpoint::open(fs, options.like));
  const auto result = compare_weights(checkpoint, other, common.thread_count(), progress);
  if (!result.ok() && result.status().code() == StatusCode::kWrongLayout) {
    return answer(common, false, concat("different: ", result.status().message()), {});
  }
  if (!result.ok()) return result.status();
  if (!*result) {
    return answer(
        common, true,
        concat("identical: ", checkpoint.layout().size(), " tensors, ",
               human_bytes(checkpoint.layout().total_bytes())),
        {{"tensors", checkpoint.layout().size()}, {"bytes", checkpoint.layout().total_bytes()}});
  }
  const Difference& first = **result;
  return answer(
      common, false,
      concat("different: tensor '", first.tensor, "' at position ", first.position, ": ",
             first.value, " in ", options.checkpoint, ", ", first.other_value, " in ", options.like,
             " (", first.units, " units in ", first.tensors, " tensors differ)"),
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
};

// From a manifest (the file, or its version directory), or from the checkpoint's own state.
Result<Expected> expected_digest(FileSystem& fs, const VerifyArguments& options) {
  if (options.manifest.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const CheckpointState state, load_state(fs, options.checkpoint));
    if (!state.digest) {
      return error(
          StatusCode::kInvalidArgument, options.checkpoint,
          ": it has no digest of its own; say what to hold it against: --like or --manifest");
    }
    return Expected{state.layout, *state.digest, concat("its state (version ", state.version, ")")};
  }
  std::string path = options.manifest;
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo file, fs.info(path));
  if (file.kind == FileKind::kDirectory) path = join_path(path, kManifestName);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, read_text(fs, path, kMaxManifestBytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest, parse_manifest(text, path));
  return Expected{manifest.layout, manifest.digest, concat("version ", manifest.id.version)};
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
  const bool same = found == expected.digest;
  return answer(
      common, same,
      same ? concat("identical to ", expected.source, ": digest ", to_hex(found))
           : concat("different: the digest is ", to_hex(found), ", ", expected.source, " has ",
                    to_hex(expected.digest), "; --like a good copy names the first difference"),
      {{"digest", to_hex(found)}, {"expected_digest", to_hex(expected.digest)}});
}

}  // namespace

Result<int> run_verify(const Common& common, const VerifyArguments& options) {
  FileSystem& fs = posix_file_system();
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, options.checkpoint));
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(fs, options.checkpoint));
  ProgressBar bar("verifying");
  return options.like.empty() ? verify_digest(common, options, checkpoint, bar.callback())
                              : verify_like(common, options, checkpoint, bar.callback());
}

}  // namespace driftless::cli
