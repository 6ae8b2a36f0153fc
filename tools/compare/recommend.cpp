// SPDX-License-Identifier: Apache-2.0
#include "tools/compare/recommend.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>

#include "core/counted.h"
#include "formats/strict_json.h"
#include "plugin/interchange/layouts.h"

namespace driftless {
namespace {

constexpr double kAssumedBitsPerS = 1e9;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kLeastKept = 16, kMostKept = 10'000;
constexpr double kLeastFullDensity = 0.05, kMostFullDensity = 0.9;

std::string short_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 100 ? "%.3g" : "%.0f", value);
  return text.data();
}
std::string megabytes(double bytes) { return short_number(bytes / 1e6) + " MB"; }

// The median figures of a version.
struct Middle {
  std::size_t versions = 0;
  double changed = 0, payload_bytes = 0;
};
Middle middle_of(const RunHistory& history) {
  std::vector<double> changed, bytes;
  for (const HistoryVersion& version : history.versions) {
    if (version.found.full() || version.changed_units == 0) continue;
    changed.push_back(static_cast<double>(version.changed_units));
    bytes.push_back(static_cast<double>(version.payload_bytes));
  }
  return {changed.size(), median_of(changed), median_of(bytes)};
}

class Recommender {
 public:
  Recommender(const RunHistory& history, const MetricsSummary* metrics)
      : history_(history), metrics_(metrics), middle_(middle_of(history)) {}

  std::vector<Recommendation> run() {
    if (middle_.versions == 0 || history_.total_bytes == 0) return {};
    bytes_ = middle_.payload_bytes;
    bits_ = 8 * bytes_ / middle_.changed;
    choose_encoding();
    anchor_every();
    keep_versions();
    full_above_density();
    buffer_size();
    return std::move(settings_);
  }

 private:
  [[nodiscard]] double full_bytes() const { return static_cast<double>(history_.total_bytes); }

  void choose_encoding() {
    const bool measured = metrics_ != nullptr && !metrics_->link_bits_per_s.empty();
    const double rate = measured ? median_of(metrics_->link_bits_per_s) : kAssumedBitsPerS;
    const Link link{"", rate};
    const PublicationFormat& format = publication_format(history_.versions.back().found.layout);
    std::vector<EncodingCost> carried = total_costs(history_);
    std::erase_if(carried,
                  [&](const EncodingCost& each) { return !format.carries(each.encoding); });
    const EncodingCost* const best = fastest_on(carried, link);
    if (best == nullptr) return;
    const Costed costed = costed_versions();
    bits_ = 8 * static_cast<double>(best->bytes) / std::max(1.0, costed.changed);
    bytes_ = bits_ * middle_.changed / 8;
    settings_.push_back(
        {"encoding", std::string(info(best->encoding).name),
         concat("the encoding of this layout with the least encode and link time: ",
                short_number(best->encode_ms / costed.versions), " ms and ", megabytes(bytes_),
                " a version at ", short_number(rate / 1e6), " Mbit/s (",
                measured ? concat("the median of ",
                                  counted(metrics_->link_bits_per_s.size(), "fetch", "fetches"))
                         : std::string("assumed: no fetch times were given"),
                ")")});
  }

  // Versions whose costs total_costs() adds up.
  struct Costed {
    double versions = 0, changed = 0;
  };
  [[nodiscard]] Costed costed_versions() const {
    Costed sum;
    for (const HistoryVersion& version : history_.versions) {
      if (version.costs.empty()) continue;
      ++sum.versions;
      sum.changed += static_cast<double>(version.changed_units);
    }
    return sum;
  }

  void anchor_every() {
    const double most = full_bytes() / std::max(1.0, bytes_);
    const auto every = static_cast<std::uint64_t>(std::clamp(most, 2.0, 1000.0));
    settings_.push_back(
        {"anchors.every", std::to_string(every),
         concat("an anchor has ", megabytes(full_bytes()), ", a version ", megabytes(bytes_),
                ": that many versions are as large as an anchor "
                "(at most 1000)")});
  }

  void keep_versions() {
    std::uint64_t lag = metrics_ != nullptr ? metrics_->most_folded : 0;
    if (metrics_ != nullptr) {
      for (const EngineSummary& engine : metrics_->engines) lag = std::max(lag, engine.largest_lag);
    }
    const std::uint64_t kept = std::clamp(2 * lag, kLeastKept, kMostKept);
    settings_.push_back({"keep_versions", std::to_string(kept),
                         lag == 0 ? concat("no lag was given: the default, ", kLeastKept)
                                  : concat("twice the largest lag, ", counted(lag, "version"),
                                           ", and from ", kLeastKept, " to ", kMostKept)});
  }

  void full_above_density() {
    const double whole = 8 * full_bytes() / static_cast<double>(history_.total_units);
    const double density = std::clamp(whole / bits_, kLeastFullDensity, kMostFullDensity);
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "%.2f", density);
    settings_.push_back(
        {"full_above_density", text.data(),
         concat("a changed weight takes ", short_number(bits_), " bits, a weight sent whole ",
                short_number(whole), ": above that density a full version is smaller (kept within ",
                short_number(kLeastFullDensity), " and ", short_number(kMostFullDensity), ")")});
  }

  void buffer_size() {
    const double unit = full_bytes() / static_cast<double>(history_.total_units);
    const double raw = middle_.changed * (4 + unit);
    const auto wanted =
        static_cast<std::uint64_t>(std::clamp(raw, double(kMiB), 64.0 * double(kMiB)));
    settings_.push_back(
        {"buffer_size", concat(std::bit_ceil(wanted) / kMiB, "MiB"),
         concat("the median version has ", megabytes(raw),
                " of positions and values: they fit into one bucket (at most 64 MiB, to save "
                "memory)")});
  }

  const RunHistory& history_;
  const MetricsSummary* metrics_;
  Middle middle_;
  double bytes_ = 0, bits_ = 0;  // of a version and of a change, in the recommended encoding
  std::vector<Recommendation> settings_;
};

}  // namespace

std::vector<EncodingCost> total_costs(const RunHistory& history) {
  std::vector<EncodingCost> sum;
  for (const HistoryVersion& version : history.versions) {
    if (version.costs.empty()) continue;
    if (sum.empty()) {
      sum = version.costs;
      continue;
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i].bytes += version.costs[i].bytes;
      sum[i].encode_ms += version.costs[i].encode_ms;
      if (sum[i].measured()) sum[i].why_not = version.costs[i].why_not;
    }
  }
  return sum;
}

std::vector<Recommendation> recommend(const RunHistory& history, const MetricsSummary* metrics) {
  return Recommender(history, metrics).run();
}

std::string to_yaml(const std::vector<Recommendation>& settings, const std::string& directory,
                    DirectoryLayout layout) {
  std::string text;
  const Result<std::string> quoted = json_quote(directory, "the directory");
  if (!directory.empty() && quoted.ok()) {
    text = concat("road:\n  kind: shared_fs\n  layout: ", to_string(layout),
                  "\n  shared_fs: { dir: ", *quoted, " }\n");
  }
  for (const auto& [key, value, why] : settings) {
    const std::size_t dot = key.find('.');
    text += dot == std::string::npos
                ? concat(key, ": ", value, "\n")
                : concat(key.substr(0, dot), ": { ", key.substr(dot + 1), ": ", value, " }\n");
  }
  return text;
}

}  // namespace driftless
