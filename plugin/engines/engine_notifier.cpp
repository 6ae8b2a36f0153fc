// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_notifier.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/environment.h"
#include "core/stopwatch.h"
#include "formats/version_dir.h"
#include "plugin/engines/engine_link.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLongestRetryWait{10'000};
constexpr std::string_view kFreshLabel = "default";  // of a server that nobody has told anything

// One engine, on the thread that notifies it.
class Notified {
 public:
  Notified(EngineEndpoint engine, const NotifyOptions& options, const HttpFunction& http)
      : engine_(std::move(engine)),
        options_(options),
        link_(engine_.url, engine_.token, options.timeout, nullptr, http ? http : http_session()) {}

  void notify(const std::map<std::uint64_t, PublishedVersion>& versions, std::uint64_t newest,
              const Deadline& deadline, EngineResult& result) {
    Stopwatch watch;
    result.url = engine_.url;
    result.status = tell(versions, newest, deadline, result);
    result.ms = watch.lap_ms();
  }

 private:
  [[nodiscard]] Status tell(const std::map<std::uint64_t, PublishedVersion>& versions,
                            std::uint64_t newest, const Deadline& deadline, EngineResult& result) {
    const PublishedVersion& version = versions.at(newest);
    if (newest > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return error(StatusCode::kInvalidArgument, "version ", newest, " is too large");
    }
    if (engine_.action == EngineAction::kUpdateFlush) {
      return while_paused(deadline, result, [&](const Deadline& until) {
        return tell_flush(versions, newest, until, result);
      });
    }
    if (engine_.action == EngineAction::kPullWeights) {
      const Json pull = {{"local_checkpoint_dir", engine_.local_checkpoint_dir},
                         {"source_dir", version.source_dir},
                         {"target_version", newest}};
      DRIFTLESS_RETURN_IF_ERROR(post("/pull_weights", pull, deadline, result));
    }
    const bool loads_patched = engine_.action == EngineAction::kUpdateFromDisk;
    if (loads_patched) DRIFTLESS_RETURN_IF_ERROR(version.patched);
    const Json load = {{"model_path", engine_.local_checkpoint_dir},
                       {"weight_version", std::to_string(newest)}};
    return while_paused(deadline, result, [&](const Deadline& until) {
      return post("/update_weights_from_disk", load, until, result);
    });
  }

  // Generation goes on afterwards, whatever came of the work, which leaves time for that call.
  template <typename Work>
  [[nodiscard]] Status while_paused(const Deadline& deadline, EngineResult& result,
                                    const Work& work) {
    if (!options_.pause) return work(deadline);
    const milliseconds left = deadline.remaining();
    const Deadline until = deadline.sooner(left - std::min(options_.timeout, left / 4));
    const Status paused = known_call(ask("/pause_generation", until, result));
    if (paused.code() == StatusCode::kUnsupported) return work(deadline);
    DRIFTLESS_RETURN_IF_ERROR(paused);
    Status done = flush_cache(until, result);
    if (done.ok()) done = work(until);
    const Status resumed = ask("/continue_generation", deadline, result);
    if (resumed.ok()) return done;
    return resumed.with_context(concat(done.ok() ? std::string_view() : done.message(),
                                       done.ok() ? "" : "; ", "generation stays paused"));
  }

  // It is refused as long as requests are under way.
  [[nodiscard]] Status flush_cache(const Deadline& deadline, EngineResult& result) {
    const Deadline until = deadline.sooner(options_.timeout);
    Backoff backoff(milliseconds(50), milliseconds(1000));
    for (;;) {
      const Status flushed = known_call(ask("/flush_cache", until, result));
      if (flushed.ok() || flushed.code() == StatusCode::kUnsupported) return {};
      if (!backoff.sleep(until)) return flushed.with_context("flushing the cache");
    }
  }

