// SPDX-License-Identifier: Apache-2.0
// What an S3-compatible store answers in XML. The texts come from outside: any bytes. Internal to
// the road.
#pragma once

#include <string>
#include <vector>

#include "collectives/object_store/object_store.h"
#include "core/status.h"

namespace driftless::object_store {

// <Error><Code>NoSuchKey</Code>...; empty: it is no error. It goes into messages: a word, or
// nothing of it.
[[nodiscard]] std::string parse_error_code(const std::string& text);

// One page of ListObjectsV2.
struct ListedObjects {
  std::vector<ObjectInfo> objects;  // with their whole keys
  bool more = false;
  std::string next;  // the token that goes on
};
// kCorrupt if it is none.
[[nodiscard]] Result<ListedObjects> parse_listed_objects(const std::string& text);

// One page of ListMultipartUploads; none of what is no such page.
struct ListedUploads {
  struct Upload {
    std::string key, id;
  };
  std::vector<Upload> uploads;
  bool more = false;
  std::string next_key, next_id;
};
[[nodiscard]] ListedUploads parse_listed_uploads(const std::string& text);

// Of CreateMultipartUpload; empty if there is none.
[[nodiscard]] std::string parse_upload_id(const std::string& text);

}  // namespace driftless::object_store
