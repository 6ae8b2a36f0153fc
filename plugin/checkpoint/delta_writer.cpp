// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/delta_writer.h"

#include <mutex>

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "plugin/checkpoint/checkpoint_writer.h"
#include "plugin/checkpoint/journal.h"
#include "plugin/checkpoint/payload_files.h"
#include "plugin/checkpoint/verify.h"
#include "plugin/interchange/hf_shard_writer.h"

namespace driftless {
namespace {

// Version, base and run of the new version, from the options and from the directory.
struct Identity {
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  Hash128 run;
  std::optional<Digest> base_digest;  // if an existing version names it
  Hash128 layout;                     // the run's; zero: unknown
};

struct DeltaInput {
  const Checkpoint* before = nullptr;
  const Checkpoint* after = nullptr;
  const Identity* identity = nullptr;
  Encoding encoding = Encoding::kXor;
  const DeltaOptions* options = nullptr;

  [[nodiscard]] const WeightLayout& layout() const { return before->layout(); }
};

struct DeltaFindings {
  std::vector<std::uint64_t> changed_units;  // per tensor of the layout
  Digest base_digest;
  std::vector<Digest> digests;         // new digest of each tensor
  std::uint64_t payload_bytes = 0;     // size of the payload files
  std::vector<std::string> checksums;  // by tensor; empty if it did not change
  std::vector<std::string> notes;
};

// The manifest of an existing version, if that is complete and was made by Driftless.
std::optional<Manifest> manifest_of(FileSystem& fs, const std::string& directory,
                                    std::uint64_t version) {
  if (version == 0) return std::nullopt;
  Result<VersionDirectory> found = open_version(fs, directory, version);
  return found.ok() ? found->manifest : std::nullopt;
}

// Finds the run that the new version joins: that of its base, otherwise that of the newest version
// in the directory, otherwise that of the old checkpoint's state. The base's digest comes from the
// base, or from another version that builds on it.
Status find_run(FileSystem& fs, const DeltaOptions& options,
                const std::vector<std::uint64_t>& versions, Identity& identity) {
  if (const auto base = manifest_of(fs, options.directory, identity.base_version)) {
    identity.run = base->id.run;
    identity.layout = base->layout;
    identity.base_digest = base->digest;
    return {};
  }
  for (auto at = versions.rbegin(); at != versions.rend() && identity.run.is_zero(); ++at) {
    const auto manifest = manifest_of(fs, options.directory, *at);
    if (manifest) identity.run = manifest->id.run;
    if (manifest) identity.layout = manifest->layout;
  }
  const auto sibling = manifest_of(fs, options.directory, identity.base_version + 1);
  if (sibling && sibling->base_version == identity.base_version) {
    identity.base_digest = sibling->base_digest;
  }
  if (identity.run.is_zero()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const CheckpointState state, load_state(fs, options.old_checkpoint));
    if (state.version == identity.base_version) identity.run = state.run;
  }
  if (identity.run.is_zero()) identity.run = random_hash128();
  return {};
}

Result<Identity> identify(FileSystem& fs, const DeltaOptions& options) {
  std::vector<std::uint64_t> versions;
  if (exists(fs, options.directory)) {
    DRIFTLESS_ASSIGN_OR_RETURN(versions, list_versions(fs, options.directory));
  }
  Identity identity;
  identity.version = options.version.value_or(versions.empty() ? 1 : versions.back() + 1);
  if (identity.version == 0 || identity.version > kMaxVersion) {
    return error(StatusCode::kInvalidArgument, "version ", identity.version,
                 ": versions are numbered from 1 (0 is the base checkpoint) to ", kMaxVersion);
  }
  identity.base_version = options.base_version.value_or(identity.version - 1);
  if (identity.base_version >= identity.version) {
    return error(StatusCode::kInvalidArgument, "the base (", identity.base_version,
                 ") must be below the version (", identity.version, ")");
  }
  DRIFTLESS_RETURN_IF_ERROR(find_run(fs, options, versions, identity));
  return identity;
}

Result<Encoding> choose_encoding(const DeltaOptions& options) {
  const bool hf_delta = options.directory_layout == DirectoryLayout::kHfDelta;
  const bool frames = options.directory_layout == DirectoryLayout::kFrames;
  if (options.directory_layout == DirectoryLayout::kHdf5) {
    return error(StatusCode::kInvalidArgument, "layout '", to_string(options.directory_layout),
                 "' is written by driftless trainer; use hf_delta, flush or frames here");
  }
  const Encoding encoding = options.encoding.value_or(hf_delta ? Encoding::kXor
                                                      : frames ? Encoding::kCompact
                                                               : Encoding::kDeltasZstd);
  const bool fits = hf_delta
                        ? info(encoding).interchange || encoding == Encoding::kFull
                        : info(encoding).positional || (frames && encoding == Encoding::kCompact);
  if (fits) return encoding;
  return error(StatusCode::kInvalidArgument, "encoding '", info(encoding).name,
               "' does not go with layout '", to_string(options.directory_layout), "'; ",
               hf_delta ? "xor, overwrite and full do"
               : frames ? "indices, deltas, deltas_zstd and compact do"
                        : "indices, deltas and deltas_zstd do");
}

// `overwrite` cannot address more than 4 GiB: refuse before anything is created or compared.
Status check_sizes(const WeightLayout& layout, Encoding encoding) {
  if (encoding != Encoding::kOverwrite) return {};
  for (const TensorSpec& tensor : layout.tensors()) {
    if (tensor.size_bytes > (std::uint64_t{1} << 32)) {
      return error(StatusCode::kUnsupported, "tensor '", tensor.name, "' has ", tensor.size_bytes,
                   " bytes, and overwrite cannot address past 4 GiB; use --encoding xor");
    }
  }
  return {};
}

Manifest describe(const DeltaInput& input, const DeltaFindings& findings) {
  Manifest manifest;
  manifest.id = {input.identity->run, input.identity->version};
  manifest.base_version = input.identity->base_version;
  manifest.directory_layout = input.options->directory_layout;
  manifest.encoding = input.encoding;
  manifest.checksum = input.options->checksum;
  manifest.layout = input.layout().signature();
  manifest.base_digest = findings.base_digest;
  manifest.total_units = input.layout().total_units();
  manifest.full_bytes = input.layout().total_bytes();
  manifest.payload_bytes = findings.payload_bytes;
  const bool full = manifest.encoding == Encoding::kFull;
  // The shards of an hf_delta delta contain the checksums themselves.
  const bool checksums = full || manifest.directory_layout == DirectoryLayout::kFlush;
  for (std::size_t tensor = 0; tensor < input.layout().size(); ++tensor) {
    const bool changed = findings.changed_units[tensor] > 0;
    manifest.digest += findings.digests[tensor];
    manifest.changed_units += findings.changed_units[tensor];
    manifest.changed_tensors += changed ? 1 : 0;
    if (!changed && !full) continue;
    manifest.tensors.push_back({input.layout()[tensor].name,
                                checksums ? findings.checksums[tensor] : std::string(),
                                findings.digests[tensor]});
  }
  manifest.created = utc_now();
  return manifest;
}

// All versions of a run have the same tensors.
Status check_layout(const DeltaInput& input) {
  const Hash128& found = input.layout().signature();
  if (input.identity->layout.is_zero() || input.identity->layout == found) return {};
  return error(StatusCode::kWrongLayout, input.options->directory, ": its run has weight layout ",
               to_hex(input.identity->layout), ", but the tensors in both checkpoints have ",
               to_hex(found), " (without a tied tensor's copy that only one of them stores); ",
               "give checkpoints that store the run's tensors, or another directory");
}

Status check_base(const DeltaOptions& options, const Identity& identity, const Digest& found) {
  if (!identity.base_digest || *identity.base_digest == found) return {};
  return error(StatusCode::kWrongBase, options.old_checkpoint, ": its digest is ", to_hex(found),
               ", but version ", identity.base_version, " of the run in ", options.directory,
               " has ", to_hex(*identity.base_digest),
               ": it is not that version; nothing was published");
}

Result<std::uint64_t> directory_bytes(FileSystem& fs, const std::string& path) {
  std::uint64_t sum = 0;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(path));
  for (const std::string& name : names) {
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo file, fs.info(join_path(path, name)));
    sum += file.size_bytes;
  }
  return sum;
}

