// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

bool is_full(const FetchedVersion& version) { return version.manifest.encoding == Encoding::kFull; }

// Whether the weights belong to another run than the version.
bool of_other_run(const TargetState& state, const FetchedVersion& version) {
  return !state.id.run.is_zero() && state.id.run != version.manifest.id.run;
}

Status check_identity(const TargetState& state, const WeightLayout& layout,
                      const FetchedVersion& version, const Hash128& admitted) {
  const Manifest& manifest = version.manifest;
  const bool taken_over = is_full(version) && manifest.id.run == admitted;
  if (of_other_run(state, version) && !taken_over) {
    return error(StatusCode::kWrongRun, version.source, ": belongs to run ",
                 to_hex(manifest.id.run), ", but the weights are version ", state.id.version,
                 " of run ", to_hex(state.id.run), "; start from that run's base");
  }
  if (manifest.layout != layout.signature()) {
    return error(StatusCode::kWrongLayout, version.source, ": made for weight layout ",
                 to_hex(manifest.layout), ", but the weights have ", to_hex(layout.signature()),
                 "; use the checkpoint that this run started from");
  }
  return {};
}

Status check_first(const TargetState& state, const FetchedVersion& version) {
  const Manifest& manifest = version.manifest;
  if (is_full(version)) {
    const bool newer = manifest.id.version > state.id.version;
    if (!state.valid || newer || of_other_run(state, version)) return {};
    return error(StatusCode::kWrongBase, version.source, ": the weights are at version ",
                 state.id.version, " already");
  }
  if (!state.valid) {
    return error(StatusCode::kWrongBase, version.source,
                 ": is a delta, but the weights hold no version; send a full version");
  }
  if (manifest.base_version != state.id.version) {
    return error(StatusCode::kWrongBase, version.source, ": builds on version ",
                 manifest.base_version, ", but the weights are at version ", state.id.version,
                 "; supply the versions between, or a full one");
  }
  const std::optional<Digest> held = state.partial ? state.version_digest : state.digest;
  if (held && manifest.base_digest != *held) {
    return error(StatusCode::kWrongBase, version.source, ": builds on digest ",
                 to_hex(manifest.base_digest), ", but the weights have ", to_hex(*held),
                 ": they are not version ", manifest.base_version, " of run ",
                 to_hex(manifest.id.run), "; send a full version");
  }
  return {};
}

// The index of `hf_delta` must agree with the manifest, whose values are used.
Status read_index(const MappedFile& part, VersionDirectory& version) {
  const std::string what = join_path(version.path, kIndexName);
  const std::string_view text(reinterpret_cast<const char*>(part.bytes().data()),
                              part.bytes().size());
  DRIFTLESS_ASSIGN_OR_RETURN(HfDeltaIndex index, parse_index(text, version.version, what));
  const bool full = version.full();
  if (index.encoding.value_or(Encoding::kFull) != version.encoding ||
      (!full &&
       (index.checksum != version.checksum || index.base_version != version.base_version))) {
    return error(StatusCode::kCorrupt, version.path,
                 ": the index and the manifest contradict each other");
  }
  version.weight_map = std::move(index.weight_map);
  return {};
}

Result<VersionSource> open_one(FileSystem& spool_fs, FetchedVersion fetched,
                               const WeightLayout& layout, const std::string& spool_directory,
                               unsigned threads, const HeadReader& head) {
  VersionDirectory version;
  version.path = fetched.source;
  version.version = fetched.manifest.id.version;
  version.base_version = fetched.manifest.base_version;
  version.directory_layout = fetched.manifest.directory_layout;
  version.encoding = fetched.manifest.encoding;
  version.checksum = fetched.manifest.checksum;
  if (fetched.parts.size() != fetched.manifest.files.size()) {
    return error(StatusCode::kIncomplete, fetched.source, ": ", fetched.parts.size(), " of ",
                 fetched.manifest.files.size(), " parts were fetched");
  }
  const bool indexed = version.directory_layout == DirectoryLayout::kHfDelta;
  bool index_seen = false;
  std::vector<MappedFile> payload;
  std::vector<std::shared_ptr<Frame>> frames;
  fetched.frames.resize(fetched.parts.size());
  for (std::size_t i = 0; i < fetched.parts.size(); ++i) {
    const std::string& name = fetched.manifest.files[i].name;
    if (indexed && name == kIndexName) {
      DRIFTLESS_RETURN_IF_ERROR(read_index(fetched.parts[i], version));
      index_seen = true;
      continue;
    }
    if (indexed && !name.ends_with(".safetensors")) continue;  // a checkpoint's other files
    version.payload_files.push_back(name);
    payload.push_back(std::move(fetched.parts[i]));
    frames.push_back(std::move(fetched.frames[i]));
  }
  if (indexed && !index_seen) {
    return error(StatusCode::kCorrupt, fetched.source, ": ", kIndexName,
                 " is not among the parts that the manifest names");
  }
  version.manifest = std::move(fetched.manifest);
  return VersionSource::open(spool_fs, std::move(version), std::move(payload), std::move(frames),
                             layout, spool_directory, threads, head, fetched.memory.get());
}

}  // namespace

