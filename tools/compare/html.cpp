// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/html.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <span>

#include "compare/report_style.h"
#include "core/hash128.h"
#include "core/line_log.h"

namespace driftless {
namespace {

std::string text_of(double value, const char* format = "%.4g") {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

bool is_number_cell(const std::string& cell) {
  return cell.empty() || cell == "-" || std::isdigit(static_cast<unsigned char>(cell[0])) != 0;
}

std::vector<bool> number_columns(std::size_t columns,
                                 const std::vector<std::vector<std::string>>& rows) {
  std::vector<bool> numbers(columns, true);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < columns; ++i) numbers[i] = numbers[i] && is_number_cell(row[i]);
  }
  return numbers;
}

std::string header_row(const std::vector<std::string>& header, const std::vector<bool>& numbers) {
  std::string text = "<thead><tr>";
  for (std::size_t i = 0; i < header.size(); ++i) {
    text += concat("<th", numbers[i] ? " class=\"num\"" : "", ">", html_escape(header[i]), "</th>");
  }
  return text + "</tr></thead>";
}

// Splits `count` items into at most `most` groups of neighbours: the first index of each, and the
// end.
std::vector<std::size_t> joined(std::size_t count, std::size_t most) {
  const std::size_t groups = std::min(count, most);
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i <= groups; ++i) begins.push_back(groups == 0 ? 0 : i * count / groups);
  return begins;
}

std::vector<std::string> joined_names(const std::vector<std::string>& names,
                                      const std::vector<std::size_t>& begins) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
    const std::string& first = names[begins[i]];
    const std::string& last = names[begins[i + 1] - 1];
    result.push_back(begins[i + 1] - begins[i] == 1 ? first : concat(first, " to ", last));
  }
  return result;
}

// The mean of the known values; nothing if none is known.
std::optional<double> mean_of(std::span<const std::optional<double>> values) {
  double sum = 0;
  std::size_t known = 0;
  for (const std::optional<double>& value : values) {
    sum += value.value_or(0);
    known += value.has_value() ? 1 : 0;
  }
  return known > 0 ? std::optional(sum / static_cast<double>(known)) : std::nullopt;
}

constexpr int kLabelPixels = 170, kAxisPixels = 22;

std::string svg_begin(int width, int height, std::string_view what) {
  // On a screen narrower than the chart, the page scrolls so that labels stay readable.
  return concat("<div class=\"wide\"><svg viewBox=\"0 0 ", width, " ", height, "\" width=\"", width,
                "\" height=\"", height, "\" style=\"min-width:", std::min(width, 720),
                "px\" role=\"img\" aria-label=\"", html_escape(what), "\">\n");
}

std::string svg_label(double x, double y, std::string_view text, std::string_view anchor) {
  return concat("<text class=\"label\" x=\"", text_of(x), "\" y=\"", text_of(y),
                "\" text-anchor=\"", anchor, "\">", html_escape(text), "</text>\n");
}

// Keeps the end of a long name, which distinguishes it from others.
std::string shortened(const std::string& name) {
  constexpr std::size_t kMost = 26;
  if (name.size() <= kMost) return name;
  std::size_t begin = name.size() - kMost + 1;
  while (begin < name.size() && (static_cast<unsigned char>(name[begin]) & 0xc0U) == 0x80) ++begin;
  return concat("…", name.substr(begin));
}

constexpr int kChartWidth = 1000, kChartHeight = 220, kChartLeft = 60, kChartTop = 26;

std::size_t colour(std::size_t series) { return std::min<std::size_t>(series + 1, 6); }

struct ChartScale {
  std::size_t points = 0;
  double largest = 0;

  [[nodiscard]] double x(std::size_t i) const {
    if (points < 2) return kChartLeft + kChartWidth / 2.0;
    return kChartLeft + kChartWidth * static_cast<double>(i) / static_cast<double>(points - 1);
  }
  [[nodiscard]] double y(double value) const {
    return kChartTop + kChartHeight - (largest > 0 ? kChartHeight * value / largest : 0);
  }
};

