// SPDX-License-Identifier: Apache-2.0
// Reads metrics files, with one record per line. It keeps what it has read; a later look reads only
// what was appended.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "core/utc_time.h"
#include "formats/record_reader.h"
#include "tools/status/status_reader.h"

namespace driftless {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;  // the end of a larger file is read
constexpr std::size_t kMostLine = std::size_t{1} << 20;
constexpr std::size_t kMostHolders = 100'000;
constexpr std::size_t kMostNamed = 8;  // runs named beside the newest
// Processes of a run may end this long after the next has begun.
constexpr std::chrono::minutes kTakeOver{1};

// One run's records from all files.
struct RunRecords {
  std::string first, time;  // of the oldest and the newest record
  std::map<std::uint64_t, VersionRecord> published, received;
  std::map<std::string, EngineRecord> engines;
  std::map<std::string, VersionRecord> rollouts;
  std::optional<EndRecord> end;  // from the trainer
  std::string trainer_seen;
};

class MetricsReader final : public StatusReader {
 public:
  explicit MetricsReader(std::vector<std::string> paths) {
    for (std::string& path : paths) files_.push_back({std::move(path)});
  }

  Result<Sighting> look(const Deadline& deadline) override {
    for (File& file : files_) DRIFTLESS_RETURN_IF_ERROR(read(file, deadline));
    const auto newest = std::ranges::max_element(
        runs_, {}, [](const auto& entry) -> const std::string& { return entry.second.time; });
    if (newest == runs_.end()) {
      return error(StatusCode::kNotFound, files_.front().path, ": holds no record",
                   damaged_ == 0 ? "" : "; ", first_damage_);
    }
    return sight(newest->first, newest->second);
  }

 private:
  struct File {
    std::string path;
    std::uint64_t at = 0;    // bytes read so far
    std::uint64_t line = 0;  // the number of the last line
  };

  // Reads the appended lines. A line without an end is still being written. A file is read again
  // from its beginning only if it was rotated.
  [[nodiscard]] Status read(File& file, const Deadline& deadline) {
    std::error_code failed;
    const std::uint64_t size = std::filesystem::file_size(file.path, failed);
    if (failed) return errno_status(failed.value(), file.path);
    if (size < file.at) file.at = file.line = 0;
    std::string line;
    std::ifstream in(file.path, std::ios::binary);
    const bool cut = size - file.at > kMostBytes;
    if (cut) file.at = size - kMostBytes;
    in.seekg(static_cast<std::streamoff>(file.at));
    if (cut && std::getline(in, line)) file.at += line.size() + 1;  // skip the rest of a line
    while (file.at < size && std::getline(in, line) && !in.eof()) {
      DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", file.path)));
      file.at += line.size() + 1;
      ++file.line;
      const std::string what = concat(file.path, ":", file.line);
      const Status taken = take(line, what);
      if (!taken.ok() && ++damaged_ == 1) first_damage_ = taken.message();
    }
    if (in.bad()) return error(StatusCode::kIo, file.path, ": cannot be read");
    return {};
  }

  [[nodiscard]] Status take(const std::string& line, const std::string& what) {
    if (line.empty()) return {};
    if (line.size() > kMostLine) return error(StatusCode::kCorrupt, what, ": the line is too long");
    DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(line, what));
    Hash128 run;
    DRIFTLESS_ASSIGN_OR_RETURN(const RecordOrigin origin, read_origin(json, run, what));
    RunRecords& records = runs_[run];
    if (!origin.time.empty() && !parse_utc(origin.time)) {
      return error(StatusCode::kCorrupt, what, ": time: expected a time in UTC, found ",
                   shown(origin.time));
    }
    records.time = std::max(records.time, origin.time);
    if (records.first.empty() || origin.time < records.first) records.first = origin.time;
    const bool trainer = origin.role == "trainer";
    if (trainer) records.trainer_seen = std::max(records.trainer_seen, origin.time);
    if (json.contains("event")) {
      DRIFTLESS_ASSIGN_OR_RETURN(const EndRecord end, read_end_record(json, what));
      if (trainer) records.end = end;
      if (end.event != "" || !json.contains("changed_units")) return {};
    }
    if (json.contains("engine")) {
      DRIFTLESS_ASSIGN_OR_RETURN(EngineRecord engine, read_engine_record(json, what));
      if (records.engines.size() < kMostHolders) records.engines[engine.engine] = std::move(engine);
      return {};
    }
    DRIFTLESS_ASSIGN_OR_RETURN(VersionRecord version, read_version_record(json, what));
    if (trainer) records.end.reset();  // a restarted trainer goes on after an end
    const bool rollout = origin.role == "rollout";
    const std::string who =
        origin.id.empty() ? concat(origin.role, ".", origin.rank, " on ", origin.host) : origin.id;
    auto& versions = trainer ? records.published : records.received;
    versions[version.version] = version;
    if (versions.size() > kAllVersions) versions.erase(versions.begin());
    if (rollout && records.rollouts.size() < kMostHolders)
      records.rollouts[who] = std::move(version);
    return {};
  }

