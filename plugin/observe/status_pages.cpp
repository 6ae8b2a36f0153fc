// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/status_pages.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/line_log.h"
#include "plugin/observe/page.h"

namespace driftless {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kJson = "application/json";
// The page is one file: it loads nothing from elsewhere, and no other page may embed it.
constexpr std::string_view kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

HttpReply json_reply(int status, const OrderedJson& json) {
  return {status, std::string(kJson),
          json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n"};
}
HttpReply refusal(int status, std::string_view why) { return json_reply(status, {{"error", why}}); }

// Compares in constant time, so that the time does not show where they differ.
bool same_secret(std::string_view given, std::string_view secret) {
  unsigned different = given.size() == secret.size() ? 0 : 1;
  for (std::size_t at = 0; at < given.size(); ++at) {
    different |= static_cast<unsigned>(given[at] ^ secret[at % secret.size()]);
  }
  return different == 0;
}

// Decodes base64; padding may be missing. Empty: not base64.
std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  unsigned bits = 0, held = 0;
  for (const char digit : text) {
    const std::size_t value = kDigits.find(digit);
    if (value == std::string_view::npos) return {};
    bits = ((bits << 6U) | static_cast<unsigned>(value)) & 0xffffU;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<char>((bits >> held) & 0xffU));
  }
  return bytes;
}

bool same_word(std::string_view text, std::string_view lower) {
  return std::ranges::equal(text, lower, [](char one, char other) {
    return (one >= 'A' && one <= 'Z' ? one - 'A' + 'a' : one) == other;
  });
}

// Whether this character ends a path or a URL within a message.
bool ends_word(char each) {
  return static_cast<unsigned char>(each) <= ' ' ||
         std::string_view("'\"`,;()<>|").find(each) != std::string_view::npos;
}
// What is shown of a path: its last name.
std::string last_name(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const std::size_t last = path.rfind('/');
  return last == std::string_view::npos ? std::string(path)
                                        : concat(last == 0 ? "" : "...", path.substr(last));
}
// Whether a "/" after this character belongs to a name rather than starts a path.
bool within_name(char each) {
  return (each >= '0' && each <= '9') || (each >= 'a' && each <= 'z') ||
         (each >= 'A' && each <= 'Z') || static_cast<unsigned char>(each) >= 0x80 ||
         std::string_view("._-~*{}/").find(each) != std::string_view::npos;
}

}  // namespace

std::string public_text(std::string_view whole) {
  const std::string without = without_users(whole);
  const std::string_view text = without;
  std::string shown;
  std::size_t at = 0;
  const auto rest_of_word = [&] {
    std::size_t end = at;
    while (end < text.size() && !ends_word(text[end])) ++end;
    return text.substr(at, end - at);
  };
  while (at < text.size()) {
    if (text.substr(at).starts_with("://")) {
      at += 3;
      const std::string_view url = rest_of_word();
      at += url.size();
      const bool file = shown.size() >= 4 && same_word(shown.substr(shown.size() - 4), "file");
      shown.append("://").append(file ? last_name(url) : url.substr(0, url.find_first_of("?#")));
      continue;
    }
    if (text[at] != '/' || (at > 0 && within_name(text[at - 1]))) {
      shown.push_back(text[at++]);
      continue;
    }
    const char quote = at > 0 ? text[at - 1] : ' ';
    const std::size_t close =
        quote == '\'' || quote == '"' ? text.find(quote, at) : std::string::npos;
    std::string_view path = rest_of_word();
    path = close != std::string::npos ? text.substr(at, close - at)  // it may hold spaces
                                      : path.substr(0, path.find(':'));
    at += path.size();
    shown.append(last_name(path));
  }
  return shown;
}

void make_public(RunStatus& status) {
  status.failing = public_text(status.failing);
  for (EngineRecord& engine : status.engines) {
    engine.engine = public_text(engine.engine);
    if (engine.status.ok()) continue;
    engine.status = Status(engine.status.code(), public_text(engine.status.message()));
  }
}

bool StatusPages::may_see(const HttpRequest& request) const {
  const std::string_view given = request.authorization;
  const std::size_t space = given.find(' ');
  if (space == std::string_view::npos) return false;
  const std::string_view word = given.substr(0, space);
  std::string_view secret = given.substr(space + 1);
  if (same_word(word, "bearer")) return same_secret(secret, options_.token);
  if (!same_word(word, "basic")) return false;
  const std::string pair = from_base64(secret);
  const std::size_t colon = pair.find(':');
  return colon != std::string::npos &&
         same_secret(std::string_view(pair).substr(colon + 1), options_.token);
}

// Another site may resolve its own name to this address (DNS rebinding), and so make a browser send
// requests here.
bool StatusPages::names_this_server(const HttpRequest& request) const {
  const std::string port = concat(":", request.port);
  std::string_view host = request.host;
  if (host.ends_with(port)) {
    host.remove_suffix(port.size());
  } else if (request.port != 80) {
    return false;
  }
  if (same_word(host, "localhost") || host == "127.0.0.1" || host == "[::1]") return true;
  return host == options_.host || host == concat("[", options_.host, "]");
}

HttpReply StatusPages::status(const HttpRequest& request) {
  std::uint64_t since = 0;
  for (const auto& [key, value] : request.query) {
    if (key != "since") continue;
    const auto read = std::from_chars(value.data(), value.data() + value.size(), since);
    if (read.ec != std::errc() || read.ptr != value.data() + value.size()) {
      return refusal(400, "since: expected the number of a version");
    }
  }
  const std::scoped_lock lock(rendering_);
  RunStatus found = view_.status(since);
  make_public(found);
  return json_reply(200, to_json(found));
}

HttpReply StatusPages::readiness() const {
  const Readiness found = view_.readiness(options_.max_lag);
  return json_reply(found.ready ? 200 : 503, {{"ready", found.ready},
                                              {"run", found.run.is_zero() ? "" : to_hex(found.run)},
                                              {"version", found.version},
                                              {"lag", found.lag},
                                              {"reason", public_text(found.reason)}});
}

HttpReply StatusPages::page(const HttpRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    HttpReply reply = refusal(405, "only GET and HEAD are answered");
    reply.headers.emplace_back("Allow", "GET, HEAD");
    return reply;
  }
  if (request.path == "/status.json") return status(request);
  if (request.path == "/ready") return readiness();
  if (request.path == "/metrics") {
    if (options_.metrics == nullptr) return refusal(501, options_.no_metrics);
    return {200, "text/plain; version=0.0.4; charset=utf-8", options_.metrics->text()};
  }
  if (request.path == "/") return {200, "text/html; charset=utf-8", std::string(status_page())};
  return refusal(404, "there are /, /status.json, /metrics and /ready");
}

HttpReply StatusPages::answer(const HttpRequest& request) {
  HttpReply reply;
  if (options_.token.empty() && !names_this_server(request)) {
    reply = refusal(403, "the Host header names another server: use localhost or 127.0.0.1");
  } else if (!options_.token.empty() && !may_see(request)) {
    reply = refusal(401, "a token is needed: Authorization: Bearer TOKEN");
    reply.headers.emplace_back("WWW-Authenticate", "Basic realm=\"driftless\"");
  } else {
    reply = page(request);
  }
  reply.headers.emplace_back("Content-Security-Policy", kPolicy);
  reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
  reply.headers.emplace_back("Referrer-Policy", "no-referrer");
  reply.headers.emplace_back("Cache-Control", "no-store");
  return reply;
}

}  // namespace driftless
