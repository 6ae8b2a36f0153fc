// SPDX-License-Identifier: Apache-2.0
// VersionFetcher: chooses the next publication that a receiver takes from a road, and fetches it:
// whole, or only the blocks of its frames that the target needs, several ranges at a time. A
// receiver takes chains of versions; an agent, which hands on every publication separately, takes
// their manifests.
//
// One thread at a time. The road outlives it.
#pragma once

#include "formats/run_info.h"
#include "plugin/receive/receiver.h"

namespace driftless {

struct Announcement {
  RunInfo run;
  std::string text;
};
// Waits for the announcement. On some file systems its bytes arrive late: an unreadable
// announcement is read again for `patience`.
[[nodiscard]] Result<Announcement> read_announcement(ReceiveRoad& road,
                                                     std::chrono::milliseconds patience,
                                                     const Deadline& deadline);

// Whether a later try may succeed: what failed was incomplete, read while it was written, just
// pruned or busy.
[[nodiscard]] constexpr bool retry_may_mend(StatusCode code) {
  return code == StatusCode::kIncomplete || code == StatusCode::kCorrupt ||
         code == StatusCode::kNotFound || code == StatusCode::kBusy;
}

// The retries of one fetch: what is incomplete, damaged, gone or busy may be there at the next try.
class FetchTries {
 public:
  explicit FetchTries(std::chrono::milliseconds patience)
      : FetchTries(patience, Deadline::after(patience)) {}
  // `deadline` is that of the patience, or an earlier one.
  FetchTries(std::chrono::milliseconds patience, const Deadline& deadline)
      : patience_(patience), deadline_(deadline) {}

  [[nodiscard]] const Deadline& deadline() const { return deadline_; }
  // Records why a try failed. False: a retry would fail in the same way.
  [[nodiscard]] bool note(const Status& failure);
  // Waits before the next try. False: there is no time left.
  [[nodiscard]] bool wait();
  // The last failure that a retry might have mended: a timeout would hide the cause.
  [[nodiscard]] const Status& failure() const { return failure_; }
  [[nodiscard]] Status given_up() const;

 private:
  std::chrono::milliseconds patience_;
  Deadline deadline_;
  Backoff backoff_{std::chrono::milliseconds(5), std::chrono::milliseconds(500)};
  Status failure_;
  bool late_ = false;
};

[[nodiscard]] PartReceipt receipt_of(const ManifestFile& file);
// kCorrupt, naming the part, if its size or hash differs from the manifest's. The road has compared
// parts in device memory itself.
[[nodiscard]] Status check_part(const MappedFile& part, const ManifestFile& file,
                                const Deadline& deadline);

// A part that is too large to copy stays a mapping of a file: writes to the file change it after
// its hash was compared.
struct MappedPart {
  std::shared_ptr<const MappedFile> file;
  std::string what;  // for messages
  Hash128 hash;
};
// kCorrupt, naming the part, if one of them has changed.
[[nodiscard]] Status check_unchanged(std::span<const MappedPart> parts, unsigned threads);

// Versions that adjoin the target's, or one full publication.
struct FetchedChain {
  std::vector<FetchedVersion> versions;
  std::vector<MappedPart> mapped;  // the parts that are mappings
  bool anchor = false;
  std::uint64_t manifest_bytes = 0;
  std::uint64_t fetched_bytes = 0, needed_bytes = 0;  // of the parts
};

// A publication that is on the road.
struct FoundManifest {
  PublicationId id;
  Manifest manifest;
  std::uint64_t size_bytes = 0;
};

struct FetchedBlocks;  // block_fetcher.h

// Which blocks of a version's frames to fetch.
struct FetchNeeds {
  const WeightLayout* layout = nullptr;                    // of the run
  std::shared_ptr<const TargetNeeds> of_target = nullptr;  // null: everything
  WeightTarget* target = nullptr;  // may begin to stage while parts arrive; may be null
  bool alone = false;              // the version is staged alone; set by the fetcher
};

// Whether the versions may be followed, or the target needs a full version.
enum class FetchMode : unsigned char { kAny, kFullOnly };

class VersionFetcher {
 public:
  // Uses these options: fold_bytes, which limits the parts of a chain (one version is always
  // allowed) and the bytes of mapped parts that are copied; fetch_deadline, for one fetch();
  // report_deadline; threads; read_workers; before_read.
  VersionFetcher(ReceiveRoad& road, const Hash128& run, ReceiverOptions options)
      : road_(&road),
        run_(run),
        options_(std::move(options)),
        memory_(std::make_shared<KeptMemory>(kKeptBytes)),
        next_look_(Deadline::after(options_.fetch_deadline)) {}

