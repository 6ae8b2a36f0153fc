// SPDX-License-Identifier: Apache-2.0
// The settings of object_store, without its libraries: a configuration names them also where they
// are not built.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace driftless {

class ObjectStore;

struct ObjectStoreOptions {
  // s3://bucket/prefix; a receiver's may be http(s)://host/path[?query]; hf://user/bucket/prefix is
  // what the Python module opens.
  std::string url;
  std::string endpoint;  // "http(s)://host[:port]" of an S3 store that is not AWS's
  std::string region = "us-east-1";
  std::string profile;  // of the shared credentials file; empty: AWS_PROFILE, or "default"
  std::string ca_file;  // certificates of those that https is believed; empty: the system's
  std::shared_ptr<ObjectStore> store;    // the caller's own, whatever the URL; null: that names one
  unsigned streams = 8;                  // uploads or downloads at a time
  std::chrono::milliseconds presign{0};  // a publisher's links for readers hold so long; 0: none
  std::string spool_dir;                 // of parts larger than a piece; empty: TMPDIR, or /tmp
  std::chrono::milliseconds request_timeout{300'000};  // of a request that no deadline bounds
  std::chrono::milliseconds poll_first{50};
  std::chrono::milliseconds poll_longest{2'000};
  std::chrono::milliseconds patience{600'000};  // with a receiver that says nothing
};

}  // namespace driftless