std::set<std::uint32_t> changed_tensors(std::span<const VersionSource> versions) {
  std::set<std::uint32_t> tensors;
  for (const VersionSource& version : versions) {
    for (const TensorChange& change : version.changes()) tensors.insert(change.tensor);
  }
  return tensors;
}

Status check_chain(const TargetState& state, const WeightLayout& layout,
                   std::span<const FetchedVersion> chain, const Hash128& admitted) {
  if (chain.empty()) return error(StatusCode::kInvalidArgument, "a chain without versions");
  DRIFTLESS_RETURN_IF_ERROR(check_identity(state, layout, chain.front(), admitted));
  DRIFTLESS_RETURN_IF_ERROR(check_first(state, chain.front()));
  for (std::size_t i = 1; i < chain.size(); ++i) {
    const FetchedVersion& version = chain[i];
    const Manifest& before = chain[i - 1].manifest;
    DRIFTLESS_RETURN_IF_ERROR(check_identity(state, layout, version, admitted));
    if (version.manifest.id.run != before.id.run) {
      return error(StatusCode::kWrongRun, version.source, ": belongs to run ",
                   to_hex(version.manifest.id.run), ", ", chain[i - 1].source, " to run ",
                   to_hex(before.id.run));
    }
    if (is_full(version) || is_full(chain[i - 1])) {
      return error(StatusCode::kInvalidArgument, version.source,
                   ": a full version is applied alone, not in a chain");
    }
    if (version.manifest.base_version != before.id.version ||
        version.manifest.base_digest != before.digest) {
      return error(StatusCode::kWrongBase, version.source, ": builds on version ",
                   version.manifest.base_version, " with digest ",
                   to_hex(version.manifest.base_digest), ", which is not ", chain[i - 1].source,
                   " with digest ", to_hex(before.digest), "; supply the versions between");
    }
  }
  return {};
}

Result<std::vector<VersionSource>> open_chain(FileSystem& spool_fs,
                                              std::vector<FetchedVersion> chain,
                                              const WeightLayout& layout,
                                              const std::string& spool_directory, unsigned threads,
                                              const HeadReader& head) {
  std::vector<VersionSource> sources;
  sources.reserve(chain.size());
  for (FetchedVersion& version : chain) {
    DRIFTLESS_ASSIGN_OR_RETURN(VersionSource source, open_one(spool_fs, std::move(version), layout,
                                                              spool_directory, threads, head));
    sources.push_back(std::move(source));
  }
  return sources;
}

Status check_left_alone(std::span<const LeftTensor> left, const RunInfo& run) {
  for (const LeftTensor& each : left) {
    const auto at = std::ranges::lower_bound(
        run.unpublished, each.name, {},
        [](const UnpublishedTensor& known) -> std::string_view { return known.spec.name; });
    if (at == run.unpublished.end() || at->spec.name != each.name) continue;
    if (!each.digest || *each.digest == at->digest) continue;
    return error(StatusCode::kWrongBase, "tensor '", each.name, "', which run ", to_hex(run.run),
                 " does not publish, has digest ", to_hex(*each.digest),
                 " here, and the run's base has ", to_hex(at->digest),
                 ": use the checkpoint that this run started from");
  }
  return {};
}

}  // namespace driftless
