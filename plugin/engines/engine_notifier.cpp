// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_notifier.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/environment.h"
#include "core/line_log.h"
#include "core/stopwatch.h"
#include "formats/version_dir.h"
#include "plugin/engines/notified_transport.h"

namespace driftless {
namespace {

constexpr std::string_view kUnnamedRun = "unnamed";

DriverOptions driver_options() {
  DriverOptions options;
  options.ticket = new_nonce();
  options.session = false;
  return options;
}

bool is_version_name(std::string_view name) {
  for (const std::string_view prefix : {"weight_v", "anchor_v"}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view digits = name.substr(prefix.size());
    return digits.size() >= 6 &&
           std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  }
  return false;
}

}  // namespace

// One engine, used by the thread that notifies it.
class NotifiedEngine {
 public:
  NotifiedEngine(const EngineEndpoint& engine, const NotifyOptions& options,
                 const HttpFunction& http)
      : transport_(engine, options, http), driver_(driver_options()) {}

  [[nodiscard]] EngineResult notify(const PublishedVersions& versions, std::uint64_t newest,
                                    const Deadline& deadline) {
    transport_.prepare(versions, newest, deadline);
    EngineGoal goal;
    goal.run = versions.at(newest).run;
    goal.version = newest;
    goal.digest_of = [&versions](std::uint64_t version) {
      const auto found = versions.find(version);
      return found == versions.end() ? std::nullopt : std::optional(found->second.digest);
    };
    Stopwatch watch;
    const DriverResult done =
        run_request(driver_, driver_.begin_update(std::move(goal)), transport_);
    const bool serves_on = done.left_paused && !transport_.pauses();
    Status status =
        done.status.ok() || !serves_on
            ? done.status
            : error(done.status.code(), done.status.message(),
                    " (it was notified of the version without a pause, and keeps serving)");
    return {transport_.name(), std::move(status), done.left_paused && !serves_on, watch.lap_ms()};
  }

 private:
  NotifiedTransport transport_;
  EngineDriver driver_;
};

EngineNotifier::EngineNotifier(NotifyOptions options, const HttpFunction& http)
    : options_(std::move(options)) {
  for (const EngineEndpoint& engine : options_.engines) {
    engines_.push_back(std::make_unique<NotifiedEngine>(engine, options_, http));
  }
}

EngineNotifier::~EngineNotifier() = default;

std::vector<EngineResult> EngineNotifier::notify(const PublishedVersion& version,
                                                 const Deadline& deadline) {
  PublishedVersion& stored = versions_.insert_or_assign(version.version, version).first->second;
  if (stored.run.empty()) stored.run = kUnnamedRun;
  std::vector<EngineResult> results(engines_.size());
  std::vector<std::function<void()>> joins;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto work = [&, i] {
      results[i] = engines_[i]->notify(versions_, version.version, deadline);
    };
    try {
      joins.push_back(environment().start(work));
    } catch (const std::system_error&) {
      work();  // no thread could be started: notify on this one
    }
  }
  for (const std::function<void()>& join : joins) join();
  // All engines have this full version: drop the older ones. A restarted engine gets this one
  // again.
  if (version.full && all_acknowledged(results)) {
    versions_.erase(versions_.begin(), versions_.find(version.version));
  }
  return results;
}

Result<std::unique_ptr<EngineNotifier>> EngineNotifier::create(NotifyOptions options,
                                                               const HttpFunction& http) {
  for (EngineEndpoint& engine : options.engines) {
    DRIFTLESS_RETURN_IF_ERROR(prepare_endpoint(engine));
    const bool flush = engine.action == EngineAction::kUpdateFlush;
    if (engine.action && (flush || !engine.local_checkpoint_dir.empty())) continue;
    return error(StatusCode::kInvalidArgument, "engine ", shown(without_users(engine.url)),
                 engine.action
                     ? ": local_checkpoint_dir is needed: the checkpoint's path on its host"
                     : ": it has no action, so it is not notified");
  }
  if (options.timeout.count() <= 0 || options.retry_wait.count() < 0) {
    return error(StatusCode::kInvalidArgument, "engines: timeout ", options.timeout.count(),
                 " ms, retry_wait ", options.retry_wait.count(), " ms");
  }
  if (!http) {
    DRIFTLESS_RETURN_IF_ERROR(check_http());
  }
  return std::unique_ptr<EngineNotifier>(new EngineNotifier(std::move(options), http));
}

Result<PublishedVersion> read_published_version(FileSystem& fs, const std::string& source_dir,
                                                std::uint64_t version) {
  DRIFTLESS_ASSIGN_OR_RETURN(const VersionDirectory found, open_version(fs, source_dir, version));
  if (!found.manifest) {
    return error(StatusCode::kIncomplete, found.path,
                 ": has no manifest, so its run is unknown: engines are notified only of versions "
                 "that Driftless published");
  }
  return PublishedVersion{.source_dir = source_dir,
                          .version_dir = found.path,
                          .version = version,
                          .run = to_hex(found.manifest->id.run),
                          .digest = to_hex(found.manifest->digest),
                          .files = found.payload_files,
                          .base_version = found.base_version,
                          .full = found.full()};
}

bool all_acknowledged(const std::vector<EngineResult>& results) {
  return std::ranges::all_of(results,
                             [](const EngineResult& result) { return result.status.ok(); });
}

Status cleanup_version(FileSystem& fs, const std::string& version_directory) {
  std::string path = version_directory;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (!is_version_name(name)) {
    return error(StatusCode::kInvalidArgument, version_directory,
                 ": is no directory of a version (weight_v000007), so it is not removed");
  }
  // Rename first, so that no reader finds half of a version. This also removes what an earlier
  // crash left under the hidden name.
  const std::string hidden = join_path(parent, concat(".", name, ".removed"));
  DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, hidden));
  if (!exists(fs, path)) return {};
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_new(path, hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.sync_directory(parent));
  return remove_tree(fs, hidden);
}

}  // namespace driftless
