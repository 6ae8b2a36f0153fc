// SPDX-License-Identifier: Apache-2.0
// driftless status: one look at a run, or repeated looks.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/line_log.h"
#include "core/utc_time.h"
#include "tools/cli/commands.h"

namespace driftless::cli {
namespace {

using Lines = std::vector<std::string>;
constexpr std::chrono::seconds kLookWait{30};

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }
std::string ms(double value) { return value > 0 ? fixed(value, 1) : "-"; }

// The age of a time; with `absolute` the time itself, which does not change between looks.
std::string when(const std::string& time, bool absolute) {
  const auto moment = parse_utc(time);
  if (absolute || !moment) return or_dash(time);
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(Moment::clock::now() - *moment);
  return human_time(std::max(age, std::chrono::milliseconds(0)));
}

using Table = std::vector<std::vector<std::string>>;

// Leaves out the columns from `first` on in which no row has a value.
void drop_empty_columns(std::vector<std::string>& header, Table& rows, std::size_t first) {
  for (std::size_t column = header.size(); column-- > first;) {
    if (std::ranges::any_of(rows, [&](const auto& row) { return row[column] != "-"; })) continue;
    const auto at = static_cast<std::ptrdiff_t>(column);
    header.erase(header.begin() + at);
    for (auto& row : rows) row.erase(row.begin() + at);
  }
}

void add_versions(const RunStatus& status, std::size_t most, bool absolute, Lines& lines) {
  if (status.versions.empty()) return;
  Table rows;
  const std::size_t first = status.versions.size() - std::min(most, status.versions.size());
  for (std::size_t i = first; i < status.versions.size(); ++i) {
    const VersionRecord& version = status.versions[i];
    const bool published = version.published.has_value();
    const VersionRecord::Published times = version.published.value_or(VersionRecord::Published());
    const double fetch_ms = version.received    ? version.received->fetch_ms
                            : version.delivered ? version.delivered->fetch_ms
                                                : 0;
    // Agents and `driftless diff` do not record the stages, but one time for all of them.
    const bool staged = times.compare_ms + times.encode_ms + times.send_ms > 0;
    const double process_ms = version.delivered ? version.delivered->process_ms
                              : staged          ? 0
                                                : times.process_ms;
    rows.push_back({std::to_string(version.version), std::to_string(version.base_version),
                    version.anchor ? "yes" : "-", when(version.origin.time, absolute),
                    std::to_string(version.changed_units),
                    published ? concat(fixed(100 * times.density, 3), " %") : "-",
                    human_bytes(version.wire_bytes),
                    version.changed_units == 0 || times.encoding == Encoding::kFull
                        ? "-"
                        : fixed(8 * ratio(version.delta_bytes, version.changed_units), 2),
                    published ? std::string(info(times.encoding).name) : "-",
                    version.captured ? ms(version.captured->step_ms) : "-", ms(times.compare_ms),
                    ms(times.encode_ms), ms(times.send_ms), ms(times.seal_ms), ms(process_ms),
                    ms(times.total_ms), ms(fetch_ms)});
  }
  std::vector<std::string> header = {"version",  "base",    "anchor",     absolute ? "time" : "age",
                                     "changed",  "density", "wire",       "bits per change",
                                     "encoding", "step ms", "compare ms", "encode ms",
                                     "send ms",  "seal ms", "process ms", "total ms",
                                     "fetch ms"};
  constexpr std::size_t kTimes = 9;  // the first column of times
  drop_empty_columns(header, rows, kTimes);
  const bool timed = header.size() > kTimes;
  lines.emplace_back();
  std::ranges::move(table_lines(header, std::move(rows)), std::back_inserter(lines));
  if (!timed) lines.emplace_back("times: in metrics files (metrics.file) and at monitor.address");
}

void add_engines(const RunStatus& status, Lines& lines) {
  if (status.engines.empty()) return;
  std::vector<std::vector<std::string>> rows;
  for (const EngineRecord& engine : status.engines) {
    rows.push_back({engine.engine, or_dash(std::string(engine.kind)),
                    std::to_string(engine.version), std::to_string(lag(status, engine.version)),
                    or_dash(std::string(engine.proven)),
                    engine.status.ok() ? "ok" : std::string(to_string(engine.status.code())),
                    ms(engine.commit.stage_ms), ms(engine.commit.pause_ms),
                    ms(engine.commit.apply_ms), ms(engine.commit.resume_ms)});
  }
  lines.emplace_back();
  std::ranges::move(table_lines({"engine", "kind", "version", "lag", "proven", "status", "stage ms",
                                 "pause ms", "apply ms", "resume ms"},
                                rows),
                    std::back_inserter(lines));
}

void add_rollouts(const RunStatus& status, Lines& lines) {
  if (status.rollouts.empty()) return;
  std::vector<std::vector<std::string>> rows;
  for (const RolloutRecord& rollout : status.rollouts) {
    std::string state = rollout.left ? "signed off" : "ok";
    if (!rollout.left && rollout.digest.empty()) state = "reports no version";
    if (rollout.idle) state = "idle: no process on its host takes versions";
    if (rollout.unproven > 0) state = concat(counted(rollout.unproven, "tensor"), " unproven");
    rows.push_back({rollout.id, std::to_string(rollout.version),
                    std::to_string(lag(status, rollout.version)), rollout.proven ? "yes" : "no",
                    state, ms(rollout.stage_ms), ms(rollout.commit_ms)});
  }
  lines.emplace_back();
  std::ranges::move(
      table_lines({"rollout", "version", "lag", "proven", "status", "stage ms", "commit ms"}, rows),
      std::back_inserter(lines));
}

Lines to_lines(const Sighting& sighting, std::size_t most, bool absolute) {
  const RunStatus& status = sighting.status;
  Lines lines{
      concat("run ", status.run.is_zero() ? "unknown" : to_hex(status.run), ", version ",
             status.version, ", digest ", status.digest.empty() ? "unknown" : status.digest),
      concat("trainer: ", to_string(status.trainer),
             absolute && !status.trainer_seen.empty()
                 ? concat("; last sign of life ", status.trainer_seen)
                 : concat(": ", sighting.why))};
  if (!status.fallback.empty()) {
    lines.push_back(concat("road: ", status.fallback,
                           ", in place of the one that failed; the run stays there until the "
                           "trainer starts with an empty place for it"));
  }
  add_versions(status, most, absolute, lines);
  add_engines(status, lines);
  add_rollouts(status, lines);
  if (!status.refusals.empty()) {
    std::string text = "refusals so far:";
    for (const auto& [code, count] : status.refusals) text += concat(" ", code, " ", count);
    lines.insert(lines.end(), {"", text});
  }
  const Lines wrong = problems(sighting);
  if (!sighting.notes.empty() || !wrong.empty()) lines.emplace_back();
  for (const std::string& note : sighting.notes) lines.push_back(concat("note: ", note));
  for (const std::string& each : wrong) lines.push_back(concat("wrong: ", each));
  for (std::string& line : lines) line = one_line(line);
  return lines;
}

nlohmann::ordered_json to_json(const Sighting& sighting, std::size_t most) {
  nlohmann::ordered_json json = driftless::to_json(sighting.status);
  json["trainer"]["why"] = sighting.why;
  auto& versions = json["versions"];
  if (versions.size() > most) {
    versions.erase(versions.begin(), versions.end() - static_cast<std::ptrdiff_t>(most));
  }
  json["damaged"] = sighting.damaged;
  json["notes"] = sighting.notes;
  json["wrong"] = problems(sighting);
  return json;
}

// Shows one look after the other: on a terminal it redraws, elsewhere it prints what changed.
class Watch {
 public:
  explicit Watch(bool json) : json_(json), terminal_(::isatty(STDOUT_FILENO) == 1 && !json) {}

