// SPDX-License-Identifier: Apache-2.0
// Completes a publication: the parts of all ranks, the index if the layout has one, and the
// manifest.
#include <algorithm>

#include "core/stopwatch.h"
#include "plugin/publish/publisher_leader.h"

namespace driftless {
namespace {

// Other software reads the directory of a full version as a checkpoint, so the directory needs
// every file of one. The files of road.assets_dir are required; files of the sources' directories
// are added if they can be read.
Status add_assets(SendRoad& road, const PublisherOptions& options,
                  const std::array<std::string, 2>& companions, std::vector<std::string>& notes) {
  const bool asked = !options.assets_dir.empty();
  std::vector<std::string> directories{options.assets_dir};
  if (!asked) directories = {companions.begin(), companions.end()};
  Companions all;
  for (const std::string& directory : directories) {
    if (directory.empty()) continue;
    Result<Companions> found = open_companions(posix_file_system(), directory);
    if (!found.ok()) {
      all.left_out.emplace_back(found.status().message());
      continue;
    }
    for (auto& [name, file] : found->files) all.files[name] = std::move(file);
    all.left_out.insert(all.left_out.end(), found->left_out.begin(), found->left_out.end());
  }
  if (asked && !all.left_out.empty()) {
    return error(StatusCode::kInvalidArgument, "road.assets_dir: ", all.left_out.front());
  }
  for (const std::string& text : all.left_out) {
    notes.push_back(concat("not carried by this whole version: ", text));
  }
  for (const auto& [name, file] : all.files) {
    DRIFTLESS_RETURN_IF_ERROR(put_part(road, name, file.bytes()));
  }
  return {};
}

// Lists every tensor that a rank changed; its owners report what their blocks add to its digest.
Status list_tensors(const RunState& run, const std::vector<PayloadMessage>& ranks,
                    Manifest& manifest) {
  const bool full = manifest.encoding == Encoding::kFull;
  // A delta has its checksums in the metadata of the shards.
  const bool checksums = full || !publication_format(manifest.directory_layout).delta_shards;
  std::vector<std::size_t> reports(run.layout.size());  // owners that reported
  std::vector<bool> changed(run.layout.size());
  std::vector<Digest> sums(run.layout.size());
  std::map<std::uint32_t, std::string> checksum, whole;
  const auto add_digest = [&](const TensorDigest& each) -> Status {
    if (each.tensor >= reports.size() || reports[each.tensor] == run.owners[each.tensor]) {
      return error(StatusCode::kInternal, "tensor number ", each.tensor, " of ", reports.size(),
                   " is unknown, or was written by a publisher rank that does not own it");
    }
    ++reports[each.tensor];
    sums[each.tensor] += each.digest;
    return {};
  };
  for (const PayloadMessage& rank : ranks) {
    for (const ManifestTensor& tensor : rank.findings.mirror_tensors) {
      const auto index = run.layout.find(tensor.name);
      if (checksums && index) whole[*index] = tensor.checksum;
    }
    std::map<std::string_view, std::string_view> known;
    for (const ManifestTensor& tensor : rank.findings.tensors) {
      if (checksums) known[tensor.name] = tensor.checksum;
    }
    for (const TensorDigest& each : rank.tensor_digests) {
      DRIFTLESS_RETURN_IF_ERROR(add_digest(each));
      changed[each.tensor] = true;
      checksum[each.tensor] = known[run.layout[each.tensor].name];
    }
    for (const TensorDigest& each : rank.unchanged) DRIFTLESS_RETURN_IF_ERROR(add_digest(each));
  }
  for (const auto& [tensor, text] : whole) checksum[tensor] = text;
  for (std::uint32_t tensor = 0; tensor < run.layout.size(); ++tensor) {
    if (!changed[tensor]) continue;
    if (reports[tensor] != run.owners[tensor]) {
      return error(StatusCode::kInternal, "tensor '", run.layout[tensor].name,
                   "': ", reports[tensor], " of ", run.owners[tensor],
                   " publisher ranks reported its digest");
    }
    manifest.tensors.push_back({run.layout[tensor].name, checksum[tensor], sums[tensor]});
  }
  manifest.changed_tensors = manifest.tensors.size();
  if (full && manifest.tensors.size() != run.layout.size()) {
    return error(StatusCode::kInternal, "a full version of ", manifest.tensors.size(), " of ",
                 run.layout.size(), " tensors");
  }
  std::ranges::sort(manifest.tensors, {}, &ManifestTensor::name);
  return {};
}

}  // namespace

Result<std::vector<PartReceipt>> flush_road(SendRoad& road, const PublisherOptions& options,
                                            const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PartReceipt> parts, road.flush(deadline));
  if (options.before_visible) {
    DRIFTLESS_RETURN_IF_ERROR(
        options.before_visible(road.pending_directory()).with_context("before_visible"));
  }
  return parts;
}

