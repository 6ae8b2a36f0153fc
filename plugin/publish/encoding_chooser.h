// SPDX-License-Identifier: Apache-2.0
// EncodingChooser: which encoding ends soonest, by what versions so far have shown of the link and
// of the codecs. Arithmetic only: nothing here measures, waits or knows of roads. One thread.
//
// The time of a version is taken as making it + its bytes at the link's rate + what a receiver
// still has to do then. Until a link is known the first encoding stays. Encodings that were not
// used yet are estimated from their bits per change and their speed on one core of a Neoverse-N1,
// on `threads` of them, decoding beside the transfer; what a version shows takes the place of the
// estimate. One that was tried and is slower, or is not allowed any more, is left at once; then the
// choice stays for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "formats/encoding.h"

namespace driftless {

// What a receiver tells of its side; 0: it does not know yet.
struct LinkSpeed {
  std::uint64_t bytes_per_s = 0;  // that came over the road
  // Of the weights, by the encoding that it last decoded: what it had left to do once it had it.
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
    double process_ms = 0;  // all of it, and of that:
    double flush_ms = 0;    // waiting for the road
  };
  void note(const Version& version);

  // For the next version, of those that are `allowed`. `slowest`: of the receivers.
  [[nodiscard]] Encoding choose(const LinkSpeed& slowest,
                                const std::function<bool(Encoding)>& allowed);
  // Why the last choice was another one than that before; else empty.
  [[nodiscard]] const std::string& why() const { return why_; }
  // Seconds that a version like the last one would take; nothing before there is one and a link.
  [[nodiscard]] std::optional<double> predict(Encoding encoding) const;

 private:
  struct Known {
    double bytes_per_change = 0;
    double make_s_per_unit = 0, decode_s_per_unit = 0;
    unsigned made = 0, decoded = 0;  // how often each was measured; 0: it is an estimate
  };
  [[nodiscard]] double rate() const;

  Encoding now_;
  std::map<Encoding, Known> known_;
  std::optional<Version> last_;
  double link_bytes_per_s_ = 0, flush_bytes_per_s_ = 0;  // 0: not known
  unsigned links_ = 0, flushes_ = 0;                     // how often each was measured
  unsigned versions_since_switch_ = 0;
  bool trial_ = false;  // the last switch was to an encoding that had not been used
  std::string why_;
};

}  // namespace driftless
