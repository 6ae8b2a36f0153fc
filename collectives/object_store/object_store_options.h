// SPDX-License-Identifier: Apache-2.0
// The settings of object_store, without its libraries, so that a configuration can name them even
// if they are not built.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace driftless {

class ObjectStore;

struct ObjectStoreOptions {
  // s3://bucket/prefix. A receiver's URL may be http(s)://host/path[?query]. The Python module
  // opens hf://user/bucket/prefix.
  std::string url;
  std::string endpoint;  // "http(s)://host[:port]" of an S3 store other than AWS
  std::string region = "us-east-1";
  std::string profile;  // of the shared credentials file; empty: AWS_PROFILE, or "default"
  std::string ca_file;  // CA bundle for https; empty: the system's
  std::shared_ptr<ObjectStore> store;  // the caller's store, used for any URL; null: `url` names it
  unsigned streams = 8;                // uploads or downloads at a time
  std::chrono::milliseconds presign{0};  // validity of a publisher's links for readers; 0: none
  std::string spool_dir;                 // for parts larger than a piece; empty: TMPDIR, or /tmp
  std::chrono::milliseconds request_timeout{300'000};  // for a request without a deadline
  std::chrono::milliseconds poll_first{50};
  std::chrono::milliseconds poll_longest{2'000};
  std::chrono::milliseconds patience{600'000};  // for a receiver that sends no reports
};

struct RoadKind;
struct RoadOpener;
extern const RoadKind kObjectStoreKind;
extern const RoadOpener kObjectStoreOpener;  // of the library driftless_object_store

}  // namespace driftless
