// SPDX-License-Identifier: Apache-2.0
// Real NIXL, from PyPI: scripts/python_env.sh nixl.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/checkout_paths.h"

namespace driftless::testing {

struct NixlLibrary {
  std::string path;     // of libnixl_capi.so; empty: there is none
  std::string why_not;  // if path is empty: why, in one line
};

// DRIFTLESS_NIXL_LIBRARY, or PyPI's package, which is installed once if needed.
inline const NixlLibrary& nixl_library() {
  static const NixlLibrary found = [] {
    NixlLibrary made;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    made.why_not = "NIXL is not built for sanitizers";
    return made;
#endif
    if (const char* const given = std::getenv("DRIFTLESS_NIXL_LIBRARY"); given != nullptr) {
      made.path = given;
      return made;
    }
    std::string output;
    const std::string line = std::string(test_data()) + "/../scripts/python_env.sh nixl 2>&1";
    FILE* const out = ::popen(line.c_str(), "r");
    char some[512];
    while (out != nullptr && std::fgets(some, sizeof(some), out) != nullptr) output = some;
    const bool ok = out != nullptr && ::pclose(out) == 0;
    while (!output.empty() && output.back() == '\n') output.pop_back();
    made.why_not = output.empty() ? "scripts/python_env.sh nixl failed" : output;
    std::error_code failure;
    if (!ok) return made;
    for (const auto& python : std::filesystem::directory_iterator(output + "/lib", failure)) {
      const auto library = python.path() / "site-packages/.nixl_cu12.mesonpy.libs/libnixl_capi.so";
      if (std::filesystem::exists(library, failure)) made.path = library.string();
    }
    return made;
  }();
  return found;
}

// Skips a test that needs NIXL if it is missing.
#define NEED_NIXL() \
  if (nixl_library().path.empty()) GTEST_SKIP() << nixl_library().why_not

}  // namespace driftless::testing
