// vLLM with our receiver in its workers: the worker extension is asked by /collective_rpc, the
// weight transfer backend commits.
#include "plugin/engines/vllm_calls.h"
#include "plugin/engines/worker_engine.h"

namespace driftless {
namespace {

class VllmEngine final : public WorkerEngine {
 public:
  explicit VllmEngine(EngineLink link) : link_(std::move(link)), calls_(link_) {}

  [[nodiscard]] const EngineLink& link() const override { return link_; }
  Result<std::vector<RankReply>> ask(std::string_view phase, Json arguments, bool must) override {
    return ask_ranks(link_, concat("driftless_", phase), std::move(arguments), must);
  }
  Status pause() override { return calls_.pause(); }
  Status write(std::uint64_t version) override {
    session_ = calls_.begin();
    calls_.dirty();
    if (session_) return calls_.write(version);
    return ask("commit", {{"version", version}}, true).status();  // a server without sessions
  }
  Status finish(std::uint64_t version) override {
    return session_ ? calls_.finish(version) : Status();
  }
  Status settle() override { return calls_.settle(); }
  Status confirm(std::uint64_t version) override { return calls_.confirm(version); }

 private:
  EngineLink link_;
  VllmCalls calls_;
  bool session_ = false;
};

}  // namespace

std::unique_ptr<WorkerEngine> make_vllm_engine(EngineLink link) {
  return std::make_unique<VllmEngine>(std::move(link));
}

}  // namespace driftless
