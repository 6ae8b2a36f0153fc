// SPDX-License-Identifier: Apache-2.0
#include "plugin/agent/relay.h"

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "formats/run_info.h"
#include "plugin/agent/plain_parts.h"
#include "plugin/job/report_proof.h"
#include "plugin/receive/block_fetcher.h"
#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

// What may be otherwise at the next look.
bool may_pass(StatusCode code) {
  return code == StatusCode::kIncomplete || code == StatusCode::kCorrupt ||
         code == StatusCode::kNotFound || code == StatusCode::kBusy;
}
// Of these, what makes a publication useless if it stays so.
bool is_damage(StatusCode code) { return may_pass(code) && code != StatusCode::kBusy; }

Status check_manifest(const Manifest& manifest, const PublicationId& id, const Hash128& run,
                      const WeightLayout& layout) {
  if (manifest.id.version != id.version) {
    return error(StatusCode::kCorrupt, to_string(id), ": its manifest is of version ",
                 manifest.id.version);
  }
  if (manifest.id.run != run) {
    return error(StatusCode::kWrongRun, to_string(id), ": belongs to run ", to_hex(manifest.id.run),
                 ", but this agent follows run ", to_hex(run),
                 "; restart it to follow the other run");
  }
  if (manifest.layout != layout.signature()) {
    return error(StatusCode::kWrongLayout, to_string(id), ": made for weight layout ",
                 to_hex(manifest.layout), ", but the run has ", to_hex(layout.signature()));
  }
  const Status sizes = check_sizes(manifest, layout, to_string(id));
  return sizes.ok() ? Status() : Status(StatusCode::kCorrupt, std::string(sizes.message()));
}

PartReceipt receipt_of(const ManifestFile& file) {
  return {file.name, file.rank, file.size_bytes, file.hash, file.locator};
}

// A part as it came.
Status check_part(const MappedFile& part, const ManifestFile& file) {
  if (part.memory_kind() != MemoryKind::kHost) {
    return error(StatusCode::kUnsupported, "part ", file.name,
                 ": lies in device memory: set road.nccl.arrival: host for an agent");
  }
  const Hash128 found = xxh3_128(part.bytes());
  if (part.bytes().size() == file.size_bytes && found == file.hash) return {};
  return error(StatusCode::kCorrupt, "part ", file.name, " has ", part.bytes().size(),
               " bytes with xxh3-128 ", to_hex(found), ", the manifest says ", file.size_bytes,
               " with ", to_hex(file.hash));
}

}  // namespace

Result<std::unique_ptr<Relay>> Relay::open(const RelayOptions& options, ReceiveRoad& up,
                                           SendRoad& down, const Deadline& deadline) {
  std::unique_ptr<Relay> relay(new Relay(options, up, down));
  std::optional<Deadline> patience;  // with an announcement whose bytes come late
  Backoff backoff(5ms, 500ms);
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, up.run_info(deadline));
    Result<RunInfo> run = parse_run_info(text, "the run's announcement");
    if (run.ok()) {
      DRIFTLESS_RETURN_IF_ERROR(down.announce(text, deadline));
      relay->run_ = run->run;
      relay->needs_.set_run(run->run);
      relay->layout_ = std::move(run->layout);
      relay->digests_->note(0, run->base_digest);
      return relay;
    }
    if (run.status().code() != StatusCode::kCorrupt) return run.status();
    if (!patience) patience = deadline.sooner(options.fetch_deadline);
    if (!backoff.sleep(*patience)) return run.status();
  }
}

Result<std::optional<PublicationId>> Relay::next_version() {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PublicationId> ids,
                             up_->list(Deadline::after(options_.report_deadline)));
  std::erase_if(
      ids, [this](const PublicationId& id) { return !is_version(id) || id.version <= version_; });
  if (ids.empty()) return std::optional<PublicationId>();
  // What the road below would drop at once is not brought along.
  const bool first = !started_ && ids.size() > options_.versions;
  return std::optional<PublicationId>(first ? ids[ids.size() - options_.versions] : ids.front());
}

