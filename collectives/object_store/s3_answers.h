// SPDX-License-Identifier: Apache-2.0
// Parses the XML answers of an S3-compatible store. The texts come from outside and may contain any
// bytes. Internal to the road.
#pragma once

#include <string>
#include <vector>

#include "collectives/object_store/object_store.h"
#include "core/status.h"

namespace driftless::object_store {

// The code in <Error><Code>NoSuchKey</Code>...; empty if the text is not an error. Messages contain
// it: a code that is not one short word becomes "an unreadable code".
[[nodiscard]] std::string parse_error_code(const std::string& text);

// One page of ListObjectsV2.
struct ListedObjects {
  std::vector<ObjectInfo> objects;  // with complete keys
  bool more = false;
  std::string next;  // token for the next page
};
// kCorrupt if the text is not such a page.
[[nodiscard]] Result<ListedObjects> parse_listed_objects(const std::string& text);

// One page of ListMultipartUploads; empty if the text is not such a page.
struct ListedUploads {
  struct Upload {
    std::string key, id;
  };
  std::vector<Upload> uploads;
  bool more = false;
  std::string next_key, next_id;
};
[[nodiscard]] ListedUploads parse_listed_uploads(const std::string& text);

// The upload id from an answer to CreateMultipartUpload; empty if there is none.
[[nodiscard]] std::string parse_upload_id(const std::string& text);

}  // namespace driftless::object_store
