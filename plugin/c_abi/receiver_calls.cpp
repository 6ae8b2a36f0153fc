// SPDX-License-Identifier: Apache-2.0
// The functions of driftless.h on a receiver: check and translate the arguments from C.
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/setting_values.h"
#include "plugin/c_abi/abi_call.h"
#include "plugin/c_abi/abi_receiver.h"
#include "plugin/job/metrics.h"

namespace driftless::c_abi {
namespace {

using std::chrono::milliseconds;

Result<AbiOptions> options_of(const driftless_options* options) {
  AbiOptions made;
  driftless_options read{};
  if (options != nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(read, read_struct(options, "options"));
  }
  if (read.id != nullptr) made.id = read.id;
  if (read.launched < DRIFTLESS_LAUNCHED_AUTO || read.launched > DRIFTLESS_LAUNCHED_NO) {
    return error(StatusCode::kInvalidArgument, "options.launched is ", read.launched,
                 ": expected DRIFTLESS_LAUNCHED_AUTO, _YES or _NO");
  }
  if (read.launched == DRIFTLESS_LAUNCHED_AUTO) {
    DRIFTLESS_ASSIGN_OR_RETURN(made.launch, launch_of_process());
  }
  if (read.launched == DRIFTLESS_LAUNCHED_YES) made.launch.mpi = true;
  made.threads = read.threads;
  return made;
}

// The body of a function on a receiver.
template <typename Work>
driftless_code on_receiver(const driftless_receiver* receiver, driftless_error** error,
                           const Work& work) noexcept {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<AbiReceiver> held,
                               ReceiverTickets::all().find(receiver, "receiver"));
    return work(*held);
  });
}

Status start(AbiReceiver& receiver, const std::optional<VersionId>& holds, int64_t timeout_ms) {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto wait, wait_or_configured(timeout_ms));
  return receiver.start(holds, wait);
}

Result<AbiView> look_at_started(const AbiReceiver& receiver) {
  AbiView view = receiver.look();
  if (view.started) return view;
  return error(StatusCode::kIncomplete, "the receiver is not started");
}

Result<AbiView> look_at_version(const AbiReceiver& receiver) {
  DRIFTLESS_ASSIGN_OR_RETURN(AbiView view, look_at_started(receiver));
  if (view.state.valid) return view;
  return error(StatusCode::kIncomplete, "the tensors hold no version yet: stage and commit one");
}

Result<UpdateReport> last_report(const AbiView& view) {
  if (view.last) return *view.last;
  return error(StatusCode::kNotFound, "nothing was committed yet");
}

// --- results as the structs of driftless.h

// The size of all these buffers.
constexpr std::size_t kHexRoom = sizeof(driftless_report::digest);
static_assert(kHexRoom == 33 && sizeof(driftless_end::digest) == kHexRoom &&
              sizeof(driftless_state::digest) == kHexRoom &&
              sizeof(driftless_state::run) == kHexRoom);

void put_hex(const std::string& digits, char* out) { std::memcpy(out, digits.c_str(), kHexRoom); }

driftless_report report_of(const UpdateReport& report) {
  driftless_report made{};
  made.struct_size = sizeof(made);
  made.from_version = report.from_version;
  made.version = report.version;
  made.versions = report.versions;
  made.changed_units = report.changed_units;
  made.full_bytes = report.full_bytes;
  made.delta_bytes = report.delta_bytes;
  made.wire_bytes = report.wire_bytes;
  made.needed_bytes = report.needed_bytes;
  made.fetch_ms = report.fetch_ms;
  made.stage_ms = report.stage_ms;
  made.pause_ms = report.pause_ms;
  made.apply_ms = report.apply_ms;
  made.resume_ms = report.resume_ms;
  made.anchor = report.anchor ? 1 : 0;
  made.notes = static_cast<int32_t>(report.notes.size());
  put_hex(to_hex(report.digest), made.digest);
  return made;
}

driftless_end end_of(const std::optional<EndOfRun>& end, const TargetState& state) {
  driftless_end made{};
  made.struct_size = sizeof(made);
  if (!end) return made;
  made.ended = 1;
  made.version = end->version;
  const bool proven = state.partial || state.digest == end->digest;
  made.reached = state.valid && state.id.version == end->version && proven ? 1 : 0;
  put_hex(to_hex(end->digest), made.digest);
  return made;
}

