// SPDX-License-Identifier: Apache-2.0
// Maps the driver's calls to SGLang's HTTP requests. SGLang calls its loader with a tensor that
// carries a command (JSON in uint8). The ranks answer by files in a directory of ours, because a
// loader cannot return anything through SGLang. Ranks are global: the tensor-parallel ranks of
// every pipeline stage answer.
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/deadline.h"
#include "core/file_system.h"
#include "core/hash128.h"
#include "plugin/engines/engine_transport.h"
#include "plugin/engines/server_calls.h"
#include "plugin/engines/sglang_command.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;
constexpr std::uint64_t kMaxAnswerBytes = 256 << 20;  // some 150 for each tensor of a rank
constexpr unsigned kMaxSglangRanks = 4096;
constexpr int kContinueTries = 4;

class SglangTransport final : public EngineTransport {
 public:
  SglangTransport(EngineLink link, std::string loader, std::chrono::milliseconds timeout,
                  std::string answers, std::string token)
      : link_(std::move(link)),
        loader_(std::move(loader)),
        timeout_(timeout),
        answers_(std::move(answers)),
        token_(std::move(token)) {}
  SglangTransport(const SglangTransport&) = delete;
  SglangTransport& operator=(const SglangTransport&) = delete;
  ~SglangTransport() override { const Status ignored = remove_tree(posix_file_system(), answers_); }

  [[nodiscard]] const std::string& name() const override { return link_.url(); }
  [[nodiscard]] bool stopping() const override { return link_.stopping(); }
  void ended() override { session_ = false; }  // the next request ends a session that is still open

  EngineAnswer carry(const EngineCall& call) override {
    switch (call.op) {
      case EngineOp::kAsk: {
        Json asked = {{"phase", "status"}};
        if (call.quiet) asked["quiet"] = true;
        return command(call, std::move(asked));
      }
      // Reads files: costs the engine nothing.
      case EngineOp::kLook: return answered(read_answers({}, call.must));
      case EngineOp::kOpen: {
        Json asked = open_arguments(call);
        asked["phase"] = "open";
        return command(call, std::move(asked));
      }
      case EngineOp::kClose: return command(call, {{"phase", "close"}});
      case EngineOp::kStage:
        return command(
            call, {{"phase", "stage"}, {"timeout_s", call.timeout_s}, {"ticket", call.ticket}});
      case EngineOp::kRollback:
        return command(call, {{"phase", "rollback"}, {"version", call.version}});
      case EngineOp::kShares: return command(call, {{"phase", "shares"}, {"sweep", call.sweep}});
      case EngineOp::kRead: {
        Json asked = read_arguments(call);
        asked["phase"] = "read";
        return command(call, std::move(asked));
      }
      case EngineOp::kWrite:
        return command(call,
                       {{"phase", "commit"}, {"version", call.version}, {"ticket", call.ticket}});
      case EngineOp::kBegin: return begun(begin());
      case EngineOp::kFinish: return finish(call);
      default: return sglang_server_call(link_, call);
    }
  }

