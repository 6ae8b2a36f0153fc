// SPDX-License-Identifier: Apache-2.0
// Reads a road's directory or bucket: its manifests, the receivers' reports, and its signs of life.
#include <map>
#include <set>

#include "core/utc_time.h"
#include "formats/manifest.h"
#include "formats/run_info.h"
#include "plugin/job/job_process.h"
#include "plugin/job/publisher_session.h"
#include "plugin/receive/run_end.h"
#include "plugin/receive/version_fetcher.h"
#include "tools/status/road_reader.h"

namespace driftless {
namespace {

VersionRecord record_of(const Manifest& manifest) {
  VersionRecord record;
  record.origin = {"trainer", 0, "", manifest.created, 0};
  record.run = manifest.id.run;
  record.version = manifest.id.version;
  record.base_version = manifest.base_version;
  record.digest = manifest.digest;
  record.changed_units = manifest.changed_units;
  record.full_bytes = manifest.full_bytes;
  record.delta_bytes = payload_of(manifest);
  for (const ManifestFile& file : manifest.files) record.wire_bytes += file.size_bytes;
  const auto time = [&](const char* phase) {
    const auto found = manifest.timings_ms.find(phase);
    return found == manifest.timings_ms.end() ? 0.0 : found->second;
  };
  record.published = {manifest.encoding,
                      manifest.total_units == 0 ? 0.0
                                                : static_cast<double>(manifest.changed_units) /
                                                      static_cast<double>(manifest.total_units),
                      time("process_ms"), time("manifest_publish_ms"), time("total_ms")};
  return record;
}

class RoadReader final : public StatusReader {
 public:
  RoadReader(Config config, std::string location, const RoadOpener& opener,
             std::unique_ptr<ReceiveRoad> road, std::size_t most_versions)
      : config_(std::move(config)),
        location_(std::move(location)),
        opener_(opener),
        road_(std::move(road)),
        most_versions_(most_versions) {}

  // The end-of-run message may name a later version than the list that was read before it, because
  // a trainer published in between. Then look again. The message is damaged only if the list did
  // not change between two looks.
  Result<Sighting> look(const Deadline& deadline) override {
    std::optional<std::pair<Hash128, std::uint64_t>> before;
    while (true) {
      DRIFTLESS_ASSIGN_OR_RETURN(Sighting sighting, look_once(deadline));
      const std::pair newest{sighting.status.run, sighting.status.version};
      if (!end_is_ahead_ || before == newest) return sighting;
      DRIFTLESS_RETURN_IF_ERROR(
          deadline.check(concat(location_, ": its run ends again and again while it is read")));
      before = newest;
    }
  }

 private:
  [[nodiscard]] Result<Sighting> look_once(const Deadline& deadline) {
    end_is_ahead_ = false;
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> ids, road_->list(deadline));
    Sighting sighting;
    sighting.status.origin = record_origin("status", 0);
    DRIFTLESS_RETURN_IF_ERROR(read_versions(ids, deadline, sighting));
    DRIFTLESS_RETURN_IF_ERROR(read_run(ids.empty(), deadline, sighting));
    // Reads the end-of-run message before and after the signs: a trainer may end in between.
    bool ended = read_end(sighting);
    DRIFTLESS_ASSIGN_OR_RETURN(const RoadSigns signs,
                               opener_.signs(config_.road_options(), deadline));
    add_rollouts(signs, ids, deadline, sighting);
    if (!ended && signs.alive != true) ended = read_end(sighting);
    if (!ended) judge(signs, sighting);
    return sighting;
  }

  // Publications never change, so each is read only once.
  [[nodiscard]] Result<VersionRecord> read(const PublicationId& id, const Deadline& deadline) {
    if (const auto known = known_.find(id); known != known_.end()) return known->second;
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, road_->fetch_manifest(id, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest, parse_manifest(text, to_string(id)));
    if (manifest.id.version != id.version) {
      return error(StatusCode::kCorrupt, to_string(id), ": its manifest is of version ",
                   manifest.id.version);
    }
    VersionRecord record = record_of(manifest);
    record.anchor = !is_version(id);
    std::vector<PartReceipt>& parts = parts_[id];
    for (const ManifestFile& file : manifest.files) parts.push_back(receipt_of(file));
    return known_.emplace(id, std::move(record)).first->second;
  }

