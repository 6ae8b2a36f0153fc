// SPDX-License-Identifier: Apache-2.0
// VersionFetcher: chooses what a receiver takes next from a road, and fetches it: whole, or of its
// frames the blocks that the target needs, several ranges at a time. A receiver takes chains of
// versions from it; an agent, which hands on every publication by itself, takes their manifests.
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
// Waits for it. On some file systems its bytes come late: an announcement that cannot be read is
// read again for `patience`.
[[nodiscard]] Result<Announcement> read_announcement(ReceiveRoad& road,
                                                     std::chrono::milliseconds patience,
                                                     const Deadline& deadline);

// The tries of one fetch: what is incomplete, damaged, gone or busy may be otherwise at the next.
class FetchTries {
 public:
  explicit FetchTries(std::chrono::milliseconds patience)
      : patience_(patience), deadline_(Deadline::after(patience)) {}

  [[nodiscard]] const Deadline& deadline() const { return deadline_; }
  // Notes how a try failed. False: the next one would fail alike.
  [[nodiscard]] bool note(const Status& failure);
  // Waits for the next try. False: there is no time for one.
  [[nodiscard]] bool wait();
  // The last failure that time might have mended: a timeout would hide the cause.
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
// kCorrupt, naming the part, if its size or hash is not the manifest's. What is on the device was
// compared there, by the road.
[[nodiscard]] Status check_part(const MappedFile& part, const ManifestFile& file,
                                const Deadline& deadline);

// A part that is too large to be copied stays a mapping of a file, which whoever writes into the
// file changes after its hash was compared.
struct MappedPart {
  std::shared_ptr<const MappedFile> file;
  std::string what;  // for messages
  Hash128 hash;
};
// kCorrupt, naming the part, if one of them is not what it was.
[[nodiscard]] Status check_unchanged(std::span<const MappedPart> parts, unsigned threads);

// Versions that adjoin the target's, or one full publication.
struct FetchedChain {
  std::vector<FetchedVersion> versions;
  std::vector<MappedPart> mapped;  // those of their parts that are mappings
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

// What is fetched of a version's frames.
struct FetchNeeds {
  const WeightLayout* layout = nullptr;                    // of the run
  std::shared_ptr<const TargetNeeds> of_target = nullptr;  // null: everything
  WeightTarget* target = nullptr;  // that may begin before all is there; null: none may
};

// Whether the versions may be followed, or the target needs a full version.
enum class FetchMode : unsigned char { kAny, kFullOnly };

class VersionFetcher {
 public:
  // Of the options: fold_bytes (of the parts of a chain; one version always. Mapped parts are
  // copied as far as this goes), fetch_deadline (of one fetch()), threads, before_read.
  VersionFetcher(ReceiveRoad& road, const Hash128& run, ReceiverOptions options)
      : road_(&road),
        run_(run),
        options_(std::move(options)),
        memory_(std::make_shared<KeptMemory>(kKeptBytes)),
        next_look_(Deadline::after(options_.fetch_deadline)) {}

  // Returns once there may be something for a target in this state; false: the deadline passed.
  // kWrongRun: the road was cleared for another run, which has not counted past this state; looked
  // for once in a fetch_deadline.
  [[nodiscard]] Result<bool> wait(const TargetState& state, const Deadline& deadline);
  // What takes a target in this state further. What is incomplete, damaged or gone meanwhile is
  // tried again until the deadline of the options; then the last failure is returned. A version
  // that is listed and stays gone, damaged or incomplete is passed over by a newer anchor, if there
  // is one; else kWrongBase, kCorrupt or kIncomplete. What stayed so is looked at once in further
  // calls. Every
  // part or block that was fetched has its hash, and is memory of its own or
  // listed as mapped; every manifest is of the run. Nothing: there is nothing newer.
  [[nodiscard]] Result<std::optional<FetchedChain>> fetch(const TargetState& state,
                                                          FetchMode mode = FetchMode::kAny,
                                                          const FetchNeeds& needs = {});
  // Of the run and of this publication: kWrongRun, kCorrupt.
  [[nodiscard]] Result<FoundManifest> fetch_manifest(const PublicationId& id,
                                                     const Deadline& deadline);
  // The digest of each tensor at a version that a target holds already, by the manifests on the
  // road. `base`: at version 0; empty if nobody says. Empty if too many of them, or one, are gone.
  [[nodiscard]] std::vector<Digest> digests_at(std::uint64_t version, const WeightLayout& layout,
                                               std::vector<Digest> base);
  // The digest of all weights at a version: its manifest's, its anchor's, or the base digest of a
  // version that builds on it. Nothing if none of them is on the road.
  [[nodiscard]] std::optional<Digest> digest_at(std::uint64_t version);

