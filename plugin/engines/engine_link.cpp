// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_link.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/line_log.h"
#include "core/secret_file.h"
#include "core/url_text.h"

namespace driftless {
namespace {

constexpr std::size_t kShownReplyBytes = 400;

std::string words_of(const Json& answer) {
  for (const char* key : {"message", "detail", "error"}) {
    const auto found = answer.find(key);
    if (found == answer.end()) continue;
    if (found->is_string()) return shown(found->get_ref<const std::string&>(), kShownReplyBytes);
    if (found->is_object() && !json_text(*found, "message").empty()) {
      return shown(json_text(*found, "message"), kShownReplyBytes);
    }
  }
  return {};
}

Status judge_status(const std::string& url, const EngineReply& reply, bool object) {
  if (reply.http_status >= 300 && reply.http_status <= 399) {
    return error(StatusCode::kInvalidArgument, url, ": answered with a redirect (status ",
                 reply.http_status, "), which is not followed: name the engine's own address");
  }
  if (reply.http_status < 200 || reply.http_status > 299) {
    return error(reply.http_status >= 500 ? StatusCode::kIo : StatusCode::kInvalidArgument, url,
                 ": the engine answered with status ", reply.http_status, ": ", reply.words);
  }
  if (object) return {};
  return error(StatusCode::kCorrupt, url, ": expected a JSON object, found ",
               shown(reply.body, kShownReplyBytes));
}

}  // namespace

EngineLink::EngineLink(const EngineEndpoint& engine, std::chrono::milliseconds timeout,
                       const std::atomic<bool>* stop, HttpFunction http)
    : url_(engine.url),
      name_(without_users(engine.url)),
      token_(engine.token),
      timeout_(timeout),
      stop_(stop),
      http_(std::move(http)) {
  for (std::string* const each : {&url_, &name_}) {
    while (each->ends_with('/')) each->pop_back();
  }
}

EngineReply EngineLink::call(std::string_view path, const Json* body,
                             std::chrono::milliseconds timeout, bool must, bool same_server) const {
  HttpCall call{concat(url_, path), {}, token_, body == nullptr, same_server};
  const std::string name = concat(name_, path);
  EngineReply reply;
  if (body != nullptr) {
    try {
      call.body = body->dump();
    } catch (const Json::exception&) {
      reply.status = error(StatusCode::kInvalidArgument, name, ": the request is not UTF-8");
      return reply;
    }
  }
  HttpAnswer answer = http_(call, timeout, must ? nullptr : stop_);
  reply.http_status = answer.number;
  reply.kept = answer.kept;
  reply.body = std::move(answer.body);
  if (!answer.status.ok()) {
    reply.status = answer.status;
    reply.again = answer.again;
    reply.words = reply.body;
    return reply;
  }
  if (reply.body.empty() && answer.number >= 200 && answer.number <= 299) reply.body = "{}";
  const Result<Json> parsed = parse_json(reply.body, name);
  const bool object = parsed.ok() && parsed->is_object();
  reply.words = object ? words_of(*parsed) : shown(reply.body, kShownReplyBytes);
  if (object && reply.words.empty() && answer.number >= 300) {
    reply.words = shown(reply.body, kShownReplyBytes);
  }
  reply.again = answer.number >= 500;
  reply.status = judge_status(name, reply, object);
  return reply;
}

Result<Json> EngineLink::post(std::string_view path, const Json& body, bool must) const {
  const EngineReply reply = call(path, &body, timeout_, must);
  DRIFTLESS_RETURN_IF_ERROR(reply.status);
  return parse_json(reply.body, path);
}

Result<Json> EngineLink::get(std::string_view path, bool must) const {
  const EngineReply reply = call(path, nullptr, timeout_, must);
  DRIFTLESS_RETURN_IF_ERROR(reply.status);
  return parse_json(reply.body, path);
}

std::string_view to_string(EngineKind kind) {
  return kind == EngineKind::kVllm ? "vllm" : "sglang";
}

Status prepare_endpoint(EngineEndpoint& engine) {
  const std::string& url = engine.url;
  // In an invalid URL the end of a password is not known, so show only what follows the last '@'.
  const std::string name = shown(without_users(url.substr(url.rfind('@') + 1)));
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    return error(StatusCode::kInvalidArgument, "engine ", name,
                 ": the url must begin with http:// or https://");
  }
  if (!is_plain_text(url) || url.find_first_of("?#\"<>\\") != std::string::npos) {
    return error(StatusCode::kInvalidArgument, "engine ", name,
                 ": the url has spaces, '?', '#' or other characters that no base url has");
  }
  if (public_url(url) != without_users(url)) {
    return error(StatusCode::kInvalidArgument, "engine ", name,
                 ": a '/' in the user or the password of its url: write it as %2F");
  }
  if (!engine.token_file.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(engine.token, read_token_file(engine.token_file));
  }
  if (is_plain_text(engine.token)) return {};
  return error(StatusCode::kInvalidArgument, "engine ", name,
               ": the token has spaces or other characters that no header can hold");
}

Status known_call(const Status& status) {
  // The first match is ours (engine_link); the engine's message follows it.
  constexpr std::string_view kStatus = "answered with status ";
  const std::string_view message = status.message();
  const std::size_t found = message.find(kStatus);
  const std::string_view number =
      found == std::string_view::npos ? "" : message.substr(found + kStatus.size(), 3);
  const bool unknown =
      status.code() == StatusCode::kInvalidArgument && (number == "404" || number == "405");
  return unknown ? Status(StatusCode::kUnsupported, std::string(status.message())) : status;
}

std::string json_text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace driftless
