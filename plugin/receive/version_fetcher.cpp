// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/version_fetcher.h"

#include <algorithm>
#include <cstring>

#include "collectives/part_hash.h"
#include "core/parallel.h"
#include "plugin/receive/block_fetcher.h"
#include "plugin/receive/run_digests.h"
#include "plugin/targets/stage_ahead.h"
#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

// The most manifests that are read to find the digests of a version that is already held.
constexpr std::size_t kMostFollowed = 256;

// The bytes that a decoded change of `compact` takes for folding, beside its value.
constexpr std::uint64_t kDecodedBytes = 10, kMostUnits = std::uint64_t{1} << 56;

bool is_newer(const TargetState& state, const PublicationId& id) {
  return !state.valid || id.version > state.id.version;
}

// Copies parts that are mapped files, so that later writes to the files have no effect. All threads
// share the copying of each part.
Status copy_mapped(std::span<MappedFile> parts, unsigned threads, KeptMemory& memory) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
  struct Piece {
    std::byte* to = nullptr;
    std::span<const std::byte> from;
  };
  std::vector<Piece> pieces;
  std::vector<MappedFile> files;  // kept until copied
  for (MappedFile& part : parts) {
    if (!part.mapped()) continue;
    const std::uint64_t size = part.bytes().size();
    const std::shared_ptr<std::byte> held = memory.take(size);
    if (held == nullptr) {
      return error(StatusCode::kNoSpace, "no memory for a copy of a part of ", size,
                   " bytes; lower receiver.fold_size");
    }
    files.push_back(std::move(part));
    std::span<const std::byte> rest = files.back().bytes();
    part = MappedFile(files.back().path(), held, {held.get(), rest.size()});
    for (std::byte* to = held.get(); !rest.empty(); to += pieces.back().from.size()) {
      pieces.push_back({to, rest.first(std::min<std::uint64_t>(kPieceBytes, rest.size()))});
      rest = rest.subspan(pieces.back().from.size());
    }
  }
  return parallel_for(pieces.size(), threads, [&](std::size_t i, unsigned) -> Status {
    std::memcpy(pieces[i].to, pieces[i].from.data(), pieces[i].from.size());
    return {};
  });
}

// For a part that an agent fetched only in part.
Status not_brought(const std::string& source, const ManifestFile& file) {
  return error(StatusCode::kMismatch, source, ": part ", file.name, ": the agent of this host did ",
               "not fetch what this worker needs of it, because no worker needed it then; a newer ",
               "full version is taken, or requested");
}
// Ok unless a part without collected blocks is incomplete.
Status check_brought(const FetchedVersion& version) {
  const std::vector<ManifestFile>& files = version.manifest.files;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].partial && version.frames[i] == nullptr) {
      return not_brought(version.source, files[i]);
    }
  }
  return {};
}

Status nothing_full(const TargetState& state, FetchMode mode,
                    const std::vector<PublicationId>& listed) {
  const std::string first =
      listed.empty() ? std::string("nothing") : concat(to_string(listed.front()), " and later");
  if (!state.valid) {
    return error(StatusCode::kWrongBase, "the weights hold no version, and there is no anchor (",
                 first, " available): publish an anchor, or start from the run's base");
  }
  if (mode == FetchMode::kFullOnly) {
    return error(StatusCode::kWrongBase, "the versions after version ", state.id.version,
                 " do not fit the weights, and there is no newer anchor (", first,
                 " available): publish an anchor, or start from the run's base");
  }
  return error(StatusCode::kWrongBase, "the versions after version ", state.id.version,
               " are gone (", state.id.version + 1, " is not there) and there is no anchor (",
               first, " available): publish an anchor, or start from the run's base");
}

}  // namespace

Result<Announcement> read_announcement(ReceiveRoad& road, std::chrono::milliseconds patience,
                                       const Deadline& deadline) {
  std::optional<Deadline> end;
  Backoff backoff(5ms, 500ms);
  for (;;) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::string text, road.run_info(deadline));
    Result<RunInfo> run = parse_run_info(text, "the run's announcement");
    if (run.ok()) return Announcement{std::move(*run), std::move(text)};
    if (run.status().code() != StatusCode::kCorrupt) return run.status();
    if (!end) end = deadline.sooner(patience);
    if (!backoff.sleep(*end)) return run.status();
  }
}