 private:
  // Reads the server's properties anew, because it may have been restarted.
  [[nodiscard]] Status learn(bool must) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Json server, link_.get("/server_info", must));
    const auto number = [&](const char* key) -> std::uint64_t {
      const auto found = server.find(key);
      return found != server.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 1;
    };
    const std::uint64_t tensor = number("tp_size"), stages = number("pp_size");
    if (number("dp_size") > 1) {
      return error(StatusCode::kUnsupported, "/server_info: dp_size ", number("dp_size"),
                   ": SGLang passes tensors to one data-parallel replica only");
    }
    const bool good = tensor > 0 && stages > 0 && tensor <= kMaxSglangRanks &&
                      stages <= kMaxSglangRanks && tensor * stages <= kMaxSglangRanks;
    if (!good) {
      return error(StatusCode::kCorrupt, "/server_info: tp_size ", tensor, ", pp_size ", stages);
    }
    payloads_ = static_cast<unsigned>(tensor);
    ranks_ = static_cast<unsigned>(tensor * stages);
    return {};
  }

  [[nodiscard]] EngineAnswer answered(Result<std::vector<RankReply>> replies) {
    if (!replies.ok()) return {.status = replies.status()};
    return {.ranks = std::move(*replies)};
  }

  [[nodiscard]] EngineAnswer command(const EngineCall& call, Json command) {
    if (Status learned = learn(call.must); !learned.ok()) return {.status = std::move(learned)};
    const std::string nonce = new_nonce();
    command["nonce"] = nonce;
    command["answers"] = token_;
    bool paused = false;
    const Status sent = send(call, command, paused);
    EngineAnswer answer =
        sent.ok() ? answered(read_answers(nonce, call.must)) : EngineAnswer{.status = sent};
    answer.paused = paused;
    return answer;
  }

  // Outside a commit the engine is paused only for as long as it takes to start a thread. If the
  // engine is not known to be running, it stays paused, and the driver decides.
  [[nodiscard]] Status send(const EngineCall& call, const Json& command, bool& paused) {
    const bool hold = call.pause != PauseState::kPaused;
    if (hold) {
      const Status held = post("/pause_generation", {{"mode", "in_place"}}, call.must);
      paused = true;
      if (!held.ok()) {
        if (call.pause == PauseState::kRunning) paused = !go_on();
        return held;
      }
    }
    const bool reads = call.op == EngineOp::kShares || call.op == EngineOp::kRead || call.quiet;
    Status sent = within_session(command, "", reads);
    if (hold && call.pause == PauseState::kRunning) paused = !go_on();
    return sent;
  }

  [[nodiscard]] bool go_on() {
    Backoff backoff(50ms, 1'000ms);
    const Deadline deadline = Deadline::after(timeout_);
    for (int i = 0; i < kContinueTries; ++i) {
      if (post("/continue_generation", Json::object(), true).ok()) return true;
      if (!backoff.sleep(deadline)) break;
    }
    return false;
  }

  // `reads`: a call that only reads does not end another client's update.
  [[nodiscard]] Status within_session(const Json& command, const std::string& label, bool reads) {
    const bool new_session = !session_;
    if (new_session) DRIFTLESS_RETURN_IF_ERROR(reads ? begin_if_none() : begin());
    Json body = {
        {"load_format", loader_},
        {"flush_cache", false},
        {"selector", "target"},
        {"serialized_named_tensors", std::vector<std::string>(payloads_, sglang_command(command))}};
    if (!label.empty()) body["weight_version"] = label;
    Status sent = post("/update_weights_from_tensor", body, true);
    if (!new_session) return sent;
    const Status ended = post("/end_weight_update", Json::object(), true);
    session_ = false;
    return sent.ok() ? ended : sent;
  }

  [[nodiscard]] Status begin_if_none() {
    Status begun = post("/begin_weight_update", Json::object(), true);
    session_ = begun.ok();
    if (begun.ok()) return begun;
    return error(StatusCode::kBusy, "an update is going on, or was never ended: ask again (",
                 begun.message(), ")");
  }
  // Ends a session that was left open first.
  [[nodiscard]] Status begin() {
    if (!post("/begin_weight_update", Json::object(), true).ok()) {
      const Status ignored = post("/end_weight_update", Json::object(), true);
      DRIFTLESS_RETURN_IF_ERROR(post("/begin_weight_update", Json::object(), true));
    }
    session_ = true;
    return {};
  }

  // The label goes through the commit's session: a restarted server has no such session and
  // refuses. So the label is set before the end of the session, which makes the weights usable
  // (quantized weights are packed then). The end itself does not report whether a session was open.
  [[nodiscard]] EngineAnswer finish(const EngineCall& call) {
    Status labelled;
    if (!call.label.empty() && session_) {
      const Json look = {{"phase", "status"}, {"nonce", new_nonce()}, {"answers", token_}};
      labelled = within_session(look, call.label, false);
    } else if (!call.label.empty()) {
      labelled = error(StatusCode::kIncomplete, "its session has ended without the label");
    }
    Status ended = post("/end_weight_update", Json::object(), true);
    // A failed end may have ended the session and lost only the answer. A new session can begin
    // only then, so begin one and end it.
    if (!ended.ok() && post("/begin_weight_update", Json::object(), true).ok()) {
      ended = post("/end_weight_update", Json::object(), true);
    }
    if (ended.ok()) session_ = false;
    return {.status = labelled.ok() ? ended : labelled, .unfinished = !ended.ok()};
  }

  [[nodiscard]] Status post(std::string_view path, const Json& body, bool must) const {
    return sglang_post(link_, path, body, must);
  }

  // Reads the newest reply of every rank; with a nonce, the replies to that command.
  [[nodiscard]] Result<std::vector<RankReply>> read_answers(const std::string& nonce, bool must) {
    Backoff backoff(2ms, 50ms);
    const Deadline deadline = Deadline::after(timeout_);
    do {
      std::vector<RankReply> replies;
      for (unsigned rank = 0; rank < ranks_; ++rank) {
        const std::string path = join_path(answers_, concat("rank", rank, ".json"));
        const Result<std::string> text = read_text(posix_file_system(), path, kMaxAnswerBytes);
        if (!text.ok()) break;
        DRIFTLESS_ASSIGN_OR_RETURN(const Json answer, parse_json(*text, path));
        if (!nonce.empty() && json_text(answer, "nonce") != nonce) break;
        DRIFTLESS_ASSIGN_OR_RETURN(RankReply reply, parse_rank_reply(answer, path));
        if (reply.rank != static_cast<std::int64_t>(rank)) {
          return error(StatusCode::kCorrupt, path, ": is the answer of rank ", reply.rank);
        }
        replies.push_back(std::move(reply));
      }
      if (replies.size() == ranks_) return replies;
      if (!must && link_.stopping()) return error(StatusCode::kIncomplete, "stopped");
    } while (backoff.sleep(deadline));
    return error(StatusCode::kDeadlineExceeded, "not all of ", ranks_,
                 " ranks answered: was the server started with --custom-weight-loader ", loader_,
                 ", on this host?");
  }

  EngineLink link_;
  std::string loader_;
  std::chrono::milliseconds timeout_;
  std::string answers_;  // a directory of ours
  std::string token_;    // identifies answers_ for the workers, which have its parent
  unsigned ranks_ = 1, payloads_ = 1;
  bool session_ = false;
};

}  // namespace

