// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>

#include "core/parallel.h"
#include "formats/bucket.h"
#include "formats/tensor_patcher.h"
#include "formats/zstd_stream.h"
#include "tools/bench/measure.h"

namespace driftless::bench {
namespace {

// Only reads both arrays: the lower bound for every comparison. The sums are independent, so that
// loads and not additions are the limit.
std::uint64_t read_both(const std::byte* a, const std::byte* b, std::uint64_t size) {
  using Vector = std::uint64_t __attribute__((vector_size(16)));
  constexpr std::size_t kSums = 8;
  Vector sums[kSums] = {};
  for (std::uint64_t at = 0; at + sizeof(sums) <= size; at += sizeof(sums)) {
    for (std::size_t i = 0; i < kSums; ++i) {
      Vector x, y;
      std::memcpy(&x, a + at + i * sizeof(Vector), sizeof(Vector));
      std::memcpy(&y, b + at + i * sizeof(Vector), sizeof(Vector));
      sums[i] += x ^ y;
    }
  }
  Vector all = {};
  for (const Vector& sum : sums) all ^= sum;
  return all[0] ^ all[1];
}

std::span<const std::byte> old_bytes(const TensorPair& pair) {
  return {pair.old_data, pair.units * pair.unit_bytes};
}
std::span<const std::byte> new_bytes(const TensorPair& pair) {
  return {pair.new_data, pair.units * pair.unit_bytes};
}

// Changes kept for the scatter.
struct Changes {
  std::vector<std::vector<std::uint32_t>> offsets{kTensors};
  std::vector<std::vector<std::byte>> values{kTensors};
};

class HostBench {
 public:
  HostBench(const BenchData& data, unsigned threads)
      : data_(data),
        threads_(threads),
        indices_(data.layout, Encoding::kIndices),
        deltas_(data.layout, Encoding::kDeltas),
        payloads_(kTensors) {}

  Status read() {
    constexpr std::uint64_t kPart = std::uint64_t{1} << 20;
    const std::uint64_t size = data_.side_bytes;
    return parallel_for((size + kPart - 1) / kPart, threads_, [&](std::size_t part, unsigned) {
      const std::uint64_t from = part * kPart;
      seen_ ^= read_both(data_.old_side.get() + from, data_.new_side.get() + from,
                         std::min(kPart, size - from));
      return Status{};
    });
  }

  Status diff() {
    changed_ = 0;
    return diff_tensors(kernels_, data_.pairs, {.threads = threads_}, nullptr,
                        [&](const DiffPiece& piece) {
                          changed_ += piece.delta.count();
                          return Status{};
                        });
  }

  Status indices() { return fill(indices_); }
  Status deltas() { return fill(deltas_); }

  Status deltas_zstd() {
    DRIFTLESS_RETURN_IF_ERROR(fill(deltas_));
    const BucketView bucket = deltas_.view();
    for (const auto stream : {bucket.positions, bucket.values}) {
      DRIFTLESS_ASSIGN_OR_RETURN(ZstdWriter writer,
                                 ZstdWriter::create(stream.size(), threads_, sink_into(0)));
      DRIFTLESS_RETURN_IF_ERROR(writer.write(stream));
      DRIFTLESS_RETURN_IF_ERROR(writer.finish());
    }
    return {};
  }

  Status xor_payloads() {
    return parallel_for(kTensors, threads_, [&](std::size_t i, unsigned) {
      const TensorPair& pair = data_.pairs[i];
      return encode_xor(old_bytes(pair), new_bytes(pair), 0, sink_into(i));
    });
  }

  Status overwrite_payloads() {
    return parallel_for(kTensors, threads_,
                        [&](std::size_t i, unsigned) { return overwrite_payload(i); });
  }

  // Writes into the new weights, which have these values already: every repeat has the same memory
  // traffic.
  Status scatter() {
    return parallel_for(kTensors, threads_, [&](std::size_t i, unsigned) {
      kernels_.scatter(const_cast<std::byte*>(data_.pairs[i].new_data), 2,
                       changes_.offsets[i].data(), changes_.offsets[i].size(),
                       changes_.values[i].data());
      return Status{};
    });
  }

  Status digest() {
    const DigestTensorKey key = digest_tensor_key("weights");
    seen_ ^= digest_tensor(kernels_, key, data_.new_bytes(), threads_).lanes[0];
    return {};
  }

  Status collect_changes() {
    return diff_tensors(kernels_, data_.pairs, {.threads = threads_}, nullptr,
                        [&](const DiffPiece& piece) { return collect(piece.delta); });
  }

