// The engines that the leading trainer tells about every version.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plugin/engines/engine_notifier.h"
#include "plugin/job/config.h"

namespace driftless::cli {

// The bearer token in a file, without the end of its line; empty where there is no file.
[[nodiscard]] Result<std::string> read_token(const std::string& path);

class EngineBoard {
 public:
  // Null where no engines are configured. Reads the token files.
  [[nodiscard]] static Result<std::unique_ptr<EngineBoard>> open(const Config& config);
  // An upper bound of the time that notify() takes; 0 without engines.
  [[nodiscard]] static std::chrono::milliseconds longest(const Config& config);

  [[nodiscard]] std::vector<EngineResult> notify(std::uint64_t version);
  // Whether all of them took the last version.
  [[nodiscard]] bool acknowledged() const { return acknowledged_; }
  [[nodiscard]] Status cleanup(std::uint64_t version) const;

 private:
  EngineBoard(std::string dir, std::chrono::milliseconds longest, DirectoryLayout layout,
              std::unique_ptr<EngineNotifier> notifier)
      : dir_(std::move(dir)), longest_(longest), layout_(layout), notifier_(std::move(notifier)) {}
  [[nodiscard]] std::string version_dir(std::uint64_t version) const;

  std::string dir_;
  std::chrono::milliseconds longest_;
  DirectoryLayout layout_;
  std::unique_ptr<EngineNotifier> notifier_;
  bool acknowledged_ = false;
};

}  // namespace driftless::cli
