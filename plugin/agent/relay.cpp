// SPDX-License-Identifier: Apache-2.0
#include "plugin/agent/relay.h"

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "formats/records.h"
#include "plugin/agent/plain_parts.h"
#include "plugin/receive/block_fetcher.h"
#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

// Failures that make a publication useless if they persist.
bool is_damage(StatusCode code) {
  return code == StatusCode::kIncomplete || code == StatusCode::kCorrupt ||
         code == StatusCode::kNotFound;
}

Status check_layout(const Manifest& manifest, const WeightLayout& layout) {
  if (manifest.layout != layout.signature()) {
    return error(StatusCode::kWrongLayout, "made for weight layout ", to_hex(manifest.layout),
                 ", but the run has ", to_hex(layout.signature()));
  }
  const Status sizes = check_sizes(manifest, layout, "its parts");
  return sizes.ok() ? Status() : Status(StatusCode::kCorrupt, std::string(sizes.message()));
}

ReceiverOptions fetching(const RelayOptions& options) {
  ReceiverOptions relay_options;
  relay_options.fetch_deadline = options.fetch_deadline;
  relay_options.report_deadline = options.report_deadline;
  return relay_options;
}

}  // namespace

Relay::Relay(const RelayOptions& options, ReceiveRoad& up, SendRoad& down, const RunInfo& run)
    : options_(options),
      up_(&up),
      down_(&down),
      fetcher_(up, run.run, fetching(options)),
      layout_(run.layout),
      fetched_budget_(options.read_bytes / 2),
      inflated_budget_(options.read_bytes / 2) {
  holds_.id.run = run.run;
  holds_.valid = true;
  needs_.set_run(run.run);
  digests_->note(0, run.base_digest);
}

Result<std::unique_ptr<Relay>> Relay::open(const RelayOptions& options, ReceiveRoad& up,
                                           SendRoad& down, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Announcement announcement,
                             read_announcement(up, options.fetch_deadline, deadline));
  DRIFTLESS_RETURN_IF_ERROR(down.announce(announcement.text, deadline));
  return std::unique_ptr<Relay>(new Relay(options, up, down, announcement.run));
}

Result<std::optional<PublicationId>> Relay::next_version() {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PublicationId> ids,
                             up_->list(Deadline::after(options_.report_deadline)));
  std::erase_if(
      ids, [this](const PublicationId& id) { return !is_version(id) || id.version <= version(); });
  if (ids.empty()) return std::optional<PublicationId>();
  // Skip versions that `down` would drop at once.
  const bool first = !started_ && ids.size() > options_.versions;
  return std::optional<PublicationId>(first ? ids[ids.size() - options_.versions] : ids.front());
}

Result<bool> Relay::has_newer() {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<PublicationId> next, next_version());
  return next.has_value();
}

Result<std::optional<DeliveryReport>> Relay::follow(const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const bool news, fetcher_.wait(holds_, deadline));
  if (!news) return std::optional<DeliveryReport>();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<PublicationId> next, next_version());
  if (!next) return std::optional<DeliveryReport>();
  Result<std::optional<DeliveryReport>> report = relay(*next, *next);
  if (is_damage(report.status().code())) damaged_ = next->version;
  if (!report.ok() || !*report) return report;
  damaged_.reset();
  holds_.id.version = next->version;
  started_ = true;
  ++unchanged_;
  return report;
}

// Retries until it succeeds, the publication is gone, or the deadline passes.
Result<std::optional<DeliveryReport>> Relay::relay(const PublicationId& id,
                                                   const PublicationId& as) {
  FetchTries tries(options_.fetch_deadline);
  const bool again = is_version(id) && damaged_ == id.version;  // then one try is enough
  for (;;) {
    Result<DeliveryReport> report = attempt(id, as, tries.deadline());
    if (report.ok()) {
      digests_->note(id.version, report->update.digest);
      return std::optional<DeliveryReport>(std::move(*report));
    }
    const Status ignored = down_->abort();
    if (!tries.note(report.status())) return report.status();
    if (report.status().code() == StatusCode::kNotFound) {
      const auto listed = up_->list(tries.deadline());
      if (listed.ok() && std::ranges::find(*listed, id) == listed->end()) {
        return std::optional<DeliveryReport>();
      }
    }
    if (again || !tries.wait()) return tries.given_up();
  }
}

