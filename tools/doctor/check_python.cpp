// SPDX-License-Identifier: Apache-2.0
// Checks Python's packages: driftless, Megatron, torch, engines, and NIXL's libraries. It imports
// none of them, but reads releases from their metadata and flags from their sources: that takes
// milliseconds and no GPU.
#include <cstdio>

#include "doctor/python_probe_source.h"
#include "formats/strict_json.h"
#include "plugin/engines/engine_link.h"
#include "tools/doctor/command_output.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

using enum FindingState;
using std::chrono::milliseconds;

// The releases of megatron-core that the tests and the maps cover: 0.12 to 0.19.
constexpr int kOldestMegatron = 12, kNewestMegatron = 19;

Result<Json> ask_python(const Context& context) {
  const std::string python = find_program(context.python);
  if (python.empty()) {
    return error(StatusCode::kNotFound, context.python, " is not on PATH");
  }
  const CommandOutput ran =
      run_command("\"$DRIFTLESS_PYTHON\" -c \"$DRIFTLESS_SOURCE\"",
                  {{"DRIFTLESS_PYTHON", python}, {"DRIFTLESS_SOURCE", kPythonProbeSource}},
                  context.deadline.remaining() - milliseconds(300));
  DRIFTLESS_RETURN_IF_ERROR(ran.status);
  const std::size_t begin = ran.text.find('{');
  return parse_json(begin == std::string::npos ? "" : ran.text.substr(begin), python);
}

void report_package(const Json& answer, const char* name, const Report& report) {
  const auto releases = answer.find("releases");
  const std::string release =
      releases == answer.end() || !releases->is_object() ? "" : json_text(*releases, name);
  if (release.empty()) return report({name, kSkip, "not in this Python"});
  report({name, kOk, release});
}

void report_megatron(const Json& answer, const Report& report) {
  const std::string release = json_text(answer, "megatron");
  if (release.empty()) return report({"megatron-core", kSkip, "not in this Python"});
  int major = 0, minor = 0;
  const bool read = std::sscanf(release.c_str(), "%d.%d", &major, &minor) == 2;
  const bool known = read && major == 0 && minor >= kOldestMegatron && minor <= kNewestMegatron;
  report({"megatron-core", known ? kOk : kWarn, release,
          known ? "" : "use 0.12 to 0.19, or check that the maps cover its settings"});
  const std::string missing = json_text(answer, "missing_flags");
  report({"megatron flags", missing.empty() ? kOk : kWarn,
          missing.empty() ? "it has the settings that the maps need"
                          : concat("TransformerConfig has no ", missing),
          missing.empty() ? "" : "use a release that the tests cover (docs/start/megatron.md)"});
}

void report_driftless(const Context& context, const Json& answer, const Report& report) {
  const std::string release = json_text(answer, "driftless");
  if (release.empty()) {
    return report({"driftless", kSkip, "not in this Python",
                   "pip install . there, if a trainer or an engine runs in it"});
  }
  const bool same = context.release.empty() || release == context.release;
  report({"driftless", same ? kOk : kWarn,
          concat(release, same ? "" : concat(", this command is ", context.release)),
          same ? "" : "install the package and the command of one release"});
}

}  // namespace

void check_python(const Context& context, const Report& report) {
  const Result<Json> answer = ask_python(context);
  if (!answer.ok()) {
    return report({"python", answer.status().code() == StatusCode::kNotFound ? kSkip : kWarn,
                   answer.status().to_string(), "name another one by --python PATH"});
  }
  report({"python", kOk, json_text(*answer, "python")});
  report_driftless(context, *answer, report);
  report_megatron(*answer, report);
  const std::string torch = json_text(*answer, "torch");
  report({"torch", torch.empty() ? kSkip : kOk, torch.empty() ? "not in this Python" : torch});
  for (const char* name : {"transformers", "vllm", "sglang"}) {
    report_package(*answer, name, report);
  }
}

void check_nixl(const Context& context, const Report& report) {
  const Result<Json> answer = ask_python(context);
  const std::string library = answer.ok() ? json_text(*answer, "nixl") : "";
  if (library.empty()) {
    return report({"library", kSkip, "libnixl_capi.so was not found",
                   "optional: pip install nixl, or add its folder to LD_LIBRARY_PATH"});
  }
  report({"library", kOk, library});
  const std::string plugins = json_text(*answer, "nixl_plugins");
  report({"carriers", plugins.empty() ? kWarn : kOk,
          plugins.empty() ? "no plugins were found beside it" : plugins,
          plugins.empty() ? "set NIXL_PLUGIN_DIR" : ""});
}

}  // namespace driftless::doctor
