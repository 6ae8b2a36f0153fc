// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/measure.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <functional>

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "core/file_system.h"
#include "core/parallel.h"
#include "core/stopwatch.h"
#include "kernels/quantize_parts.h"
#include "plugin/publish/batch_memory.h"
#include "plugin/publish/publisher.h"
#include "plugin/publish/quantized_source.h"
#include "plugin/receive/receiver.h"
#include "tools/bench/measure.h"
#include "tools/temporary_directory.h"

namespace driftless {
namespace {

constexpr std::string_view kSharedMemory = "plan";
// Removes the shared memory that the road keeps for later receivers.
struct SharedMemoryRemoval {
  ~SharedMemoryRemoval() {
    std::error_code ignored;
    std::filesystem::remove_all(
        concat(HostShmOptions().dir, "/driftless-", ::geteuid(), "-", kSharedMemory), ignored);
  }
};

using namespace std::chrono_literals;
using bench::BenchData;
using bench::median;

constexpr unsigned kFirstVersions = 2;  // excluded, because they touch new memory
constexpr auto kDeadline = 120s;        // of one step

// One of the two states of the data, in whole tensors.
class Side final : public WeightSource {
 public:
  Side(const BenchData& data, bool newer) {
    for (const TensorSpec& spec : data.layout.tensors()) specs_.push_back(spec);
    for (const TensorPair& pair : data.pairs) {
      offered_.push_back({pair.tensor, newer ? pair.new_data : pair.old_data});
    }
  }
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return specs_; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    return use(offered_);
  }

 private:
  std::vector<TensorSpec> specs_;
  std::vector<OfferedTensor> offered_;
};

// The new state as the tensors of a base in FP8 blocks, quantized in visit() as a trainer does it.
class QuantizedSide final : public WeightSource {
 public:
  static Result<QuantizedSide> make(const BenchData& data, unsigned threads) {
    QuantizedSide side(threads);
    for (const TensorPair& pair : data.pairs) {
      const std::uint64_t rows = pair.units / kColumns;
      const std::string name = concat(data.layout[pair.tensor].name, ".weight");
      DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec codes,
                                 TensorSpec::make(name, DType::kF8E4M3, {rows, kColumns}));
      DRIFTLESS_ASSIGN_OR_RETURN(
          TensorSpec scales, TensorSpec::make(concat(name, kScaleSuffix), DType::kF32,
                                              {quantize_blocks(rows), quantize_blocks(kColumns)}));
      side.specs_.push_back(std::move(codes));
      side.specs_.push_back(std::move(scales));
      side.weights_.push_back(pair.new_data);
    }
    return side;
  }
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return specs_; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    constexpr std::uint64_t kBatch = QuantizedSource::kBatchBytes;
    BatchMemory memory(kBatch + BatchMemory::kSlack);
    std::vector<OfferedTensor> batch;
    std::vector<PartToQuantize> matrices;
    std::deque<std::vector<std::uint16_t>> largest;
    std::vector<std::byte*> scales_at;
    std::uint64_t bytes = 0;
    const auto pass_on = [&]() -> Status {
      DRIFTLESS_RETURN_IF_ERROR(
          quantize_parts(quantizer(), QuantizeRule::kLinear, matrices, threads_));
      for (std::size_t i = 0; i < matrices.size(); ++i) {
        write_fp8_scales(QuantizeRule::kLinear, largest[i], scales_at[i]);
      }
      DRIFTLESS_RETURN_IF_ERROR(use(batch));
      memory.reset();
      matrices.clear();
      largest.clear();
      scales_at.clear();
      batch.clear();
      bytes = 0;
      return {};
    };
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const TensorSpec &codes = specs_[2 * i], &scales = specs_[2 * i + 1];
      if (bytes + codes.size_bytes + scales.size_bytes > kBatch && !batch.empty()) {
        DRIFTLESS_RETURN_IF_ERROR(pass_on());
      }
      bytes += codes.size_bytes + scales.size_bytes;
      std::byte* const codes_at = memory.take(codes.size_bytes);
      scales_at.push_back(memory.take(scales.size_bytes));
      largest.emplace_back(scales.size_bytes / sizeof(float));
      matrices.push_back(
          {{codes.shape[0], kColumns, kColumns}, weights_[i], largest.back().data(), codes_at});
      batch.push_back({2 * i, codes_at});
      batch.push_back({2 * i + 1, scales_at.back()});
    }
    return pass_on();
  }

 private:
  static constexpr std::uint64_t kColumns = 2048;
  explicit QuantizedSide(unsigned threads) : threads_(threads) {}

  unsigned threads_;
  std::vector<TensorSpec> specs_;
  std::vector<const std::byte*> weights_;
};

