// SPDX-License-Identifier: Apache-2.0
// Input: an object of a bucket, a key of one, or a file of credentials. What is let through must be
// printed as something that is read and printed the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "collectives/object_store/credentials.h"
#include "collectives/object_store/index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace driftless::object_store;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto version = parse_version_text(text, "fuzz");
  if (version.ok() && !version->removed && version_text(*version) != text) std::abort();
  if (const auto index = parse_index(text, "fuzz"); index.ok()) {
    const std::string printed = index_text(*index);
    const auto again = parse_index(printed, "fuzz");
    if (!again.ok() || index_text(*again) != printed) std::abort();
  }
  if (const auto id = parse_publication_name(text); id && publication_name(*id) != text)
    std::abort();
  if (const auto id = parse_version_key(text); id && version_key(*id) != text) std::abort();
  if (const auto part = parse_part_key(text); part && !text.starts_with(parts_prefix(*part)))
    std::abort();
  static_cast<void>(parse_credentials_file(text, "default").ok());
  static_cast<void>(left_until(text));
  return 0;
}