std::string chart_grid(const ChartScale& scale) {
  std::string text;
  for (int tick = 0; tick <= 4; ++tick) {
    const double value = scale.largest * tick / 4;
    const double y = kChartTop + kChartHeight - kChartHeight * tick / 4.0;
    text += concat("<line class=\"grid\" x1=\"", kChartLeft, "\" x2=\"", kChartLeft + kChartWidth,
                   "\" y1=\"", text_of(y), "\" y2=\"", text_of(y), "\"/>\n");
    text += svg_label(kChartLeft - 6, y + 4, text_of(value, "%.3g"), "end");
  }
  return text;
}

// Draws a line, with a gap where a value is not known, and its points.
std::string chart_line(const LineChart& chart, std::size_t number, const ChartScale& scale) {
  constexpr std::size_t kMostPoints = 400;  // more could not be distinguished
  const LineChart::Series& series = chart.series[number];
  std::string path, points;
  bool joins = false;
  for (std::size_t i = 0; i < series.values.size(); ++i) {
    const std::optional<double>& value = series.values[i];
    if (value) {
      const std::string x = text_of(scale.x(i), "%.1f"), y = text_of(scale.y(*value), "%.1f");
      path += concat(joins ? "L" : "M", x, " ", y);
      points += concat("<circle class=\"f", colour(number), "\" r=\"2.5\" cx=\"", x, "\" cy=\"", y,
                       "\"><title>", html_escape(series.name), ", ", html_escape(chart.x_word), " ",
                       html_escape(chart.x[i]), ": ", text_of(*value), " ", html_escape(chart.unit),
                       "</title></circle>\n");
    }
    joins = value.has_value();
  }
  if (series.values.size() > kMostPoints) points.clear();
  return concat("<path class=\"line\" style=\"stroke:var(--c", colour(number), ")\" d=\"", path,
                "\"/>\n", points);
}

}  // namespace

std::string html_escape(std::string_view text) {
  std::string result;
  for (;;) {
    const std::size_t end = text.find('\n');
    for (const char c : one_line(text.substr(0, end))) {
      switch (c) {
        case '&': result += "&amp;"; break;
        case '<': result += "&lt;"; break;
        case '>': result += "&gt;"; break;
        case '"': result += "&quot;"; break;
        case '\'': result += "&#39;"; break;
        default: result += c;
      }
    }
    if (end == std::string_view::npos) return result;
    result += '\n';
    text.remove_prefix(end + 1);
  }
}

LineChart downsampled(const LineChart& chart) {
  const auto begins = joined(chart.x.size(), kMostLinePoints);
  LineChart result{joined_names(chart.x, begins), {}, chart.x_word, chart.unit};
  for (const LineChart::Series& series : chart.series) {
    auto& values = result.series.emplace_back(LineChart::Series{series.name, {}}).values;
    for (std::size_t i = 0; i + 1 < begins.size(); ++i) {
      values.push_back(
          mean_of(std::span(series.values).subspan(begins[i], begins[i + 1] - begins[i])));
    }
  }
  return result;
}

HeatMap downsampled(const HeatMap& map) {
  const auto rows = joined(map.rows.size(), kMostHeatRows);
  const auto columns = joined(map.columns.size(), kMostHeatColumns);
  HeatMap result{joined_names(map.rows, rows),
                 joined_names(map.columns, columns),
                 {},
                 map.row_word,
                 map.column_word};
  for (std::size_t r = 0; r + 1 < rows.size(); ++r) {
    auto& cells = result.cells.emplace_back(columns.size() - 1);
    for (std::size_t c = 0; c + 1 < columns.size(); ++c) {
      std::vector<std::optional<double>> block;
      for (std::size_t i = rows[r]; i < rows[r + 1]; ++i) {
        const auto& row = map.cells[i];
        block.insert(block.end(), row.begin() + static_cast<std::ptrdiff_t>(columns[c]),
                     row.begin() + static_cast<std::ptrdiff_t>(columns[c + 1]));
      }
      cells[c] = mean_of(block);
    }
  }
  return result;
}