  void show(const Sighting& sighting, std::size_t most) {
    if (json_) {
      nlohmann::ordered_json json = to_json(sighting, most);
      nlohmann::ordered_json steady = json;
      for (const char* const key : {"time", "trainer", "wrong"}) steady.erase(key);
      steady["state"] = json["trainer"]["state"];
      if (steady.dump() != last_json_) print_json(json);
      last_json_ = steady.dump();
      return;
    }
    const Lines lines = to_lines(sighting, most, !terminal_);
    std::string text = terminal_ ? "\033[H\033[2J" : "";
    for (const std::string& line : lines) {
      if (terminal_ || (!line.empty() && !last_.contains(line))) text += line + "\n";
    }
    last_ = {lines.begin(), lines.end()};
    std::cout << text << std::flush;
  }
  // The source cannot be read at the moment; the watch goes on.
  static void show(const Status& status) { process_log().warning(status.to_string()); }

 private:
  bool json_, terminal_;
  std::set<std::string> last_;
  std::string last_json_;
};

int answer(const Sighting& sighting) {
  return problems(sighting).empty() ? kExitOk : kExitDifferent;
}

// Watches until one of these: a signal came (returns kExitOk); the run has ended, and nothing is
// wrong or --patience is over (returns the code of a single look); the source could not be read for
// --patience (returns that failure).
Result<int> watch(const Common& common, const StatusArguments& arguments, StatusReader& reader,
                  std::size_t most, Result<Sighting> sighting) {
  const StopSignals signals;
  Watch watch(common.json);
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(static_cast<long>(1000 * seconds));
  };
  const auto interval = milliseconds(arguments.interval_seconds);
  const auto patience = milliseconds(arguments.patience_seconds);
  const auto stopped = [] { return StopSignals::received() != 0; };
  // Starts when the run has ended, or when the source cannot be read.
  Deadline over = Deadline::after(patience);
  bool read = true;  // which of the two started `over`
  for (;;) {
    if (!sighting.ok()) {
      Watch::show(sighting.status());
    } else {
      watch.show(*sighting, most);
    }
    const bool ended = sighting.ok() && sighting->status.trainer == TrainerState::kEnded;
    if (ended && answer(*sighting) == kExitOk) return int{kExitOk};
    if (sighting.ok() != read || (read && !ended)) over = Deadline::after(patience);
    read = sighting.ok();
    if (ended && over.expired()) return answer(*sighting);
    if (!read && over.expired()) return sighting.status();
    const Deadline until = Deadline::after(interval).unless(stopped);
    while (Backoff(interval, interval).sleep(until)) {
    }
    if (stopped()) return int{kExitOk};
    sighting = reader.look(Deadline::after(kLookWait).unless(stopped));
    if (stopped()) return int{kExitOk};
  }
}

}  // namespace

Result<int> run_status(const Common& common, StatusArguments arguments) {
  const std::size_t most = arguments.all ? kAllVersions : arguments.options.most_versions;
  arguments.options.most_versions = most;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<StatusReader> reader,
                             open_status(arguments.options));
  DRIFTLESS_ASSIGN_OR_RETURN(const Sighting sighting, reader->look(Deadline::after(kLookWait)));
  if (arguments.watch) return watch(common, arguments, *reader, most, sighting);
  if (common.json) {
    print_json(to_json(sighting, most));
  } else {
    for (const std::string& line : to_lines(sighting, most, false)) std::cout << line << "\n";
  }
  return answer(sighting);
}

}  // namespace driftless::cli
