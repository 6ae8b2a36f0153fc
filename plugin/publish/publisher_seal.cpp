// SPDX-License-Identifier: Apache-2.0
// What makes a publication whole: parts of all ranks, the index where the layout has one, the
// manifest; and anchors, which are publications of the snapshot.
#include <algorithm>

#include "core/stopwatch.h"
#include "plugin/publish/publisher_rank.h"

namespace driftless {
namespace {

DirectoryLayout layout_of(DirectoryLayout layout, bool full) {
  return full && layout == DirectoryLayout::kFlush ? DirectoryLayout::kHfDelta : layout;
}

}  // namespace

Result<std::unique_ptr<RankPayload>> PublisherRank::make_payload(const PayloadContext& made) const {
  if (options_.device != nullptr) return options_.device->make_payload(made);
  return make_rank_payload(made);
}

PayloadContext PublisherRank::context(const PublicationId& id, std::uint64_t base_version,
                                      bool full) {
  PayloadContext made;
  made.layout = &layout_;
  made.snapshot = &snapshot_;
  made.undo = &undo_;
  made.live = live_ ? &*live_ : nullptr;
  made.buffers = &*buffers_;
  made.road = &road_;
  made.frame.id = {id_.run, id.version};
  made.frame.base_version = base_version;
  made.frame.layout = layout_.signature();
  made.frame.encoding = full ? Encoding::kFull : encoding_;
  made.frame.rank = group_.rank();
  made.plain = plain_;
  made.directory_layout = options_.layout;
  made.checksum = options_.checksum;
  made.buffer_bytes = options_.buffer_bytes;
  made.position_limit = options_.position_limit;
  made.ranks = group_.size() + (mirrored_ ? 1 : 0);  // that write: the mirror is one more
  made.threads = threads_;
  made.background = options_.background;
  return made;
}

bool PublisherRank::has_index(bool full) const {
  return layout_of(options_.layout, full) == DirectoryLayout::kHfDelta;
}

Status PublisherRank::add_index(const PublicationId& id, std::uint64_t base_version, bool full,
                                std::vector<RankMessage>& ranks, const Deadline& deadline,
                                std::vector<std::string>& notes) {
  HfDeltaIndex index;
  index.ours = true;
  index.version = id.version;
  index.base_version = base_version;
  if (!full) index.encoding = encoding_;
  index.checksum = options_.checksum;
  for (const RankMessage& rank : ranks) {
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
  if (full) DRIFTLESS_RETURN_IF_ERROR(add_assets(notes));
  DRIFTLESS_ASSIGN_OR_RETURN(ranks.front().parts, flush(deadline));
  return {};
}

// A reader of others makes its directory what a whole version is, so that holds all of a
// checkpoint. What road.assets_dir asks for must be there; of the sources' files what can be read.
Status PublisherRank::add_assets(std::vector<std::string>& notes) {
  const bool asked = !options_.assets_dir.empty();
  std::vector<std::string> directories{options_.assets_dir};
  if (!asked) directories = {base_companions_, companions_};
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
    DRIFTLESS_RETURN_IF_ERROR(put_part(road_, name, file.bytes()));
  }
  return {};
}

Result<std::vector<PartReceipt>> PublisherRank::flush(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PartReceipt> parts, road_.flush(deadline));
  if (options_.before_visible) {
    DRIFTLESS_RETURN_IF_ERROR(
        options_.before_visible(road_.pending_directory()).with_context("before_visible"));
  }
  return parts;
}

TensorDigests PublisherRank::digests_after(const PayloadFindings& findings, bool full) const {
  TensorDigests after;
  after.reserve(findings.digests.size());
  for (const auto& [tensor, digest] : findings.digests) {
    after.push_back({tensor, full ? digest : tensor_digests_[tensor] + digest});
  }
  return after;
}

