// SPDX-License-Identifier: Apache-2.0
// The functions of driftless.h on a worker: registered tensors are the target of a Worker
// (plugin/receive/worker.h), whose replies are returned to C unchanged.
#include "plugin/receive/worker.h"

#include "plugin/c_abi/abi_call.h"
#include "plugin/c_abi/abi_receiver.h"

namespace driftless::c_abi {
namespace {

using std::chrono::milliseconds;

// How long driftless_worker_open() waits for the run's announcement, during which the engine is
// blocked.
constexpr milliseconds kOpenWait{10'000};

class AbiHost final : public WorkerHost {
 public:
  explicit AbiHost(const driftless_worker_options& options) : options_(options) {}

  Status add(const driftless_tensor& tensor) {
    if (target_ == nullptr) return tensors_.add(tensor);
    return error(StatusCode::kInvalidArgument,
                 "tensors are registered before driftless_worker_open()");
  }

  Result<Receiver*> open(const std::string& config, std::span<const std::string> sets,
                         const std::string& take_over) override {
    DRIFTLESS_ASSIGN_OR_RETURN(Config settings, read_config(posix_file_system(), config, sets));
    forget_what_is_not_ours(settings);
    if (options_.threads != 0) settings.receiver.threads = options_.threads;
    tensors_.choose_gpu(settings);
    const Deadline deadline = Deadline::after(kOpenWait);
    if (target_ == nullptr) {
      const bool base = options_.holds == DRIFTLESS_HOLDS_BASE;
      DRIFTLESS_ASSIGN_OR_RETURN(
          target_, tensors_.make_target(base ? std::optional(VersionId{}) : std::nullopt,
                                        settings.receiver.threads));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<JobProcess> process,
                               join_job(road_table(), settings, JobRole::kRollout, Launch{}));
    DRIFTLESS_ASSIGN_OR_RETURN(JoinedRoad joined,
                               join_road(settings, std::move(process), std::nullopt, deadline));
    joined.options.pause = [this] { return tensors_.wait_for_streams(); };
    if (!take_over.empty()) {
      DRIFTLESS_ASSIGN_OR_RETURN(joined.options.take_over, hash128_from_hex(take_over));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(receiver_,
                               Receiver::open(joined.options, *joined.road, *target_, deadline));
    return receiver_.get();
  }
  void close() override { receiver_.reset(); }
  WeightTarget& target() override { return *target_; }
  Result<std::vector<std::string>> follow(const Receiver& /*receiver*/) override {
    DRIFTLESS_RETURN_IF_ERROR(tensors_.wait_for_streams());
    return std::vector<std::string>();
  }
  void staged(const std::string& reply) override {
    try {
      if (options_.staged != nullptr) options_.staged(options_.user, reply.c_str());
    } catch (...) {  // from a C++ callback
    }
  }

 private:
  driftless_worker_options options_;
  TensorSet tensors_;
  std::unique_ptr<WeightTarget> target_;  // outlives the receiver
  std::unique_ptr<Receiver> receiver_;
};

struct AbiWorker {
  std::shared_ptr<Worker> worker;
  AbiHost* host;  // the worker owns it
};
using WorkerTickets = Tickets<driftless_worker, AbiWorker>;

// The body of a function on a worker: `work` returns its reply.
template <typename Work>
driftless_code reply_of(const driftless_worker* worker, char** reply, driftless_error** error,
                        const Work& work) noexcept {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, WorkerTickets::all().find(worker, "worker"));
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(reply, "reply"));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, work(*held->worker));
    return give_text(text, reply);
  });
}

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

}  // namespace
}  // namespace driftless::c_abi

using namespace driftless;         // NOLINT(google-build-using-namespace): C's names, our types
using namespace driftless::c_abi;  // NOLINT(google-build-using-namespace)

driftless_code driftless_worker_create(const driftless_worker_options* options,
                                       driftless_worker** worker, driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(worker, "worker"));
    DRIFTLESS_ASSIGN_OR_RETURN(const driftless_worker_options read,
                               read_struct(options, "options"));
    if (read.holds != DRIFTLESS_HOLDS_NOTHING && read.holds != DRIFTLESS_HOLDS_BASE) {
      return driftless::error(StatusCode::kInvalidArgument, "options.holds is ", read.holds,
                              ": expected DRIFTLESS_HOLDS_NOTHING or DRIFTLESS_HOLDS_BASE");
    }
    auto host = std::make_unique<AbiHost>(read);
    AbiHost* const kept = host.get();
    *worker = WorkerTickets::all().give(
        std::make_shared<AbiWorker>(Worker::make(read.rank, std::move(host)), kept));
    return {};
  });
}

