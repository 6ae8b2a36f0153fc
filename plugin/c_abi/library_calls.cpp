// SPDX-License-Identifier: Apache-2.0
// The functions of driftless.h that need no receiver.
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "plugin/c_abi/abi_call.h"
#include "plugin/job/metrics.h"
#include "plugin/job/roads.h"

using driftless::c_abi::fenced;

namespace {

struct CodeText {
  const char* name;
  const char* next_action;
};

constexpr std::array kCodes = {
    CodeText{"ok", ""},
    CodeText{"invalid_argument", "Fix the call or the option."},
    CodeText{"not_found", "Check the path, or publish the version first."},
    CodeText{"already_exists", "Choose another name, or remove what is there."},
    CodeText{"incomplete", "It is not whole yet: wait and try again."},
    CodeText{"corrupt", "The bytes are damaged: fetch them again."},
    CodeText{"wrong_run", "It belongs to another run: start from that run's base."},
    CodeText{"wrong_base",
             "Start from the run's base, or have the trainer publish an anchor and try again."},
    CodeText{"wrong_layout", "Register the run's tensors, with its types and shapes."},
    CodeText{"mismatch", "The content is not what its hash says: take a full version."},
    CodeText{"busy", "Somebody else holds it: try again later."},
    CodeText{"unsupported", "It is not possible in this build: the message names an alternative."},
    CodeText{"no_space", "Free some memory or disk, then try again."},
    CodeText{"io", "The operating system refused: see the message."},
    CodeText{"deadline_exceeded", "The wait ended: try again, or raise the timeout."},
    CodeText{"internal", "This is a defect of Driftless: please report it with the message."},
};
static_assert(kCodes.size() == DRIFTLESS_INTERNAL + 1);

CodeText text_of(driftless_code code) {
  const bool known = code >= 0 && static_cast<std::size_t>(code) < kCodes.size();
  return known ? kCodes[static_cast<std::size_t>(code)]
               : CodeText{"unknown", "Use the driftless that the header came with."};
}

std::string info_json() {
  nlohmann::ordered_json json;
  json["version"] = driftless_version();
  json["abi"] = driftless_abi();
  json["backends"] = nlohmann::ordered_json::array();
  for (const driftless::Backend& backend : driftless::backends()) {
    json["backends"].push_back({{"name", backend.name},
                                {"help", backend.help},
                                {"built", backend.built},
                                {"why_not", backend.why_not}});
  }
  return driftless::json_line(json);
}

}  // namespace

uint32_t driftless_abi(void) { return DRIFTLESS_ABI; }
const char* driftless_version(void) { return DRIFTLESS_VERSION; }

const char* driftless_code_name(driftless_code code) { return text_of(code).name; }
const char* driftless_code_next_action(driftless_code code) { return text_of(code).next_action; }

driftless_code driftless_error_code(const driftless_error* error) {
  return error == nullptr ? driftless_code{DRIFTLESS_OK} : error->code;
}
const char* driftless_error_name(const driftless_error* error) {
  return driftless_code_name(driftless_error_code(error));
}
const char* driftless_error_message(const driftless_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}
const char* driftless_error_next_action(const driftless_error* error) {
  return driftless_code_next_action(driftless_error_code(error));
}
void driftless_error_free(driftless_error* error) { delete error; }

void driftless_free(char* text) { std::free(text); }

driftless_code driftless_info_json(char** text, driftless_error** error) {
  return fenced(error, [&] { return driftless::c_abi::give_text(info_json(), text); });
}
