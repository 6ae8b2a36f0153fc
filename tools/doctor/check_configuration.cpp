// SPDX-License-Identifier: Apache-2.0
// Checks the configuration, the parts of this build that it needs, and the launcher.
#include <unistd.h>

#include "plugin/job/job_process.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

using enum FindingState;

void check_backends(const Context& context, const Report& report) {
  std::string built;
  for (const Backend& backend : context.backends) {
    if (backend.built) {
      built += concat(built.empty() ? "" : ", ", backend.name);
      continue;
    }
    const bool needed = context.needs(backend.name), there = context.in_build(backend.name);
    report({backend.name, unless_needed(needed, kSkip),
            concat(there ? "built, and cannot be used: " : "not in this build: ", backend.why_not),
            !needed ? ""
            : there ? "install what is missing, or choose another road"
                    : "install what is missing and build again, or choose another road"});
  }
  report({"built", kOk, built});
}

void check_launcher(const Context& context, const Report& report) {
  const Result<Launch> launch = read_launch(context.variables, ::getppid());
  if (!launch.ok()) {
    report(failed("launcher", launch.status(), "unset these variables, or start by one launcher"));
    return;
  }
  if (launch->launcher == Launcher::kNone) {
    report({"launcher", kOk, "none: this process was started by itself"});
    return;
  }
  report({"launcher", kOk,
          concat(to_string(launch->launcher), ": rank ", launch->rank, " of ",
                 launch->world == 0 ? "an unknown number" : std::to_string(launch->world))});
}

}  // namespace

void check_configuration(const Context& context, const Report& report) {
  if (!context.config_status.ok()) {
    report(failed("configuration", context.config_status,
                  "correct it: driftless info lists every key"));
  } else if (!context.configured) {
    report({"configuration", kSkip, "none was named", "name one by --config FILE"});
  } else {
    report({"configuration", kOk,
            concat("right; road.kind: ", context.config.road,
                   ", road.layout: ", to_string(context.config.publisher.layout))});
    const Status available = check_available(*context.roads, context.config, {});
    if (!available.ok()) {
      report(failed("road", available, "install what is missing, or choose another road.kind"));
    }
  }
  check_backends(context, report);
  check_launcher(context, report);
}

}  // namespace driftless::doctor