bool FetchTries::note(const Status& failure) {
  late_ = failure.code() == StatusCode::kDeadlineExceeded && !failure_.ok();
  if (!late_) failure_ = failure;
  return late_ || retry_may_mend(failure.code());
}

bool FetchTries::wait() { return !late_ && backoff_.sleep(deadline_); }

Status FetchTries::given_up() const {
  return failure_.with_context(concat("gave up after ", patience_.count(), " ms"));
}

PartReceipt receipt_of(const ManifestFile& file) {
  return {file.name, file.rank, file.size_bytes, file.hash, file.locator};
}

Status check_part(const MappedFile& part, const ManifestFile& file, const Deadline& deadline) {
  const std::span<const std::byte> bytes = part.bytes();
  const bool compared = part.memory_kind() == MemoryKind::kDevice;
  if (compared && bytes.size() == file.size_bytes) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const Hash128 found, hash_by(bytes, deadline, file.name));
  if (bytes.size() == file.size_bytes && found == file.hash) return {};
  return error(StatusCode::kCorrupt, "part ", file.name, " has ", bytes.size(),
               " bytes with xxh3-128 ", to_hex(found), ", the manifest says ", file.size_bytes,
               " with ", to_hex(file.hash));
}

Result<bool> VersionFetcher::wait(const TargetState& state, const Deadline& deadline) {
  Backoff backoff(2ms, 500ms);
  while (true) {
    if (state.valid) {
      Status status = road_->wait_beyond(state.id.version, deadline);
      if (status.ok()) return has_come();
      if (status.code() != StatusCode::kDeadlineExceeded) return status;
      waiting_.look([&] {
        return concat("no version past ", state.id.version, " of run ", to_hex(run_), " is there");
      });
      DRIFTLESS_RETURN_IF_ERROR(check_run(state));
      return false;
    }
    // Without a version even an anchor of version 0 is new, and wait_beyond() only waits for
    // versions.
    const Result<std::vector<PublicationId>> listed = road_->list(deadline);
    if (!listed.ok() && listed.status().code() != StatusCode::kDeadlineExceeded) {
      return listed.status();
    }
    if (listed.ok() && !listed->empty()) return has_come();
    const auto whom = [this] { return concat("run ", to_hex(run_), " has no version yet"); };
    if (!waiting_.sleep(backoff, deadline, whom)) return false;
  }
}

bool VersionFetcher::has_come() {
  waiting_.restart();
  return true;
}

// Checks whether the road now carries another run: wait_beyond() does not return before that run's
// version number exceeds the target's.
Status VersionFetcher::check_run(const TargetState& state) {
  if (!next_look_.expired()) return {};
  next_look_ = Deadline::after(options_.fetch_deadline);
  const Deadline deadline = Deadline::after(options_.report_deadline);
  const Result<std::vector<PublicationId>> listed = road_->list(deadline);
  if (!listed.ok()) return {};
  if (listed->empty()) return check_announcement();
  if (is_newer(state, listed->back())) return {};
  const PublicationId& newest = listed->back();
  const Result<std::string> text = road_->fetch_manifest(newest, deadline);
  if (!text.ok()) return {};
  const Result<Manifest> manifest = parse_manifest(*text, to_string(newest));
  if (!manifest.ok() || manifest->id.run == run_) return {};
  return wrong_run(to_string(newest), manifest->id.run);
}

// If no version is listed, only the announcement shows another run; and that run may end without
// one.
Status VersionFetcher::check_announcement() {
  const Result<std::string> text = road_->run_info(Deadline::after(1s));
  if (!text.ok()) return {};
  const Result<RunInfo> announcement = parse_run_info(*text, "the run's announcement");
  if (!announcement.ok() || announcement->run == run_) return {};
  return wrong_run("the announcement on the road", announcement->run);
}

Status VersionFetcher::wrong_run(const std::string& what, const Hash128& found) const {
  return error(StatusCode::kWrongRun, what, ": belongs to run ", to_hex(found),
               ", but this receiver follows run ", to_hex(run_),
               "; restart it to follow the other run");
}

