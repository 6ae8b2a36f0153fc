#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "plugin/engine_calls.h"
#include "plugin/engine_notifier.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

// Once for the process: it is libcurl's own global state, and never given back, since others in the
// process may use it, too.
Status init_curl() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code == CURLE_OK) return {};
  return error(StatusCode::kInternal, "libcurl: ", curl_easy_strerror(code));
}

struct EasyClose {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
using Easy = std::unique_ptr<CURL, EasyClose>;

class Headers {
 public:
  Headers() = default;
  Headers(const Headers&) = delete;
  Headers& operator=(const Headers&) = delete;
  ~Headers() { curl_slist_free_all(list_); }
  [[nodiscard]] bool add(const std::string& line) {
    curl_slist* longer = curl_slist_append(list_, line.c_str());
    if (longer != nullptr) list_ = longer;
    return longer != nullptr;
  }
  [[nodiscard]] curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

// Called by libcurl; another number than was given ends the transfer.
std::size_t take(char* bytes, std::size_t size, std::size_t count, void* data) {
  auto& body = *static_cast<std::string*>(data);
  const std::size_t more = size * count;
  if (more > kMaxEngineReplyBytes - body.size()) return 0;
  body.append(bytes, more);
  return more;
}

template <typename T>
void set(CURL* easy, bool& ok, CURLoption option, T value) {
  ok = ok && curl_easy_setopt(easy, option, value) == CURLE_OK;
}

bool only_http(CURL* easy) {
#if LIBCURL_VERSION_NUM >= 0x075500
  return curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
#else
  return curl_easy_setopt(easy, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS) == CURLE_OK;
#endif
}

bool prepare(CURL* easy, const EngineCall& call, const Headers& headers, milliseconds timeout,
             std::string& body) {
  bool ok = only_http(easy);
  set(easy, ok, CURLOPT_URL, call.url.c_str());
  set(easy, ok, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
  set(easy, ok, CURLOPT_POSTFIELDS, call.body.c_str());
  set(easy, ok, CURLOPT_HTTPHEADER, headers.get());
  set(easy, ok, CURLOPT_TIMEOUT_MS,
      static_cast<long>(std::max<milliseconds::rep>(1, timeout.count())));
  set(easy, ok, CURLOPT_FOLLOWLOCATION, 0L);
  set(easy, ok, CURLOPT_PROXY, "");     // not the environment's
  set(easy, ok, CURLOPT_NOSIGNAL, 1L);  // threads
  set(easy, ok, CURLOPT_WRITEFUNCTION, take);
  set(easy, ok, CURLOPT_WRITEDATA, &body);
  return ok;
}

EngineReply judge_failure(const std::string& url, CURLcode code, milliseconds timeout) {
  EngineReply reply;
  reply.message = curl_easy_strerror(code);
  if (code == CURLE_WRITE_ERROR) {
    reply.status = error(StatusCode::kCorrupt, url, ": the engine's reply is longer than ",
                         kMaxEngineReplyBytes, " bytes");
    return reply;
  }
  reply.again = true;
  if (code == CURLE_OPERATION_TIMEDOUT) {
    reply.status =
        error(StatusCode::kDeadlineExceeded, url, ": no reply within ", timeout.count(), " ms");
  } else {
    reply.status = error(StatusCode::kIo, url, ": ", reply.message);
  }
  return reply;
}

// One try of one call.
EngineReply post(const EngineEndpoint& engine, const EngineCall& call, milliseconds timeout,
                 long& http_status) {
  http_status = 0;
  std::string body;
  Headers headers;
  const Easy easy(curl_easy_init());
  bool ok = easy != nullptr && headers.add("Content-Type: application/json") &&
            headers.add("Expect:");  // the body follows at once
  if (ok && !engine.token.empty()) ok = headers.add("Authorization: Bearer " + engine.token);
  if (!ok || !prepare(easy.get(), call, headers, timeout, body)) {
    return {error(StatusCode::kInternal, call.url, ": libcurl refuses an option"), {}, false};
  }
  const CURLcode code = curl_easy_perform(easy.get());
  (void)curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &http_status);
  if (code != CURLE_OK) return judge_failure(call.url, code, timeout);
  return judge_reply(call.url, http_status, body);
}

class CurlNotifier final : public EngineNotifier {
 public:
  explicit CurlNotifier(NotifyOptions options) : options_(std::move(options)) {}

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

}  // namespace

Result<std::unique_ptr<EngineNotifier>> EngineNotifier::create(NotifyOptions options) {
  for (const EngineEndpoint& engine : options.engines) {
    DRIFTLESS_RETURN_IF_ERROR(check_endpoint(engine));
  }
  if (options.timeout.count() <= 0 || options.retry_wait.count() < 0) {
    return error(StatusCode::kInvalidArgument, "engines: timeout ", options.timeout.count(),
                 " ms, retry_wait ", options.retry_wait.count(), " ms");
  }
  DRIFTLESS_RETURN_IF_ERROR(init_curl());
  return std::unique_ptr<EngineNotifier>(std::make_unique<CurlNotifier>(std::move(options)));
}

}  // namespace driftless
