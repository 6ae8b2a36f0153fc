// SPDX-License-Identifier: Apache-2.0
// What every file that calls libcurl needs around its handles. Only where libcurl is; what else
// goes over them is the caller's.
#pragma once

#include <curl/curl.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "core/status.h"

namespace driftless {

// Once for the process: it is libcurl's own global state, and never given back, since others in the
// process may use it, too.
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

// The system's CA bundle, if libcurl was built without knowing where it is, as wheels have it; else
// null: libcurl knows.
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

// Of every call: no other protocol, no redirections, no signals, which threads would share.
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
