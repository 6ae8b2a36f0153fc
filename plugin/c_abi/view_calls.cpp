// SPDX-License-Identifier: Apache-2.0
// The functions of driftless.h that may be called any time.
#include <nlohmann/json.hpp>

#include "plugin/c_abi/abi_error.h"
#include "plugin/c_abi/abi_structs.h"
#include "plugin/c_abi/driftless.h"
#include "plugin/c_abi/handles.h"
#include "plugin/c_abi/results.h"

namespace driftless::c_abi {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const driftless_metrics& metrics) {
  return {{"version", metrics.version},
          {"newest", metrics.newest},
          {"commits", metrics.commits},
          {"versions", metrics.versions},
          {"anchors", metrics.anchors},
          {"rollbacks", metrics.rollbacks},
          {"stage_failures", metrics.stage_failures},
          {"commit_failures", metrics.commit_failures},
          {"unheard", metrics.unheard},
          {"changed_units", metrics.changed_units},
          {"delta_bytes", metrics.delta_bytes},
          {"wire_bytes", metrics.wire_bytes},
          {"fetch_ms", metrics.fetch_ms},
          {"stage_ms", metrics.stage_ms},
          {"pause_ms", metrics.pause_ms},
          {"apply_ms", metrics.apply_ms},
          {"resume_ms", metrics.resume_ms},
          {"longest_pause_ms", metrics.longest_pause_ms}};
}

Result<AbiView> look(const driftless_receiver* receiver) {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto held, find(receiver));
  return held->look();
}

Result<AbiView> look_at_started(const driftless_receiver* receiver) {
  DRIFTLESS_ASSIGN_OR_RETURN(AbiView view, look(receiver));
  if (view.started) return view;
  return error(StatusCode::kIncomplete, "the receiver is not started");
}

Result<AbiView> look_at_version(const driftless_receiver* receiver) {
  DRIFTLESS_ASSIGN_OR_RETURN(AbiView view, look_at_started(receiver));
  if (view.state.valid) return view;
  return error(StatusCode::kIncomplete, "the tensors hold no version yet: stage and commit one");
}

Result<UpdateReport> last_report(const AbiView& view) {
  if (view.last) return *view.last;
  return error(StatusCode::kNotFound, "nothing was committed yet");
}

}  // namespace
}  // namespace driftless::c_abi

using namespace driftless;         // NOLINT(google-build-using-namespace): C's names, our types
using namespace driftless::c_abi;  // NOLINT(google-build-using-namespace)

driftless_code driftless_get_state(driftless_receiver* receiver, driftless_state* state,
                                   driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look(receiver));
    return write_struct(state_of(view), "state", state);
  });
}

driftless_code driftless_weights_version(driftless_receiver* receiver, uint64_t* version,
                                         driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(version, "version"));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look_at_version(receiver));
    *version = view.state.id.version;
    return {};
  });
}

driftless_code driftless_weights_digest(driftless_receiver* receiver, char* digest,
                                        driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(digest, "digest"));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look_at_version(receiver));
    put_hex(to_hex(view.state.digest), digest);
    return {};
  });
}

driftless_code driftless_run_id(driftless_receiver* receiver, char* run, driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(run, "run"));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look_at_started(receiver));
    put_hex(to_hex(view.run), run);
    return {};
  });
}

driftless_code driftless_get_metrics(driftless_receiver* receiver, driftless_metrics* metrics,
                                     driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look(receiver));
    return write_struct(metrics_of(view), "metrics", metrics);
  });
}

driftless_code driftless_metrics_json(driftless_receiver* receiver, char** text,
                                      driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(text, "text"));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look(receiver));
    return give_text(text_of(json_of(metrics_of(view))), text);
  });
}

driftless_code driftless_last_report(driftless_receiver* receiver, driftless_report* report,
                                     driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look(receiver));
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport last, last_report(view));
    return write_struct(report_of(last), "report", report);
  });
}

driftless_code driftless_last_report_json(driftless_receiver* receiver, char** text,
                                          driftless_error** error) {
  return fenced(error, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_not_null(text, "text"));
    DRIFTLESS_ASSIGN_OR_RETURN(const AbiView view, look(receiver));
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport last, last_report(view));
    Json json = Json::parse(metrics_json(metrics_of(last, view.rank)));
    json.erase("monotonic_ms");  // of the call, not of the commit
    json["notes"] = last.notes;
    return give_text(text_of(json), text);
  });
}