  // A call whose answer is its status.
  [[nodiscard]] Status ask(std::string_view path, const Deadline& deadline,
                           EngineResult& result) const {
    const Json nothing = Json::object();
    Backoff backoff(options_.retry_wait, std::max(options_.retry_wait, kLongestRetryWait));
    for (unsigned tries = 0;; ++tries) {
      DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat(engine_.url, path)));
      ++result.attempts;
      EngineReply reply =
          link_.call(path, &nothing, std::min(options_.timeout, deadline.remaining()), true);
      result.http_status = reply.http_status;
      if (reply.http_status / 100 == 2) return {};  // with any words
      if (!reply.again || tries >= options_.retries || !backoff.sleep(deadline)) {
        return std::move(reply.status);
      }
    }
  }

  // A delta goes to the very server that said what it holds, if that keeps its connections: one
  // that was started anew in between would take it onto other weights.
  [[nodiscard]] Status tell_flush(const std::map<std::uint64_t, PublishedVersion>& versions,
                                  std::uint64_t newest, const Deadline& deadline,
                                  EngineResult& result) {
    for (unsigned tries = 0;; ++tries) {
      const Status told = tell_missed(versions, newest, deadline, result);
      if (told.code() != StatusCode::kIncomplete || tries >= options_.retries) return told;
    }
  }

  // From what the engine has to the newest version, one post after the other.
  [[nodiscard]] Status tell_missed(const std::map<std::uint64_t, PublishedVersion>& versions,
                                   std::uint64_t newest, const Deadline& deadline,
                                   EngineResult& result) {
    DRIFTLESS_RETURN_IF_ERROR(ask_what_it_holds(versions, deadline));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> missed, way(versions, newest));
    for (const std::uint64_t number : missed) {
      const PublishedVersion& version = versions.at(number);
      const std::string label = std::to_string(number);
      Json load = {{"model_path", version.version_dir}, {"weight_version", label}};
      if (!version.full) {
        load["load_format"] = "delta";
        load["files"] = version.files;
      }
      posted_ = number;
      told_apart_ = label_ != label;
      if (version.files.empty() && !version.full) {
        DRIFTLESS_RETURN_IF_ERROR(set_label(label, deadline, result));
      } else {
        DRIFTLESS_RETURN_IF_ERROR(post("/update_weights_from_disk", load, deadline, result)
                                      .with_context(concat("version ", number)));
      }
      DRIFTLESS_RETURN_IF_ERROR(confirm(label, deadline));
      holds_ = number;
      label_ = label;
    }
    return {};
  }

  // The label that it gave itself, or that this notifier gave it. Of another number, as a run of
  // before leaves it, nobody knows the weights.
  [[nodiscard]] Status ask_what_it_holds(const std::map<std::uint64_t, PublishedVersion>& versions,
                                         const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> said, ask_label(deadline));
    if (!said) {  // it cannot say: what it was told counts
      if (!posted_) holds_ = 0;
      return {};
    }
    const std::string& label = *said;
    if (holds_ && label == label_) return {};
    if (posted_ && told_apart_ && label == std::to_string(*posted_) &&
        versions.contains(*posted_)) {
      holds_ = posted_;  // the post went well, its answer was lost
    } else if (label.empty() || label == kFreshLabel) {
      holds_ = 0;  // as it was started, from the base
    } else {
      holds_.reset();
    }
    label_ = label;
    return {};
  }

  // The versions to post, in order: the deltas that follow what the engine holds, or a full version
  // and those that follow it.
  [[nodiscard]] Result<std::vector<std::uint64_t>> way(
      const std::map<std::uint64_t, PublishedVersion>& versions, std::uint64_t newest) const {
    std::vector<std::uint64_t> missed;
    for (std::uint64_t number = newest; !holds_ || number != *holds_;) {
      const auto found = versions.find(number);
      if (found == versions.end()) {
        return error(StatusCode::kWrongBase, engine_.url, ": holds ",
                     holds_ ? concat("version ", *holds_) : concat("weights labelled ", label_),
                     ", version ", newest, " needs version ", number,
                     ", which cannot be posted any more: publish a full version");
      }
      missed.insert(missed.begin(), number);
      if (found->second.full) break;
      number = found->second.base_version;
    }
    return missed;
  }

  // Its weight_version; nothing if it has no such call.
  [[nodiscard]] Result<std::optional<std::string>> ask_label(const Deadline& deadline) {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat(engine_.url, "/model_info")));
    const EngineReply info =
        link_.call("/model_info", nullptr, std::min(options_.timeout, deadline.remaining()), true);
    kept_ = info.kept;
    const Status known = known_call(info.status);
    if (known.code() == StatusCode::kUnsupported) return std::optional<std::string>();
    DRIFTLESS_RETURN_IF_ERROR(known.with_context("its version"));
    DRIFTLESS_ASSIGN_OR_RETURN(const Json said, parse_json(info.body, "/model_info"));
    return std::optional<std::string>(json_text(said, "weight_version"));
  }

  [[nodiscard]] Status confirm(const std::string& label, const Deadline& deadline) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> found, ask_label(deadline));
    if (!found || *found == label || found->empty()) return {};
    return error(StatusCode::kMismatch, engine_.url, ": says that it serves version ",
                 shown(*found), ", expected ", label);
  }

  // A version that changes nothing has no files to post.
  [[nodiscard]] Status set_label(const std::string& label, const Deadline& deadline,
                                 EngineResult& result) {
    const Json named = {{"new_version", label}, {"abort_all_requests", false}};
    return post("/update_weight_version", named, deadline, result);
  }

  [[nodiscard]] Status post(std::string_view path, const Json& body, const Deadline& deadline,
                            EngineResult& result) const {
    Backoff backoff(options_.retry_wait, std::max(options_.retry_wait, kLongestRetryWait));
    Status last;
    for (unsigned tries = 0;; ++tries) {
      if (const Status late = deadline.check(concat(engine_.url, path)); !late.ok()) {
        return last.ok() ? late : last;
      }
      ++result.attempts;
      const EngineReply reply =
          link_.call(path, &body, std::min(options_.timeout, deadline.remaining()), true, kept_);
      result.http_status = reply.http_status;
      result.message = reply.words;
      last = judge(path, reply);
      if (!reply.again || tries >= options_.retries || !backoff.sleep(deadline)) return last;
    }
  }

  [[nodiscard]] Status judge(std::string_view path, const EngineReply& reply) const {
    DRIFTLESS_RETURN_IF_ERROR(reply.status);
    DRIFTLESS_ASSIGN_OR_RETURN(const Json answer, parse_json(reply.body, path));
    const auto success = answer.find("success");
    if (success == answer.end() || !success->is_boolean()) {
      return error(StatusCode::kCorrupt, engine_.url, path,
                   R"(: expected {"success":true|false,"message":...}, found )",
                   shown(reply.body, 300));
    }
    if (success->get<bool>()) return {};
    return error(StatusCode::kIo, engine_.url, path, ": the engine refused: ", reply.words);
  }

  const EngineEndpoint engine_;
  const NotifyOptions& options_;
  EngineLink link_;
  std::optional<std::uint64_t> holds_;   // none: nobody knows
  std::optional<std::uint64_t> posted_;  // last, whatever came of it
  bool told_apart_ = false;              // its label was another before that post
  std::string label_;                    // that goes with holds_
  bool kept_ = false;                    // the connection of the last ask_label()
};

