#include "plugin/engines/engine_notifier.h"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "plugin/engines/engine_calls.h"
#include "plugin/engines/engine_http.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

// One try of one call.
EngineReply post(const EngineEndpoint& engine, const EngineCall& call, milliseconds timeout,
                 long& http_status) {
  const HttpAnswer answer = http_call({call.url, call.body, engine.token}, timeout);
  http_status = answer.number;
  if (answer.status.ok()) return judge_reply(call.url, http_status, answer.body);
  return {answer.status, answer.body, answer.again};
}

class HttpNotifier final : public EngineNotifier {
 public:
  explicit HttpNotifier(NotifyOptions options) : options_(std::move(options)) {}

  [[nodiscard]] std::vector<EngineResult> notify(const PublishedVersion& version,
                                                 const Deadline& deadline) override {
    std::vector<EngineResult> results(options_.engines.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto work = [&, i] { notify_one(options_.engines[i], version, deadline, results[i]); };
      try {
        threads.emplace_back(work);
      } catch (const std::system_error&) {
        work();  // no thread to be had: here, then
      }
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

 private:
  void notify_one(const EngineEndpoint& engine, const PublishedVersion& version,
                  const Deadline& deadline, EngineResult& result) const {
    const auto begin = std::chrono::steady_clock::now();
    result.url = engine.url;
    const Result<std::vector<EngineCall>> calls = engine_calls(engine, version);
    result.status = calls.status();
    for (std::size_t i = 0; calls.ok() && result.status.ok() && i < calls->size(); ++i) {
      call(engine, (*calls)[i], deadline, result);
    }
    result.ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }

  void call(const EngineEndpoint& engine, const EngineCall& call, const Deadline& deadline,
            EngineResult& result) const {
    Backoff backoff(options_.retry_wait, std::max(options_.retry_wait, kLongestWait));
    for (unsigned tries = 0;; ++tries) {
      if (Status late = deadline.check(call.url); !late.ok()) {
        if (result.status.ok()) result.status = std::move(late);
        return;
      }
      ++result.attempts;
      EngineReply reply =
          post(engine, call, std::min(options_.timeout, deadline.remaining()), result.http_status);
      result.status = std::move(reply.status);
      result.message = std::move(reply.message);
      if (!reply.again || tries >= options_.retries || !backoff.sleep(deadline)) return;
    }
  }

  static constexpr milliseconds kLongestWait{10'000};
  const NotifyOptions options_;
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

Result<std::unique_ptr<EngineNotifier>> EngineNotifier::create(NotifyOptions options) {
  for (const EngineEndpoint& engine : options.engines) {
    DRIFTLESS_RETURN_IF_ERROR(check_endpoint(engine));
  }
  if (options.timeout.count() <= 0 || options.retry_wait.count() < 0) {
    return error(StatusCode::kInvalidArgument, "engines: timeout ", options.timeout.count(),
                 " ms, retry_wait ", options.retry_wait.count(), " ms");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_http());
  return std::unique_ptr<EngineNotifier>(std::make_unique<HttpNotifier>(std::move(options)));
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
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_directory(path, hidden));
  DRIFTLESS_RETURN_IF_ERROR(fs.sync_directory(parent));
  return remove_tree(fs, hidden);
}

}  // namespace driftless