// Every tensor that a rank changed: its owners tell what their blocks add to its digest.
Status PublisherRank::list_tensors(const std::vector<RankMessage>& ranks,
                                   Manifest& manifest) const {
  const bool full = manifest.encoding == Encoding::kFull;
  // The metadata of the shards has the checksums of a delta.
  const bool checksums = full || manifest.directory_layout != DirectoryLayout::kHfDelta;
  std::vector<std::size_t> told(layout_.size());  // owners that spoke
  std::vector<bool> changed(layout_.size());
  std::vector<Digest> sums(layout_.size());
  std::map<std::uint32_t, std::string> checksum, whole;
  const auto hear_of = [&](const TensorDigest& each) -> Status {
    if (each.tensor >= told.size() || told[each.tensor] == owners_[each.tensor]) {
      return error(StatusCode::kInternal, "tensor number ", each.tensor, " of ", told.size(),
                   " is not known, or a publisher rank wrote it that does not own it");
    }
    ++told[each.tensor];
    sums[each.tensor] += each.digest;
    return {};
  };
  for (const RankMessage& rank : ranks) {
    for (const ManifestTensor& tensor : rank.findings.mirror_tensors) {
      const auto index = layout_.find(tensor.name);
      if (checksums && index) whole[*index] = tensor.checksum;
    }
    std::map<std::string_view, std::string_view> known;
    for (const ManifestTensor& tensor : rank.findings.tensors) {
      if (checksums) known[tensor.name] = tensor.checksum;
    }
    for (const TensorDigest& each : rank.tensor_digests) {
      DRIFTLESS_RETURN_IF_ERROR(hear_of(each));
      changed[each.tensor] = true;
      checksum[each.tensor] = known[layout_[each.tensor].name];
    }
    for (const TensorDigest& each : rank.unchanged) DRIFTLESS_RETURN_IF_ERROR(hear_of(each));
  }
  for (const auto& [tensor, text] : whole) checksum[tensor] = text;
  for (std::uint32_t tensor = 0; tensor < layout_.size(); ++tensor) {
    if (!changed[tensor]) continue;
    if (told[tensor] != owners_[tensor]) {
      return error(StatusCode::kInternal, "tensor '", layout_[tensor].name, "': ", told[tensor],
                   " of ", owners_[tensor], " publisher ranks told its digest");
    }
    manifest.tensors.push_back({layout_[tensor].name, checksum[tensor], sums[tensor]});
  }
  manifest.changed_tensors = manifest.tensors.size();
  if (full && manifest.tensors.size() != layout_.size()) {
    return error(StatusCode::kInternal, "a full version of ", manifest.tensors.size(), " of ",
                 layout_.size(), " tensors");
  }
  std::ranges::sort(manifest.tensors, {}, &ManifestTensor::name);
  return {};
}

Result<Manifest> PublisherRank::manifest_of(const PublicationId& id, std::uint64_t base_version,
                                            bool full,
                                            const std::vector<RankMessage>& ranks) const {
  Manifest manifest;
  manifest.id = {id_.run, id.version};
  manifest.base_version = base_version;
  manifest.directory_layout = layout_of(options_.layout, full);
  manifest.encoding = full ? Encoding::kFull : encoding_;
  manifest.checksum = options_.checksum;
  manifest.layout = layout_.signature();
  manifest.base_digest = digest_;
  manifest.total_units = layout_.total_units();
  manifest.full_bytes = layout_.total_bytes();
  manifest.ranks = group_.size();
  for (const RankMessage& rank : ranks) {
    manifest.digest += rank.digest;
    manifest.changed_units += rank.findings.changed_units;
    manifest.payload_bytes += rank.findings.delta_bytes;
    for (const PartReceipt& part : rank.parts) {
      ManifestFile& file = manifest.files.emplace_back(
          ManifestFile{part.name, part.size_bytes, part.hash, part.rank, part.locator});
      const auto table = rank.findings.tables.find(part.name);
      if (table != rank.findings.tables.end()) file.table = table->second;
    }
  }
  if (full) manifest.changed_units = manifest.total_units;
  DRIFTLESS_RETURN_IF_ERROR(list_tensors(ranks, manifest));
  std::ranges::sort(manifest.files, {}, &ManifestFile::name);
  manifest.created = utc_now();
  return manifest;
}