// Compares both checkpoints and fills changed_units and the digests. `in_order`, which may be
// empty, receives every changed piece in order.
Status compare_checkpoints(const DeltaInput& input, DeltaFindings& findings,
                           const std::function<Status(const DiffPiece&)>& in_order) {
  const WeightLayout& layout = input.layout();
  const HostKernels& kernels = host_kernels();
  findings.changed_units.assign(layout.size(), 0);
  findings.checksums.resize(layout.size());
  findings.digests.resize(layout.size());
  std::mutex mutex;
  Digest change;
  // Digests and counts are computed while the piece is in the cache.
  const auto in_parallel = [&](const DiffPiece& piece) -> Status {
    const std::uint32_t tensor = piece.pair->tensor;
    const unsigned width = piece.pair->unit_bytes;
    const std::uint64_t offset = piece.origin * width;
    const std::uint64_t size = piece.units * width;
    const DigestTensorKey key = digest_tensor_key(layout[tensor].name);
    const Digest all = kernels.digest(key, offset, {piece.pair->new_data + offset, size});
    const std::uint64_t count = piece.delta.count();
    const Digest part = kernels.digest_change(key, width, piece.origin, piece.delta.offsets.data(),
                                              count, piece.old_values, piece.delta.values);
    const std::scoped_lock lock(mutex);
    findings.digests[tensor] += all;
    findings.changed_units[tensor] += count;
    change += part;
    return {};
  };
  DRIFTLESS_RETURN_IF_ERROR(diff_checkpoints(
      *input.before, *input.after, input.options->threads, input.options->progress, in_parallel,
      [&](const DiffPiece& piece) { return in_order ? in_order(piece) : Status(); }));
  for (const Digest& digest : findings.digests) findings.base_digest += digest;
  findings.base_digest -= change;
  return {};
}