Result<std::optional<FetchedChain>> VersionFetcher::fetch(const TargetState& state, FetchMode mode,
                                                          const FetchNeeds& needs) {
  FetchTries tries(options_.fetch_deadline, read_deadline());
  const bool again = std::exchange(damaged_, false);
  while (true) {
    const bool gone_before = tries.failure().code() == StatusCode::kNotFound;
    Result<std::optional<FetchedChain>> chain = attempt(state, mode, needs, tries.deadline());
    if (chain.ok() || !tries.note(chain.status())) return chain;
    // A version that is listed again and again but is gone: a newer anchor may replace it.
    const bool gone = chain.status().code() == StatusCode::kNotFound;
    if (gone && gone_before && mode == FetchMode::kAny) {
      Result<std::optional<FetchedChain>> full =
          attempt(state, FetchMode::kFullOnly, needs, tries.deadline());
      if (full.ok()) return full;
    }
    const StatusCode code = tries.failure().code();
    const bool damaged =
        code == StatusCode::kCorrupt || code == StatusCode::kIncomplete;  // maybe truncated
    if (!(again && damaged) && tries.wait()) continue;
    const Status failure = again ? tries.failure() : tries.given_up();
    if (damaged && mode == FetchMode::kAny) {  // a newer anchor may replace it, too
      Result<std::optional<FetchedChain>> full =
          attempt(state, FetchMode::kFullOnly, needs, Deadline::after(options_.fetch_deadline));
      if (full.ok()) return full;
    }
    damaged_ = damaged;
    // A version that is listed but stays gone counts as not listed: only an anchor helps.
    if (failure.code() != StatusCode::kNotFound) return failure;
    return error(StatusCode::kWrongBase, failure.message(), "; publish an anchor");
  }
}

Result<std::optional<FetchedChain>> VersionFetcher::attempt(const TargetState& state,
                                                            FetchMode mode, const FetchNeeds& needs,
                                                            const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<FoundManifest> chosen, choose(state, mode, deadline));
  if (chosen.empty()) return std::optional<FetchedChain>();
  FetchedChain chain;
  chain.anchor = chosen.front().id.kind == PublicationKind::kAnchor;
  std::shared_ptr<StageAhead> ahead;
  if (needs.target != nullptr) {
    ahead = needs.target->begin_stage(chosen.front().manifest, chosen.back().manifest);
  }
  FetchNeeds candidate_needs = needs;
  candidate_needs.alone = chosen.size() == 1;
  for (FoundManifest& candidate : chosen) {
    const std::size_t manifest_bytes = candidate.size_bytes;
    const Status fetched = fetch_parts(std::move(candidate), std::exchange(ahead, nullptr), chain,
                                       candidate_needs, deadline);
    // Continue with the versions that are complete; the next round handles the failure.
    if (!fetched.ok() && !chain.versions.empty() && retry_may_mend(fetched.code())) break;
    DRIFTLESS_RETURN_IF_ERROR(fetched);
    chain.manifest_bytes += manifest_bytes;
  }
  return std::optional<FetchedChain>(std::move(chain));
}

Result<std::vector<FoundManifest>> VersionFetcher::choose(const TargetState& state, FetchMode mode,
                                                          const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed, road_->list(deadline));
  if (state.valid && mode == FetchMode::kAny) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<FoundManifest> versions,
                               follow(state, listed, deadline));
    if (!versions.empty()) return versions;
    const auto newer = [&state](const PublicationId& id) { return is_newer(state, id); };
    if (std::none_of(listed.begin(), listed.end(), newer)) return std::vector<FoundManifest>();
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<FoundManifest> full, newest_full(state, listed, deadline));
  if (full.empty()) return nothing_full(state, mode, listed);
  return full;
}

// The versions that follow the target's, as long as they adjoin and fit one fold.
Result<std::vector<FoundManifest>> VersionFetcher::follow(const TargetState& state,
                                                          const std::vector<PublicationId>& listed,
                                                          const Deadline& deadline) {
  std::vector<FoundManifest> chain;
  std::uint64_t version = state.id.version;
  std::uint64_t bytes = 0;
  for (const PublicationId& id : listed) {
    if (id.kind != PublicationKind::kVersion || id.version <= version) continue;
    // If the next listed version does not adjoin, the chain ends: the versions after it build on
    // that version.
    Result<FoundManifest> next = fetch_manifest(id, deadline);
    if (!next.ok()) {
      // Continue with what is there; the next round handles the failure.
      if (!chain.empty() && retry_may_mend(next.status().code())) break;
      return next.status();
    }
    const bool full = next->manifest.encoding == Encoding::kFull;
    if (!full && next->manifest.base_version != version) break;
    if (full && !chain.empty()) break;
    std::uint64_t size = 0;
    for (const ManifestFile& file : next->manifest.files) size += file.size_bytes;
    if (next->manifest.encoding == Encoding::kCompact) {
      size += kDecodedBytes * std::min(next->manifest.changed_units, kMostUnits);
    }
    if (!chain.empty() && bytes + size > options_.fold_bytes) break;
    bytes += size;
    version = id.version;
    chain.push_back(std::move(*next));
    if (full) break;
  }
  return chain;
}

