// SPDX-License-Identifier: Apache-2.0
// HtmlPage: one self-contained HTML file with text, tables, bars, lines and heat maps in the style
// of report_style.css, which is embedded in this binary. Every text is escaped; there is no script.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file_system.h"

namespace driftless {

// Escapes text and attribute values. Line breaks stay. Characters that are hidden or change the
// direction of text, and bytes that are not UTF-8, are shown by their code, as in one_line().
[[nodiscard]] std::string html_escape(std::string_view text);

struct BarRow {
  std::string label;
  double value = 0;  // at least 0
  std::string text;  // the value as shown
};

// A value for each row and column; nothing: not known.
struct HeatMap {
  std::vector<std::string> rows;
  std::vector<std::string> columns;
  std::vector<std::vector<std::optional<double>>> cells;  // by row; fractions: 0.01 is 1 %
  std::string row_word = "layer", column_word = "version";
};
inline constexpr std::size_t kMostHeatColumns = 200;
inline constexpr std::size_t kMostHeatRows = 200;
// Replaces neighbours by their mean until there are few enough rows and columns for a page.
[[nodiscard]] HeatMap downsampled(const HeatMap& map);

// Lines with common places on the x axis.
struct LineChart {
  struct Series {
    std::string name;
    std::vector<std::optional<double>> values;  // one for each x
  };
  std::vector<std::string> x;
  std::vector<Series> series;  // at most 6 have their own colour
  std::string x_word, unit;
};
inline constexpr std::size_t kMostLinePoints = 1000;
[[nodiscard]] LineChart downsampled(const LineChart& chart);

enum class Verdict : unsigned char { kOk, kWarn, kBad, kIdle };

class HtmlPage {
 public:
  HtmlPage(std::string_view title, std::string_view below_title);

  // Starts a panel with this heading; later content belongs to it.
  void panel(std::string_view heading);
  void paragraph(std::string_view text);
  void verdict(Verdict verdict, std::string_view text);
  void facts(const std::vector<std::pair<std::string, std::string>>& facts);
  // Columns of numbers, as in print_table(), are aligned to the right.
  void table(const std::vector<std::string>& header,
             const std::vector<std::vector<std::string>>& rows);
  void bars(const std::vector<std::string>& header, const std::vector<BarRow>& rows);
  void heat_map(const HeatMap& map);
  void lines(const LineChart& chart);
  void code(std::string_view text);

  // Returns the whole file. Call it once.
  [[nodiscard]] std::string finish();

 private:
  std::string body_;
  bool in_panel_ = false;
};

// Writes a new file, whole or not at all. It replaces a regular file only with `force`, otherwise
// kAlreadyExists. kInvalidArgument if the path is a device, a link or a directory.
[[nodiscard]] Status write_page(FileSystem& fs, const std::string& path, std::string_view text,
                                bool force);
// The same check, for use before the work begins.
[[nodiscard]] Status check_page(FileSystem& fs, const std::string& path, bool force);

}  // namespace driftless