// The tensors that the version contains.
std::vector<std::uint32_t> listed_tensors(const DeltaInput& input, const DeltaFindings& findings) {
  std::vector<std::uint32_t> tensors;
  for (std::uint32_t tensor = 0; tensor < input.layout().size(); ++tensor) {
    const bool wanted = input.encoding == Encoding::kFull || findings.changed_units[tensor] > 0;
    if (wanted) tensors.push_back(tensor);
  }
  return tensors;
}

// Options for the payload files, which are created in the version's directory.
PayloadFileOptions payload_options(FileSystem& fs, const DeltaInput& input,
                                   const VersionWriter& version) {
  return {{{input.identity->run, input.identity->version},
           input.identity->base_version,
           input.layout().signature(),
           input.encoding},
          input.options->buffer_bytes,
          input.options->threads,
          [&fs, &version](const std::string& name) { return fs.create(version.file_path(name)); }};
}

Status write_flush_payload(FileSystem& fs, const DeltaInput& input, const VersionWriter& version,
                           DeltaFindings& findings) {
  const auto files = make_flush_files(input.layout(), payload_options(fs, input, version));
  DRIFTLESS_RETURN_IF_ERROR(compare_checkpoints(
      input, findings, [&](const DiffPiece& piece) { return files->add(piece); }));
  DRIFTLESS_ASSIGN_OR_RETURN(findings.payload_bytes, files->finish());
  const std::vector<std::uint32_t> changed = listed_tensors(input, findings);
  return parallel_for(
      changed.size(), input.options->threads, [&](std::size_t task, unsigned) -> Status {
        findings.checksums[changed[task]] =
            checksum_hex(input.options->checksum, input.after->tensor(changed[task]).bytes());
        return {};
      });
}

Status write_frame_payload(FileSystem& fs, const DeltaInput& input, const VersionWriter& version,
                           DeltaFindings& findings) {
  const auto files = make_frame_files(input.layout(), payload_options(fs, input, version));
  DRIFTLESS_RETURN_IF_ERROR(compare_checkpoints(
      input, findings, [&](const DiffPiece& piece) { return files->add(piece); }));
  DRIFTLESS_ASSIGN_OR_RETURN(findings.payload_bytes, files->finish());
  return {};
}

Status write_shard(FileSystem& fs, const std::string& path, const DeltaInput& input,
                   const std::vector<std::uint32_t>& tensors, DeltaFindings& findings) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs.create(path));
  const ShardOptions options{input.encoding, input.options->checksum, input.options->threads};
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::unique_ptr<HfShardWriter> shard,
      HfShardWriter::create(std::move(file), input.layout(), tensors, options));
  std::vector<HfShardWriter::Tensor> sides;
  for (const std::uint32_t tensor : tensors) {
    sides.push_back(
        {tensor, input.before->tensor(tensor).bytes(), input.after->tensor(tensor).bytes()});
  }
  DRIFTLESS_RETURN_IF_ERROR(shard->add(sides));
  DRIFTLESS_ASSIGN_OR_RETURN(findings.payload_bytes, shard->finish());
  for (const auto& [tensor, checksum] : shard->checksums()) findings.checksums[tensor] = checksum;
  return {};
}