Result<EngineKind> find_engine_kind(const EngineLink& link) {
  const Result<Json> info = link.get("/server_info", true);
  if (!info.ok() && info.status().code() == StatusCode::kIo) return info.status();
  return info.ok() && info->contains("tp_size") ? EngineKind::kSglang : EngineKind::kVllm;
}

Status sglang_post(const EngineLink& link, std::string_view path, const Json& body, bool must) {
  const EngineReply reply = link.call(path, &body, link.timeout(), must);
  // /flush_cache is the one call that is answered in plain text. In other answers plain text is an
  // error, such as another server's page.
  if (reply.status.code() == StatusCode::kCorrupt && path == "/flush_cache") return {};
  DRIFTLESS_RETURN_IF_ERROR(reply.status);
  DRIFTLESS_ASSIGN_OR_RETURN(const Json answer, parse_json(reply.body, path));
  const auto success = answer.find("success");
  if (success == answer.end() || !success->is_boolean() || success->get<bool>()) return {};
  return error(StatusCode::kIo, path, ": the engine refused: ", reply.words);
}

Status sglang_load(const EngineLink& link, const Json& body) {
  DRIFTLESS_RETURN_IF_ERROR(sglang_post(link, "/update_weights_from_disk", body, true));
  return sglang_meet(link);
}

Status sglang_meet(const EngineLink& link) {
  // Both calls synchronize the ranks. If a session was left open, the begin fails, and the end ends
  // it.
  const Json none = Json::object();
  const Status begun = known_call(sglang_post(link, "/begin_weight_update", none, true));
  if (begun.code() == StatusCode::kUnsupported) return {};  // an older release
  return sglang_post(link, "/end_weight_update", none, true)
      .with_context("waiting until all ranks have loaded it");
}

EngineAnswer sglang_server_call(const EngineLink& link, const EngineCall& call) {
  const Json none = Json::object();
  switch (call.op) {
    // SGLang takes back requests in flight, and computes them again with the new weights.
    case EngineOp::kPause:
      return {.status = sglang_post(link, "/pause_generation", {{"mode", "retract"}}, call.must)};
    case EngineOp::kResume:
      return {.status = sglang_post(link, "/continue_generation", none, true)};
    case EngineOp::kClearCache:
      return {.status = sglang_post(link, "/flush_cache", none, call.must)};
    case EngineOp::kReadLabel: {
      const Result<Json> info = link.get("/model_info", call.must);
      if (!info.ok()) return {.status = info.status()};
      return {.label = json_text(*info, "weight_version")};
    }
    case EngineOp::kSetLabel:
      return {.status =
                  sglang_post(link, "/update_weight_version",
                              {{"new_version", call.label}, {"abort_all_requests", false}}, true)};
    default:
      return {.status = error(StatusCode::kUnsupported, "SGLang has no ", to_string(call.op))};
  }
}

// Startup durations, to the microsecond, and the random seed drawn at the start.
std::string sglang_process(const Json& server_info) {
  const auto took = server_info.find("startup_time");
  if (took == server_info.end() || took->is_null()) return {};
  const auto seed = server_info.find("random_seed");
  return concat(took->dump(), "/", seed == server_info.end() ? "" : seed->dump());
}

Result<std::unique_ptr<EngineTransport>> make_sglang_transport(EngineLink link, std::string loader,
                                                               std::chrono::milliseconds timeout,
                                                               const std::string& shm_dir) {
  std::string token = to_hex(random_hash128());
  std::string path = join_path(shm_dir, concat("driftless-", ::geteuid(), "-answers-", token));
  if (::mkdir(path.c_str(), 0700) != 0) return errno_status(errno, path);
  return std::unique_ptr<EngineTransport>(std::make_unique<SglangTransport>(
      std::move(link), std::move(loader), timeout, std::move(path), std::move(token)));
}

}  // namespace driftless
