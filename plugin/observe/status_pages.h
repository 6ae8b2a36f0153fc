// SPDX-License-Identifier: Apache-2.0
// StatusPages: the answers of the status server, independent of the server itself: the page,
// /status.json, /metrics and /ready, for clients that may see them.
//
// Answers contain no secret and no path of this machine (public_text()). Any thread may call it;
// its arguments outlive it. docs/operate/status.md describes every answer.
#pragma once

#include <mutex>

#include "plugin/observe/http_server.h"
#include "plugin/observe/metrics_text.h"
#include "plugin/observe/run_view.h"

namespace driftless {

// `text` without private parts: "user:password@" and the queries of URLs are left out, and of an
// absolute path all but its last part.
[[nodiscard]] std::string public_text(std::string_view text);
// Applies public_text() to the texts of a status: URLs and errors of engines.
void make_public(RunStatus& status);

class StatusPages {
 public:
  struct Options {
    std::string token{};  // empty: no token is required
    // The host that the server is bound to: without a token, requests must name it.
    std::string host{};
    std::uint64_t max_lag = 1;
    MetricsText* metrics = nullptr;  // null: /metrics answers 501
    std::string no_metrics{};        // the reason
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
  std::mutex rendering_;  // one large answer at a time, because it takes memory
};

}  // namespace driftless
