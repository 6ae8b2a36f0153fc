// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/notified_engines.h"

#include <filesystem>
#include <system_error>

#include "core/line_log.h"
#include "core/setting_values.h"
#include "formats/version_dir.h"

namespace driftless {

Result<std::unique_ptr<NotifiedEngines>> NotifiedEngines::open(const Config& config) {
  NotifyOptions options = config.notify;
  static_cast<EngineCalls&>(options) = config.engine_calls;
  options.engines = config.notified_engines();
  if (options.engines.empty()) return std::unique_ptr<NotifiedEngines>();
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<EngineNotifier> notifier,
                             EngineNotifier::create(std::move(options)));
  // The engines have another working directory, so the path must be absolute.
  std::error_code failed;
  const std::string given = config.kind().directory(config.road_options());
  const std::string dir = std::filesystem::absolute(given, failed).string();
  if (failed) return errno_status(failed.value(), given);
  return std::unique_ptr<NotifiedEngines>(new NotifiedEngines(dir, config, std::move(notifier)));
}

NotifiedEngines::NotifiedEngines(std::string dir, const Config& config,
                                 std::unique_ptr<EngineNotifier> notifier)
    : dir_(std::move(dir)), longest_(longest(config)), notifier_(std::move(notifier)) {
  for (const EngineEndpoint& engine : config.notified_engines()) {
    tallies_.emplace_back().url = without_users(engine.url);
    states_.emplace_back().engine = tallies_.back().url;
    if (engine.action == EngineAction::kUpdateFromDisk) {
      checkpoints_.insert(engine.local_checkpoint_dir);
    }
  }
}

std::chrono::milliseconds NotifiedEngines::longest(const Config& config) {
  using std::chrono::milliseconds;
  if (config.notified_engines().empty()) return milliseconds(0);
  const EngineCalls& each = config.engine_calls;
  // The longest sequence of calls: read the label five times, pull and load; or also pause, flush
  // the cache and resume. Each call is tried retries + 1 times, with doubling waits; retries are at
  // most 10.
  const double calls = config.notify.pause ? 10 : 7;
  const double tries = each.retries + 1.0;
  const double waits = static_cast<double>(1U << each.retries) - 1;
  const double ms = calls * (static_cast<double>(each.timeout.count()) * tries +
                             static_cast<double>(each.retry_wait.count()) * waits);
  return std::min(kMaxDuration, milliseconds(static_cast<std::int64_t>(ms)));
}

std::string NotifiedEngines::version_dir(std::uint64_t version) const {
  return join_path(dir_, version_directory_name(version));
}

std::vector<Status> NotifiedEngines::notify(std::uint64_t version,
                                            const std::map<std::string, Status>& patched) {
  Result<PublishedVersion> published = read_published_version(posix_file_system(), dir_, version);
  std::vector<EngineResult> results(tallies_.size());
  if (published.ok()) {
    published->patched = patched;
    forget_pruned();
    notified_.insert(version);
    results = notifier_->notify(*published, Deadline::after(longest_));
  } else {
    for (EngineResult& result : results) result.status = published.status();
  }
  acknowledged_ = all_acknowledged(results);
  newest_ = std::max(newest_, version);
  std::vector<Status> failures;
  for (std::size_t i = 0; i < results.size(); ++i) {
    EngineTally& tally = tallies_[i];
    ++tally.versions;
    EngineRecord& state = states_[i];
    state.goal = version;
    state.status = results[i].status;
    state.commit.apply_ms = results[i].ms;
    if (state.status.ok()) state.version = state.confirmed = version;
    if (results[i].status.ok()) continue;
    ++tally.failures;
    tally.error = results[i].status.message();
    failures.push_back(results[i].status.with_context(concat("version ", version)));
  }
  return failures;
}

// Forgets versions whose files are gone, oldest first: a restarted engine must not be asked to load
// them, because it would stay paused when that fails.
void NotifiedEngines::forget_pruned() {
  while (!notified_.empty() && !exists(posix_file_system(), version_dir(*notified_.begin()))) {
    notifier_->forget(*notified_.begin());
    notified_.erase(notified_.begin());
  }
}

Status NotifiedEngines::cleanup(std::uint64_t version) {
  notifier_->forget(version);
  notified_.erase(version);
  return cleanup_version(posix_file_system(), version_dir(version));
}

Status NotifiedEngines::outcome() const {
  std::string failed;
  for (const EngineTally& tally : tallies_) {
    if (tally.failures == 0) continue;
    failed += concat(failed.empty() ? "" : "; ", tally.url, " failed to take ", tally.failures,
                     " of ", tally.versions, " versions (", tally.error, ")");
  }
  if (failed.empty()) return {};
  return error(StatusCode::kIncomplete, "not every engine took every version: ", failed);
}

}  // namespace driftless