driftless_code driftless_worker_register(driftless_worker* worker, const driftless_tensor* tensor,
                                         driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, WorkerTickets::all().find(worker, "worker"));
    DRIFTLESS_ASSIGN_OR_RETURN(const driftless_tensor read, read_struct(tensor, "tensor"));
    return held->host->add(read);
  });
}

driftless_code driftless_worker_open(driftless_worker* worker, const char* config,
                                     const char* const* overrides, size_t override_count,
                                     const char* take_over, const char* nonce, char** reply,
                                     driftless_error** error) {
  return reply_of(worker, reply, error, [&](Worker& its) -> Result<std::string> {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(config, "config"));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto texts, overrides_of(overrides, override_count));
    return its.open(config, texts, text_of(nonce), text_of(take_over));
  });
}

driftless_code driftless_worker_stage(driftless_worker* worker, int64_t timeout_ms,
                                      const char* ticket, const char* nonce, char** reply,
                                      driftless_error** error) {
  return reply_of(worker, reply, error, [&](Worker& its) -> Result<std::string> {
    DRIFTLESS_ASSIGN_OR_RETURN(const milliseconds wait, wait_of(timeout_ms));
    return its.stage(wait, text_of(nonce), text_of(ticket));
  });
}

driftless_code driftless_worker_status(driftless_worker* worker, const char* nonce, char** reply,
                                       driftless_error** error) {
  return reply_of(worker, reply, error,
                  [&](Worker& its) -> Result<std::string> { return its.status(text_of(nonce)); });
}

driftless_code driftless_worker_commit(driftless_worker* worker, int64_t version,
                                       const char* ticket, const char* nonce, char** reply,
                                       driftless_error** error) {
  return reply_of(worker, reply, error, [&](Worker& its) -> Result<std::string> {
    const auto wanted = version == DRIFTLESS_STAGED ? std::nullopt : std::optional(version);
    return its.commit(wanted, text_of(nonce), text_of(ticket));
  });
}

driftless_code driftless_worker_rollback(driftless_worker* worker, int64_t version,
                                         const char* nonce, char** reply, driftless_error** error) {
  return reply_of(worker, reply, error, [&](Worker& its) -> Result<std::string> {
    return its.rollback(version, text_of(nonce));
  });
}

driftless_code driftless_worker_shares(driftless_worker* worker, int32_t sweep, const char* nonce,
                                       char** reply, driftless_error** error) {
  return reply_of(worker, reply, error, [&](Worker& its) -> Result<std::string> {
    return its.shares(sweep != 0, text_of(nonce));
  });
}

driftless_code driftless_worker_read(driftless_worker* worker, const char* tensor, uint64_t first,
                                     uint64_t units, const char* nonce, char** reply,
                                     driftless_error** error) {
  return reply_of(worker, reply, error, [&](Worker& its) -> Result<std::string> {
    return its.read(text_of(tensor), first, units, text_of(nonce));
  });
}

driftless_code driftless_worker_close(driftless_worker* worker, const char* nonce, char** reply,
                                      driftless_error** error) {
  return reply_of(worker, reply, error,
                  [&](Worker& its) -> Result<std::string> { return its.close(text_of(nonce)); });
}

driftless_code driftless_worker_free(driftless_worker** worker, int64_t timeout_ms,
                                     driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(worker, "worker"));
    if (*worker == nullptr) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, WorkerTickets::all().find(*worker, "worker"));
    DRIFTLESS_ASSIGN_OR_RETURN(const milliseconds wait, wait_of(timeout_ms));
    if (!held->worker->wait(wait)) {
      return driftless::error(StatusCode::kBusy, "the worker still stages: wait for it");
    }
    static_cast<void>(held->worker->close(""));
    WorkerTickets::all().take_back(*worker);
    *worker = nullptr;
    return {};
  });
}