// A sum over the session: its name in JSON, and its members in the library and in C.
template <typename Number>
struct Sum {
  const char* name;
  Number ReceiverCounts::* count;
  Number driftless_metrics::* metric;
};
constexpr Sum<std::uint64_t> kCounts[] = {
    {"newest", &ReceiverCounts::newest, &driftless_metrics::newest},
    {"commits", &ReceiverCounts::commits, &driftless_metrics::commits},
    {"versions", &ReceiverCounts::versions, &driftless_metrics::versions},
    {"anchors", &ReceiverCounts::anchors, &driftless_metrics::anchors},
    {"rollbacks", &ReceiverCounts::rollbacks, &driftless_metrics::rollbacks},
    {"stage_failures", &ReceiverCounts::stage_failures, &driftless_metrics::stage_failures},
    {"commit_failures", &ReceiverCounts::commit_failures, &driftless_metrics::commit_failures},
    {"unheard", &ReceiverCounts::failed_reports, &driftless_metrics::unheard},
    {"changed_units", &ReceiverCounts::changed_units, &driftless_metrics::changed_units},
    {"delta_bytes", &ReceiverCounts::delta_bytes, &driftless_metrics::delta_bytes},
    {"wire_bytes", &ReceiverCounts::wire_bytes, &driftless_metrics::wire_bytes},
    {"needed_bytes", &ReceiverCounts::needed_bytes, &driftless_metrics::needed_bytes},
};
constexpr Sum<double> kTimes[] = {
    {"fetch_ms", &ReceiverCounts::fetch_ms, &driftless_metrics::fetch_ms},
    {"stage_ms", &ReceiverCounts::stage_ms, &driftless_metrics::stage_ms},
    {"pause_ms", &ReceiverCounts::pause_ms, &driftless_metrics::pause_ms},
    {"apply_ms", &ReceiverCounts::apply_ms, &driftless_metrics::apply_ms},
    {"resume_ms", &ReceiverCounts::resume_ms, &driftless_metrics::resume_ms},
    {"longest_pause_ms", &ReceiverCounts::longest_pause_ms, &driftless_metrics::longest_pause_ms},
};

driftless_metrics metrics_of(const AbiView& view) {
  driftless_metrics made{};
  made.struct_size = sizeof(made);
  made.version = view.state.id.version;
  for (const auto& sum : kCounts) made.*sum.metric = view.counts.*sum.count;
  for (const auto& sum : kTimes) made.*sum.metric = view.counts.*sum.count;
  return made;
}

nlohmann::ordered_json json_of(const AbiView& view) {
  nlohmann::ordered_json json = {{"version", view.state.id.version}};
  for (const auto& sum : kCounts) json[sum.name] = view.counts.*sum.count;
  for (const auto& sum : kTimes) json[sum.name] = view.counts.*sum.count;
  return json;
}

driftless_state state_of(const AbiView& view) {
  driftless_state made{};
  made.struct_size = sizeof(made);
  made.version = view.state.id.version;
  made.started = view.started ? 1 : 0;
  made.staged = view.staged ? 1 : 0;
  made.valid = view.state.valid ? 1 : 0;
  made.partial = view.state.partial ? 1 : 0;
  made.rank = view.rank;
  made.proven = view.proven ? 1 : 0;
  put_hex(to_hex(view.state.digest), made.digest);
  put_hex(to_hex(view.run), made.run);
  return made;
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
    *receiver = ReceiverTickets::all().give(std::move(held));
    return {};
  });
}

driftless_code driftless_set_callbacks(driftless_receiver* receiver,
                                       const driftless_callbacks* callbacks,
                                       driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    if (callbacks == nullptr) return held.set_callbacks({});
    DRIFTLESS_ASSIGN_OR_RETURN(const driftless_callbacks read, read_struct(callbacks, "callbacks"));
    return held.set_callbacks(read);
  });
}

driftless_code driftless_register(driftless_receiver* receiver, const driftless_tensor* tensor,
                                  driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const driftless_tensor read, read_struct(tensor, "tensor"));
    return held.add(read);
  });
}

driftless_code driftless_start(driftless_receiver* receiver, int32_t holds, int64_t timeout_ms,
                               driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    if (holds == DRIFTLESS_HOLDS_NOTHING) return start(held, std::nullopt, timeout_ms);
    if (holds == DRIFTLESS_HOLDS_BASE) return start(held, VersionId{}, timeout_ms);
    return driftless::error(StatusCode::kInvalidArgument, "holds is ", holds,
                            ": expected DRIFTLESS_HOLDS_NOTHING or DRIFTLESS_HOLDS_BASE");
  });
}

driftless_code driftless_start_at(driftless_receiver* receiver, const char* run, uint64_t version,
                                  int64_t timeout_ms, driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
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
    return start(held, holds, timeout_ms);
  });
}

