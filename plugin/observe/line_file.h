// SPDX-License-Identifier: Apache-2.0
// LineFile: appends lines to a file that several processes may share: metrics.file and
// monitor.spans_file.
//
// write() never waits: a line that cannot be written is dropped and counted. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/descriptor.h"
#include "core/status.h"

namespace driftless {

class LineFile {
 public:
  // Creates the file if it is missing. A pipe without a reader is refused. `key`: the configuration
  // key, for messages.
  [[nodiscard]] static Result<std::unique_ptr<LineFile>> open(std::string key, std::string path);
  // Appends the line by one write; on a local file system lines of several processes do not mix.
  // The first failure is returned, later ones are only counted. `version`: the version that the
  // line reports.
  [[nodiscard]] Status write(std::string_view line, std::uint64_t version);

 private:
  LineFile(std::string name, Descriptor file) : name_(std::move(name)), file_(std::move(file)) {}

  std::string name_;  // key and path
  Descriptor file_;
  std::uint64_t dropped_ = 0;
  bool torn_ = false;  // the last line was cut off: start the next one on a new line
};

}  // namespace driftless
