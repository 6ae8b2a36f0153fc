// SPDX-License-Identifier: Apache-2.0
// Checks a running engine: kind, release, token, base, whether it is paused, and the ways in which
// it can take a version. Names every missing flag. Makes only calls that change nothing.
#include <nlohmann/json.hpp>

#include "core/file_system.h"
#include "core/quantize_rule.h"
#include "plugin/checkpoint/quantization.h"
#include "plugin/engines/engine_transport.h"
#include "plugin/engines/rank_reply.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

using enum FindingState;
using std::chrono::milliseconds;

constexpr milliseconds kCallWait{3'000};
constexpr std::string_view kExtension = "driftless.engines.vllm.WorkerExtension";
constexpr std::string_view kFp8Blocks = "FP8 in blocks of 128x128";
constexpr long kUnknownPath = 404, kOtherMethod = 405;

// The quantization named in the base's config.json, if that is on this host; empty: none.
std::string quantized_as(const std::string& base) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
  if (!base.starts_with('/')) return {};
  const Result<std::string> text =
      read_text(posix_file_system(), join_path(base, kModelConfigName), kMostBytes);
  if (!text.ok()) return {};
  const Result<Json> config = parse_json(*text, kModelConfigName);
  if (!config.ok() || !config->is_object()) return {};
  const Json found = config->value("quantization_config", Json());
  if (!found.is_object()) return {};
  const bool blocks =
      found.value("weight_block_size", Json()) == Json{kQuantizeBlock, kQuantizeBlock};
  const std::string method = json_text(found, "quant_method");
  return method == "fp8" && blocks ? std::string(kFp8Blocks) : concat("quantized: ", method);
}

bool refused(const EngineReply& reply) {
  return reply.http_status == 401 || reply.http_status == 403;
}

class EngineCheck {
 public:
  EngineCheck(const EngineEndpoint& engine, const Context& context, const Report& report)
      : engine_(engine),
        context_(context),
        report_(report),
        link_(engine, kCallWait, nullptr, http_session()) {}

  void run() {
    const EngineReply model = get("/model_info");
    if (model.http_status == 0) {
      return add("reachable", kFail, std::string(model.status.message()),
                 "start the engine, correct its address, or look at its log");
    }
    const Json reply = json_of(model);
    sglang_ = !json_text(reply, "model_path").empty();
    const EngineReply release = sglang_ ? get("/server_info") : get("/version");
    if (refused(model) || refused(release)) return refuse_token();
    const std::string version = json_text(json_of(release), "version");
    if (!sglang_ && version.empty()) {
      return add("kind", kFail,
                 concat("neither vLLM nor SGLang: ", release.status.ok()
                                                         ? std::string("/version has no version")
                                                         : std::string(release.status.message())),
                 "correct the address: it is the engine's own, not that of a router");
    }
    add("reachable", kOk,
        concat(sglang_ ? "SGLang " : "vLLM ", version.empty() ? "of an unknown release" : version));
    const EngineKind kind = sglang_ ? EngineKind::kSglang : EngineKind::kVllm;
    if (engine_.kind && *engine_.kind != kind) {
      add("kind", kFail, concat("engines[].kind is ", to_string(*engine_.kind)),
          concat("set it to ", to_string(kind)));
    }
    if (engine_.action && !sglang_) {
      return add("action", kFail, "only SGLang has the calls of an action",
                 "set kind: vllm instead, and start an agent on the engine's host");
    }
    sglang_ ? examine_sglang(reply, json_of(release)) : examine_vllm();
  }