  // Limits the reads from now on, beside fetch_deadline: those of several calls share the time.
  void end_reads_by(const Deadline& deadline) { reads_until_ = deadline; }
  // Returns once there may be something for a target in this state; false: the deadline passed.
  // kWrongRun: the road was cleared for another run that has not reached this state's version
  // number; checked once per fetch_deadline.
  [[nodiscard]] Result<bool> wait(const TargetState& state, const Deadline& deadline);
  // Fetches what follows a target's state. Retries what is incomplete, damaged or gone until the
  // options' fetch_deadline; then returns the last failure. If a listed version stays gone, damaged
  // or incomplete, a newer anchor is taken instead; without one, kWrongBase, kCorrupt or
  // kIncomplete. After kCorrupt or kIncomplete the next call tries only once. Every fetched part or
  // block was compared with its hash, and is memory of its own or listed as mapped; every manifest
  // belongs to the run. Nothing: there is nothing newer.
  [[nodiscard]] Result<std::optional<FetchedChain>> fetch(const TargetState& state,
                                                          FetchMode mode = FetchMode::kAny,
                                                          const FetchNeeds& needs = {});
  // Checks that it belongs to the run and to this publication: kWrongRun, kCorrupt.
  [[nodiscard]] Result<FoundManifest> fetch_manifest(const PublicationId& id,
                                                     const Deadline& deadline);
  // The digest of each tensor at a version that a target already holds, from the manifests on the
  // road. `base`: at version 0; empty: not known. Empty if a manifest that is needed is gone, or if
  // too many would be read.
  [[nodiscard]] std::vector<Digest> digests_at(std::uint64_t version, const WeightLayout& layout,
                                               std::vector<Digest> base);
  // The digest of all weights at a version: from its manifest, its anchor, or the base digest in
  // the manifest of a version that builds on it. Nothing if none of them is on the road.
  [[nodiscard]] std::optional<Digest> digest_at(std::uint64_t version);

 private:
  [[nodiscard]] Deadline read_deadline() const {
    return reads_until_ ? reads_until_->sooner(options_.fetch_deadline)
                        : Deadline::after(options_.fetch_deadline);
  }
  [[nodiscard]] bool has_come();
  [[nodiscard]] Status check_run(const TargetState& state);
  [[nodiscard]] Status check_announcement();
  [[nodiscard]] Status wrong_run(const std::string& what, const Hash128& found) const;
  [[nodiscard]] Result<std::vector<FoundManifest>> choose(const TargetState& state, FetchMode mode,
                                                          const Deadline& deadline);
  [[nodiscard]] Result<std::vector<FoundManifest>> follow(const TargetState& state,
                                                          const std::vector<PublicationId>& listed,
                                                          const Deadline& deadline);
  [[nodiscard]] Result<std::vector<FoundManifest>> newest_full(
      const TargetState& state, const std::vector<PublicationId>& listed, const Deadline& deadline);
  // The manifests that lead to a version, newest first, back to a full one or to version 0.
  [[nodiscard]] Result<std::vector<Manifest>> manifests_to(std::uint64_t version,
                                                           const Deadline& deadline);
  // `ahead` gets the parts as they arrive, one after the other; may be null.
  [[nodiscard]] Status fetch_parts(FoundManifest candidate, std::shared_ptr<StageAhead> ahead,
                                   FetchedChain& chain, const FetchNeeds& needs,
                                   const Deadline& deadline);
  // Fetches the needed blocks of frames that are only needed in part, into version.frames. The
  // other frames are left to be fetched whole.
  [[nodiscard]] Status fetch_blocks(const PublicationId& id, FetchedVersion& version,
                                    FetchedChain& chain, const FetchNeeds& needs,
                                    const Deadline& deadline);
  // Proves fetched blocks by their hashes, and takes them as frames of the version.
  [[nodiscard]] Status take_blocks(FetchedBlocks& blocks, FetchedVersion& version,
                                   FetchedChain& chain, const FetchNeeds& needs) const;
  // Copies each mapping that is not listed as mapped into memory of its own, so that later writes
  // to the file cannot change it. Then compares the hash of every part.
  [[nodiscard]] Status take_parts(FetchedVersion& version, const Deadline& deadline) const;
  [[nodiscard]] Status take_part(FetchedVersion& version, std::size_t file,
                                 const Deadline& deadline) const;
  // Fetches part `file` as it lies on the road. From several threads, if the road permits it.
  [[nodiscard]] Result<MappedFile> fetch_whole(const PublicationId& id,
                                               const FetchedVersion& version, std::size_t file,
                                               const Deadline& deadline) const;
  // Fetches the parts that have no frames yet: options.read_workers at a time, if the road permits
  // several threads. Each thread writes only the parts that it fetches.
  [[nodiscard]] Result<std::vector<MappedFile>> fetch_at_once(const PublicationId& id,
                                                              const FetchedVersion& version,
                                                              const Deadline& deadline) const;
  [[nodiscard]] Result<std::optional<FetchedChain>> attempt(const TargetState& state,
                                                            FetchMode mode, const FetchNeeds& needs,
                                                            const Deadline& deadline);

  // Memory of earlier versions that is kept for the next one.
  static constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;

  ReceiveRoad* road_;
  Hash128 run_;
  ReceiverOptions options_;
  std::shared_ptr<KeptMemory> memory_;   // for copies of parts, and inflated bytes
  Waiting waiting_;                      // for a newer version
  Deadline next_look_;                   // when check_run() reads the road again
  std::optional<Deadline> reads_until_;  // end_reads_by()
  bool damaged_ = false;                 // the last fetch() gave up on something damaged
};

}  // namespace driftless