  [[nodiscard]] Sighting sight(const Hash128& run, const RunRecords& records) const {
    Sighting sighting;
    RunStatus& status = sighting.status;
    status.origin = record_origin("status", 0);
    status.run = run;
    // Without a trainer's records, use the versions that receivers took.
    const auto& versions = records.published.empty() ? records.received : records.published;
    for (const auto& [number, version] : versions) status.versions.push_back(version);
    for (const auto* each : {&records.published, &records.received}) {
      if (each->empty() || each->rbegin()->first < status.version) continue;
      status.version = each->rbegin()->first;
      status.digest = to_hex(each->rbegin()->second.digest);
    }
    for (const auto& [url, engine] : records.engines) status.engines.push_back(engine);
    for (const auto& [who, version] : records.rollouts) {
      status.rollouts.push_back(rollout_of(who, version, records.published));
    }
    judge(records, sighting);
    if (damaged_ > 0) {
      sighting.damaged.push_back(concat(
          first_damage_, damaged_ > 1 ? concat("; and ", counted(damaged_ - 1, "more line")) : ""));
    }
    add_others(run, records, sighting);
    return sighting;
  }

  // Reports the runs that are not judged. It is usual that one run follows another, but not that
  // both go on.
  void add_others(const Hash128& run, const RunRecords& records, Sighting& sighting) const {
    std::size_t named = 0;
    for (const auto& [other, its] : runs_) {
      if (other == run || ++named > kMostNamed) continue;
      const std::uint64_t version =
          std::max(its.published.empty() ? 0 : its.published.rbegin()->first,
                   its.received.empty() ? 0 : its.received.rbegin()->first);
      const std::string text =
          concat("run ", to_hex(other), " has records here, too: up to version ", version,
                 ", the last of ", its.time.empty() ? "no known time" : its.time,
                 its.end ? ", and has ended" : "");
      const auto began = parse_utc(records.first), last = parse_utc(its.time);
      const bool both = began && last && *last - *began > kTakeOver;
      (both ? sighting.damaged : sighting.notes)
          .push_back(
              both ? concat("two runs are mixed: ", text, "; only run ", to_hex(run), " is judged")
                   : text);
    }
    if (named <= kMostNamed) return;
    sighting.notes.push_back(concat(named - kMostNamed, " more runs have records here"));
  }

  static RolloutRecord rollout_of(const std::string& who, const VersionRecord& held,
                                  const std::map<std::uint64_t, VersionRecord>& published) {
    const CommitTimes times = held.received ? held.received->commit : CommitTimes();
    const auto original = published.find(held.version);
    const bool known = original != published.end();
    // Without the trainer's record of this version there is nothing to compare with: leave the
    // digest out.
    return {who,
            to_hex(held.run),
            held.version,
            known ? to_hex(held.digest) : "",
            known && original->second.digest == held.digest,
            0,
            false,
            false,
            times.stage_ms,
            times.pause_ms + times.apply_ms + times.resume_ms};
  }

  static void judge(const RunRecords& records, Sighting& sighting) {
    if (records.end) {
      sighting.status.trainer = TrainerState::kEnded;
      sighting.why = concat("its last line, of ", records.end->origin.time);
    } else {
      judge_by_age(sighting, Moment::clock::now());
    }
    if (!records.trainer_seen.empty()) sighting.status.trainer_seen = records.trainer_seen;
  }

  std::vector<File> files_;
  std::map<Hash128, RunRecords> runs_;
  std::uint64_t damaged_ = 0;
  std::string first_damage_;
};

}  // namespace

std::unique_ptr<StatusReader> make_metrics_reader(std::vector<std::string> paths) {
  return std::make_unique<MetricsReader>(std::move(paths));
}

}  // namespace driftless