HtmlPage::HtmlPage(std::string_view title, std::string_view below_title) {
  body_ = concat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'\">\n<title>",
      html_escape(title), "</title>\n<style>\n", kReportStyle,
      "</style>\n</head>\n<body>\n<main>\n<header><h1>", html_escape(title),
      "</h1>\n<p class=\"muted\">", html_escape(below_title), "</p></header>\n");
}

void HtmlPage::panel(std::string_view heading) {
  if (in_panel_) body_ += "</section>\n";
  in_panel_ = true;
  body_ += concat("<section class=\"panel\">\n<h2>", html_escape(heading), "</h2>\n");
}

void HtmlPage::paragraph(std::string_view text) {
  body_ += concat("<p class=\"muted\">", html_escape(text), "</p>\n");
}

void HtmlPage::verdict(Verdict verdict, std::string_view text) {
  constexpr std::array<std::string_view, 4> kClasses = {"ok", "warn", "bad", "idle"};
  body_ += concat("<p class=\"verdict ", kClasses[static_cast<std::size_t>(verdict)], "\">",
                  html_escape(text), "</p>\n");
}

void HtmlPage::facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  body_ += "<dl class=\"facts\">\n";
  for (const auto& [name, value] : facts) {
    body_ +=
        concat("<div><dt>", html_escape(name), "</dt><dd>", html_escape(value), "</dd></div>\n");
  }
  body_ += "</dl>\n";
}

void HtmlPage::table(const std::vector<std::string>& header,
                     const std::vector<std::vector<std::string>>& rows) {
  const std::vector<bool> numbers = number_columns(header.size(), rows);
  body_ += "<div class=\"wide\"><table>" + header_row(header, numbers) + "<tbody>\n";
  for (const auto& row : rows) {
    body_ += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      body_ += concat("<td", numbers[i] ? " class=\"num\"" : "", ">", html_escape(row[i]), "</td>");
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void HtmlPage::bars(const std::vector<std::string>& header, const std::vector<BarRow>& rows) {
  constexpr int kWidth = 240;
  double largest = 0;
  for (const BarRow& row : rows) largest = std::max(largest, row.value);
  body_ += "<div class=\"wide\"><table>" + header_row(header, {false, true, false}) + "<tbody>\n";
  for (const BarRow& row : rows) {
    const double width = largest > 0 ? kWidth * row.value / largest : 0;
    body_ += concat(
        "<tr><td>", html_escape(row.label), "</td><td class=\"num\">", html_escape(row.text),
        "</td><td><svg width=\"", kWidth,
        "\" height=\"12\" aria-hidden=\"true\"><rect class=\"f1\" height=\"12\" rx=\"2\" width=\"",
        text_of(width), "\"/></svg></td></tr>\n");
  }
  body_ += "</tbody></table></div>\n";
}

void HtmlPage::heat_map(const HeatMap& whole) {
  constexpr double kRow = 16;
  const HeatMap map = downsampled(whole);
  double largest = 0;
  for (const auto& row : map.cells) {
    for (const auto& cell : row) largest = std::max(largest, cell.value_or(0));
  }
  const double cell = std::clamp(
      1000.0 / static_cast<double>(std::max<std::size_t>(1, map.columns.size())), 4.0, 40.0);
  const double right = kLabelPixels + cell * static_cast<double>(map.columns.size());
  const double bottom = kRow * static_cast<double>(map.rows.size());
  body_ +=
      concat("<p class=\"muted\">From nothing to ", text_of(100 * largest, "%.3f"),
             " % of the weights, light to dark; a cell shows its figure under the pointer.</p>\n");
  body_ += svg_begin(static_cast<int>(right) + 1, static_cast<int>(bottom) + kAxisPixels,
                     concat("density by ", map.row_word, " and ", map.column_word));
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kRow * static_cast<double>(r);
    body_ += svg_label(kLabelPixels - 6, y + kRow - 4, shortened(map.rows[r]), "end");
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
      const std::optional<double>& value = map.cells[r][c];
      if (!value) continue;
      const double shade = largest > 0 && *value > 0 ? 0.08 + 0.92 * *value / largest : 0.02;
      body_ += concat(
          "<rect class=\"f1\" x=\"", text_of(kLabelPixels + cell * static_cast<double>(c), "%.2f"),
          "\" y=\"", text_of(y), "\" width=\"", text_of(cell - 0.5), "\" height=\"",
          text_of(kRow - 1), "\" opacity=\"", text_of(shade, "%.3f"), "\"><title>",
          html_escape(map.rows[r]), ", ", map.column_word, " ", html_escape(map.columns[c]), ": ",
          text_of(100 * *value, "%.4f"), " %</title></rect>\n");
    }
  }
  if (!map.columns.empty()) {
    body_ += svg_label(kLabelPixels, bottom + 15, concat(map.column_word, " ", map.columns.front()),
                       "start");
    if (map.columns.size() > 1) body_ += svg_label(right, bottom + 15, map.columns.back(), "end");
    body_ += svg_label(kLabelPixels - 6, bottom + 15, map.row_word, "end");
  }
  body_ += "</svg></div>\n";
}