struct Roads {
  std::unique_ptr<SendRoad> send;
  std::unique_ptr<ReceiveRoad> receive;
};

Result<Roads> open_roads(bool files, const std::string& directory, std::uint64_t side_bytes) {
  Roads roads;
  if (files) {
    SharedFsOptions options;
    options.dir = join_path(directory, "road");
    DRIFTLESS_ASSIGN_OR_RETURN(roads.send,
                               make_shared_fs_sender(posix_file_system(), options, 0, 1));
    DRIFTLESS_ASSIGN_OR_RETURN(roads.receive,
                               make_shared_fs_receiver(posix_file_system(), options));
    return roads;
  }
  HostShmOptions options;
  options.name = kSharedMemory;  // a fixed name: the next run removes the segments of a killed one
  options.size_bytes = 4 * side_bytes + (std::uint64_t{64} << 20);
  options.versions = 2;
  DRIFTLESS_ASSIGN_OR_RETURN(roads.send, make_host_shm_sender(options));
  DRIFTLESS_ASSIGN_OR_RETURN(roads.receive, make_host_shm_receiver(options));
  return roads;
}

// Median seconds of each phase of a version. `receive`: fetch and stage.
struct Times {
  double make = 0, fetch = 0, stage = 0, receive = 0, apply = 0;
  double wire_bytes = 0, changes = 0;
};

class HostMeasurement {
 public:
  HostMeasurement(const BenchData& data, const MeasureOptions& options)
      : options_(options), older_(data, false), newer_(data, true), side_bytes_(data.side_bytes) {}

  // `changing`: 1 % changes in every version, otherwise nothing.
  Result<Times> run(Encoding encoding, bool changing, ProofRule proof) {
    return run(encoding, older_, changing ? newer_ : older_, proof);
  }
  // Publishes `even` and `odd` in turn.
  Result<Times> run(Encoding encoding, WeightSource& even, WeightSource& odd, ProofRule proof) {
    DRIFTLESS_ASSIGN_OR_RETURN(const TemporaryDirectory directory, TemporaryDirectory::create());
    const bool interchange = encoding == Encoding::kXor || encoding == Encoding::kOverwrite;
    DRIFTLESS_ASSIGN_OR_RETURN(const Roads roads,
                               open_roads(interchange, directory.path(), side_bytes_));
    PublisherOptions publishing;
    publishing.threads = options_.threads;
    publishing.first_anchor = true;  // the target starts from it
    publishing.keep_versions = 2;
    publishing.mode = encoding == Encoding::kFull ? UpdateMode::kFull : UpdateMode::kDelta;
    publishing.layout = interchange ? DirectoryLayout::kHfDelta : DirectoryLayout::kFrames;
    if (encoding != Encoding::kFull) publishing.encoding = encoding;
    SoloGroup group;
    DRIFTLESS_ASSIGN_OR_RETURN(const auto publisher,
                               Publisher::open(publishing, group, *roads.send, nullptr, even));
    DRIFTLESS_ASSIGN_OR_RETURN(
        const auto target, make_owned_target(posix_file_system(), std::nullopt, options_.threads));
    ReceiverOptions receiving;
    receiving.threads = options_.threads;
    receiving.proof = proof;
    DRIFTLESS_ASSIGN_OR_RETURN(
        const auto receiver,
        Receiver::open(receiving, *roads.receive, *target, Deadline::after(kDeadline)));
    DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport anchor, take(*receiver));
    static_cast<void>(anchor);
    return follow(*publisher, *receiver, even, odd);
  }

 private:
  static Result<UpdateReport> take(Receiver& receiver) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool staged, receiver.stage(Deadline::after(kDeadline)));
    if (staged) return receiver.commit();
    return error(StatusCode::kDeadlineExceeded, "no version to measure came over the road");
  }

  Result<Times> follow(Publisher& publisher, Receiver& receiver, WeightSource& even,
                       WeightSource& odd) {
    std::vector<double> make, fetch, stage, receive, apply;
    Times times;
    for (unsigned i = 0; i < kFirstVersions + std::max(1U, options_.repeats); ++i) {
      DRIFTLESS_ASSIGN_OR_RETURN(const PublishReport made,
                                 publisher.publish(i % 2 == 0 ? odd : even));
      DRIFTLESS_ASSIGN_OR_RETURN(const UpdateReport taken, take(receiver));
      if (i < kFirstVersions) continue;
      make.push_back(made.process_ms / 1e3);
      fetch.push_back(taken.fetch_ms / 1e3);
      stage.push_back(taken.stage_ms / 1e3);
      receive.push_back((taken.fetch_ms + taken.stage_ms) / 1e3);
      apply.push_back(taken.apply_ms / 1e3);
      times.wire_bytes = static_cast<double>(taken.wire_bytes);
      times.changes = static_cast<double>(taken.changed_units);
    }
    times.make = median(make);
    times.fetch = median(fetch);
    times.stage = median(stage);
    times.receive = median(receive);
    times.apply = median(apply);
    return times;
  }

  const MeasureOptions& options_;
  Side older_, newer_;
  const std::uint64_t side_bytes_;
};

}  // namespace

