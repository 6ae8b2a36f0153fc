// SPDX-License-Identifier: Apache-2.0
// EncodingChooser: estimates which encoding delivers a version soonest, from measurements of the
// link and the codecs in earlier versions. Arithmetic only: it does not measure, wait or depend on
// a road. One thread.
//
// The time of a version is estimated as: time to make it + its bytes at the link's rate + the work
// that a receiver has left after the last byte. Until the link's rate is known, the chooser keeps
// the first encoding. An encoding that was not used yet is estimated from its bits per change and
// from its speed on `threads` Neoverse-N1 cores, with decoding beside the transfer; measurements
// replace the estimates. The chooser leaves an encoding at once if a trial showed that it is
// slower, or if it is no longer allowed; then it keeps its choice for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "formats/encoding.h"

namespace driftless {

// Measurements that a receiver reports. 0: not known yet.
struct LinkSpeed {
  std::uint64_t bytes_per_s = 0;  // received over the road
  // Weights per second in the work that was left after the last byte, for the encoding that the
  // receiver decoded last.
  std::uint64_t units_per_s = 0;

  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};
class EncodingChooser {
 public:
  // Candidates are deltas, deltas_zstd and compact; `first` is one of them.
  EncodingChooser(Encoding first, unsigned threads);

  // A delta that was published.
  struct Version {
    Encoding encoding = Encoding::kDeltas;
    std::uint64_t changed_units = 0, total_units = 0, wire_bytes = 0;
    double process_ms = 0;  // in all, flush_ms included
    double flush_ms = 0;    // waiting for the road
  };
  void note(const Version& version);

  // The encoding for the next version, among those that are `allowed`. `slowest`: the slowest
  // receiver.
  [[nodiscard]] Encoding choose(const LinkSpeed& slowest,
                                const std::function<bool(Encoding)>& allowed);
  // Why the last choose() switched the encoding; empty if it did not.
  [[nodiscard]] const std::string& why() const { return why_; }
  // Estimated seconds for a version like the last one; nothing before a version was published and
  // the link's rate is known.
  [[nodiscard]] std::optional<double> predict(Encoding encoding) const;

 private:
  struct Known {
    double bytes_per_change = 0;
    double make_s_per_unit = 0, decode_s_per_unit = 0;
    unsigned made = 0, decoded = 0;  // how often each was measured; 0: estimated
  };
  [[nodiscard]] double rate() const;

  Encoding now_;
  std::map<Encoding, Known> known_;
  std::optional<Version> last_;
  double link_bytes_per_s_ = 0, flush_bytes_per_s_ = 0;  // 0: not known
  unsigned links_ = 0, flushes_ = 0;                     // how often each was measured
  unsigned versions_since_switch_ = 0;
  bool trial_ = false;  // the last switch was to an encoding that had not been used before
  std::string why_;
};

}  // namespace driftless
