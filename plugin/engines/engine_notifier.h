// SPDX-License-Identifier: Apache-2.0
// Tells inference engines over HTTP that a version is there, each in its own way, and gathers what
// they say. Needs libcurl (engine_http.h); without it create() says so.
//
// Each is brought to a version by the one driver (engine_driver.h): an engine that failed to load
// stays paused, because nobody can say what it holds, until a later version goes through.
// Engines that read flush files hold deltas: each is posted only on top of the version that it was
// made from. The notifier remembers what an engine has, asks it for its weight_version before and
// after, and makes up for what the engine missed, in order or by a full version, before anything
// else is posted.
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
  // While an engine loads generation is paused, and then its cache flushed, which holds what the
  // old weights made. Engines without these calls load as they are.
  bool pause = true;
  bool cleanup = false;  // for the caller: cleanup_version() once all_acknowledged()
};

// Paths as the engines see them.
struct PublishedVersion {
  std::string source_dir;          // the directory of versions
  std::string version_dir;         // this one's
  std::uint64_t version = 0;       // at most 2^63-1
  std::string run;                 // its, hex; empty: the caller does not know
  std::string digest;              // of the weights at it, hex; or empty
  std::vector<std::string> files;  // base names of its payload, for kUpdateFlush; none: no change
  std::uint64_t base_version = 0;  // that its deltas build on
  bool full = false;               // every tensor, whole
  // By local_checkpoint_dir. Not ok: that checkpoint may be older, and kUpdateFromDisk is not asked
  // for.
  std::map<std::string, Status> patched{};
};
using PublishedVersions = std::map<std::uint64_t, PublishedVersion>;
// Read from the directory of versions. kIncomplete, kNotFound and kCorrupt as open_version().
[[nodiscard]] Result<PublishedVersion> read_published_version(FileSystem& fs,
                                                              const std::string& source_dir,
                                                              std::uint64_t version);

struct EngineResult {
  std::string url;
  Status status;             // ok: the engine said that it has the version
  bool left_paused = false;  // it does not serve, because nobody can say what it holds
  double ms = 0;
};

// The engines' replies are data from outside: at most 64 MiB, strict JSON. Redirects are not
// followed, and proxies of the environment are not used. A call is tried again if it could not
// be made, was not answered in time, or met a status of 500 and above; an engine that says no (4xx,
// or "success": false) has decided. To try again is safe: pulling a version that is there, loading
// the same files and overwriting with the same values all leave what was.
class ToldEngine;  // one of them, with its driver

class EngineNotifier {
 public:
  // Reads the token files. kInvalidArgument for an endpoint that cannot be called, kUnsupported
  // without libcurl. `http`: how calls are made; empty: with libcurl.
  [[nodiscard]] static Result<std::unique_ptr<EngineNotifier>> create(
      NotifyOptions options, const HttpFunction& http = {});
  ~EngineNotifier();
  // Calls all engines at once, a thread each; they end before it returns. One result per engine, in
  // their order. One thread at a time.
  [[nodiscard]] std::vector<EngineResult> notify(const PublishedVersion& version,
                                                 const Deadline& deadline);
  // The files of a version are gone: it is not posted any more, to engines that missed it.
  void forget(std::uint64_t version) { versions_.erase(version); }

 private:
  EngineNotifier(NotifyOptions options, const HttpFunction& http);

  const NotifyOptions options_;
  std::vector<std::unique_ptr<ToldEngine>> engines_;
  PublishedVersions versions_;  // that were published, for who missed them
};

[[nodiscard]] bool all_acknowledged(const std::vector<EngineResult>& results);

// Removes a version's directory (weight_v*, anchor_v*; anything else is kInvalidArgument). It
// disappears at once, under its name; ok if it is not there.
[[nodiscard]] Status cleanup_version(FileSystem& fs, const std::string& version_directory);

}  // namespace driftless
