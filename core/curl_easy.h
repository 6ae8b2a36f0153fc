// SPDX-License-Identifier: Apache-2.0
// Owners and common options of libcurl's handles, for every file that calls libcurl. Included only
// if libcurl was found.
#pragma once

#include <curl/curl.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "core/status.h"

namespace driftless {

// Initializes libcurl's global state, once per process. It is never released: other code of the
// process may use libcurl, too.
[[nodiscard]] inline Status init_curl() {
  static const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (code == CURLE_OK) return {};
  return error(StatusCode::kInternal, "libcurl: ", curl_easy_strerror(code));
}

struct CurlClose {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
using CurlHandle = std::unique_ptr<CURL, CurlClose>;

class CurlHeaders {
 public:
  CurlHeaders() = default;
  CurlHeaders(const CurlHeaders&) = delete;
  CurlHeaders& operator=(const CurlHeaders&) = delete;
  ~CurlHeaders() { curl_slist_free_all(list_); }
  [[nodiscard]] bool add(const std::string& line) {
    curl_slist* longer = curl_slist_append(list_, line.c_str());
    if (longer != nullptr) list_ = longer;
    return longer != nullptr;
  }
  [[nodiscard]] curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

template <typename T>
void set_curl(CURL* easy, bool& ok, CURLoption option, T value) {
  ok = ok && curl_easy_setopt(easy, option, value) == CURLE_OK;
}

// The path of the system's CA bundle if libcurl has none built in, as in wheels; null if it has.
inline const char* system_ca_file() {
  static const char* const found = []() -> const char* {
    const curl_version_info_data* const built = curl_version_info(CURLVERSION_NOW);
    if (built->cainfo != nullptr || built->capath != nullptr) return nullptr;
    for (const char* const path :
         {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
          "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
      if (::access(path, R_OK) == 0) return path;
    }
    return nullptr;
  }();
  return found;
}

// The options of every call: http and https only, no redirections, and no signals, because threads
// would share them.
inline void set_curl_common(CURL* easy, bool& ok) {
#if LIBCURL_VERSION_NUM >= 0x075500
  set_curl(easy, ok, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  set_curl(easy, ok, CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  set_curl(easy, ok, CURLOPT_FOLLOWLOCATION, 0L);
  set_curl(easy, ok, CURLOPT_NOSIGNAL, 1L);
  if (const char* const file = system_ca_file()) set_curl(easy, ok, CURLOPT_CAINFO, file);
}

}  // namespace driftless