 private:
  void add(std::string_view check, FindingState state, std::string finding,
           std::string_view next = {}) const {
    report_({std::string(check), state, std::move(finding), std::string(next)});
  }
  [[nodiscard]] EngineReply get(std::string_view path) const {
    return link_.call(path, nullptr, std::min(kCallWait, context_.deadline.remaining()), true);
  }
  [[nodiscard]] static Json json_of(const EngineReply& reply) {
    if (!reply.status.ok()) return Json::object();
    Result<Json> parsed = parse_json(reply.body, "the engine's answer");
    return parsed.ok() && parsed->is_object() ? std::move(*parsed) : Json::object();
  }
  // Whether the server has a path that takes only POST: it then answers a GET with 405.
  [[nodiscard]] bool knows(std::string_view path) const {
    return get(path).http_status == kOtherMethod;
  }
  void refuse_token() const {
    const bool given = !engine_.token.empty();
    add("token", kFail, given ? "the engine refuses the token" : "the engine asks for a token",
        given ? "put the key of the engine's --api-key into that file"
              : "name a file with the key of its --api-key: --token-file, or engines[].token_file");
  }

  void report_base(const std::string& base, std::string_view label) const {
    const std::string scheme = quantized_as(base);
    const bool other = !scheme.empty() && scheme != kFp8Blocks;
    add("base", other ? kWarn : kOk, concat(base, label, scheme.empty() ? "" : ", ", scheme),
        other ? "use a base in bfloat16, or one that driftless quantize makes: versions carry no "
                "other weights"
              : "");
  }
  [[nodiscard]] bool hands_over_memory() const {
    return context_.config.agent.hand_over != HandOver::kCheckpoint;
  }

  // --- vLLM
  // ---------------------------------------------------------------------------------------

  void examine_vllm() {
    const EngineReply models = get("/v1/models");
    if (refused(models)) return refuse_token();
    if (!engine_.token.empty()) add("token", kOk, "accepted");
    report_served(json_of(models));
    const long answered = get("/collective_rpc").http_status;
    if (answered == kUnknownPath) {
      return add("dev mode", kFail, "/collective_rpc answers 404: nothing can drive this engine",
                 "start it with VLLM_SERVER_DEV_MODE=1, on an address that strangers do not reach");
    }
    add("dev mode", kOk, "on");
    report_paused();
    examine_extension();
    add("ways", kOk,
        concat(extension_ ? "in place by our receiver, " : "",
               "load from disk (agent.hand_over: checkpoint)"));
  }

  void report_served(const Json& models) const {
    const auto data = models.find("data");
    if (data == models.end() || !data->is_array() || data->empty() || !data->front().is_object()) {
      return add("base", kSkip, "/v1/models does not name it");
    }
    const std::string root = json_text(data->front(), "root");
    report_base(root.empty() ? json_text(data->front(), "id") : root, "");
  }

  void report_paused() const {
    const Json reply = json_of(get("/is_paused"));
    const auto paused = reply.find("is_paused");
    if (paused == reply.end() || !paused->is_boolean()) {
      return add("paused", kSkip, "this release does not report it");
    }
    add("paused", *paused ? kWarn : kOk, *paused ? "yes: requests wait" : "no",
        *paused ? "find out why before you resume it (POST /resume): it may hold parts of two "
                  "versions"
                : "");
  }

  // The worker extension in the engine's own configuration, if the server reports it soon (it first
  // collects a description of its system). A test call would not do: a call of an unknown method
  // raises in every worker.
  [[nodiscard]] std::optional<std::string> configured_extension() const {
    const Json reply = json_of(get("/server_info?config_format=json"));
    std::optional<std::string> named;
    const auto config = reply.find("vllm_config");
    if (config == reply.end() || !config->is_object()) return named;
    const auto parallel = config->find("parallel_config");
    if (parallel == config->end() || !parallel->is_object()) return named;
    if (parallel->contains("worker_extension_cls")) {
      named = json_text(*parallel, "worker_extension_cls");
    }
    return named;
  }