class HttpNotifier final : public EngineNotifier {
 public:
  HttpNotifier(NotifyOptions options, const HttpFunction& http) : options_(std::move(options)) {
    for (const EngineEndpoint& engine : options_.engines) {
      engines_.push_back(std::make_unique<Notified>(engine, options_, http));
    }
  }

  [[nodiscard]] std::vector<EngineResult> notify(const PublishedVersion& version,
                                                 const Deadline& deadline) override {
    versions_.insert_or_assign(version.version, version);
    std::vector<EngineResult> results(engines_.size());
    std::vector<std::function<void()>> joins;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto work = [&, i] {
        engines_[i]->notify(versions_, version.version, deadline, results[i]);
      };
      try {
        joins.push_back(environment().start(work));
      } catch (const std::system_error&) {
        work();  // no thread to be had: here, then
      }
    }
    for (const std::function<void()>& join : joins) join();
    // What all have is not posted again, unless one of them is started anew.
    if (version.full && all_acknowledged(results)) {
      versions_.erase(versions_.begin(), versions_.find(version.version));
    }
    return results;
  }

 private:
  const NotifyOptions options_;
  std::vector<std::unique_ptr<Notified>> engines_;
  std::map<std::uint64_t, PublishedVersion> versions_;  // that were published, for who missed them
};

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

Result<std::unique_ptr<EngineNotifier>> EngineNotifier::create(NotifyOptions options,
                                                               const HttpFunction& http) {
  for (const EngineEndpoint& engine : options.engines) {
    DRIFTLESS_RETURN_IF_ERROR(check_engine_url(engine.url, engine.token));
    if (engine.action == EngineAction::kUpdateFlush || !engine.local_checkpoint_dir.empty())
      continue;
    return error(StatusCode::kInvalidArgument, "engine ", shown(engine.url),
                 ": local_checkpoint_dir is needed, the engine's checkpoint as it sees it");
  }
  if (options.timeout.count() <= 0 || options.retry_wait.count() < 0) {
    return error(StatusCode::kInvalidArgument, "engines: timeout ", options.timeout.count(),
                 " ms, retry_wait ", options.retry_wait.count(), " ms");
  }
  if (!http) {
    DRIFTLESS_RETURN_IF_ERROR(check_http());
  }
  return std::unique_ptr<EngineNotifier>(std::make_unique<HttpNotifier>(std::move(options), http));
}

Result<PublishedVersion> read_published_version(FileSystem& fs, const std::string& source_dir,
                                                std::uint64_t version) {
  DRIFTLESS_ASSIGN_OR_RETURN(const VersionDirectory found, open_version(fs, source_dir, version));
  return PublishedVersion{source_dir,          found.path,         version,
                          found.payload_files, found.base_version, found.full()};
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
  // Hidden first: nobody finds half of a version. One that a crash left there goes, too.
  const std::string hidden = join_path(parent, concat(".", name, ".removed"));
  DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, hidden));
  if (!exists(fs, path)) return {};
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_new(path, hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.sync_directory(parent));
  return remove_tree(fs, hidden);
}

}  // namespace driftless
