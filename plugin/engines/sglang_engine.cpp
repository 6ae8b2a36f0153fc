// SGLang with our receiver in its workers. Its loader is called with a tensor that carries a
// command (JSON in uint8); the ranks answer by files in a directory of ours, because SGLang has no
// way back from a loader.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "core/deadline.h"
#include "core/file_system.h"
#include "core/hash128.h"
#include "plugin/engines/sglang_calls.h"
#include "plugin/engines/sglang_command.h"
#include "plugin/engines/worker_engine.h"

namespace driftless {
namespace {

using std::chrono_literals::operator""ms;
constexpr std::uint64_t kMaxAnswerBytes = 1 << 20;
constexpr unsigned kMaxSglangRanks = 4096;

class SglangEngine final : public WorkerEngine {
 public:
  SglangEngine(EngineLink link, std::string loader, std::chrono::milliseconds timeout,
               std::string answers, std::string token)
      : link_(std::move(link)),
        calls_(link_),
        loader_(std::move(loader)),
        timeout_(timeout),
        answers_(std::move(answers)),
        token_(std::move(token)) {}
  SglangEngine(const SglangEngine&) = delete;
  SglangEngine& operator=(const SglangEngine&) = delete;
  ~SglangEngine() override { const Status ignored = remove_tree(posix_file_system(), answers_); }

  [[nodiscard]] const EngineLink& link() const override { return link_; }

  Result<std::vector<RankReply>> ask(std::string_view phase, Json arguments, bool must) override {
    if (phase == "status") {  // the files are the newest answers, and cost the engine nothing
      if (!opened_) return closed();
      return answers({}, must);
    }
    DRIFTLESS_RETURN_IF_ERROR(learn());
    const std::string nonce = to_hex(random_hash128()).substr(0, 16);
    arguments["phase"] = phase;
    arguments["nonce"] = nonce;
    if (phase == "open") {
      arguments["answers"] = token_;
    }
    DRIFTLESS_RETURN_IF_ERROR(send(arguments));
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<RankReply> replies, answers(nonce, must));
    if (phase == "open") opened_ = true;
    return replies;
  }

  Status pause() override { return calls_.pause(); }
  Status write(std::uint64_t version) override {
    DRIFTLESS_RETURN_IF_ERROR(begin());
    calls_.dirty();
    return ask("commit", {{"version", version}}, true).status();
  }
  Status finish(std::uint64_t version) override {
    const Status ended = calls_.post("/end_weight_update");
    session_ = false;
    DRIFTLESS_RETURN_IF_ERROR(ended);
    return calls_.confirm(version);
  }
  Status settle() override {
    if (session_) {
      const Status ignored = calls_.post("/end_weight_update");
      session_ = false;
    }
    return calls_.settle();
  }
  Status confirm(std::uint64_t version) override { return calls_.confirm(version); }

 private:
  // What the server is; asked again where it may have been started anew.
  [[nodiscard]] Status learn() {
    DRIFTLESS_ASSIGN_OR_RETURN(const Json server, link_.get("/server_info"));
    const auto size = server.find("tp_size");
    const bool known = size != server.end() && size->is_number_unsigned();
    ranks_ = known ? size->get<unsigned>() : 1;
    if (ranks_ > 0 && ranks_ <= kMaxSglangRanks) return {};
    return error(StatusCode::kCorrupt, link_.url(), "/server_info: tp_size ", ranks_);
  }

  [[nodiscard]] Status begin() {
    if (!calls_.post("/begin_weight_update").ok()) {  // a session of before that nobody ended
      const Status ignored = calls_.post("/end_weight_update");
      DRIFTLESS_RETURN_IF_ERROR(calls_.post("/begin_weight_update"));
    }
    session_ = true;
    return {};
  }

  // Outside a commit the engine stands still for as long as it takes to start a thread.
  [[nodiscard]] Status send(const Json& command) {
    const bool alone = !calls_.paused();
    if (alone) {
      const Status paused = calls_.post("/pause_generation", {{"mode", "in_place"}});
      if (!paused.ok()) return first_of(paused, resume());
    }
    const bool within = session_;
    Status sent = within ? Status() : begin();
    if (sent.ok()) {
      const Json body = {
          {"load_format", loader_},
          {"flush_cache", false},
          {"selector", "target"},
          {"serialized_named_tensors", std::vector<std::string>(ranks_, sglang_command(command))}};
      sent = calls_.post("/update_weights_from_tensor", body);
    }
    if (!within && session_) {
      sent = first_of(sent, calls_.post("/end_weight_update"));
      session_ = false;
    }
    return alone ? first_of(sent, resume()) : sent;
  }

  [[nodiscard]] Status resume() {
    Backoff backoff(50ms, 1'000ms);
    const Deadline deadline = Deadline::after(timeout_);
    for (;;) {
      Status resumed = calls_.post("/continue_generation");
      if (resumed.ok() || !backoff.sleep(deadline)) {
        return resumed.with_context("the engine was not resumed");
      }
    }
  }

  static Status first_of(const Status& first, const Status& second) {
    return first.ok() ? second : first;
  }

  // The newest of every rank; with a nonce: to that command.
  [[nodiscard]] Result<std::vector<RankReply>> answers(const std::string& nonce, bool must) {
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
        replies.push_back(std::move(reply));
      }
      if (replies.size() == ranks_) return replies;
      if (!must && link_.stopping()) {
        return error(StatusCode::kIncomplete, link_.url(), ": stopped");
      }
    } while (backoff.sleep(deadline));
    opened_ = false;  // perhaps another server by now
    return error(StatusCode::kDeadlineExceeded, link_.url(), ": not all of ", ranks_,
                 " ranks answered: was the server started with --custom-weight-loader ", loader_,
                 ", on this host?");
  }

  [[nodiscard]] Result<std::vector<RankReply>> closed() {
    RankReply reply;
    reply.state = "closed";
    return std::vector<RankReply>{reply};
  }

  EngineLink link_;
  SglangCalls calls_;
  std::string loader_;
  std::chrono::milliseconds timeout_;
  std::string answers_;  // a directory of ours
  std::string token_;    // that names it to the workers, who know where such directories are
  unsigned ranks_ = 1;
  bool opened_ = false, session_ = false;
};

}  // namespace

Result<std::unique_ptr<WorkerEngine>> make_sglang_engine(EngineLink link, std::string loader,
                                                         std::chrono::milliseconds timeout,
                                                         const std::string& shm_dir) {
  std::string token = to_hex(random_hash128());
  std::string path = join_path(shm_dir, concat("driftless-", ::geteuid(), "-answers-", token));
  if (::mkdir(path.c_str(), 0700) != 0) return errno_status(errno, path);
  return std::unique_ptr<WorkerEngine>(std::make_unique<SglangEngine>(
      std::move(link), std::move(loader), timeout, std::move(path), std::move(token)));
}

}  // namespace driftless
