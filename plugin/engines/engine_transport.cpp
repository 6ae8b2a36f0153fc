// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_transport.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/environment.h"
#include "core/stopwatch.h"

namespace driftless {
namespace {

// Waits in short slices, so that a stop takes effect soon.
Status wait_for(const EngineCall& call, const EngineTransport& transport) {
  using std::chrono::milliseconds;
  constexpr milliseconds kSlice{20};
  for (milliseconds left(call.wait_ms); left.count() > 0; left -= kSlice) {
    if (!call.must && transport.stopping()) break;
    environment().sleep_until(environment().now() + std::min(left, kSlice));
  }
  if (call.must || !transport.stopping()) return {};
  return error(StatusCode::kIncomplete, "stopped");
}

}  // namespace

Json open_arguments(const EngineCall& call) {
  Json asked = {{"source", call.source}};
  if (!call.take_over.empty()) asked["take_over"] = call.take_over;
  return asked;
}

Json read_arguments(const EngineCall& call) {
  return {{"tensor", call.tensor}, {"first", call.first}, {"units", call.units}};
}

DriverResult run_request(EngineDriver& driver, EngineCall first, EngineTransport& transport) {
  EngineCall call = std::move(first);
  while (call.op != EngineOp::kEnd) {
    Stopwatch watch;
    EngineAnswer answer;
    if (call.op == EngineOp::kWait) {
      answer.status = wait_for(call, transport);
    } else {
      answer = transport.carry(call);
    }
    answer.elapsed_ms = watch.lap_ms();
    call = driver.next(answer);
  }
  transport.ended();
  DriverResult result = driver.result();
  result.status = result.status.with_context(transport.name());
  return result;
}

}  // namespace driftless
