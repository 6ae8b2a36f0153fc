// SPDX-License-Identifier: Apache-2.0
// Notifies inference engines over HTTP of a new version, each with its own calls, and collects
// their replies. Needs libcurl (engine_http.h); without it create() returns kUnsupported.
//
// Every engine is updated by the same driver (engine_driver.h). An engine that failed to load stays
// paused until a later version succeeds, because its weights are unknown. Engines that read flush
// files receive deltas: each delta is posted only to an engine that holds the version from which it
// was made. The notifier remembers what each engine holds, reads its weight_version before and
// after each post, and posts the versions that the engine missed, in order or as a full version,
// before anything else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "core/file_system.h"
#include "core/status.h"
#include "plugin/engines/engine_endpoint.h"
#include "plugin/engines/engine_http.h"

namespace driftless {

struct NotifyOptions : EngineCalls {
  std::vector<EngineEndpoint> engines;  // with an action
  // Pause generation while an engine loads, then flush its cache, which holds results of the old
  // weights. Engines that do not have these calls load without a pause.
  bool pause = true;
  bool cleanup = false;  // for the caller: run cleanup_version() once all_acknowledged()
};

// Paths as the engines see them.
struct PublishedVersion {
  std::string source_dir;          // the directory of versions
  std::string version_dir;         // this version's directory
  std::uint64_t version = 0;       // at most 2^63-1
  std::string run;                 // hex; empty: the caller does not know the run
  std::string digest;              // hex digest of the weights at this version, or empty
  std::vector<std::string> files;  // base names of its payload, for kUpdateFlush; none: no change
  std::uint64_t base_version = 0;  // its deltas build on this version
  bool full = false;               // every tensor is there, whole
  // By local_checkpoint_dir: the result of patching that checkpoint. If it is not ok, the
  // checkpoint may be older, and the notifier does not send kUpdateFromDisk.
  std::map<std::string, Status> patched{};
};
using PublishedVersions = std::map<std::uint64_t, PublishedVersion>;
// Reads the version from the directory of versions. kIncomplete, kNotFound and kCorrupt as
// open_version().
[[nodiscard]] Result<PublishedVersion> read_published_version(FileSystem& fs,
                                                              const std::string& source_dir,
                                                              std::uint64_t version);

struct EngineResult {
  std::string url;
  Status status;             // ok: the engine confirmed that it has the version
  bool left_paused = false;  // the engine does not serve, because its weights are unknown
  double ms = 0;
};

// Replies are untrusted: at most 64 MiB, strict JSON. Redirects are not followed, and proxies of
// the environment are not used. The notifier retries a call that could not be made, was not
// answered in time, or was answered with a status of 500 or above. A refusal (4xx, or "success":
// false) is final. Retries are safe: pulling a version again, loading the same files again or
// overwriting with the same values changes nothing.
class NotifiedEngine;  // one engine and its driver

class EngineNotifier {
 public:
  // Reads the token files. kInvalidArgument for an endpoint that cannot be called, kUnsupported
  // without libcurl. `http`: makes the calls; empty: libcurl.
  [[nodiscard]] static Result<std::unique_ptr<EngineNotifier>> create(
      NotifyOptions options, const HttpFunction& http = {});
  ~EngineNotifier();
  // Notifies all engines at once, with one thread each, and returns when all have ended: one result
  // per engine, in their order. One thread at a time.
  [[nodiscard]] std::vector<EngineResult> notify(const PublishedVersion& version,
                                                 const Deadline& deadline);
  // The version's files are gone: do not post it any more to engines that missed it.
  void forget(std::uint64_t version) { versions_.erase(version); }

 private:
  EngineNotifier(NotifyOptions options, const HttpFunction& http);

  const NotifyOptions options_;
  std::vector<std::unique_ptr<NotifiedEngine>> engines_;
  PublishedVersions versions_;  // published versions, for engines that missed some
};

[[nodiscard]] bool all_acknowledged(const std::vector<EngineResult>& results);

// Removes a version's directory (weight_v*, anchor_v*; anything else is kInvalidArgument). The name
// disappears atomically; ok if it is not there.
[[nodiscard]] Status cleanup_version(FileSystem& fs, const std::string& version_directory);

}  // namespace driftless
