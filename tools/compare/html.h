// SPDX-License-Identifier: Apache-2.0
// HtmlPage: one HTML file with nothing from outside: text, tables, bars, lines and heat maps in the
// style of report_style.css, which is part of this binary. Every text is escaped; there is no
// script.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file_system.h"

namespace driftless {

// For text and for values of attributes. Lines stay; characters that are hidden or turn the
// direction of text, and bytes that are not UTF-8, are shown by their code, as one_line() does.
[[nodiscard]] std::string html_escape(std::string_view text);

struct BarRow {
  std::string label;
  double value = 0;  // at least 0
  std::string text;  // the value for people
};

// A value for each row and column; nothing: not known.
struct HeatMap {
  std::vector<std::string> rows;
  std::vector<std::string> columns;
  std::vector<std::vector<std::optional<double>>> cells;  // by row; shares: 0.01 is 1 %
  std::string row_word = "layer", column_word = "version";
};
inline constexpr std::size_t kMostHeatColumns = 200;
inline constexpr std::size_t kMostHeatRows = 200;
// Neighbours are joined, by their mean, until there are at most so many rows and columns.
[[nodiscard]] HeatMap downsampled(const HeatMap& map);

// Lines over common places on the x axis.
struct LineChart {
  struct Series {
    std::string name;
    std::vector<std::optional<double>> values;  // one for each x
  };
  std::vector<std::string> x;
  std::vector<Series> series;  // at most 6 have a colour of their own
  std::string x_word, unit;
};
inline constexpr std::size_t kMostLinePoints = 1000;
[[nodiscard]] LineChart downsampled(const LineChart& chart);

enum class Verdict : unsigned char { kOk, kWarn, kBad, kIdle };

class HtmlPage {
 public:
  HtmlPage(std::string_view title, std::string_view below_title);

  // What follows is in a panel of this heading.
  void panel(std::string_view heading);
  void paragraph(std::string_view text);
  void verdict(Verdict verdict, std::string_view text);
  void facts(const std::vector<std::pair<std::string, std::string>>& facts);
  // Columns of numbers, as print_table() finds them, are to the right.
  void table(const std::vector<std::string>& header,
             const std::vector<std::vector<std::string>>& rows);
  void bars(const std::vector<std::string>& header, const std::vector<BarRow>& rows);
  void heat_map(const HeatMap& map);
  void lines(const LineChart& chart);
  void code(std::string_view text);

  // The whole file. Called once.
  [[nodiscard]] std::string finish();

 private:
  std::string body_;
  bool in_panel_ = false;
};

// A new file, whole or not at all; in place of a regular file only with `force`: kAlreadyExists.
// kInvalidArgument: a device, a link or a directory is there.
[[nodiscard]] Status write_page(FileSystem& fs, const std::string& path, std::string_view text,
                                bool force);
// The same check before the work begins.
[[nodiscard]] Status check_page(FileSystem& fs, const std::string& path, bool force);

}  // namespace driftless
