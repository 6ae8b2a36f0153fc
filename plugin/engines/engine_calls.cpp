#include "plugin/engines/engine_calls.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/strict_json.h"

namespace driftless {
namespace {

constexpr std::size_t kShownBytes = 300;

bool plain(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > ' ' && byte < 0x7F;
  });
}

Result<EngineCall> make_call(const EngineEndpoint& engine, std::string_view path,
                             const Json& body) {
  EngineCall call;
  call.url = engine.url;
  while (call.url.ends_with('/')) call.url.pop_back();
  call.url += path;
  try {
    call.body = body.dump();
  } catch (const Json::exception&) {
    return error(StatusCode::kInvalidArgument, call.url,
                 ": a path or file name of the version is not UTF-8");
  }
  return call;
}

// What an engine says besides success; empty where it says nothing.
std::string words_of(const Json& reply) {
  for (const char* key : {"message", "detail", "error"}) {
    const auto found = reply.find(key);
    if (found != reply.end() && found->is_string()) {
      return shown(found->get_ref<const std::string&>(), kShownBytes);
    }
  }
  return {};
}

}  // namespace

Status check_endpoint(const EngineEndpoint& engine) {
  const std::string name = shown(engine.url);
  if (!engine.url.starts_with("http://") && !engine.url.starts_with("https://")) {
    return error(StatusCode::kInvalidArgument, "engine ", name,
                 ": the url must begin with http:// or https://");
  }
  if (!plain(engine.url) || engine.url.find_first_of("?#") != std::string::npos) {
    return error(StatusCode::kInvalidArgument, "engine ", name,
                 ": the url has spaces, '?', '#' or other characters that no base url has");
  }
  if (!plain(engine.token)) {
    return error(StatusCode::kInvalidArgument, "engine ", name,
                 ": the token has spaces or other characters that no header can hold");
  }
  if (engine.action != EngineAction::kUpdateFlush && engine.local_checkpoint_dir.empty()) {
    return error(StatusCode::kInvalidArgument, "engine ", name,
                 ": local_checkpoint_dir is needed, the engine's checkpoint as it sees it");
  }
  return {};
}

Result<std::vector<EngineCall>> engine_calls(const EngineEndpoint& engine,
                                             const PublishedVersion& version) {
  if (version.version > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return error(StatusCode::kInvalidArgument, "version ", version.version, " is too large");
  }
  const std::string number = std::to_string(version.version);
  std::vector<EngineCall> calls;
  if (engine.action == EngineAction::kPullWeights) {
    const Json pull = {{"local_checkpoint_dir", engine.local_checkpoint_dir},
                       {"source_dir", version.source_dir},
                       {"target_version", version.version}};
    DRIFTLESS_ASSIGN_OR_RETURN(EngineCall call, make_call(engine, "/pull_weights", pull));
    calls.push_back(std::move(call));
  }
  Json update = {{"model_path", engine.local_checkpoint_dir}, {"weight_version", number}};
  if (engine.action == EngineAction::kUpdateFlush) {
    update["model_path"] = version.version_dir;
    update["load_format"] = "delta";
    update["files"] = version.files;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(EngineCall call,
                             make_call(engine, "/update_weights_from_disk", update));
  calls.push_back(std::move(call));
  return calls;
}

EngineReply judge_reply(const std::string& url, long http_status, std::string_view body) {
  const Result<Json> parsed = parse_json(body, url);
  const bool object = parsed.ok() && parsed->is_object();
  EngineReply reply;
  reply.message = object ? words_of(*parsed) : shown(body, kShownBytes);
  if (http_status < 200 || http_status > 299) {
    reply.again = http_status >= 500;
    reply.status = error(reply.again ? StatusCode::kIo : StatusCode::kInvalidArgument, url,
                         ": the engine answered with status ", http_status, ": ", reply.message);
    return reply;
  }
  const auto success = object ? parsed->find("success") : Json::const_iterator{};
  if (!object || success == parsed->end() || !success->is_boolean()) {
    reply.status = error(StatusCode::kCorrupt, url,
                         ": expected {\"success\":true|false,\"message\":...}, found ",
                         shown(body, kShownBytes));
  } else if (!success->get<bool>()) {
    reply.status = error(StatusCode::kIo, url, ": the engine refused: ", reply.message);
  }
  return reply;
}

}  // namespace driftless