  void examine_extension() {
    const FindingState missing = hands_over_memory() ? kFail : kSkip;
    const std::string flag = concat("start it with --worker-extension-cls ", kExtension,
                                    " --weight-transfer-config '{\"backend\":\"driftless\"}'");
    const std::optional<std::string> named = configured_extension();
    if (named && named->empty()) return add("extension", missing, "none is loaded", flag);
    const Json body = {{"method", "driftless_status"}, {"kwargs", {{"nonce", new_nonce()}}}};
    const EngineReply reply = link_.call("/collective_rpc", &body,
                                         std::min(kCallWait, context_.deadline.remaining()), true);
    if (reply.status.message().find("has no attribute") != std::string_view::npos) {
      return add("extension", missing, "its workers do not have our receiver", flag);
    }
    const Json answer = json_of(reply);
    const auto results = answer.find("results");
    if (!reply.status.ok() || results == answer.end() || !results->is_array()) {
      return add("extension", missing, concat("driftless_status: ", reply.status.message()),
                 "look at the engine's log");
    }
    report_ranks(*results);
  }

  void report_ranks(const Json& results) {
    std::string text;
    for (const Json& each : results) {
      const Result<RankReply> rank = parse_rank_reply(each, "driftless_status");
      if (!rank.ok()) {
        return add("extension", kFail, std::string(rank.status().message()),
                   "install the same release of driftless in the engine's Python");
      }
      text += concat(text.empty() ? "" : "; ", "rank ", rank->rank, " ", rank->state);
      if (rank->state != "closed") text += concat(", ", to_string(rank->holds));
      if (!rank->error.empty()) text += concat(" (", rank->error, ")");
    }
    extension_ = true;
    add("extension", kOk, text);
  }

  // --- SGLang
  // -------------------------------------------------------------------------------------

  void examine_sglang(const Json& model, const Json& server) {
    if (!engine_.token.empty()) add("token", kOk, "accepted");
    const std::string label = json_text(model, "weight_version");
    report_base(json_text(model, "model_path"),
                label.empty() ? "" : concat(", weight_version ", label));
    const auto replicas = server.find("dp_size");
    if (replicas != server.end() && replicas->is_number_integer() && *replicas > 1) {
      add("replicas", kFail, concat("dp_size ", replicas->dump()),
          "start a server for each replica: tensors reach the first one only");
    }
    const auto paused = server.find("is_paused");
    if (paused == server.end() || !paused->is_boolean()) {
      add("paused", kSkip, "SGLang does not report it");
    } else {
      add("paused", *paused ? kWarn : kOk, *paused ? "yes: requests wait" : "no",
          *paused ? "find out why before you let it go on (POST /continue_generation)" : "");
    }
    const bool pulls = knows("/pull_weights");
    if (!engine_.action) examine_loader(server);
    if (engine_.action == EngineAction::kPullWeights && !pulls) {
      add("action", kFail, "it has no /pull_weights",
          "use action: update_weights_from_disk with a receiver on its host, or an agent");
    }
    add("ways", kOk,
        concat(extension_ ? "in place by our receiver, " : "", "load from disk",
               pulls ? ", pull_weights" : "", "; flush files: unknown until a load"));
  }

  void examine_loader(const Json& server) {
    const std::string& wanted = context_.config.agent.sglang_loader;
    const auto loaders = server.find("custom_weight_loader");
    if (loaders == server.end()) return add("extension", kSkip, "/server_info does not name it");
    extension_ = loaders->is_array() && std::ranges::find(*loaders, Json(wanted)) != loaders->end();
    add("extension", extension_ ? kOk : (hands_over_memory() ? kFail : kSkip),
        extension_ ? wanted : "its custom_weight_loader is not ours",
        extension_ ? "" : concat("start it with --custom-weight-loader ", wanted));
  }

  const EngineEndpoint& engine_;
  const Context& context_;
  const Report& report_;
  EngineLink link_;
  bool sglang_ = false;
  bool extension_ = false;
};

}  // namespace

void check_engine(const EngineEndpoint& engine, const Context& context, const Report& report) {
  if (const Status usable = check_http(); !usable.ok()) {
    return report(failed("reachable", usable, "build with libcurl (Debian: libcurl4-openssl-dev)"));
  }
  EngineEndpoint prepared = engine;
  if (const Status ready = prepare_endpoint(prepared); !ready.ok()) {
    return report(failed("token", ready, "correct the address, or the token's file"));
  }
  EngineCheck(prepared, context, report).run();
}

}  // namespace driftless::doctor
