#include "plugin/engines/engine_link.h"

#include "plugin/engines/engine_http.h"

namespace driftless {
namespace {

constexpr std::size_t kShownReplyBytes = 400;

std::string words_of(const Result<Json>& answer, std::string_view body) {
  if (!answer.ok() || !answer->is_object()) return shown(body, kShownReplyBytes);
  for (const char* key : {"message", "detail", "error"}) {
    const auto found = answer->find(key);
    if (found == answer->end()) continue;
    if (found->is_string()) return shown(found->get_ref<const std::string&>(), kShownReplyBytes);
    if (!found->is_object()) continue;
    const auto inner = found->find("message");
    if (inner != found->end() && inner->is_string()) {
      return shown(inner->get_ref<const std::string&>(), kShownReplyBytes);
    }
  }
  return shown(body, kShownReplyBytes);
}

}  // namespace

EngineLink::EngineLink(std::string url, std::string token, std::chrono::milliseconds timeout,
                       const std::atomic<bool>& stop)
    : url_(std::move(url)), token_(std::move(token)), timeout_(timeout), stop_(&stop) {
  while (url_.ends_with('/')) url_.pop_back();
}

Result<Json> EngineLink::call(std::string_view path, const Json* body, bool may_stop) const {
  HttpCall call{concat(url_, path), {}, token_, body == nullptr};
  if (body != nullptr) {
    try {
      call.body = body->dump();
    } catch (const Json::exception&) {
      return error(StatusCode::kInvalidArgument, call.url, ": what is to be said is not UTF-8");
    }
  }
  const HttpAnswer answer = http_call(call, timeout_, may_stop ? stop_ : nullptr);
  DRIFTLESS_RETURN_IF_ERROR(answer.status);
  const bool yes = answer.number >= 200 && answer.number <= 299;
  if (answer.number >= 300 && answer.number <= 399) {
    return error(StatusCode::kInvalidArgument, call.url, ": answered with a redirect (status ",
                 answer.number, "), which is not followed: name the engine's own address");
  }
  if (yes && answer.body.empty()) return Json(Json::object());
  Result<Json> parsed = parse_json(answer.body, call.url);
  if (!yes) {
    return error(answer.number >= 500 ? StatusCode::kIo : StatusCode::kInvalidArgument, call.url,
                 ": the engine answered with status ", answer.number, ": ",
                 words_of(parsed, answer.body));
  }
  if (parsed.ok() && parsed->is_object()) return parsed;
  return error(StatusCode::kCorrupt, call.url, ": expected a JSON object, found ",
               shown(answer.body, kShownReplyBytes));
}

Result<Json> EngineLink::post(std::string_view path, const Json& body) const {
  return call(path, &body, true);
}

Result<Json> EngineLink::get(std::string_view path) const { return call(path, nullptr, true); }

Result<Json> EngineLink::must_post(std::string_view path, const Json& body) const {
  return call(path, &body, false);
}

bool is_unknown_call(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument &&
         (status.message().find("status 404") != std::string_view::npos ||
          status.message().find("status 405") != std::string_view::npos);
}

}  // namespace driftless