  // Reads the newest publications, oldest first; a version and its anchor make one record.
  [[nodiscard]] Status read_versions(const std::vector<PublicationId>& ids,
                                     const Deadline& deadline, Sighting& sighting) {
    RunStatus& status = sighting.status;
    std::map<std::uint64_t, VersionRecord> found;
    std::set<std::uint64_t> looked;
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      looked.insert(id->version);
      if (looked.size() > most_versions_) break;
      Result<VersionRecord> record = read(*id, deadline);
      const StatusCode code = record.status().code();
      if (code == StatusCode::kNotFound) continue;  // removed in the meantime
      if (code == StatusCode::kDeadlineExceeded || code == StatusCode::kIo) return record.status();
      if (!record.ok()) {
        sighting.damaged.emplace_back(record.status().message());
        continue;
      }
      const auto [same, is_new] = found.try_emplace(id->version, *record);
      if (is_new) continue;
      const bool anchor = same->second.anchor || record->anchor;
      if (is_version(*id)) same->second = *record;
      same->second.anchor = anchor;
    }
    add_missing(ids, found, sighting);
    DRIFTLESS_RETURN_IF_ERROR(check_parts(ids, deadline, sighting));
    for (auto& [number, record] : found) status.versions.push_back(std::move(record));
    if (!ids.empty()) status.version = ids.back().version;
    if (status.versions.empty()) return {};
    const VersionRecord& newest = status.versions.back();
    status.run = newest.run;
    for (const VersionRecord& version : status.versions) {
      if (version.run == status.run) continue;
      sighting.damaged.push_back(concat("version ", version.version, " is of run ",
                                        to_hex(version.run), ", the newest one of ",
                                        to_hex(status.run)));
    }
    if (newest.version == status.version) status.digest = to_hex(newest.digest);
    return {};
  }

  // Versions are removed from the oldest on. So a missing version on which a later one builds was
  // lost.
  static void add_missing(const std::vector<PublicationId>& ids,
                          const std::map<std::uint64_t, VersionRecord>& found, Sighting& sighting) {
    const auto oldest = std::ranges::find_if(ids, is_version);
    for (const auto& [number, record] : found) {
      const std::uint64_t base = record.base_version;
      const bool full = record.published && record.published->encoding == Encoding::kFull;
      const bool listed = std::ranges::find(ids, base, &PublicationId::version) != ids.end();
      if (full || listed || oldest == ids.end() || base < oldest->version) continue;
      sighting.damaged.push_back(
          concat("version ", base, " is missing, and version ", number, " is a change to it"));
    }
  }

