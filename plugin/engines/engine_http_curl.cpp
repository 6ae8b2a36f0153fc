// SPDX-License-Identifier: Apache-2.0
#include <curl/curl.h>

#include <algorithm>
#include <memory>

#include "plugin/engines/engine_http.h"

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
  void operator()(CURL* easy) const {
    if (easy != nullptr) curl_easy_cleanup(easy);
  }
};

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

// Called by libcurl now and then; anything but 0 ends the transfer.
int ask_whether_to_stop(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<const std::atomic<bool>*>(stop) ? 1 : 0;
}

bool prepare(CURL* easy, const HttpCall& call, const Headers& headers, milliseconds timeout,
             std::string& body) {
  bool ok = only_http(easy);
  set(easy, ok, CURLOPT_URL, call.url.c_str());
  if (call.get) {
    set(easy, ok, CURLOPT_HTTPGET, 1L);
  } else {
    set(easy, ok, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
    set(easy, ok, CURLOPT_POSTFIELDS, call.body.c_str());
  }
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

void judge_failure(const HttpCall& call, CURLcode code, milliseconds timeout, HttpAnswer& answer) {
  answer.body = curl_easy_strerror(code);
  answer.again = true;
  switch (code) {
    case CURLE_WRITE_ERROR:
      answer.again = false;
      answer.status = error(StatusCode::kCorrupt, call.url, ": the engine's reply is longer than ",
                            kMaxEngineReplyBytes, " bytes");
      return;
    case CURLE_ABORTED_BY_CALLBACK:
      answer.again = false;
      answer.status = error(StatusCode::kIncomplete, call.url, ": not waited for any longer");
      return;
    case CURLE_OPERATION_TIMEDOUT:
      answer.status = error(StatusCode::kDeadlineExceeded, call.url, ": no reply within ",
                            timeout.count(), " ms");
      return;
    default: answer.status = error(StatusCode::kIo, call.url, ": ", answer.body);
  }
}

// Called by libcurl in place of socket().
curl_socket_t open_none(void*, curlsocktype, curl_sockaddr*) { return CURL_SOCKET_BAD; }

HttpAnswer perform(CURL* easy, const HttpCall& call, milliseconds timeout,
                   const std::atomic<bool>* stop) {
  HttpAnswer answer;
  Headers headers;
  bool ok = easy != nullptr && headers.add("Content-Type: application/json") &&
            headers.add("Expect:");  // the body follows at once
  if (ok && !call.token.empty()) ok = headers.add("Authorization: Bearer " + call.token);
  ok = ok && prepare(easy, call, headers, timeout, answer.body);
  if (ok && stop != nullptr) {
    set(easy, ok, CURLOPT_NOPROGRESS, 0L);
    set(easy, ok, CURLOPT_XFERINFOFUNCTION, ask_whether_to_stop);
    set(easy, ok, CURLOPT_XFERINFODATA, const_cast<std::atomic<bool>*>(stop));
  }
  if (call.same_server) set(easy, ok, CURLOPT_OPENSOCKETFUNCTION, open_none);
  if (!ok) {
    answer.status = error(StatusCode::kInternal, call.url, ": libcurl refuses an option");
    return answer;
  }
  const CURLcode code = curl_easy_perform(easy);
  (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &answer.number);
  curl_socket_t socket = CURL_SOCKET_BAD;
  (void)curl_easy_getinfo(easy, CURLINFO_ACTIVESOCKET, &socket);
  answer.kept = code == CURLE_OK && socket != CURL_SOCKET_BAD;
  if (code != CURLE_OK) judge_failure(call, code, timeout, answer);
  if (call.same_server && code == CURLE_COULDNT_CONNECT) {
    answer.again = false;
    answer.status = error(StatusCode::kIncomplete, call.url,
                          ": the connection is gone; the server may have been started anew");
  }
  return answer;
}

}  // namespace

Status check_http() { return init_curl(); }

HttpAnswer http_call(const HttpCall& call, milliseconds timeout, const std::atomic<bool>* stop) {
  return http_session()(call, timeout, stop);
}

HttpFunction http_session() {
  if (const Status usable = init_curl(); !usable.ok()) {
    return [usable](const HttpCall&, milliseconds, const std::atomic<bool>*) {
      HttpAnswer answer;
      answer.status = usable;
      return answer;
    };
  }
  const std::shared_ptr<CURL> easy(curl_easy_init(), EasyClose());
  return [easy](const HttpCall& call, milliseconds timeout, const std::atomic<bool>* stop) {
    if (easy != nullptr) curl_easy_reset(easy.get());  // keeps its connection
    return perform(easy.get(), call, timeout, stop);
  };
}

}  // namespace driftless
