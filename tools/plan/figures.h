// SPDX-License-Identifier: Apache-2.0
// The rates from which a plan is computed: each has a name, a unit, a value and its source. The
// built-in rates are those of docs/operate/numbers.md; a file or an option replaces single ones.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "formats/encoding.h"
#include "tools/plan/term.h"

namespace driftless {

// Whether encode.* and decode.* of an encoding are times per changed weight; otherwise per weight.
[[nodiscard]] constexpr bool per_change(Encoding encoding) {
  return encoding == Encoding::kIndices || encoding == Encoding::kDeltas ||
         encoding == Encoding::kDeltasZstd;
}

// Where trainer and receivers keep the weights, and compare and write them.
enum class Device : unsigned char { kGpu, kCpu };

struct Figure {
  std::string name;    // "compare.device"
  std::string unit;    // "B/s", "s", "B"
  double value = 0;    // in that unit; above 0, or 0 for a wait
  std::string source;  // a heading of docs/operate/numbers.md, a file, or an option
};

class Figures {
 public:
  [[nodiscard]] static Figures built_in(Device device);
  // kInvalidArgument for an unknown name (the error suggests the nearest one) or a value that is
  // not a positive number (for waits: 0 or more).
  [[nodiscard]] Status set(std::string_view name, double value, std::string_view source);
  // Reads an object of names and values, as `driftless plan --measure` prints it. kCorrupt if the
  // text is not such an object.
  [[nodiscard]] Status set_all(std::string_view json, std::string_view what);
  // Sets a figure from "name=value".
  [[nodiscard]] Status set_option(std::string_view text);

  // The figure must exist on this device.
  [[nodiscard]] const Figure& at(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] Term term(std::string_view name) const;
  [[nodiscard]] std::span<const Figure> all() const { return figures_; }

 private:
  std::vector<Figure> figures_;
};

}  // namespace driftless