driftless_code driftless_poll(driftless_receiver* receiver, int64_t timeout_ms, int32_t* newer,
                              uint64_t* newest, driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const milliseconds wait, wait_of(timeout_ms));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto found, held.with_receiver([&](Receiver& its) {
      return its.poll(Deadline::after(wait));
    }));
    if (newer != nullptr) *newer = found.newer ? 1 : 0;
    if (newest != nullptr) *newest = found.version;
    return {};
  });
}

driftless_code driftless_stage(driftless_receiver* receiver, int64_t timeout_ms, int32_t* staged,
                               driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(staged, "staged"));
    DRIFTLESS_ASSIGN_OR_RETURN(const milliseconds wait, wait_of(timeout_ms));
    DRIFTLESS_ASSIGN_OR_RETURN(const bool news, held.with_receiver([&](Receiver& its) {
      return its.stage(Deadline::after(wait));
    }));
    *staged = news ? 1 : 0;
    return {};
  });
}

driftless_code driftless_commit(driftless_receiver* receiver, driftless_report* report,
                                driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    if (report != nullptr) DRIFTLESS_RETURN_IF_ERROR(check_struct(report, "report"));
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport made, held.commit());
    return report == nullptr ? Status() : write_struct(report_of(made), "report", report);
  });
}

driftless_code driftless_rollback(driftless_receiver* receiver, driftless_error** error) {
  return on_receiver(receiver, error, [](AbiReceiver& held) {
    return held.with_receiver([](Receiver& its) { return its.rollback(); });
  });
}

driftless_code driftless_keep_alive(driftless_receiver* receiver, driftless_error** error) {
  return on_receiver(receiver, error, [](AbiReceiver& held) {
    return held.with_receiver([](Receiver& its) { return its.report(); });
  });
}

driftless_code driftless_look_for_end(driftless_receiver* receiver, driftless_end* end,
                                      driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_struct(end, "end"));
    DRIFTLESS_ASSIGN_OR_RETURN(
        const auto found, held.with_receiver([](Receiver& its) { return its.listen_for_end(); }));
    return write_struct(end_of(found, held.look().state), "end", end);
  });
}

driftless_code driftless_close(driftless_receiver** receiver, int64_t timeout_ms,
                               driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(receiver, "receiver"));
    if (*receiver == nullptr) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const auto held, ReceiverTickets::all().find(*receiver, "receiver"));
    DRIFTLESS_ASSIGN_OR_RETURN(const auto wait, wait_or_configured(timeout_ms));
    bool closed = false;
    Status status = held->close(wait, closed);
    if (!closed) return status;
    ReceiverTickets::all().take_back(*receiver);
    *receiver = nullptr;
    return status;
  });
}

// --- the functions that are marked [any time]

driftless_code driftless_get_state(driftless_receiver* receiver, driftless_state* state,
                                   driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) {
    return write_struct(state_of(held.look()), "state", state);
  });
}

driftless_code driftless_weights_version(driftless_receiver* receiver, uint64_t* version,
                                         driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(version, "version"));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look_at_version(held));
    *version = view.state.id.version;
    return {};
  });
}

driftless_code driftless_weights_digest(driftless_receiver* receiver, char* digest,
                                        driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(digest, "digest"));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look_at_version(held));
    put_hex(to_hex(view.state.digest), digest);
    return {};
  });
}

driftless_code driftless_run_id(driftless_receiver* receiver, char* run, driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(run, "run"));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look_at_started(held));
    put_hex(to_hex(view.run), run);
    return {};
  });
}

driftless_code driftless_get_metrics(driftless_receiver* receiver, driftless_metrics* metrics,
                                     driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) {
    return write_struct(metrics_of(held.look()), "metrics", metrics);
  });
}

driftless_code driftless_metrics_json(driftless_receiver* receiver, char** text,
                                      driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) {
    return give_text(json_line(json_of(held.look())), text);
  });
}

driftless_code driftless_last_report(driftless_receiver* receiver, driftless_report* report,
                                     driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport last, last_report(held.look()));
    return write_struct(report_of(last), "report", report);
  });
}

driftless_code driftless_last_report_json(driftless_receiver* receiver, char** text,
                                          driftless_error** error) {
  return on_receiver(receiver, error, [&](AbiReceiver& held) -> Status {
    const AbiView view = held.look();
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport last, last_report(view));
    nlohmann::ordered_json json = to_json(record_of(last, view.rank));
    for (const char* now : {"time", "monotonic_ms"})
      json.erase(now);  // times of this call, not of the commit
    json["notes"] = last.notes;
    return give_text(json_line(json), text);
  });
}
