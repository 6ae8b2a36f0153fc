// SPDX-License-Identifier: Apache-2.0
#include "collectives/range_fetcher.h"

#include <numeric>

#include "collectives/part_ranges.h"
#include "core/memory_budget.h"
#include "core/parallel.h"

namespace driftless {
namespace {

// Limit for one call, which bounds how far a call can exceed its deadline.
constexpr std::size_t kMostStretches = 1024;

// The bytes of one call of the road: stretches of a part, and the wanted ranges within them.
struct Batch {
  struct Taken {
    std::size_t range = 0;  // index in the part's ranges
    std::size_t stretch = 0;
  };
  std::size_t part = 0;
  std::vector<ByteRange> stretches;
  std::vector<Taken> ranges;
  std::uint64_t bytes = 0;
};

std::uint64_t end_of(const ByteRange& range) { return range.offset + range.size_bytes; }

class Planner {
 public:
  // `threads` that process ranges share the memory. `batched`: the road batches ranges.
  Planner(std::span<const WantedPart> wanted, const RangeFetchOptions& options, unsigned threads,
          bool batched)
      : wanted_(wanted),
        gap_bytes_(batched ? std::min(options.gap_bytes, kBatchedGapBytes) : options.gap_bytes),
        batch_bytes_(std::max<std::uint64_t>(options.memory_bytes / threads, 1)) {
    if (options.takers <= options.workers) return;
    // Batches are small enough that every thread gets some, and large enough that the number of
    // requests does not matter.
    constexpr std::uint64_t kLeastBatchBytes = std::uint64_t{1} << 20;
    std::uint64_t all = 0;
    for (const WantedPart& part : wanted) {
      for (const ByteRange& range : part.ranges) all += range.size_bytes;
    }
    const std::uint64_t share = std::max(kLeastBatchBytes, all / threads / 4);
    batch_bytes_ = std::min(batch_bytes_, share);
  }

  [[nodiscard]] std::vector<Batch> plan() {
    for (std::size_t part = 0; part < wanted_.size(); ++part) plan_part(part);
    return std::move(batches_);
  }

 private:
  void plan_part(std::size_t part) {
    const std::vector<ByteRange>& ranges = wanted_[part].ranges;
    std::vector<std::size_t> order(ranges.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return std::pair(ranges[i], i); });
    bool fresh = true;  // the last batch has nothing of this part
    for (const std::size_t i : order) {
      if (fresh || !extend(ranges[i])) begin_stretch(part, ranges[i], fresh);
      fresh = false;
      Batch& batch = batches_.back();
      batch.ranges.push_back({i, batch.stretches.size() - 1});
    }
  }

  // Adds the range to the last stretch if it lies within it, or is near enough and the batch stays
  // small.
  [[nodiscard]] bool extend(const ByteRange& range) {
    Batch& batch = batches_.back();
    ByteRange& last = batch.stretches.back();
    const std::uint64_t end = end_of(last);
    if (end_of(range) <= end) return true;
    const std::uint64_t more = end_of(range) - end;
    const bool near = range.offset <= end || range.offset - end <= gap_bytes_;
    if (!near || more > batch_bytes_ || batch.bytes > batch_bytes_ - more) return false;
    last.size_bytes += more;
    batch.bytes += more;
    return true;
  }

  void begin_stretch(std::size_t part, const ByteRange& range, bool fresh) {
    const bool fits = !fresh && batches_.back().stretches.size() < kMostStretches &&
                      batches_.back().bytes <= batch_bytes_ &&
                      range.size_bytes <= batch_bytes_ - batches_.back().bytes;
    if (!fits) batches_.push_back({part, {}, {}, 0});
    batches_.back().stretches.push_back(range);
    batches_.back().bytes += range.size_bytes;
  }

  std::span<const WantedPart> wanted_;
  std::uint64_t gap_bytes_, batch_bytes_;
  std::vector<Batch> batches_;
};

class Fetcher {
 public:
  Fetcher(ReceiveRoad& road, const PublicationId& id, std::span<const WantedPart> wanted,
          const RangeFetchOptions& options, const TakeRange& take, const Deadline& deadline)
      : road_(road),
        id_(id),
        wanted_(wanted),
        options_(options),
        take_(take),
        deadline_(deadline),
        batches_(Planner(wanted, options, takers(), road.batches_ranges()).plan()) {}

  [[nodiscard]] const std::vector<Batch>& batches() const { return batches_; }

  [[nodiscard]] Status run() { return road_.fetches_at_once() ? run_at_once() : run_in_rounds(); }