Result<DeliveryReport> Relay::attempt(const PublicationId& id, const PublicationId& as,
                                      const Deadline& deadline) {
  Stopwatch watch;
  DRIFTLESS_ASSIGN_OR_RETURN(FoundManifest found, fetcher_.fetch_manifest(id, deadline));
  Manifest& manifest = found.manifest;
  DeliveryReport report;
  UpdateReport& update = report.update;
  update.version = id.version;
  update.from_version = manifest.base_version;
  update.versions = 1;
  update.anchor = !is_version(id);
  update.digest = manifest.digest;
  update.created = manifest.created;
  update.changed_units = manifest.changed_units;
  update.full_bytes = manifest.full_bytes;
  update.delta_bytes = manifest.payload_bytes;
  update.wire_bytes = found.size_bytes;
  DRIFTLESS_RETURN_IF_ERROR(carry(id, as, manifest, report, deadline).with_context(to_string(id)));
  report.process_ms = watch.lap_ms();
  report.update.carrier = up_->carrier();
  note_speed(report);
  return report;
}

Status Relay::carry(const PublicationId& id, const PublicationId& as, Manifest& manifest,
                    DeliveryReport& report, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_layout(manifest, layout_));
  DRIFTLESS_RETURN_IF_ERROR(down_->begin(as, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ReceiverReport> reports, down_->receivers());
  listen(reports);
  DRIFTLESS_RETURN_IF_ERROR(carry_blocks(id, manifest, report.update, deadline));
  const bool by_need =
      std::ranges::any_of(manifest.files, [](const ManifestFile& file) { return file.partial; });
  const Encoding plain = by_need ? manifest.encoding : plain_encoding(manifest);
  std::vector<Carried> carried(manifest.files.size());
  for (const ManifestFile& file : manifest.files) {
    if (file.partial) continue;
    report.update.needed_bytes += file.size_bytes;
    report.update.wire_bytes += file.size_bytes;
  }
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(
      manifest.files.size(), options_.read_workers, [&](std::size_t i, unsigned) -> Status {
        carried[i].table = manifest.files[i].table;
        if (manifest.files[i].partial) return {};
        DRIFTLESS_ASSIGN_OR_RETURN(carried[i],
                                   carry_part(id, manifest, plain, manifest.files[i], deadline));
        return {};
      }));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PartReceipt> receipts, down_->flush(deadline));
  for (const PartReceipt& receipt : receipts) {
    const auto file = std::ranges::find(manifest.files, receipt.name, &ManifestFile::name);
    file->size_bytes = receipt.size_bytes;
    file->hash = receipt.hash;
    file->locator = receipt.locator;
    report.plain_bytes += receipt.size_bytes;
  }
  std::uint64_t delta_bytes = 0;
  for (std::size_t i = 0; i < carried.size(); ++i) {
    delta_bytes += carried[i].delta_bytes;
    manifest.files[i].table = carried[i].table;
    report.update.fetch_ms += carried[i].fetch_ms;
  }
  if (plain != manifest.encoding) manifest.payload_bytes = delta_bytes;
  manifest.encoding = plain;
  return down_->seal(manifest_to_json(manifest), deadline);
}

// False for a worker that still follows an earlier run.
bool Relay::is_ours(const ReceiverReport& report) const {
  const std::string run = reported_run(report.proof, report.needs);
  return run.empty() || run == to_hex(holds_.id.run);
}

void Relay::listen(std::span<const ReceiverReport> receivers) {
  for (const ReceiverReport& receiver : receivers) {
    if (is_ours(receiver) && needs_.add(layout_, receiver)) unchanged_ = 0;
  }
}

bool Relay::knows_needs() const {
  if (options_.workers > 0) return needs_.workers() >= options_.workers;
  return needs_.workers() > 0 && unchanged_ >= options_.versions;
}