Result<std::vector<Figure>> measure_figures(const MeasureOptions& options) {
  const SharedMemoryRemoval removal;
  const unsigned threads = options.threads == 0 ? default_threads() : options.threads;
  DRIFTLESS_ASSIGN_OR_RETURN(const BenchData data,
                             bench::make_bench_data(options.side_bytes, threads));
  HostMeasurement host(data, options);
  constexpr ProofRule kSwept{}, kUnswept{.every = 0};
  std::vector<Figure> figures;
  const auto add = [&](std::string name, const char* unit, double value) {
    figures.push_back({std::move(name), unit, std::max(0.0, value), "measured"});
  };
  const auto weights = static_cast<double>(data.side_bytes) / 2;
  DRIFTLESS_ASSIGN_OR_RETURN(const Times swept, host.run(Encoding::kDeltas, false, kSwept));
  DRIFTLESS_ASSIGN_OR_RETURN(const Times idle, host.run(Encoding::kDeltas, false, kUnswept));
  add("compare.host", "B/s", 2 * weights / idle.make);
  DRIFTLESS_ASSIGN_OR_RETURN(QuantizedSide quantized, QuantizedSide::make(data, threads));
  DRIFTLESS_ASSIGN_OR_RETURN(const Times codes,
                             host.run(Encoding::kDeltas, quantized, quantized, kUnswept));
  add("quantize", "s", codes.make / weights);
  // The sweep begins with the fetch, on the same cores.
  add("sweep", "s", std::max(1e-12, (swept.receive - idle.receive) / weights));
  add("apply.fixed", "s", idle.apply);
  for (const EncodingInfo& encoding : all_encodings()) {
    const bool full = encoding.encoding == Encoding::kFull;
    DRIFTLESS_ASSIGN_OR_RETURN(const Times times, host.run(encoding.encoding, true, kUnswept));
    const double units = per_change(encoding.encoding) ? times.changes : weights;
    add(concat("encode.", encoding.name), "s", (times.make - idle.make) / units);
    add(concat("decode.", encoding.name), "s", (times.stage - idle.stage) / units);
    if (encoding.encoding == Encoding::kDeltas) {
      add("apply.change", "s", std::max(1e-12, (times.apply - idle.apply) / times.changes));
    }
    if (!full) continue;
    add("apply.full", "s", std::max(1e-12, (times.apply - idle.apply) / weights));
    add("hash", "B/s", times.wire_bytes / times.fetch);
  }
  return figures;
}

}  // namespace driftless