Status PublisherLeader::add_index(const Publication& made, std::vector<PayloadMessage>& ranks,
                                  const Deadline& deadline, std::vector<std::string>& notes) {
  HfDeltaIndex index;
  index.ours = true;
  index.version = made.id.version;
  index.base_version = made.base_version;
  if (!made.full) index.encoding = run_.shape.encoding;
  index.checksum = options_.checksum;
  for (const PayloadMessage& rank : ranks) {
    for (const ManifestTensor& tensor : rank.findings.tensors) {
      index.weight_map[tensor.name] = rank.findings.shard;
    }
    for (const ManifestTensor& tensor : rank.findings.mirror_tensors) {
      index.weight_map[tensor.name] = rank.findings.mirror_shard;
    }
  }
  const std::string text = index_to_json(index);
  DRIFTLESS_RETURN_IF_ERROR(
      put_part(road_, std::string(kIndexName), std::as_bytes(std::span(text.data(), text.size()))));
  if (made.full) DRIFTLESS_RETURN_IF_ERROR(add_assets(road_, options_, run_.companions, notes));
  DRIFTLESS_ASSIGN_OR_RETURN(ranks.front().parts, flush_road(road_, options_, deadline));
  return {};
}

Result<Manifest> PublisherLeader::manifest_of(const Publication& made,
                                              const std::vector<PayloadMessage>& ranks) const {
  Manifest manifest;
  manifest.id = {run_.id.run, made.id.version};
  manifest.base_version = made.base_version;
  manifest.directory_layout = format_.layout_of(made.full);
  manifest.encoding = made.full ? Encoding::kFull : run_.shape.encoding;
  manifest.checksum = options_.checksum;
  manifest.layout = run_.layout.signature();
  manifest.base_digest = run_.digest;
  manifest.total_units = run_.layout.total_units();
  manifest.full_bytes = run_.layout.total_bytes();
  manifest.ranks = ranks_;
  manifest.quantize_rule = options_.quantize_rule;
  for (const PayloadMessage& rank : ranks) {
    manifest.digest += rank.digest;
    manifest.changed_units += rank.findings.changed_units;
    for (const PartReceipt& part : rank.parts) {
      ManifestFile& file = manifest.files.emplace_back(
          ManifestFile{part.name, part.size_bytes, part.hash, part.rank, part.locator});
      const auto table = rank.findings.tables.find(part.name);
      if (table != rank.findings.tables.end()) file.table = table->second;
    }
  }
  if (made.full) manifest.changed_units = manifest.total_units;
  DRIFTLESS_RETURN_IF_ERROR(list_tensors(run_, ranks, manifest));
  std::ranges::sort(manifest.files, {}, &ManifestFile::name);
  manifest.payload_bytes = payload_of(manifest);
  manifest.created = utc_now();
  return manifest;
}

Status PublisherLeader::seal(const Publication& made, std::vector<PayloadMessage>& ranks,
                             const Deadline& deadline, OutcomeMessage& outcome, bool& doubt) {
  const PublicationId& id = made.id;
  if (format_.sharded(made.full)) {
    DRIFTLESS_RETURN_IF_ERROR(add_index(made, ranks, deadline, outcome.notes));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest, manifest_of(made, ranks));
  if (id.kind == PublicationKind::kAnchor && manifest.digest != run_.digest) {
    const bool live = !options_.keep_snapshot;
    return error(StatusCode::kMismatch, live ? "the weights have" : "the snapshot has", " digest ",
                 to_hex(manifest.digest), ", expected ", to_hex(run_.digest),
                 live ? ": they have changed since that version, and there is no snapshot of it; "
                        "request an anchor of the next version"
                      : ": memory was damaged; restart the trainer");
  }
  outcome.digest = manifest.digest;
  outcome.changed_units = manifest.changed_units;
  outcome.delta_bytes = manifest.payload_bytes;
  for (const ManifestFile& file : manifest.files) outcome.wire_bytes += file.size_bytes;
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("sealing ", to_string(id))));
  const std::string text = manifest_to_json(manifest);
  sealing_ = xxh3_128(text);
  Status sealed = note_fence(road_.seal(text, deadline));
  if (sealed.ok() || !fenced_.ok()) return sealed;
  const Result<bool> visible =
      published(id, sealing_, Deadline::after(std::chrono::milliseconds(1'000)));
  if (!fenced_.ok()) return fenced_;
  doubt = !visible.ok();
  if (doubt || !*visible) return sealed;
  outcome.notes.push_back(concat(to_string(id), " is published, but: ", sealed.message()));
  return {};
}

}  // namespace driftless