std::string Relay::needs() const { return knows_needs() ? needs_.text(layout_) : std::string(); }

// For a publisher that chooses its encoding by the speed.
void Relay::note_speed(const DeliveryReport& report) {
  constexpr std::uint64_t kLeastBytes = std::uint64_t{256} << 10;  // fewer show only the latency
  const UpdateReport& update = report.update;
  if (update.anchor || update.wire_bytes < kLeastBytes || update.fetch_ms <= 0) return;
  const auto per_s = [](std::uint64_t count, double ms) {
    return rounded_speed(static_cast<double>(count) / std::max(ms, 0.1) * 1e3);
  };
  needs_.note_speed(per_s(update.wire_bytes, update.fetch_ms),
                    per_s(layout_.total_units(), report.process_ms - update.fetch_ms));
}

// Blocks that no worker needs stay holes. The table with the hashes of all blocks is unchanged, and
// each worker fetches its own blocks by need.
Status Relay::carry_blocks(const PublicationId& id, Manifest& manifest, UpdateReport& update,
                           const Deadline& deadline) {
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) bytes += file.size_bytes;
  // The whole version is in memory at once.
  const bool fits = bytes <= options_.read_bytes;
  if (!knows_needs() || !fits || needs_.everything() || !may_fetch_blocks(manifest)) return {};
  RangeFetchOptions options;
  options.workers = std::max(1U, options_.read_workers);
  options.memory_bytes = options_.read_bytes;
  Stopwatch watch;
  const auto needed = [&](const BucketEntry& entry) {
    return needs_.has(entry.tensor, entry.block);
  };
  DRIFTLESS_ASSIGN_OR_RETURN(FetchedBlocks blocks, fetch_blocks(*up_, id, manifest, layout_, needed,
                                                                true, options, deadline));
  update.fetch_ms += watch.lap_ms();
  update.needed_bytes += blocks.needed_bytes;
  update.wire_bytes += blocks.fetched_bytes;
  for (FetchedFrame& frame : blocks.frames) {
    ManifestFile& file = manifest.files[frame.file];
    const Status proven = frame.collector.finish(layout_).status();
    if (!proven.ok()) return proven.with_context(concat("part ", file.name));
    DRIFTLESS_ASSIGN_OR_RETURN(const FrameInfo info, read_frame_header(frame.head));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> out, down_->create_part(file.name));
    const std::span<const std::byte> head(frame.head);
    DRIFTLESS_RETURN_IF_ERROR(out->pwrite(0, head.first(kFrameHeaderBytes)));
    for (std::size_t k = 0; k < frame.ranges.size(); ++k) {
      DRIFTLESS_RETURN_IF_ERROR(
          out->pwrite(frame.collector.ranges()[k].offset, frame.ranges[k].bytes()));
    }
    DRIFTLESS_RETURN_IF_ERROR(
        out->pwrite(frame_places(info).table, head.subspan(kFrameHeaderBytes)));
    DRIFTLESS_RETURN_IF_ERROR(out->sync());
    file.partial = true;
  }
  return {};
}

