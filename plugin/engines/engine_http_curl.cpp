// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include "core/curl_easy.h"
#include "core/line_log.h"
#include "plugin/engines/engine_http.h"

namespace driftless {
namespace {

using std::chrono::milliseconds;

// Called by libcurl. A return value other than the number of bytes given ends the transfer.
std::size_t take(char* bytes, std::size_t size, std::size_t count, void* data) {
  auto& body = *static_cast<std::string*>(data);
  const std::size_t more = size * count;
  if (more > kMaxEngineReplyBytes - body.size()) return 0;
  body.append(bytes, more);
  return more;
}

// Called by libcurl now and then. A return value other than 0 ends the transfer.
int ask_whether_to_stop(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<const std::atomic<bool>*>(stop) ? 1 : 0;
}

bool prepare(CURL* easy, const HttpCall& call, const CurlHeaders& headers, milliseconds timeout,
             std::string& body) {
  bool ok = true;
  set_curl_common(easy, ok);
  set_curl(easy, ok, CURLOPT_URL, call.url.c_str());
  if (call.get) {
    set_curl(easy, ok, CURLOPT_HTTPGET, 1L);
  } else {
    set_curl(easy, ok, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
    set_curl(easy, ok, CURLOPT_POSTFIELDS, call.body.c_str());
  }
  set_curl(easy, ok, CURLOPT_HTTPHEADER, headers.get());
  set_curl(easy, ok, CURLOPT_TIMEOUT_MS,
           static_cast<long>(std::max<milliseconds::rep>(1, timeout.count())));
  set_curl(easy, ok, CURLOPT_PROXY, "");  // ignore proxies of the environment
  set_curl(easy, ok, CURLOPT_WRITEFUNCTION, take);
  set_curl(easy, ok, CURLOPT_WRITEDATA, &body);
  return ok;
}

void judge_failure(const HttpCall& call, CURLcode code, milliseconds timeout, HttpAnswer& answer) {
  answer.body = curl_easy_strerror(code);
  answer.again = true;
  switch (code) {
    case CURLE_WRITE_ERROR:
      answer.again = false;
      answer.status = error(StatusCode::kCorrupt, without_users(call.url),
                            ": the engine's reply is longer than ", kMaxEngineReplyBytes, " bytes");
      return;
    case CURLE_ABORTED_BY_CALLBACK:
      answer.again = false;
      answer.status =
          error(StatusCode::kIncomplete, without_users(call.url), ": the caller has stopped");
      return;
    case CURLE_OPERATION_TIMEDOUT:
      answer.status = error(StatusCode::kDeadlineExceeded, without_users(call.url),
                            ": no reply within ", timeout.count(), " ms");
      return;
    default: answer.status = error(StatusCode::kIo, without_users(call.url), ": ", answer.body);
  }
}

// Called by libcurl in place of socket(): refuses to open a connection.
curl_socket_t open_none(void*, curlsocktype, curl_sockaddr*) { return CURL_SOCKET_BAD; }

HttpAnswer perform(CURL* easy, const HttpCall& call, milliseconds timeout,
                   const std::atomic<bool>* stop) {
  HttpAnswer answer;
  CurlHeaders headers;
  bool ok = easy != nullptr && headers.add("Content-Type: application/json") &&
            headers.add("Expect:");  // send the body at once
  if (ok && !call.token.empty()) ok = headers.add("Authorization: Bearer " + call.token);
  ok = ok && prepare(easy, call, headers, timeout, answer.body);
  if (ok && stop != nullptr) {
    set_curl(easy, ok, CURLOPT_NOPROGRESS, 0L);
    set_curl(easy, ok, CURLOPT_XFERINFOFUNCTION, ask_whether_to_stop);
    set_curl(easy, ok, CURLOPT_XFERINFODATA, const_cast<std::atomic<bool>*>(stop));
  }
  if (call.same_server) set_curl(easy, ok, CURLOPT_OPENSOCKETFUNCTION, open_none);
  if (!ok) {
    answer.status =
        error(StatusCode::kInternal, without_users(call.url), ": libcurl refuses an option");
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
  const std::shared_ptr<CURL> easy(curl_easy_init(), CurlClose());
  return [easy](const HttpCall& call, milliseconds timeout, const std::atomic<bool>* stop) {
    if (easy != nullptr) curl_easy_reset(easy.get());  // keeps its connection
    return perform(easy.get(), call, timeout, stop);
  };
}

}  // namespace driftless