  using Lost = std::vector<std::pair<PublicationId, std::string>>;
  // Checks that the parts of the newest publications exist, by reading their last bytes. A store is
  // checked once, because each part is a request; a directory at every look.
  [[nodiscard]] Status check_parts(const std::vector<PublicationId>& ids, const Deadline& deadline,
                                   Sighting& sighting) {
    std::size_t looked = 0;
    Lost lost;
    for (auto at = parts_.rbegin(); at != parts_.rend(); ++at) {
      auto& [id, parts] = *at;
      if (!std::ranges::binary_search(ids, id)) parts.clear();
      for (const PartReceipt& part : parts) {
        if (part.size_bytes == 0 || ++looked > kMostParts) continue;
        const ByteRange last[] = {{part.size_bytes - 1, 1}};
        const Status there = road_->fetch_ranges(id, part, last, deadline).status();
        const StatusCode code = there.code();
        if (code == StatusCode::kDeadlineExceeded) return there;
        const bool gone = code == StatusCode::kNotFound || code == StatusCode::kIncomplete ||
                          code == StatusCode::kCorrupt;
        if (!gone) continue;  // it exists, even if this build or this user cannot read it
        lost.emplace_back(id, concat(to_string(id), ": part ", part.name, ": ", there.message()));
        break;
      }
      if (looked > kMostParts || (!keeps_looking_ && !is_lost(lost, id))) parts.clear();
    }
    std::erase_if(parts_, [](const auto& each) { return each.second.empty(); });
    if (lost.empty()) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> still, road_->list(deadline));
    for (const auto& [id, text] : lost) {  // unless it was removed in the meantime
      if (std::ranges::binary_search(still, id)) sighting.damaged.push_back(text);
    }
    return {};
  }
  [[nodiscard]] static bool is_lost(const Lost& lost, const PublicationId& id) {
    return !lost.empty() && lost.back().first == id;
  }

  // Reads the announcement, once. Without it no receiver can join; directories written by other
  // tools have none.
  [[nodiscard]] Status read_run(bool empty, const Deadline& deadline, Sighting& sighting) {
    if (run_.is_zero()) {
      const Result<std::string> text =
          road_->run_info(deadline.sooner(std::chrono::milliseconds(0)));
      const bool none = text.status().code() == StatusCode::kDeadlineExceeded;
      if (none && empty) {
        return error(StatusCode::kNotFound, location_, ": holds no run and no version");
      }
      if (none) return {};
      if (!text.ok() && (empty || text.status().code() == StatusCode::kIo)) return text.status();
      const Result<RunInfo> info = text.ok() ? parse_run_info(*text, concat(location_, "/run.json"))
                                             : Result<RunInfo>(text.status());
      if (!info.ok()) {
        sighting.damaged.emplace_back(info.status().message());
        return {};
      }
      run_ = info->run;
      base_digest_ = to_hex(info->base_digest);
    }
    if (sighting.status.run.is_zero()) sighting.status.run = run_;
    if (empty) sighting.status.digest = base_digest_;
    return {};
  }

  // Empty: not known.
  [[nodiscard]] std::string digest_of(std::uint64_t version, const std::vector<PublicationId>& ids,
                                      const Deadline& deadline) {
    for (const PublicationKind kind : {PublicationKind::kVersion, PublicationKind::kAnchor}) {
      const PublicationId id{version, kind};
      if (!std::ranges::binary_search(ids, id)) continue;
      const Result<VersionRecord> record = read(id, deadline);
      if (record.ok()) return to_hex(record->digest);
    }
    return {};
  }

  void add_rollouts(const RoadSigns& signs, const std::vector<PublicationId>& ids,
                    const Deadline& deadline, Sighting& sighting) {
    const std::string run = to_hex(sighting.status.run);
    for (const RoadSigns::Receiver& each : signs.receivers) {
      const ReceiverReport& report = each.report;
      if (report.id.starts_with("publisher-")) continue;  // a trainer that resumes
      if (!each.readable) {
        sighting.damaged.push_back(concat("the report of ", report.id));
        continue;
      }
      const std::string of = reported_run(report.proof, report.needs);
      if (!of.empty() && of != run) {
        sighting.notes.push_back(concat(report.id, ": reported to another run, ", of));
        continue;
      }
      if (each.seen && Moment::clock::now() - *each.seen > kPatience) {
        const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(
            Moment::clock::now() - *each.seen);
        sighting.notes.push_back(concat(report.id, ": at version ", report.version,
                                        ", and silent for ", human_time(age)));
        continue;
      }
      const ReportProof proof = parse_proof(report.proof);
      const bool parts = wants_parts(report);
      const std::string expected =
          parts || proof.digest.empty() ? "" : digest_of(report.version, ids, deadline);
      if (expected.empty() && !parts && !proof.digest.empty()) {
        sighting.notes.push_back(concat(report.id, ": the digest of version ", report.version,
                                        " is not known here, so nothing proves what it holds"));
      }
      // A digest that cannot be compared proves nothing and is no fault: it is left out.
      const bool known = !expected.empty();
      const bool proven = known && proof.unproven == 0 && expected == proof.digest;
      sighting.status.rollouts.push_back(
          {report.id, of, report.version, known ? proof.digest : std::string(), proven,
           proof.unproven, false, proof.digest.empty() && reports_idle(report.needs),
           proof.stage_ms, proof.commit_ms});
    }
  }

  // Whether the end-of-run message exists.
  [[nodiscard]] bool read_end(Sighting& sighting) {
    if (opener_.fetch_end == nullptr) return false;
    const auto note = opener_.fetch_end(config_.road_options());
    if (!note.ok() || !note->has_value()) return false;
    const Result<EndOfRun> end = parse_end(**note, "closed.json");
    RunStatus& status = sighting.status;
    if (!end.ok()) {  // it may be being written: judge by the age
      sighting.notes.emplace_back(end.status().message());
      return false;
    }
    if (end->run != status.run || end->version < status.version) return false;
    if (end->version > status.version) {
      end_is_ahead_ = true;
      sighting.damaged.push_back(concat("closed.json names version ", end->version,
                                        " as the last, and the newest one here is ",
                                        status.version));
    }
    status.trainer = TrainerState::kEnded;
    sighting.why = concat("closed.json names version ", end->version, " as the last");
    return true;
  }

  void judge(const RoadSigns& signs, Sighting& sighting) const {
    RunStatus& status = sighting.status;
    const bool gone = signs.alive == false;
    judge_by_age(sighting, Moment::clock::now(), gone);
    if (signs.alive == true) {
      sighting.stalled = status.trainer == TrainerState::kSilent;
      status.trainer = TrainerState::kAlive;
      status.trainer_seen = status.origin.time;
      sighting.why = concat(signs.publisher, " holds the publisher's lock; ", sighting.why);
    } else if (gone) {
      sighting.why =
          concat(signs.publisher, ", the last publisher, is not running; ", sighting.why);
    } else if (!signs.publisher.empty()) {
      sighting.why += concat("; whether ", signs.publisher,
                             ", the last publisher, runs cannot be seen from here");
    }
  }

  static constexpr std::size_t kMostParts = 512;  // per look
  // The time for which a publisher remembers a receiver.
  static constexpr std::chrono::minutes kPatience{10};

  const Config config_;
  const std::string location_;
  const RoadOpener& opener_;
  const std::unique_ptr<ReceiveRoad> road_;
  const std::size_t most_versions_;
  std::map<PublicationId, VersionRecord> known_;
  std::map<PublicationId, std::vector<PartReceipt>> parts_;  // still to be checked
  const bool keeps_looking_ = config_.kind().directory != nullptr;
  Hash128 run_;
  std::string base_digest_;
  bool end_is_ahead_ = false;
};

}  // namespace