Result<bool> Relay::behind() {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<PublicationId> next, next_version());
  return next.has_value();
}

Result<std::optional<DeliveryReport>> Relay::follow(const Deadline& deadline) {
  const Status there = up_->wait_beyond(version_, deadline);
  if (there.code() == StatusCode::kDeadlineExceeded) return std::optional<DeliveryReport>();
  DRIFTLESS_RETURN_IF_ERROR(there);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<PublicationId> next, next_version());
  if (!next) return std::optional<DeliveryReport>();
  Result<std::optional<DeliveryReport>> report = relay(*next, *next);
  if (is_damage(report.status().code())) damaged_ = next->version;
  if (!report.ok() || !*report) return report;
  damaged_.reset();
  version_ = next->version;
  started_ = true;
  ++unchanged_;
  return report;
}

// Until it went well, it is gone, or the deadline.
Result<std::optional<DeliveryReport>> Relay::relay(const PublicationId& id,
                                                   const PublicationId& as) {
  const Deadline deadline = Deadline::after(options_.fetch_deadline);
  Backoff backoff(5ms, 500ms);
  Status failure;  // the last one that time might have mended
  const bool again = is_version(id) && damaged_ == id.version;  // a look at it is enough
  for (;;) {
    Result<DeliveryReport> report = attempt(id, as, deadline);
    if (report.ok()) {
      digests_->note(id.version, report->update.digest);
      return std::optional<DeliveryReport>(std::move(*report));
    }
    const Status ignored = down_->abort();
    const StatusCode code = report.status().code();
    // That the time is over says nothing; what was waited for does.
    const bool late = code == StatusCode::kDeadlineExceeded && !failure.ok();
    if (!late && !may_pass(code)) return report.status().with_context(to_string(id));
    if (!late) failure = report.status();
    if (code == StatusCode::kNotFound) {
      const auto listed = up_->list(deadline);
      if (listed.ok() && std::ranges::find(*listed, id) == listed->end()) {
        return std::optional<DeliveryReport>();
      }
    }
    if (late || again || !backoff.sleep(deadline)) {
      return failure.with_context(
          concat(to_string(id), ": gave up after ", options_.fetch_deadline.count(), " ms"));
    }
  }
}

Result<DeliveryReport> Relay::attempt(const PublicationId& id, const PublicationId& as,
                                      const Deadline& deadline) {
  Stopwatch watch;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, up_->fetch_manifest(id, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(Manifest manifest, parse_manifest(text, to_string(id)));
  DRIFTLESS_RETURN_IF_ERROR(check_manifest(manifest, id, run_, layout_));
  DeliveryReport report;
  UpdateReport& update = report.update;
  update.version = id.version;
  update.from_version = manifest.base_version;
  update.versions = 1;
  update.anchor = !is_version(id);
  update.digest = manifest.digest;
  update.changed_units = manifest.changed_units;
  update.full_bytes = manifest.full_bytes;
  update.delta_bytes = manifest.payload_bytes;
  update.wire_bytes = text.size();
  DRIFTLESS_RETURN_IF_ERROR(down_->begin(as, deadline));
  DRIFTLESS_RETURN_IF_ERROR(carry(id, manifest, report, deadline));
  DRIFTLESS_RETURN_IF_ERROR(down_->seal(manifest_to_json(manifest), deadline));
  report.process_ms = watch.lap_ms();
  note_speed(report);
  if (mirror_) {
    report.mirror_bytes = mirror_->size_bytes();
    const Status followed = mirror_->follow();
    if (!followed.ok() && uses_mirror()) {
      update.notes.push_back(concat("the agent's mirror is behind: ", followed.to_string()));
    }
  }
  return report;
}

// All parts; the manifest says then where they are on `down`.
Status Relay::carry(const PublicationId& id, Manifest& manifest, DeliveryReport& report,
                    const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ReceiverReport> said, down_->receivers());
  listen(said);
  if (uses_mirror() && mirror_behind(manifest.base_version)) {
    const Status again = mirror_->follow();
  }
  if (decodes(manifest)) {
    const Status decoded = carry_decoded(id, manifest, report, deadline);
    if (decoded.code() != StatusCode::kMismatch) return decoded;
    // It goes as it is: workers that cannot decode it take an anchor, and so does the mirror.
    report.update.notes.push_back(concat("the agent's mirror: ", decoded.message()));
  }
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
  return {};
}