 private:
  [[nodiscard]] Status run_at_once() {
    MemoryBudget budget(options_.memory_bytes);
    // Limits the number of threads that fetch at a time; a thread that holds a slot does not wait
    // for memory.
    MemoryBudget fetching(std::max(1U, options_.workers));
    return parallel_for(batches_.size(), takers(), [&](std::size_t i, unsigned) -> Status {
      const MemoryBudget::Hold hold(budget, batches_[i].bytes);
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<MappedFile> bytes,
                                 fetch_in_turn(batches_[i], fetching));
      return take_all(batches_[i], bytes);
    });
  }

  // The caller's thread fetches as much as memory allows; then all threads process it.
  [[nodiscard]] Status run_in_rounds() {
    for (std::size_t begin = 0; begin < batches_.size();) {
      std::vector<std::vector<MappedFile>> round;
      std::uint64_t bytes = 0;
      for (std::size_t i = begin; i < batches_.size(); ++i) {
        const std::uint64_t room = options_.memory_bytes - std::min(bytes, options_.memory_bytes);
        if (i > begin && batches_[i].bytes > room) break;
        DRIFTLESS_ASSIGN_OR_RETURN(round.emplace_back(), fetch(batches_[i]));
        bytes += batches_[i].bytes;
      }
      DRIFTLESS_RETURN_IF_ERROR(
          parallel_for(round.size(), takers(), [&](std::size_t i, unsigned) -> Status {
            const std::vector<MappedFile> mine = std::move(round[i]);  // freed once processed
            return take_all(batches_[begin + i], mine);
          }));
      begin += round.size();
    }
    return {};
  }

  [[nodiscard]] unsigned takers() const {
    return std::max({1U, options_.workers, options_.takers});
  }

  [[nodiscard]] Result<std::vector<MappedFile>> fetch_in_turn(const Batch& batch,
                                                              MemoryBudget& fetching) {
    const MemoryBudget::Hold turn(fetching, 1);
    return fetch(batch);
  }

  [[nodiscard]] Result<std::vector<MappedFile>> fetch(const Batch& batch) {
    const PartReceipt& part = wanted_[batch.part].part;
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<MappedFile> bytes,
                               road_.fetch_ranges(id_, part, batch.stretches, deadline_));
    for (std::size_t i = 0; i < batch.stretches.size(); ++i) {
      const std::uint64_t found = i < bytes.size() ? bytes[i].bytes().size() : 0;
      if (found == batch.stretches[i].size_bytes) continue;
      return error(StatusCode::kCorrupt, "part '", part.name, "' of ", to_string(id_), ": ", found,
                   " bytes came from offset ", batch.stretches[i].offset, ", ",
                   batch.stretches[i].size_bytes, " were asked for");
    }
    return bytes;
  }

  [[nodiscard]] Status take_all(const Batch& batch, const std::vector<MappedFile>& bytes) const {
    for (const Batch::Taken& taken : batch.ranges) {
      const ByteRange& range = wanted_[batch.part].ranges[taken.range];
      const std::uint64_t at = range.offset - batch.stretches[taken.stretch].offset;
      DRIFTLESS_RETURN_IF_ERROR(
          take_(batch.part, taken.range, bytes[taken.stretch].slice(at, range.size_bytes)));
    }
    return {};
  }

  ReceiveRoad& road_;
  const PublicationId id_;
  const std::span<const WantedPart> wanted_;
  const RangeFetchOptions options_;
  const TakeRange& take_;
  const Deadline deadline_;
  const std::vector<Batch> batches_;
};

}  // namespace

std::vector<ByteRange> union_of(std::vector<ByteRange> ranges) {
  std::ranges::sort(ranges);
  std::vector<ByteRange> merged;
  for (const ByteRange& range : ranges) {
    if (range.size_bytes == 0) continue;
    if (merged.empty() || range.offset > end_of(merged.back())) {
      merged.push_back(range);
    } else if (end_of(range) > end_of(merged.back())) {
      merged.back().size_bytes = end_of(range) - merged.back().offset;
    }
  }
  return merged;
}

Result<RangeFetchReport> fetch_wanted(ReceiveRoad& road, const PublicationId& id,
                                      std::span<const WantedPart> wanted,
                                      const RangeFetchOptions& options, const TakeRange& take,
                                      const Deadline& deadline) {
  RangeFetchReport report;
  for (const WantedPart& part : wanted) {
    DRIFTLESS_RETURN_IF_ERROR(check_ranges("fetching", id, part.part, part.ranges));
    for (const ByteRange& range : union_of(part.ranges)) report.needed_bytes += range.size_bytes;
  }
  Fetcher fetcher(road, id, wanted, options, take, deadline);
  DRIFTLESS_RETURN_IF_ERROR(fetcher.run());
  for (const Batch& batch : fetcher.batches()) {
    report.fetched_bytes += batch.bytes;
    report.requests += batch.stretches.size();
  }
  return report;
}

}  // namespace driftless
