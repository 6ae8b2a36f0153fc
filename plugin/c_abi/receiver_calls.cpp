// SPDX-License-Identifier: Apache-2.0
// The functions of driftless.h on a receiver: what C passes is checked and translated here.
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "plugin/c_abi/abi_error.h"
#include "plugin/c_abi/abi_structs.h"
#include "plugin/c_abi/driftless.h"
#include "plugin/c_abi/handles.h"
#include "plugin/c_abi/results.h"
#include "plugin/job/config_values.h"
#include "plugin/job/launched.h"

namespace driftless::c_abi {
namespace {

using std::chrono::milliseconds;

Result<milliseconds> wait_of(int64_t timeout_ms) {
  if (timeout_ms >= 0 && timeout_ms <= kMaxDuration.count()) return milliseconds(timeout_ms);
  return error(StatusCode::kInvalidArgument, "timeout_ms is ", timeout_ms, ": expected 0 to ",
               kMaxDuration.count());
}

Result<std::optional<milliseconds>> wait_or_configured(int64_t timeout_ms) {
  if (timeout_ms == DRIFTLESS_BY_CONFIG) return std::optional<milliseconds>();
  DRIFTLESS_ASSIGN_OR_RETURN(const milliseconds wait, wait_of(timeout_ms));
  return std::optional<milliseconds>(wait);
}

Result<AbiOptions> options_of(const driftless_options* options) {
  AbiOptions made;
  made.launched = launched_by_mpi();
  if (options == nullptr) return made;
  DRIFTLESS_ASSIGN_OR_RETURN(const driftless_options read, read_struct(options, "options"));
  if (read.id != nullptr) made.id = read.id;
  if (read.launched < DRIFTLESS_LAUNCHED_AUTO || read.launched > DRIFTLESS_LAUNCHED_NO) {
    return error(StatusCode::kInvalidArgument, "options.launched is ", read.launched,
                 ": expected DRIFTLESS_LAUNCHED_AUTO, _YES or _NO");
  }
  if (read.launched != DRIFTLESS_LAUNCHED_AUTO) {
    made.launched = read.launched == DRIFTLESS_LAUNCHED_YES;
  }
  made.threads = read.threads;
  return made;
}

Result<std::vector<std::string>> overrides_of(const char* const* overrides, std::size_t count) {
  if (count > 0) DRIFTLESS_RETURN_IF_ERROR(check_not_null(overrides, "overrides"));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(overrides[i], concat("overrides[", i, "]").c_str()));
    texts.emplace_back(overrides[i]);
  }
  return texts;
}

Status start(driftless_receiver* receiver, const std::optional<VersionId>& holds,
             int64_t timeout_ms) {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto wait, wait_or_configured(timeout_ms));
  return held->start(holds, wait);
}

}  // namespace
}  // namespace driftless::c_abi

using namespace driftless;         // NOLINT(google-build-using-namespace): C's names, our types
using namespace driftless::c_abi;  // NOLINT(google-build-using-namespace)

driftless_code driftless_open(const char* config_path, const char* const* overrides,
                              size_t override_count, const driftless_options* options,
                              driftless_receiver** receiver, driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(receiver, "receiver"));
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(config_path, "config_path"));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto texts, overrides_of(overrides, override_count));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiOptions read, options_of(options));
    DRIFTLESS_ASSIGN_OR_RETURN(auto held, AbiReceiver::open(config_path, texts, read));
    *receiver = give_ticket(std::move(held));
    return {};
  });
}

driftless_code driftless_set_callbacks(driftless_receiver* receiver,
                                       const driftless_callbacks* callbacks,
                                       driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
    if (callbacks == nullptr) return held->set_callbacks({});
    DRIFTLESS_ASSIGN_OR_RETURN(const driftless_callbacks read, read_struct(callbacks, "callbacks"));
    return held->set_callbacks(read);
  });
}

driftless_code driftless_register(driftless_receiver* receiver, const driftless_tensor* tensor,
                                  driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
    DRIFTLESS_ASSIGN_OR_RETURN(const driftless_tensor read, read_struct(tensor, "tensor"));
    return held->add(read);
  });
}

driftless_code driftless_start(driftless_receiver* receiver, int32_t holds, int64_t timeout_ms,
                               driftless_error** error) {
  return fenced(error, [&]() -> Status {
    if (holds == DRIFTLESS_HOLDS_NOTHING) return start(receiver, std::nullopt, timeout_ms);
    if (holds == DRIFTLESS_HOLDS_BASE) return start(receiver, VersionId{}, timeout_ms);
    return driftless::error(StatusCode::kInvalidArgument, "holds is ", holds,
                            ": expected DRIFTLESS_HOLDS_NOTHING or DRIFTLESS_HOLDS_BASE");
  });
}

driftless_code driftless_start_at(driftless_receiver* receiver, const char* run, uint64_t version,
                                  int64_t timeout_ms, driftless_error** error) {
  return fenced(error, [&]() -> Status {
    VersionId holds;
    holds.version = version;
    if (version > kMaxVersion) {
      return driftless::error(StatusCode::kInvalidArgument, "version is ", version, ": at most ",
                              kMaxVersion);
    }
    if (run != nullptr) {
      const Result<Hash128> parsed = hash128_from_hex(run);
      if (!parsed.ok()) {
        return driftless::error(StatusCode::kInvalidArgument, "run: ", parsed.status().message());
      }
      holds.run = *parsed;
    }
    return start(receiver, holds, timeout_ms);
  });
}

driftless_code driftless_poll(driftless_receiver* receiver, int64_t timeout_ms, int32_t* newer,
                              uint64_t* newest, driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
    DRIFTLESS_ASSIGN_OR_RETURN(const milliseconds wait, wait_of(timeout_ms));
    DRIFTLESS_ASSIGN_OR_RETURN(const ReceiverSession::Newest found, held->poll(wait));
    if (newer != nullptr) *newer = found.newer ? 1 : 0;
    if (newest != nullptr) *newest = found.version;
    return {};
  });
}

driftless_code driftless_stage(driftless_receiver* receiver, int64_t timeout_ms, int32_t* staged,
                               driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(staged, "staged"));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
    DRIFTLESS_ASSIGN_OR_RETURN(const milliseconds wait, wait_of(timeout_ms));
    DRIFTLESS_ASSIGN_OR_RETURN(const bool news, held->stage(wait));
    *staged = news ? 1 : 0;
    return {};
  });
}

driftless_code driftless_commit(driftless_receiver* receiver, driftless_report* report,
                                driftless_error** error) {
  return fenced(error, [&]() -> Status {
    if (report != nullptr) DRIFTLESS_RETURN_IF_ERROR(check_struct(report, "report"));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport made, held->commit());
    return report == nullptr ? Status() : write_struct(report_of(made), "report", report);
  });
}

driftless_code driftless_rollback(driftless_receiver* receiver, driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
    return held->rollback();
  });
}

driftless_code driftless_keep_alive(driftless_receiver* receiver, driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
    return held->keep_alive();
  });
}

driftless_code driftless_look_for_end(driftless_receiver* receiver, driftless_end* end,
                                      driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_struct(end, "end"));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto found, held->look_for_end());
    return write_struct(end_of(found, held->look().state), "end", end);
  });
}

driftless_code driftless_close(driftless_receiver** receiver, int64_t timeout_ms,
                               driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(receiver, "receiver"));
    if (*receiver == nullptr) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(*receiver));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto wait, wait_or_configured(timeout_ms));
    bool closed = false;
    Status status = held->close(wait, closed);
    if (!closed) return status;
    take_back(*receiver);
    *receiver = nullptr;
    return status;
  });
}
