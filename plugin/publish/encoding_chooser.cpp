// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/encoding_chooser.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace driftless {
namespace {

constexpr std::array kCandidates{Encoding::kDeltas, Encoding::kDeltasZstd, Encoding::kCompact};
// The chooser switches to another encoding if that takes less than kGain of the present one's time.
// It requires kGainSoon in two cases. First, for an encoding that was never used, while the present
// one was measured at most once: its first version is slower, because it touches new memory.
// Second, for an encoding that was used before, during the kSoon versions after a switch, unless
// that switch tried an unused one.
constexpr double kGain = 0.93, kGainSoon = 0.7;
constexpr unsigned kSoon = 8;  // versions
// Upper bounds of the times that an unused encoding adds to those of `deltas`, as multiples of
// these. If these are short, as on a GPU, the estimate for CPU cores would be far too long.
constexpr double kMostMake = 6, kMostDecode = 3;
// However slow the road is, at least this share of the decoding is left after the last part
// arrives.
constexpr double kLeastLeft = 0.15;
// The weight of a new measurement against the known value.
constexpr double kWeight = 0.5;
// A shorter flush measures the latency, not the rate.
constexpr double kLeastFlushMs = 20;
constexpr std::uint64_t kLeastBytes = std::uint64_t{1} << 20;

// The first measurement is slower than the others, so the second one replaces it.
void learn(double& known, unsigned& times, double found) {
  known = times < 2 ? found : known + kWeight * (found - known);
  ++times;
}

}  // namespace

EncodingChooser::EncodingChooser(Encoding first, unsigned threads) : now_(first) {
  // More threads than this share the memory bandwidth.
  const double cores = std::clamp(threads, 1U, 8U);
  // For bfloat16 at 1 % changed, from a recorded run: bytes per change, and the seconds of one core
  // per unit to make and to decode a version. The other encodings' seconds come on top of those of
  // `deltas`.
  known_[Encoding::kDeltas] = {4.05, 0.5e-9 / cores, 0.1e-9 / cores};
  known_[Encoding::kDeltasZstd] = {2.92, 0.2e-9 / cores, 0.08e-9 / cores};
  known_[Encoding::kCompact] = {0.92, 1.3e-9 / cores, 1.2e-9 / cores};
}

void EncodingChooser::note(const Version& version) {
  const auto known = known_.find(version.encoding);
  if (known == known_.end() || version.total_units == 0 || version.changed_units == 0) return;
  last_ = version;
  ++versions_since_switch_;
  Known& figures = known->second;
  figures.bytes_per_change =
      static_cast<double>(version.wire_bytes) / static_cast<double>(version.changed_units);
  const double make_ms = std::max(0.0, version.process_ms - version.flush_ms);
  learn(figures.make_s_per_unit, figures.made,
        make_ms / 1e3 / static_cast<double>(version.total_units));
  if (version.flush_ms >= kLeastFlushMs && version.wire_bytes >= kLeastBytes) {
    learn(flush_bytes_per_s_, flushes_,
          static_cast<double>(version.wire_bytes) / version.flush_ms * 1e3);
  }
}

double EncodingChooser::rate() const {
  if (link_bytes_per_s_ == 0 || flush_bytes_per_s_ == 0) {
    return std::max(link_bytes_per_s_, flush_bytes_per_s_);
  }
  return std::min(link_bytes_per_s_, flush_bytes_per_s_);
}

std::optional<double> EncodingChooser::predict(Encoding encoding) const {
  const double bytes_per_s = rate();
  if (!last_ || bytes_per_s == 0) return std::nullopt;
  const Known& known = known_.at(encoding);
  const Known& deltas = known_.at(Encoding::kDeltas);
  const auto units = static_cast<double>(last_->total_units);
  const auto changes = static_cast<double>(last_->changed_units);
  const double transfer = changes * known.bytes_per_change / bytes_per_s;
  double make = units * known.make_s_per_unit, decode = units * known.decode_s_per_unit;
  if (encoding != Encoding::kDeltas && known.made == 0) {
    const double beside = units * deltas.make_s_per_unit;
    make = beside + std::min(make, kMostMake * beside);
  }
  if (encoding != Encoding::kDeltas && known.decoded == 0) {
    const double beside = units * deltas.decode_s_per_unit;
    decode = std::min(decode, kMostDecode * beside);
    decode = beside + std::max(decode - transfer, kLeastLeft * decode);
  }
  return make + transfer + decode;
}

Encoding EncodingChooser::choose(const LinkSpeed& slowest,
                                 const std::function<bool(Encoding)>& allowed) {
  why_.clear();
  if (slowest.bytes_per_s > 0) {
    learn(link_bytes_per_s_, links_, static_cast<double>(slowest.bytes_per_s));
  }
  if (slowest.units_per_s > 0 && last_) {
    Known& figures = known_[last_->encoding];
    learn(figures.decode_s_per_unit, figures.decoded, 1 / static_cast<double>(slowest.units_per_s));
  }
  const std::optional<double> stay = predict(now_);
  if (!stay) return now_;
  const bool stays = allowed(now_);
  Encoding best = now_;
  double least = stays ? *stay : std::numeric_limits<double>::infinity();
  for (const Encoding candidate : kCandidates) {
    const double time = *predict(candidate);
    if (!allowed(candidate) || time >= least) continue;
    least = time;
    best = candidate;
  }
  if (best == now_) return now_;
  const bool known = known_[best].made > 0;
  const bool soon = known ? versions_since_switch_ < kSoon && !trial_ : known_[now_].made < 2;
  if (stays && least > *stay * (soon ? kGainSoon : kGain)) return now_;
  const auto ms = [](double seconds) { return std::llround(seconds * 1e3); };
  why_ = concat("encoding '", info(best).name, "' from here on: at ", std::llround(rate() / 1e6),
                " MB/s a version takes ", ms(least), " ms in it, ", ms(*stay), " ms in '",
                info(now_).name, stays ? "'" : "', which not all receivers are known to take");
  versions_since_switch_ = 0;
  trial_ = !known;
  now_ = best;
  return now_;
}

}  // namespace driftless