  [[nodiscard]] std::uint64_t changed() const { return changed_; }

 private:
  Status fill(BucketBuilder& bucket) {
    bucket.clear();
    return diff_tensors(kernels_, data_.pairs, {.threads = threads_}, nullptr,
                        [&](const DiffPiece& piece) { return bucket.add(piece.delta); });
  }

  // Compares three times, to keep memory bounded: to count, for positions, and for values.
  Status overwrite_payload(std::size_t index) {
    const TensorPair bytes{static_cast<std::uint32_t>(index), 1,
                           old_bytes(data_.pairs[index]).size(), data_.pairs[index].old_data,
                           data_.pairs[index].new_data};
    const auto each = [&](const std::function<Status(const DiffPiece&)>& use) {
      return diff_tensors(kernels_, std::span(&bytes, 1), {.threads = 1}, nullptr, use);
    };
    std::uint64_t changed = 0;
    DRIFTLESS_RETURN_IF_ERROR(each([&](const DiffPiece& piece) {
      changed += piece.delta.count();
      return Status{};
    }));
    DRIFTLESS_ASSIGN_OR_RETURN(
        OverwriteEncoder encoder,
        OverwriteEncoder::create(data_.layout[index], changed, 0, sink_into(index)));
    DRIFTLESS_RETURN_IF_ERROR(
        each([&](const DiffPiece& piece) { return encoder.add_positions(piece.delta); }));
    DRIFTLESS_RETURN_IF_ERROR(
        each([&](const DiffPiece& piece) { return encoder.add_values(piece.delta); }));
    return encoder.finish();
  }

  ByteSink sink_into(std::size_t index) {
    std::vector<std::byte>& payload = payloads_[index];
    payload.clear();
    return [&payload](std::span<const std::byte> bytes) -> Status {
      payload.insert(payload.end(), bytes.begin(), bytes.end());
      return {};
    };
  }

  Status collect(const DeltaView& delta) {
    for (const std::uint32_t offset : delta.offsets) {
      changes_.offsets[delta.tensor].push_back(static_cast<std::uint32_t>(delta.origin) + offset);
    }
    const auto values = delta.value_bytes();
    changes_.values[delta.tensor].insert(changes_.values[delta.tensor].end(), values.begin(),
                                         values.end());
    return {};
  }

  const BenchData& data_;
  const unsigned threads_;
  const HostKernels& kernels_ = host_kernels();
  BucketBuilder indices_, deltas_;
  std::vector<std::vector<std::byte>> payloads_;
  Changes changes_;
  std::atomic<std::uint64_t> seen_ = 0;  // keeps the compiler from removing reads
  std::uint64_t changed_ = 0;
};

struct Operation {
  const char* name;
  Status (HostBench::*work)();
};
constexpr Operation kOperations[] = {{"read", &HostBench::read},
                                     {"diff", &HostBench::diff},
                                     {"indices", &HostBench::indices},
                                     {"deltas", &HostBench::deltas},
                                     {"deltas_zstd", &HostBench::deltas_zstd},
                                     {"xor", &HostBench::xor_payloads},
                                     {"overwrite", &HostBench::overwrite_payloads},
                                     {"scatter", &HostBench::scatter},
                                     {"digest", &HostBench::digest}};

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double HostTimes::seconds(std::string_view name) const {
  for (const Timing& timing : timings) {
    if (timing.name == name) return timing.seconds;
  }
  return 0;
}

Result<HostTimes> measure_host(const BenchData& data, unsigned threads, unsigned repeats) {
  HostBench bench(data, threads);
  DRIFTLESS_RETURN_IF_ERROR(bench.collect_changes());
  std::vector<std::vector<double>> seconds(std::size(kOperations));
  // The first round is a warm-up. Each round runs all kinds of work, so that a temporary slowdown
  // of the machine affects both sides of a ratio.
  for (unsigned round = 0; round <= repeats; ++round) {
    for (std::size_t i = 0; i < std::size(kOperations); ++i) {
      const auto start = std::chrono::steady_clock::now();
      DRIFTLESS_RETURN_IF_ERROR((bench.*kOperations[i].work)());
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (round > 0) seconds[i].push_back(taken.count());
    }
  }
  HostTimes times;
  for (std::size_t i = 0; i < std::size(kOperations); ++i) {
    times.timings.push_back({kOperations[i].name, median(seconds[i])});
  }
  times.changed = bench.changed();
  return times;
}

}  // namespace driftless::bench