Result<Relay::Carried> Relay::carry_part(const PublicationId& id, const Manifest& manifest,
                                         Encoding plain_as, const ManifestFile& file,
                                         const Deadline& deadline) {
  const std::string what = concat("part ", file.name);
  const MemoryBudget::Hold held(fetched_budget_, file.size_bytes);
  Carried carried;
  Result<MappedFile> part = error(StatusCode::kInternal, what);
  std::unique_ptr<File> out;
  {
    const std::scoped_lock lock(roads_);
    Stopwatch watch;
    part = up_->fetch_part(id, receipt_of(file), deadline);
    if (!part.ok()) return part.status().with_context(what);
    carried.fetch_ms = watch.lap_ms();
    DRIFTLESS_ASSIGN_OR_RETURN(out, down_->create_part(file.name));
  }
  if (part->memory_kind() != MemoryKind::kHost) {
    return error(StatusCode::kUnsupported, what,
                 ": lies in device memory: set road.nccl.arrival: host for an agent");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_part(*part, file, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t inflated,
                             inflated_bytes(manifest, *part, layout_));
  const MemoryBudget::Hold also_held(inflated_budget_, inflated);
  if (plain_as == manifest.encoding && has_frames(manifest)) {  // unchanged
    DRIFTLESS_RETURN_IF_ERROR(out->pwrite(0, part->bytes()));
    DRIFTLESS_RETURN_IF_ERROR(out->sync());
    carried.table = file.table;
    return carried;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const PlainPart plain,
                             write_plain_part(manifest, *part, layout_, *out));
  carried.delta_bytes = plain.delta_bytes;
  carried.table = plain.table ? plain.table : file.table;
  return carried;
}

// Whether a receiver that takes this anchor finds the versions that follow it.
Result<bool> Relay::leads_on(std::uint64_t anchor) {
  if (anchor >= version()) return true;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Hash128> next,
                             down_->published({anchor + 1, PublicationKind::kVersion},
                                              Deadline::after(options_.report_deadline)));
  return next.has_value();
}

// Whether `down` still has its last full publication, and a receiver can go on from it.
Result<bool> Relay::has_handed(std::uint64_t least) {
  if (damaged_ || !full_ || full_->version < least) return false;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Hash128> there,
                             down_->published(*full_, Deadline::after(options_.report_deadline)));
  return there ? leads_on(full_->version) : Result<bool>(false);
}

// The newest anchor, or a full version past a damaged one.
Result<std::optional<PublicationId>> Relay::newest_full() {
  const Deadline deadline = Deadline::after(options_.report_deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed, up_->list(deadline));
  for (auto id = listed.rbegin(); id != listed.rend(); ++id) {
    if (!is_version(*id)) return std::optional(*id);
    if (!damaged_ || id->version <= *damaged_) continue;
    const Result<FoundManifest> found = fetcher_.fetch_manifest(*id, deadline);
    if (found.ok() && found->manifest.encoding == Encoding::kFull) return std::optional(*id);
  }
  return std::optional<PublicationId>();
}

// Workers wait for versions, so in place of a damaged version they get a full version, not an
// anchor.
Result<std::optional<DeliveryReport>> Relay::hand_over(const PublicationId& full) {
  const PublicationId as{full.version,
                         damaged_ ? PublicationKind::kVersion : PublicationKind::kAnchor};
  Result<std::optional<DeliveryReport>> report = relay(full, as);
  if (is_damage(report.status().code())) damaged_full_ = full;
  if (!report.ok() || !*report) return report;
  full_ = as;
  if (!damaged_) return report;
  holds_.id.version = full.version;
  started_ = true;
  damaged_.reset();
  return report;
}

Result<std::optional<DeliveryReport>> Relay::help() {
  DRIFTLESS_ASSIGN_OR_RETURN(receivers_, down_->receivers());
  listen(receivers_);
  // The oldest anchor that helps every receiver that needs one.
  std::optional<std::uint64_t> least;
  for (const ReceiverReport& receiver : receivers_) {
    const bool empty = receiver.version == 0 && receiver.proof.empty();
    if ((!empty && receiver.proof != kAnchorWanted) || !is_ours(receiver)) continue;
    const std::uint64_t from = empty ? 0 : receiver.version + 1;
    least = std::max(least.value_or(0), from);
  }
  if (damaged_) least = std::max(least.value_or(0), *damaged_);
  wants_anchor_ = false;
  if (!least) return std::optional<DeliveryReport>();
  DRIFTLESS_ASSIGN_OR_RETURN(const bool handed, has_handed(*least));
  if (handed) return std::optional<DeliveryReport>();  // the receivers only have to take it
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<PublicationId> newest, newest_full());
  const bool newer = newest && newest->version >= *least && newest != damaged_full_ &&
                     (damaged_ || !full_ || newest->version > full_->version);
  if (newer) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool good, leads_on(newest->version));
    if (good) return hand_over(*newest);
  }
  wants_anchor_ = true;
  return std::optional<DeliveryReport>();
}

}  // namespace driftless
