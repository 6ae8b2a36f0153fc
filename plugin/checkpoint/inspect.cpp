// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/inspect.h"

#include <algorithm>
#include <cstring>

#include "formats/run_info.h"
#include "formats/version_dir.h"
#include "plugin/checkpoint/journal.h"

namespace driftless {
namespace {

std::string last_component(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

std::string parent(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
}

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

Inspection inspect_manifest(std::string kind, const Manifest& manifest) {
  Inspection result{std::move(kind)};
  const auto fact = [&result](std::string name, std::string value) {
    result.facts.emplace_back(std::move(name), std::move(value));
  };
  fact("run", to_hex(manifest.id.run));
  fact("version", std::to_string(manifest.id.version));
  fact("base_version", std::to_string(manifest.base_version));
  fact("layout", std::string(to_string(manifest.directory_layout)));
  fact("encoding", std::string(info(manifest.encoding).name));
  fact("checksum", std::string(to_string(manifest.checksum)));
  if (!manifest.quantize_rule.empty()) fact("quantize_rule", manifest.quantize_rule);
  fact("weight_layout", to_hex(manifest.layout));
  fact("base_digest", to_hex(manifest.base_digest));
  fact("digest", to_hex(manifest.digest));
  fact("changed_tensors", std::to_string(manifest.changed_tensors));
  fact("changed_units", std::to_string(manifest.changed_units));
  fact("total_units", std::to_string(manifest.total_units));
  fact("full_bytes", std::to_string(manifest.full_bytes));
  fact("payload_bytes", std::to_string(payload_of(manifest)));
  fact("tensor_digests", manifest.has_tensor_digests() ? std::to_string(manifest.tensors.size())
                                                       : std::string("none"));
  if (manifest.ranks != 1) fact("ranks", std::to_string(manifest.ranks));
  fact("created", manifest.created);
  result.columns = {manifest.directory_layout == DirectoryLayout::kHdf5 ? "dataset" : "file",
                    "bytes", "xxh3-128"};
  for (const ManifestFile& file : manifest.files) {
    result.rows.push_back({file.name, std::to_string(file.size_bytes), to_hex(file.hash)});
  }
  return result;
}

std::vector<std::string> tensor_columns() { return {"tensor", "dtype", "shape", "bytes"}; }
std::vector<std::string> tensor_row(const TensorSpec& tensor) {
  return {tensor.name, std::string(info(tensor.dtype).name), tensor.shape_string(),
          std::to_string(tensor.size_bytes)};
}

Result<Inspection> inspect_version(FileSystem& fs, const std::string& path) {
  const std::string name = last_component(path);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t number,
                             parse_version_string(name.substr(name.find("_v") + 2)));
  DRIFTLESS_ASSIGN_OR_RETURN(const VersionDirectory version,
                             open_version(fs, parent(path), number));
  if (version.manifest) return inspect_manifest("version", *version.manifest);
  Inspection result{
      "version",
      {{"version", std::to_string(version.version)},
       {"base_version", version.full() ? "none (full)" : std::to_string(version.base_version)},
       {"layout", std::string(to_string(version.directory_layout))},
       {"encoding", std::string(info(version.encoding).name)},
       {"checksum", std::string(to_string(version.checksum))},
       {"changed_tensors", std::to_string(version.weight_map.size())},
       {"manifest", "none: written by another tool"}}};
  result.columns = {"file", "bytes"};
  for (const std::string& file : version.payload_files) {
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo found, fs.info(join_path(path, file)));
    result.rows.push_back({file, std::to_string(found.size_bytes)});
  }
  return result;
}

Result<Inspection> inspect_versions(FileSystem& fs, const std::string& path,
                                    const std::vector<std::uint64_t>& versions) {
  Inspection result{
      "versions",
      {{"versions", std::to_string(versions.size())}, {"newest", std::to_string(versions.back())}}};
  result.columns = {"version",       "base",  "layout",      "encoding",
                    "changed_units", "bytes", "run or error"};
  for (const std::uint64_t number : versions) {
    const Result<VersionDirectory> version = open_version(fs, path, number);
    if (!version.ok()) {
      result.rows.push_back(
          {std::to_string(number), "", "", "", "", "", version.status().to_string()});
      continue;
    }
    const auto& manifest = version->manifest;
    result.rows.push_back({std::to_string(number),
                           version->full() ? "-" : std::to_string(version->base_version),
                           std::string(to_string(version->directory_layout)),
                           std::string(info(version->encoding).name),
                           manifest ? std::to_string(manifest->changed_units) : "?",
                           manifest ? std::to_string(payload_of(*manifest)) : "?",
                           manifest ? to_hex(manifest->id.run) : "unknown (another tool's)"});
  }
  return result;
}

Result<Inspection> inspect_checkpoint(FileSystem& fs, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(fs, path));
  DRIFTLESS_ASSIGN_OR_RETURN(const CheckpointState state, load_state(fs, path));
  Inspection result{"checkpoint",
                    {{"files", std::to_string(checkpoint.files().size())},
                     {"tensors", std::to_string(checkpoint.layout().size())},
                     {"bytes", std::to_string(checkpoint.layout().total_bytes())},
                     {"weight_layout", to_hex(checkpoint.layout().signature())},
                     {"version", std::to_string(state.version)}}};
  if (!state.run.is_zero()) result.facts.emplace_back("run", to_hex(state.run));
  if (state.digest) result.facts.emplace_back("digest", to_hex(*state.digest));
  if (!check_no_journal(fs, path).ok()) {
    result.facts.emplace_back("journal", "an apply was interrupted; run it again to finish it");
  }
  result.columns = tensor_columns();
  result.columns.emplace_back("file");
  for (std::size_t i = 0; i < checkpoint.layout().size(); ++i) {
    result.rows.push_back(tensor_row(checkpoint.layout()[i]));
    result.rows.back().push_back(checkpoint.file_name(checkpoint.location(i).file));
  }
  return result;
}