bool Relay::decodes(const Manifest& manifest) const {
  return uses_mirror() && manifest.encoding == Encoding::kCompact &&
         mirror_->version() == manifest.base_version;
}

// The parts are the mirror's frames then.
Status Relay::carry_decoded(const PublicationId& id, Manifest& manifest, DeliveryReport& report,
                            const Deadline& deadline) {
  Stopwatch watch;
  FetchedVersion fetched{manifest, to_string(id), {}};
  for (const ManifestFile& file : manifest.files) {
    DRIFTLESS_ASSIGN_OR_RETURN(MappedFile part, up_->fetch_part(id, receipt_of(file), deadline));
    DRIFTLESS_RETURN_IF_ERROR(check_part(part, file));
    fetched.parts.push_back(std::move(part));
    report.update.needed_bytes += file.size_bytes;
    report.update.wire_bytes += file.size_bytes;
  }
  report.update.fetch_ms += watch.lap_ms();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::vector<std::byte>> frames,
                             mirror_->plain_frames(std::move(fetched)));
  std::map<std::string, Hash128> tables;
  for (std::uint32_t i = 0; i < frames.size(); ++i) {
    const std::string name = frame_file_name(0, i);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> out, down_->create_part(name));
    DRIFTLESS_RETURN_IF_ERROR(out->pwrite(0, frames[i]));
    DRIFTLESS_RETURN_IF_ERROR(out->sync());
    tables[name] = frame_table_hash(frames[i]);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PartReceipt> receipts, down_->flush(deadline));
  manifest.files.clear();
  manifest.payload_bytes = 0;
  for (const PartReceipt& receipt : receipts) {
    ManifestFile& file = manifest.files.emplace_back();
    file.name = receipt.name;
    file.rank = receipt.rank;
    file.size_bytes = receipt.size_bytes;
    file.hash = receipt.hash;
    file.locator = receipt.locator;
    file.table = tables.at(receipt.name);
    manifest.payload_bytes += receipt.size_bytes;
  }
  report.plain_bytes += manifest.payload_bytes;
  manifest.encoding = Encoding::kDeltas;
  manifest.ranks = 1;
  return {};
}

// Whether it is not of a worker that still follows an earlier run.
bool Relay::is_ours(const ReceiverReport& report) const {
  const std::string run = reported_run(report.proof, report.needs);
  return run.empty() || run == to_hex(run_);
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

std::string Relay::needs() const {
  if (uses_mirror() && !mirror_behind(version_)) return needs_.mirrored_text(layout_);
  return knows_needs() ? needs_.text(layout_) : std::string();
}

// For a publisher that chooses its encoding by that.
void Relay::note_speed(const DeliveryReport& report) {
  constexpr std::uint64_t kLeastBytes = std::uint64_t{256} << 10;  // less shows the latency
  const UpdateReport& update = report.update;
  if (update.anchor || update.wire_bytes < kLeastBytes || update.fetch_ms <= 0) return;
  const auto per_s = [](std::uint64_t count, double ms) {
    return rounded_speed(static_cast<double>(count) / std::max(ms, 0.1) * 1e3);
  };
  needs_.note_speed(per_s(update.wire_bytes, update.fetch_ms),
                    per_s(layout_.total_units(), report.process_ms - update.fetch_ms));
}

// Blocks that nobody needs stay holes: the table, and with it the hashes of all others, are as they
// were, and a worker fetches its own by need.
Status Relay::carry_blocks(const PublicationId& id, Manifest& manifest, UpdateReport& update,
                           const Deadline& deadline) {
  std::uint64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) bytes += file.size_bytes;
  // All of it is held at once.
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
  DRIFTLESS_RETURN_IF_ERROR(check_part(*part, file));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t inflated,
                             inflated_bytes(manifest, *part, layout_));
  const MemoryBudget::Hold also_held(inflated_budget_, inflated);
  if (plain_as == manifest.encoding && has_frames(manifest)) {  // as it is
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
  if (anchor >= version_) return true;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Hash128> next,
                             down_->published({anchor + 1, PublicationKind::kVersion},
                                              Deadline::after(options_.report_deadline)));
  return next.has_value();
}

