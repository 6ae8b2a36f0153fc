// SPDX-License-Identifier: Apache-2.0
// VersionFetcher: chooses what a receiver takes next from a road, and fetches it: whole, or of its
// frames the blocks that the target needs, several ranges at a time.
//
// One thread at a time. The road outlives it.
#pragma once

#include "plugin/receive/receiver.h"

namespace driftless {

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
  // The digest of each tensor at a version that a target holds already, by the manifests on the
  // road. `base`: at version 0; empty if nobody says. Empty if too many of them, or one, are gone.
  [[nodiscard]] std::vector<Digest> digests_at(std::uint64_t version, const WeightLayout& layout,
                                               std::vector<Digest> base);
  // The digest of all weights at a version: its manifest's, its anchor's, or the base digest of a
  // version that builds on it. Nothing if none of them is on the road.
  [[nodiscard]] std::optional<Digest> digest_at(std::uint64_t version);

 private:
  struct Candidate {
    PublicationId id;
    Manifest manifest;
    std::uint64_t manifest_bytes = 0;
  };
  [[nodiscard]] Status check_run(const TargetState& state);
  [[nodiscard]] Status wrong_run(const std::string& what, const Hash128& found) const;
  [[nodiscard]] Result<Candidate> fetch_manifest(const PublicationId& id, const Deadline& deadline);
  [[nodiscard]] Result<std::vector<Candidate>> choose(const TargetState& state, FetchMode mode,
                                                      const Deadline& deadline);
  [[nodiscard]] Result<std::vector<Candidate>> follow(const TargetState& state,
                                                      const std::vector<PublicationId>& listed,
                                                      const Deadline& deadline);
  [[nodiscard]] Result<std::vector<Candidate>> newest_full(const TargetState& state,
                                                           const std::vector<PublicationId>& listed,
                                                           const Deadline& deadline);
  // The manifests that lead to a version, newest first, down to a full one or to version 0.
  [[nodiscard]] Result<std::vector<Manifest>> manifests_to(std::uint64_t version,
                                                           const Deadline& deadline);
  // `ahead` sees the parts as they come, one after the other; null: nobody does.
  [[nodiscard]] Status fetch_parts(Candidate candidate, std::shared_ptr<StageAhead> ahead,
                                   FetchedChain& chain, const FetchNeeds& needs,
                                   const Deadline& deadline);
  // Of the frames of which not every block is needed, those that are: version.frames. The others
  // are left to be fetched whole.
  [[nodiscard]] Status fetch_blocks(const PublicationId& id, FetchedVersion& version,
                                    FetchedChain& chain, const FetchNeeds& needs,
                                    const Deadline& deadline);
  [[nodiscard]] Status take_parts(FetchedVersion& version, const Deadline& deadline) const;
  [[nodiscard]] static Status take_part(FetchedVersion& version, std::size_t file,
                                        const Deadline& deadline);
  [[nodiscard]] Result<std::optional<FetchedChain>> attempt(const TargetState& state,
                                                            FetchMode mode, const FetchNeeds& needs,
                                                            const Deadline& deadline);

  ReceiveRoad* road_;
  Hash128 run_;
  ReceiverOptions options_;
  Deadline next_look_;    // when check_run() looks at the road again
  bool damaged_ = false;  // the last fetch() gave up on what is damaged
};

}  // namespace driftless