Result<Inspection> inspect_frame(std::span<const std::byte> bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const FrameInfo frame, read_frame_header(bytes));
  return Inspection{"frame",
                    {{"run", to_hex(frame.context.id.run)},
                     {"version", std::to_string(frame.context.id.version)},
                     {"base_version", std::to_string(frame.context.base_version)},
                     {"weight_layout", to_hex(frame.context.layout)},
                     {"encoding", std::string(info(frame.context.encoding).name)},
                     {"dtype", std::string(info(frame.dtype).name)},
                     {"rank", std::to_string(frame.context.rank)},
                     {"index", std::to_string(frame.context.index)},
                     {"blocks", std::to_string(frame.entries)},
                     {"bytes", std::to_string(frame.frame_bytes)}}};
}

Result<Inspection> inspect_journal(std::span<const std::byte> bytes, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Journal journal, Journal::parse(bytes, path));
  return Inspection{"journal",
                    {{"from_version", std::to_string(journal.before().version)},
                     {"to_version", std::to_string(journal.after().version)},
                     {"frames", std::to_string(journal.frames().size())},
                     {"bytes", std::to_string(bytes.size())}}};
}

// `bytes` are those of the file; if `compressed` is not 0, they are the decoded form of that many
// bytes in the file.
Result<Inspection> inspect_safetensors(std::span<const std::byte> bytes, const std::string& path,
                                       std::uint64_t compressed = 0) {
  DRIFTLESS_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                             parse_safetensors_header(bytes, bytes.size(), path));
  const bool flush = header.metadata.contains("encoding") && header.metadata.contains("params");
  Inspection result{flush ? "flush" : "safetensors",
                    {{"tensors", std::to_string(header.tensors.size())},
                     {"bytes", std::to_string(compressed == 0 ? bytes.size() : compressed)}}};
  if (compressed != 0) result.facts.emplace_back("decoded_bytes", std::to_string(bytes.size()));
  for (const auto& [key, value] : header.metadata) {
    result.facts.emplace_back(concat("metadata ", key), value);
  }
  result.columns = tensor_columns();
  for (const SafetensorsEntry& entry : header.tensors) {
    result.rows.push_back(tensor_row(entry.spec));
  }
  return result;
}

Inspection inspect_run(const RunInfo& run) {
  Inspection result{"run",
                    {{"run", to_hex(run.run)},
                     {"ranks", std::to_string(run.ranks)},
                     {"base_digest", to_hex(run.base_digest)},
                     {"weight_layout", to_hex(run.layout.signature())},
                     {"tensors", std::to_string(run.layout.size())},
                     {"bytes", std::to_string(run.layout.total_bytes())}}};
  if (!run.quantize_rule.empty()) result.facts.emplace_back("quantize_rule", run.quantize_rule);
  result.columns = tensor_columns();
  const bool digests = !run.tensor_digests.empty();
  if (digests) result.columns.emplace_back("digest");
  for (std::size_t i = 0; i < run.layout.size(); ++i) {
    result.rows.push_back(tensor_row(run.layout[i]));
    if (digests) result.rows.back().push_back(to_hex(run.tensor_digests[i]));
  }
  return result;
}

Result<Inspection> inspect_file(FileSystem& fs, const std::string& path) {
  constexpr std::uint64_t kMaxInflatedBytes = std::uint64_t{1} << 30;
  DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile file, fs.map(path));
  const std::span<const std::byte> bytes = file.bytes();
  if (begins_with(bytes, "DRIFTLSF")) return inspect_frame(bytes);
  if (begins_with(bytes, "DRIFTLSJ")) return inspect_journal(bytes, path);
  if (begins_with(bytes, "{")) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, read_text(fs, path, kMaxManifestBytes));
    if (const Result<RunInfo> run = parse_run_info(text, path); run.ok()) return inspect_run(*run);
    DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest, parse_manifest(text, path));
    return inspect_manifest("manifest", manifest);
  }
  if (!is_zstd_frame(bytes)) return inspect_safetensors(bytes, path);
  const Result<std::vector<std::byte>> inflated = zstd_decompress(bytes, kMaxInflatedBytes);
  if (!inflated.ok()) return inflated.status().with_context(path);
  return inspect_safetensors(*inflated, path, bytes.size());
}

}  // namespace

Result<Inspection> inspect_path(FileSystem& fs, const std::string& path) {
  DRIFTLESS_RETURN_IF_ERROR(fs.info(path).status());
  if (!fs.info(join_path(path, ".")).ok()) return inspect_file(fs, path);  // not a directory
  if (last_component(path).starts_with("weight_v")) return inspect_version(fs, path);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> versions, list_versions(fs, path));
  if (!versions.empty()) return inspect_versions(fs, path, versions);
  return inspect_checkpoint(fs, path);
}

}  // namespace driftless