// Whether what was handed over whole is still there, and is all that is needed.
Result<bool> Relay::has_handed(std::uint64_t least) {
  if (damaged_ || !full_ || full_->version < least) return false;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<Hash128> there,
                             down_->published(*full_, Deadline::after(options_.report_deadline)));
  return there ? leads_on(full_->version) : Result<bool>(false);
}

// The newest anchor, or a full version that leads past a damaged one.
Result<std::optional<PublicationId>> Relay::newest_full() {
  const Deadline deadline = Deadline::after(options_.report_deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed, up_->list(deadline));
  for (auto id = listed.rbegin(); id != listed.rend(); ++id) {
    if (!is_version(*id)) return std::optional(*id);
    if (!damaged_ || id->version <= *damaged_) continue;
    const Result<std::string> text = up_->fetch_manifest(*id, deadline);
    if (!text.ok()) continue;
    const Result<Manifest> manifest = parse_manifest(*text, to_string(*id));
    if (manifest.ok() && manifest->encoding == Encoding::kFull) return std::optional(*id);
  }
  return std::optional<PublicationId>();
}

// Workers wait for versions: in the place of a damaged one it is a full version for them.
Result<std::optional<DeliveryReport>> Relay::hand_over(const PublicationId& full) {
  const PublicationId as{full.version,
                         damaged_ ? PublicationKind::kVersion : PublicationKind::kAnchor};
  Result<std::optional<DeliveryReport>> report = relay(full, as);
  if (is_damage(report.status().code())) damaged_full_ = full;
  if (!report.ok() || !*report) return report;
  full_ = as;
  if (!damaged_) return report;
  version_ = full.version;
  started_ = true;
  damaged_.reset();
  return report;
}

Result<std::optional<DeliveryReport>> Relay::help() {
  DRIFTLESS_ASSIGN_OR_RETURN(receivers_, down_->receivers());
  listen(receivers_);
  // The anchor must be at least this one for whoever needs one.
  std::optional<std::uint64_t> least;
  for (const ReceiverReport& receiver : receivers_) {
    const bool empty = receiver.version == 0 && receiver.proof.empty();
    if ((!empty && receiver.proof != kAnchorWanted) || !is_ours(receiver)) continue;
    const std::uint64_t from = empty ? 0 : receiver.version + 1;
    least = std::max(least.value_or(0), from);
  }
  // So does a mirror that the steps on `down` do not lead to, after a start of the agent, say.
  if (uses_mirror() && mirror_behind(version_)) {
    const std::optional<std::uint64_t> holds = mirror_->version();
    least = std::max(least.value_or(0), holds ? *holds + 1 : 0);
  }
  if (damaged_) least = std::max(least.value_or(0), *damaged_);
  wants_anchor_ = false;
  if (!least) return std::optional<DeliveryReport>();
  DRIFTLESS_ASSIGN_OR_RETURN(const bool handed, has_handed(*least));
  if (handed) return std::optional<DeliveryReport>();  // it has only to take it
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