Status PublisherRank::seal_publication(const PublicationId& id, std::uint64_t base_version,
                                       bool full, std::vector<RankMessage>& ranks,
                                       const Deadline& deadline, LeaderMessage& outcome,
                                       bool& doubt) {
  if (has_index(full)) {
    DRIFTLESS_RETURN_IF_ERROR(add_index(id, base_version, full, ranks, deadline, outcome.notes));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest, manifest_of(id, base_version, full, ranks));
  if (id.kind == PublicationKind::kAnchor && manifest.digest != digest_) {
    return error(StatusCode::kMismatch, live_ ? "the weights have" : "the snapshot has", " digest ",
                 to_hex(manifest.digest), ", expected ", to_hex(digest_),
                 live_ ? ": they have moved on since that version, and there is no snapshot of it; "
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

// flush() may be a meeting of all ranks: one that failed tells the others by abort().
void PublisherRank::flush_parts(RankMessage& mine, bool full, const Deadline& deadline) {
  if (!mine.status.ok()) {
    const Status dropped = road_.abort();
    return;
  }
  if (has_index(full) && group_.leads()) return;  // add_index() flushes
  Stopwatch watch;
  Result<std::vector<PartReceipt>> parts = flush(deadline);
  flush_ms_ = watch.lap_ms();
  mine.status = parts.status();
  if (parts.ok()) {
    mine.parts = std::move(*parts);
  } else {
    const Status dropped = road_.abort();
  }
}

RankMessage PublisherRank::write_payload(const PayloadContext& made, const Deadline& deadline,
                                         const std::function<Status(const AddBatch&)>& fill) {
  RankMessage mine;
  std::vector<std::vector<std::byte>> frames;  // of blocks, for the mirror
  Result<std::unique_ptr<RankPayload>> payload = make_payload(made);
  Result<std::unique_ptr<RankPayload>> blocks = std::unique_ptr<RankPayload>();
  if (mirrored_) blocks = make_payload(block_context(made, frames));
  const auto add = [&](std::span<const PairedTensor> batch) -> Status {
    if (!mirrored_) return (*payload)->add(batch);
    std::vector<PairedTensor> whole, cut;
    for (const PairedTensor& each : batch) {
      (in_blocks_[snapshot_.owned(each.number).tensor()] ? cut : whole).push_back(each);
    }
    DRIFTLESS_RETURN_IF_ERROR((*payload)->add(whole));
    return (*blocks)->add(cut);
  };
  mine.status = payload.ok() ? blocks.status() : payload.status();
  if (mine.status.ok()) mine.status = fill(add);
  if (mine.status.ok()) mine.status = (*payload)->finish();
  // After a failure a thread of the payload may still be writing parts and findings: it ends before
  // the road drops the parts, and nobody reads what it found.
  if (mine.status.ok()) mine.findings = (*payload)->findings();
  if (payload.ok() && !mine.status.ok()) payload->reset();
  if (mirrored_) mirror_blocks(made, blocks.ok() ? blocks->get() : nullptr, frames, deadline, mine);
  const bool full = made.frame.encoding == Encoding::kFull;
  mine.tensor_digests = digests_after(mine.findings, full);
  for (const std::uint32_t tensor : owned_tensors()) {
    if (owners_[tensor] == 1 || mine.findings.digests.contains(tensor)) continue;
    mine.unchanged.push_back({tensor, tensor_digests_[tensor]});
  }
  if (!full) mine.digest = part_digest_;
  for (const auto& [tensor, digest] : mine.findings.digests) mine.digest += digest;
  if (live_ && mine.status.ok() && !mine.findings.dense) mine.status = prove_read(mine, full);
  flush_parts(mine, full, deadline);
  return mine;
}

RankMessage PublisherRank::write_anchor(const PublicationId& id, const Deadline& deadline) {
  return write_payload(context(id, id.version, true), deadline,
                       [&](const AddBatch& add) { return add(offer_snapshot(false)); });
}

std::vector<PairedTensor> PublisherRank::offer_snapshot(bool blocks_alone) const {
  std::vector<PairedTensor> batch;
  for (std::uint32_t i = 0; i < snapshot_.owned().size(); ++i) {
    if (blocks_alone && !in_blocks_[snapshot_.owned(i).tensor()]) continue;
    batch.push_back({i, snapshot_.data(i), snapshot_.memory_kind()});
  }
  return batch;
}

Status PublisherRank::add_anchor(std::vector<std::string>& notes) {
  const Deadline deadline = Deadline::after(options_.deadline);
  const PublicationId id{id_.version, PublicationKind::kAnchor};
  DRIFTLESS_RETURN_IF_ERROR(begin_together(id, deadline));
  const RankMessage mine = write_anchor(id, deadline);
  Result<std::vector<RankMessage>> ranks = collect(mine, deadline);
  LeaderMessage outcome;
  outcome.status = ranks.status();
  if (ranks.ok() && group_.leads()) {
    bool doubt = false;
    outcome.status = seal_publication(id, id.version, true, *ranks, deadline, outcome, doubt);
  }
  const Result<LeaderMessage> told = tell(outcome, deadline);
  if (!told.ok()) {
    const Status dropped = road_.abort();
    needs_full_ = needs_full_ || (live_ && mirrored_);  // the mirror has what the weights were now
    return told.status().with_context(concat("the ", to_string(id), " was not published"));
  }
  notes.insert(notes.end(), told->notes.begin(), told->notes.end());
  newest_anchor_ = id.version;
  chain_bytes_ = 0;
  anchor_requested_ = false;
  return {};
}

Status PublisherRank::publish_anchor() {
  const Deadline deadline = Deadline::after(options_.deadline);
  group_.next_epoch();
  if (live_) live_->end_behind();
  LeaderMessage message;
  if (group_.leads()) {
    message.status =
        fenced_.ok() ? note_fence(road_.begin({id_.version, PublicationKind::kAnchor}, deadline))
                     : fenced_;
  }
  DRIFTLESS_RETURN_IF_ERROR(tell(message, deadline).status());
  std::vector<std::string> notes;
  return add_anchor(notes);
}

}  // namespace driftless
