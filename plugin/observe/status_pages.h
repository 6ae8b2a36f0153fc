// SPDX-License-Identifier: Apache-2.0
// StatusPages: the answers of the status server, without the server: the page, /status.json,
// /metrics and /ready, for those who may see them.
//
// Answers hold no secret and no path of this machine (public_text()). Any thread; what it is given
// outlives it. docs/operate/status.md describes every answer.
#pragma once

#include <mutex>

#include "plugin/observe/http_server.h"
#include "plugin/observe/run_view.h"

namespace driftless {

// What /metrics answers with. Any thread may call it.
class MetricsText {
 public:
  virtual ~MetricsText() = default;
  [[nodiscard]] virtual std::string text() = 0;
};

// `text` as strangers may read it: "user:password@" and queries of URLs are left out, and of an
// absolute path all but its last part.
[[nodiscard]] std::string public_text(std::string_view text);
// The texts of a status made public: URLs and errors of engines.
void make_public(RunStatus& status);

class StatusPages {
 public:
  struct Options {
    std::string token{};  // empty: none is asked for
    std::string host{};   // that it is bound to: requests name it if there is no token
    std::uint64_t max_lag = 1;
    MetricsText* metrics = nullptr;  // null: /metrics is not there
  };
  StatusPages(const RunView& view, Options options) : view_(view), options_(std::move(options)) {}

  [[nodiscard]] HttpReply answer(const HttpRequest& request);

 private:
  [[nodiscard]] bool may_see(const HttpRequest& request) const;
  [[nodiscard]] bool names_this_server(const HttpRequest& request) const;
  [[nodiscard]] HttpReply page(const HttpRequest& request);
  [[nodiscard]] HttpReply status(const HttpRequest& request);
  [[nodiscard]] HttpReply readiness() const;

  const RunView& view_;
  const Options options_;
  std::mutex rendering_;  // one large answer at a time: it takes memory
};

}  // namespace driftless