// A full version is a whole checkpoint: other tools read its configuration and tokenizer, too.
Status write_companions(FileSystem& fs, const Checkpoint& after, const VersionWriter& version,
                        DeltaFindings& findings) {
  if (after.directory().empty()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const Companions found, open_companions(fs, after.directory()));
  for (const auto& [name, file] : found.files) {
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                file.bytes().size());
    DRIFTLESS_RETURN_IF_ERROR(write_text(fs, version.file_path(name), text));
  }
  for (const std::string& text : found.left_out) {
    findings.notes.push_back(concat("not carried by this full version: ", text));
  }
  return {};
}

// Writes one shard of compressed or whole tensors, the index, and for a full version its companion
// files.
Status write_hf_payload(FileSystem& fs, const DeltaInput& input, const VersionWriter& version,
                        DeltaFindings& findings) {
  DRIFTLESS_RETURN_IF_ERROR(compare_checkpoints(input, findings, {}));
  const std::vector<std::uint32_t> tensors = listed_tensors(input, findings);
  HfDeltaIndex index;
  index.ours = true;
  index.version = input.identity->version;
  index.base_version = input.identity->base_version;
  if (input.encoding != Encoding::kFull) index.encoding = input.encoding;
  index.checksum = input.options->checksum;
  if (!tensors.empty()) {
    DRIFTLESS_RETURN_IF_ERROR(
        write_shard(fs, version.file_path(shard_file_name(0, 1)), input, tensors, findings));
  }
  for (const std::uint32_t tensor : tensors) {
    index.weight_map[input.layout()[tensor].name] = shard_file_name(0, 1);
  }
  DRIFTLESS_RETURN_IF_ERROR(write_text(fs, version.file_path(kIndexName), index_to_json(index)));
  if (input.encoding != Encoding::kFull) return {};
  return write_companions(fs, *input.after, version, findings);
}

}  // namespace

Result<DeltaReport> write_delta(FileSystem& fs, const DeltaOptions& options) {
  Stopwatch watch;
  Stopwatch total;
  DRIFTLESS_ASSIGN_OR_RETURN(const Encoding encoding, choose_encoding(options));
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, options.old_checkpoint));
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, options.new_checkpoint));
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint before, Checkpoint::open(fs, options.old_checkpoint));
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint after, Checkpoint::open(fs, options.new_checkpoint));
  DeltaReport report;
  DRIFTLESS_ASSIGN_OR_RETURN(report.notes, leave_out_copies(fs, before, after));
  DRIFTLESS_RETURN_IF_ERROR(
      before.layout().check_same(after.layout(), before.path(), after.path()));
  DRIFTLESS_RETURN_IF_ERROR(check_sizes(before.layout(), encoding));
  DRIFTLESS_ASSIGN_OR_RETURN(const Identity identity, identify(fs, options));
  const DeltaInput input{&before, &after, &identity, encoding, &options};
  DRIFTLESS_RETURN_IF_ERROR(check_layout(input));
  DRIFTLESS_ASSIGN_OR_RETURN(VersionWriter version,
                             VersionWriter::create(fs, options.directory, identity.version));
  DeltaFindings findings;
  switch (options.directory_layout) {
    case DirectoryLayout::kFlush:
      DRIFTLESS_RETURN_IF_ERROR(write_flush_payload(fs, input, version, findings));
      break;
    case DirectoryLayout::kFrames:
      DRIFTLESS_RETURN_IF_ERROR(write_frame_payload(fs, input, version, findings));
      break;
    default: DRIFTLESS_RETURN_IF_ERROR(write_hf_payload(fs, input, version, findings));
  }
  DRIFTLESS_RETURN_IF_ERROR(check_base(options, identity, findings.base_digest));
  std::ranges::move(findings.notes, std::back_inserter(report.notes));
  report.manifest = describe(input, findings);
  report.manifest.timings_ms["process_ms"] = watch.lap_ms();
  DRIFTLESS_RETURN_IF_ERROR(version.publish(report.manifest));
  report.path = version.final_path();
  DRIFTLESS_ASSIGN_OR_RETURN(report.total_bytes, directory_bytes(fs, report.path));
  report.seconds = total.lap_ms() / 1000.0;
  return report;
}

}  // namespace driftless