void HtmlPage::lines(const LineChart& whole) {
  const LineChart chart = downsampled(whole);
  double largest = 0;
  for (const auto& series : chart.series) {
    for (const auto& value : series.values) largest = std::max(largest, value.value_or(0));
  }
  body_ += "<ul class=\"legend\">";
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    body_ += concat("<li class=\"c", colour(i), "\">", html_escape(chart.series[i].name), "</li>");
  }
  body_ += "</ul>\n";
  body_ +=
      svg_begin(kChartLeft + kChartWidth + 10, kChartTop + kChartHeight + kAxisPixels, chart.unit);
  const ChartScale scale{chart.x.size(), largest};
  body_ += svg_label(4, 12, chart.unit, "start") + chart_grid(scale);
  for (std::size_t i = 0; i < chart.series.size(); ++i) body_ += chart_line(chart, i, scale);
  if (!chart.x.empty()) {
    const double y = kChartTop + kChartHeight + 15;
    body_ += svg_label(kChartLeft, y, concat(chart.x_word, " ", chart.x.front()), "start");
    if (chart.x.size() > 1) body_ += svg_label(kChartLeft + kChartWidth, y, chart.x.back(), "end");
    const std::size_t middle = chart.x.size() / 2;
    if (chart.x.size() > 2) body_ += svg_label(scale.x(middle), y, chart.x[middle], "middle");
  }
  body_ += "</svg></div>\n";
}

void HtmlPage::code(std::string_view text) {
  body_ += concat("<div class=\"wide\"><pre><code>", html_escape(text), "</code></pre></div>\n");
}

std::string HtmlPage::finish() {
  if (in_panel_) body_ += "</section>\n";
  return std::move(body_) + "</main>\n</body>\n</html>\n";
}

Status check_page(FileSystem& fs, const std::string& path, bool force) {
  const Result<FileInfo> there = fs.info(path);
  if (!there.ok())
    return there.status().code() == StatusCode::kNotFound ? Status() : there.status();
  if (there->kind != FileKind::kFile) {
    return error(StatusCode::kInvalidArgument, path, " is there, and is not a regular file");
  }
  if (force) return {};
  return error(StatusCode::kAlreadyExists, path, " is there already; --force replaces it");
}

Status write_page(FileSystem& fs, const std::string& path, std::string_view text, bool force) {
  DRIFTLESS_RETURN_IF_ERROR(check_page(fs, path, force));
  const std::string temporary = concat(path, ".", to_hex(random_hash128()), ".tmp");
  Status done = write_text(fs, temporary, text);
  if (done.ok()) {
    done = force ? fs.rename_file(temporary, path) : fs.rename_new(temporary, path);
  }
  if (!done.ok()) static_cast<void>(fs.remove_file(temporary));  // it may not exist
  return done;
}

}  // namespace driftless