 private:
  [[nodiscard]] bool has_come();
  [[nodiscard]] Status check_run(const TargetState& state);
  [[nodiscard]] Status check_announced();
  [[nodiscard]] Status wrong_run(const std::string& what, const Hash128& found) const;
  [[nodiscard]] Result<std::vector<FoundManifest>> choose(const TargetState& state, FetchMode mode,
                                                          const Deadline& deadline);
  [[nodiscard]] Result<std::vector<FoundManifest>> follow(const TargetState& state,
                                                          const std::vector<PublicationId>& listed,
                                                          const Deadline& deadline);
  [[nodiscard]] Result<std::vector<FoundManifest>> newest_full(
      const TargetState& state, const std::vector<PublicationId>& listed, const Deadline& deadline);
  // The manifests that lead to a version, newest first, down to a full one or to version 0.
  [[nodiscard]] Result<std::vector<Manifest>> manifests_to(std::uint64_t version,
                                                           const Deadline& deadline);
  // `ahead` sees the parts as they come, one after the other; null: nobody does.
  [[nodiscard]] Status fetch_parts(FoundManifest candidate, std::shared_ptr<StageAhead> ahead,
                                   FetchedChain& chain, const FetchNeeds& needs,
                                   const Deadline& deadline);
  // Of the frames of which not every block is needed, those that are: version.frames. The others
  // are left to be fetched whole.
  [[nodiscard]] Status fetch_blocks(const PublicationId& id, FetchedVersion& version,
                                    FetchedChain& chain, const FetchNeeds& needs,
                                    const Deadline& deadline);
  // Every part into memory of its own, if it is a mapping, and then against its hash: nobody who
  // writes into the file later changes what was compared.
  [[nodiscard]] Status take_parts(FetchedVersion& version, const Deadline& deadline) const;
  [[nodiscard]] Status take_part(FetchedVersion& version, std::size_t file,
                                 const Deadline& deadline) const;
  // Part `file`, as it lies on the road. From several threads, if the road lets them.
  [[nodiscard]] Result<MappedFile> fetch_whole(const PublicationId& id,
                                               const FetchedVersion& version, std::size_t file,
                                               const Deadline& deadline) const;
  // The parts of which there are no frames yet: options.read_workers at a time, if the road lets
  // several threads fetch. Each thread writes the parts that it fetches, and nothing else.
  [[nodiscard]] Result<std::vector<MappedFile>> fetch_at_once(const PublicationId& id,
                                                              const FetchedVersion& version,
                                                              const Deadline& deadline) const;
  [[nodiscard]] Result<std::optional<FetchedChain>> attempt(const TargetState& state,
                                                            FetchMode mode, const FetchNeeds& needs,
                                                            const Deadline& deadline);

  // Of memory that versions came in, kept for the next one.
  static constexpr std::uint64_t kKeptBytes = std::uint64_t{256} << 20;

  ReceiveRoad* road_;
  Hash128 run_;
  ReceiverOptions options_;
  std::shared_ptr<KeptMemory> memory_;  // for copies of parts, and what is inflated
  Waiting waiting_;                     // for news
  Deadline next_look_;                  // when check_run() looks at the road again
  bool damaged_ = false;                // the last fetch() gave up on what is damaged
};

}  // namespace driftless