std::unique_ptr<StatusReader> make_reader_of_road(Config config, std::string location,
                                                  const RoadOpener& opener,
                                                  std::unique_ptr<ReceiveRoad> road,
                                                  std::size_t most_versions) {
  return std::make_unique<RoadReader>(std::move(config), std::move(location), opener,
                                      std::move(road), most_versions);
}

Result<std::unique_ptr<StatusReader>> make_road_reader(bool directory, const std::string& location,
                                                       std::span<const std::string> set,
                                                       std::size_t most_versions) {
  const auto kind = std::ranges::find_if(road_kinds(), [directory](const RoadKind* each) {
    return !each->place_key.empty() && (each->directory != nullptr) == directory;
  });
  std::vector<std::string> settings{concat((*kind)->place_key, "=", location)};
  settings.insert(settings.end(), set.begin(), set.end());
  DRIFTLESS_ASSIGN_OR_RETURN(
      Config config,
      parse_config(concat("road: { kind: ", (*kind)->name, " }"), "status", settings));
  DRIFTLESS_RETURN_IF_ERROR(check_available(road_table(), config, {}));
  DRIFTLESS_ASSIGN_OR_RETURN(const Road* const road, find_road(road_table(), config));
  if (road->opener->signs == nullptr) {
    return error(StatusCode::kUnsupported, "the road ", (*kind)->name, " shows no status");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<ReceiveRoad> opened,
                             road->opener->history(config.road_options()));
  return make_reader_of_road(std::move(config), location, *road->opener, std::move(opened),
                             most_versions);
}

}  // namespace driftless
