// SPDX-License-Identifier: Apache-2.0
// Input: what a store answers in XML. A code of an error that is let through is a word; keys and
// sizes fit into what was sent.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "collectives/object_store/s3_answers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace driftless::object_store;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string code = parse_error_code(text);
  if (code.size() > 64 || std::ranges::any_of(code, [](unsigned char c) { return c < ' '; })) {
    std::abort();
  }
  if (const auto listed = parse_listed_objects(text); listed.ok()) {
    // An object costs its store "<Contents/>" at least.
    if (listed->objects.size() > size / 11) std::abort();
    for (const auto& object : listed->objects) {
      if (object.key.size() > size) std::abort();
    }
  }
  const ListedUploads uploads = parse_listed_uploads(text);
  if (uploads.uploads.size() > size / 9 || uploads.next_key.size() > size) std::abort();
  if (parse_upload_id(text).size() > size) std::abort();
  return 0;
}