// The newest anchor, or a full version that is newer.
Result<std::vector<FoundManifest>> VersionFetcher::newest_full(
    const TargetState& state, const std::vector<PublicationId>& listed, const Deadline& deadline) {
  Status damaged;  // the last damaged one
  for (auto id = listed.rbegin(); id != listed.rend(); ++id) {
    if (!is_newer(state, *id)) break;
    Result<FoundManifest> candidate = fetch_manifest(*id, deadline);
    if (candidate.status().code() == StatusCode::kCorrupt) {
      damaged = candidate.status();
      continue;
    }
    DRIFTLESS_RETURN_IF_ERROR(candidate.status());
    if (candidate->manifest.encoding == Encoding::kFull) {
      std::vector<FoundManifest> chosen;
      chosen.push_back(std::move(*candidate));
      return chosen;
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(damaged);
  return std::vector<FoundManifest>();
}

Result<FoundManifest> VersionFetcher::fetch_manifest(const PublicationId& id,
                                                     const Deadline& deadline) {
  const std::string what = to_string(id);
  if (options_.before_read) {
    DRIFTLESS_RETURN_IF_ERROR(
        options_.before_read(id.version).with_context(concat("before reading ", what)));
  }
  const Result<std::string> text = road_->fetch_manifest(id, deadline);
  if (!text.ok()) return text.status().with_context(what);
  DRIFTLESS_ASSIGN_OR_RETURN(Manifest manifest, parse_manifest(*text, what));
  if (manifest.id.version != id.version) {
    return error(StatusCode::kCorrupt, what, ": its manifest is of version ", manifest.id.version);
  }
  if (manifest.id.run != run_) return wrong_run(what, manifest.id.run);
  if (id.kind == PublicationKind::kAnchor && manifest.encoding != Encoding::kFull) {
    return error(StatusCode::kCorrupt, what, ": is not a full version, as an anchor must be");
  }
  return FoundManifest{id, std::move(manifest), text->size()};
}

Result<std::vector<Manifest>> VersionFetcher::manifests_to(std::uint64_t version,
                                                           const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed, road_->list(deadline));
  const auto there = [&listed](const PublicationId& id) {
    return std::ranges::find(listed, id) != listed.end();
  };
  std::uint64_t start = 0;
  for (const PublicationId& id : listed) {
    if (id.kind == PublicationKind::kAnchor && id.version <= version) {
      start = std::max(start, id.version);
    }
  }
  if (version - start > kMostFollowed) {
    return error(StatusCode::kUnsupported, version - start, " manifests since the last anchor");
  }
  std::vector<Manifest> found;
  while (version > 0) {
    const PublicationId anchor{version, PublicationKind::kAnchor};
    const PublicationId id =
        there(anchor) ? anchor : PublicationId{version, PublicationKind::kVersion};
    if (!there(id)) return error(StatusCode::kNotFound, to_string(id), " is gone");
    DRIFTLESS_ASSIGN_OR_RETURN(FoundManifest next, fetch_manifest(id, deadline));
    version = next.manifest.base_version;
    found.push_back(std::move(next.manifest));
    if (found.back().encoding == Encoding::kFull) break;
  }
  return found;
}

std::vector<Digest> VersionFetcher::digests_at(std::uint64_t version, const WeightLayout& layout,
                                               std::vector<Digest> base) {
  if (version == 0) return base;
  const Result<std::vector<Manifest>> found = manifests_to(version, read_deadline());
  if (!found.ok()) return {};
  for (auto manifest = found->rbegin(); manifest != found->rend(); ++manifest) {
    if (!follow_digests(layout, *manifest, "a version before", base).ok()) return {};
  }
  return base;
}

std::optional<Digest> VersionFetcher::digest_at(std::uint64_t version) {
  const Deadline deadline = read_deadline();
  const Result<std::vector<PublicationId>> listed = road_->list(deadline);
  if (!listed.ok()) return std::nullopt;
  for (const PublicationId& id : *listed) {
    const bool next = id.version > version && id.kind == PublicationKind::kVersion;
    if (id.version != version && !next) continue;
    const Result<FoundManifest> found = fetch_manifest(id, deadline);
    if (found.ok() && !next) return found->manifest.digest;
    if (found.ok() && found->manifest.encoding != Encoding::kFull &&
        found->manifest.base_version == version) {
      return found->manifest.base_digest;
    }
    if (next) break;  // later ones build on later versions
  }
  return std::nullopt;
}

Status VersionFetcher::fetch_parts(FoundManifest candidate, std::shared_ptr<StageAhead> ahead,
                                   FetchedChain& chain, const FetchNeeds& needs,
                                   const Deadline& deadline) {
  FetchedVersion version;
  version.source = to_string(candidate.id);
  version.manifest = std::move(candidate.manifest);
  const std::vector<ManifestFile>& files = version.manifest.files;
  version.frames.resize(files.size());
  version.memory = memory_;
  if (needs.layout != nullptr) {
    DRIFTLESS_RETURN_IF_ERROR(check_sizes(version.manifest, *needs.layout, version.source));
  }
  DRIFTLESS_RETURN_IF_ERROR(fetch_blocks(candidate.id, version, chain, needs, deadline));
  const bool decoded_ahead = ahead && version.manifest.encoding == Encoding::kCompact;
  std::vector<MappedFile> fetched;  // all parts; empty if each is passed on as it arrives
  if (!decoded_ahead && road_->fetches_at_once()) {
    DRIFTLESS_ASSIGN_OR_RETURN(fetched, fetch_at_once(candidate.id, version, deadline));
  }
  std::vector<MappedPart> mapped;
  std::uint64_t copied = 0;  // over the chain: follow() bounds deltas by fold_bytes
  for (const FetchedVersion& before : chain.versions) {
    for (const MappedFile& part : before.parts) copied += part.bytes().size();
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    const ManifestFile& file = files[i];
    if (version.frames[i] != nullptr) {
      version.parts.emplace_back(file.name, nullptr, std::span<const std::byte>());
      continue;
    }
    chain.fetched_bytes += file.size_bytes;
    chain.needed_bytes += file.size_bytes;
    Result<MappedFile> part = fetched.empty() ? fetch_whole(candidate.id, version, i, deadline)
                                              : Result<MappedFile>(std::move(fetched[i]));
    if (!part.ok()) return part.status();
    copied += part->bytes().size();
    if (part->mapped() && copied > options_.fold_bytes) {
      mapped.push_back({std::make_shared<const MappedFile>(std::move(*part)),
                        concat(version.source, ": part ", file.name), file.hash});
      const MappedFile& kept = *mapped.back().file;
      part = MappedFile(kept.path(), mapped.back().file, kept.bytes());
    }
    version.parts.push_back(std::move(*part));
    if (!decoded_ahead) continue;
    DRIFTLESS_RETURN_IF_ERROR(take_part(version, i, deadline));
    ahead->add(version.parts.back());
  }
  if (!decoded_ahead) DRIFTLESS_RETURN_IF_ERROR(take_parts(version, deadline));
  version.ahead = std::move(ahead);
  chain.mapped.insert(chain.mapped.end(), mapped.begin(), mapped.end());
  chain.versions.push_back(std::move(version));
  return {};
}

Result<MappedFile> VersionFetcher::fetch_whole(const PublicationId& id,
                                               const FetchedVersion& version, std::size_t file,
                                               const Deadline& deadline) const {
  const ManifestFile& wanted = version.manifest.files[file];
  Result<MappedFile> part = road_->fetch_part(id, receipt_of(wanted), deadline);
  if (part.ok()) return part;
  return part.status().with_context(concat(version.source, ": part ", wanted.name));
}

Result<std::vector<MappedFile>> VersionFetcher::fetch_at_once(const PublicationId& id,
                                                              const FetchedVersion& version,
                                                              const Deadline& deadline) const {
  std::vector<MappedFile> parts(version.manifest.files.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(parts.size(), options_.read_workers, [&](std::size_t i, unsigned) -> Status {
        if (version.frames[i] != nullptr) return {};
        DRIFTLESS_ASSIGN_OR_RETURN(parts[i], fetch_whole(id, version, i, deadline));
        return {};
      }));
  return parts;
}

Status VersionFetcher::take_parts(FetchedVersion& version, const Deadline& deadline) const {
  DRIFTLESS_RETURN_IF_ERROR(copy_mapped(version.parts, options_.threads, *memory_));
  return parallel_for(version.parts.size(), options_.threads,
                      [&](std::size_t i, unsigned) { return take_part(version, i, deadline); });
}

Status VersionFetcher::take_part(FetchedVersion& version, std::size_t i,
                                 const Deadline& deadline) const {
  const ManifestFile& file = version.manifest.files[i];
  MappedFile& part = version.parts[i];
  if (version.frames[i] != nullptr) return {};
  DRIFTLESS_RETURN_IF_ERROR(copy_mapped(std::span(&part, 1), 1, *memory_));  // if not done yet
  return check_part(part, file, deadline).with_context(version.source);
}

Status VersionFetcher::fetch_blocks(const PublicationId& id, FetchedVersion& version,
                                    FetchedChain& chain, const FetchNeeds& needs,
                                    const Deadline& deadline) {
  const Manifest& manifest = version.manifest;
  const bool fits = needs.layout != nullptr && manifest.layout == needs.layout->signature();
  if (!fits || !may_fetch_blocks(manifest)) return check_brought(version);
  RangeFetchOptions options;
  options.workers = std::max(1U, options_.read_workers);
  options.takers = options_.threads;
  const auto needed = [&](const BucketEntry& entry) {
    return needs.of_target == nullptr || needs.of_target->has(entry.tensor, entry.block);
  };
  ArrivalMemory* const device = needs.alone && needs.target != nullptr && road_->fetches_to_device()
                                    ? needs.target->arrivals(manifest)
                                    : nullptr;
  if (device != nullptr) {
    Result<std::optional<FetchedBlocks>> there = fetch_blocks_to_device(
        *road_, id, manifest, *needs.layout, needed, *device, options, deadline);
    if (!there.ok()) return there.status().with_context(version.source);
    if (there->has_value()) return take_blocks(**there, version, chain, needs);
  }
  if (needs.of_target == nullptr) return check_brought(version);
  Result<FetchedBlocks> blocks = driftless::fetch_blocks(
      *road_, id, manifest, *needs.layout, needed, false, options, deadline, memory_.get());
  if (!blocks.ok()) return blocks.status().with_context(version.source);
  return take_blocks(*blocks, version, chain, needs);
}

Status VersionFetcher::take_blocks(FetchedBlocks& blocks, FetchedVersion& version,
                                   FetchedChain& chain, const FetchNeeds& needs) const {
  const std::vector<ManifestFile>& files = version.manifest.files;
  chain.fetched_bytes += blocks.fetched_bytes;
  chain.needed_bytes += blocks.needed_bytes;
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(blocks.frames.size(), options_.threads, [&](std::size_t k, unsigned) -> Status {
        FetchedFrame& fetched = blocks.frames[k];
        const ManifestFile& file = files[fetched.file];
        Result<Frame> frame = fetched.collector.finish(*needs.layout);
        if (!frame.ok() && file.partial) return not_brought(version.source, file);
        if (!frame.ok()) {
          return frame.status().with_context(concat(version.source, ": part ", file.name));
        }
        version.frames[fetched.file] = std::make_shared<Frame>(std::move(*frame));
        return {};
      }));
  return check_brought(version);
}

Status check_unchanged(std::span<const MappedPart> parts, unsigned threads) {
  return parallel_for(parts.size(), threads, [&](std::size_t i, unsigned) -> Status {
    const MappedPart& part = parts[i];
    const Hash128 found = xxh3_128(part.file->bytes());
    if (found == part.hash) return {};
    return error(StatusCode::kCorrupt, part.what, " was changed after it was verified: its ",
                 "xxh3-128 is ", to_hex(found), " now, the manifest says ", to_hex(part.hash),
                 ". Nothing was committed; it is fetched again");
  });
}

}  // namespace driftless
