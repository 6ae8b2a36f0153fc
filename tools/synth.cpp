// SPDX-License-Identifier: Apache-2.0
#include "tools/synth.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/parallel.h"
#include "core/version.h"
#include "plugin/checkpoint/checkpoint_writer.h"
#include "tools/qwen3_shape.h"
#include "tools/synth_weights.h"

namespace driftless {
namespace {

// The number of elements whose masters are held at a time: through all steps they stay in a core's
// first-level cache.
constexpr std::size_t kBlockElements = 4096;
// Limits the memory of one piece of work over all its steps.
constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;

// Elements [first, first + count) of a tensor: one piece of work.
struct Piece {
  std::size_t tensor = 0;
  std::uint64_t first = 0;
  std::size_t count = 0;
};

// The results of a piece of work, for the writers.
struct Produced {
  std::vector<std::vector<std::uint16_t>> steps;  // bf16 of each step
  std::vector<std::uint64_t> changed;  // by step, compared with the step before; [0] stays 0
};

SynthKind kind_of(const TensorSpec& spec) {
  if (spec.shape.size() == 1) return SynthKind::kNorm;
  return spec.name == "model.embed_tokens.weight" ? SynthKind::kEmbedding : SynthKind::kMatrix;
}

std::vector<Piece> cut(std::span<const TensorSpec> tensors, unsigned steps) {
  const std::uint64_t fitting = kPieceBytes / (sizeof(std::uint16_t) * (steps + 1));
  const std::uint64_t size =
      std::max(fitting / kBlockElements * kBlockElements, std::uint64_t{kBlockElements});
  std::vector<Piece> pieces;
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const std::uint64_t elements = tensors[tensor].units();
    for (std::uint64_t first = 0; first < elements; first += size) {
      pieces.push_back({tensor, first, std::min(size, elements - first)});
    }
  }
  return pieces;
}

void produce(const SynthWeights& weights, const SynthTensor& tensor, const Piece& piece,
             Produced& out) {
  std::array<float, kBlockElements> storage;
  for (auto& step : out.steps) step.resize(piece.count);
  std::fill(out.changed.begin(), out.changed.end(), 0);
  for (std::size_t begin = 0; begin < piece.count; begin += kBlockElements) {
    const std::size_t size = std::min(kBlockElements, piece.count - begin);
    const std::span<float> masters(storage.data(), size);
    SynthWeights::initialize(tensor, piece.first + begin, masters);
    round_to_bf16(masters, std::span(out.steps[0]).subspan(begin, size));
    for (unsigned step = 1; step < out.steps.size(); ++step) {
      const auto before = std::span(out.steps[step - 1]).subspan(begin, size);
      const auto after = std::span(out.steps[step]).subspan(begin, size);
      weights.step(tensor, step, piece.first + begin, masters);
      round_to_bf16(masters, after);
      out.changed[step] += count_different(before, after);
    }
  }
}

// The directories of one run: hidden while they are written, renamed when complete, removed after a
// failure.
class StepDirectories {
 public:
  StepDirectories(FileSystem& fs, std::string out, unsigned steps)
      : fs_(fs), out_(std::move(out)), count_(steps + 1) {}
  StepDirectories(const StepDirectories&) = delete;
  StepDirectories& operator=(const StepDirectories&) = delete;
  ~StepDirectories() {
    if (!kept_ && claimed_) clean_up();
  }

  Status claim() {
    const Result<FileInfo> info = fs_.info(out_);
    if (!info.ok() && info.status().code() != StatusCode::kNotFound) return info.status();
    if (info.ok()) {
      DRIFTLESS_RETURN_IF_ERROR(check_empty(info->kind));
    } else {
      DRIFTLESS_RETURN_IF_ERROR(make_directories(fs_, out_));
      made_out_ = true;
    }
    claimed_ = true;
    for (unsigned step = 0; step < count_; ++step) {
      DRIFTLESS_RETURN_IF_ERROR(fs_.make_directory(hidden(step)));
    }
    return {};
  }

  Status publish() {
    for (unsigned step = 0; step < count_; ++step) {
      DRIFTLESS_RETURN_IF_ERROR(fs_.rename_new(hidden(step), named(step)));
    }
    DRIFTLESS_RETURN_IF_ERROR(fs_.sync_directory(out_));
    kept_ = true;
    return {};
  }

  [[nodiscard]] std::string hidden(unsigned step) const {
    return join_path(out_, concat(".step_", version_string(step), ".tmp"));
  }
  [[nodiscard]] std::string named(unsigned step) const {
    return join_path(out_, concat("step_", version_string(step)));
  }

 private:
  Status check_empty(FileKind kind) {
    if (kind != FileKind::kDirectory) {
      return error(StatusCode::kAlreadyExists, out_, ": exists and is not a directory");
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_.list(out_));
    if (names.empty()) return {};
    return error(StatusCode::kAlreadyExists, out_, ": not empty (it holds '", names.front(),
                 "'); choose another directory, or remove it");
  }

  // Ignores failures of its own: the caller reports the one that led here.
  void clean_up() {
    for (unsigned step = 0; step < count_; ++step) {
      static_cast<void>(remove_tree(fs_, hidden(step)).ok());
      static_cast<void>(remove_tree(fs_, named(step)).ok());
    }
    if (made_out_) static_cast<void>(fs_.remove_directory(out_).ok());
  }

  FileSystem& fs_;
  std::string out_;
  unsigned count_;
  bool claimed_ = false;
  bool made_out_ = false;
  bool kept_ = false;
};

Status check_options(const SynthOptions& options) {
  if (options.out.empty()) return error(StatusCode::kInvalidArgument, "no output directory");
  if (options.steps > kMaxSynthSteps) {
    return error(StatusCode::kInvalidArgument, options.steps, " steps: at most ", kMaxSynthSteps,
                 " are possible");
  }
  const bool sensible_lr = options.lr >= 0 && options.lr <= 1;  // false for NaN, too
  if (!sensible_lr) {
    return error(StatusCode::kInvalidArgument, "a learning rate of ", options.lr,
                 ": expected between 0 and 1");
  }
  if (options.shard_bytes == 0) return error(StatusCode::kInvalidArgument, "shards of 0 bytes");
  return {};
}

// Passes all pieces through the writers, and counts the changes of each step.
Status write_steps(const SynthOptions& options, const ShardPlan& plan,
                   std::vector<CheckpointWriter>& writers, std::vector<std::uint64_t>& changed) {
  const SynthWeights weights(options.seed, options.lr);
  std::vector<SynthTensor> tensors;
  tensors.reserve(plan.tensors.size());
  for (const TensorSpec& spec : plan.tensors) {
    tensors.push_back(weights.tensor(spec.name, kind_of(spec), spec.shape.back()));
  }
  const std::vector<Piece> pieces = cut(plan.tensors, options.steps);
  const unsigned threads = options.threads == 0 ? default_threads() : options.threads;
  const std::size_t slots = std::size_t{threads} + 1;
  std::vector<Produced> produced(slots);
  for (Produced& slot : produced) {
    slot.steps.resize(writers.size());
    slot.changed.resize(writers.size());
  }
  const std::uint64_t total = plan.total_bytes() * writers.size();
  std::uint64_t done = 0;
  return ordered_pipeline(
      pieces.size(), threads, slots,
      [&](std::size_t task, std::size_t slot) {
        produce(weights, tensors[pieces[task].tensor], pieces[task], produced[slot]);
        return Status();
      },
      [&](std::size_t, std::size_t slot) -> Status {
        for (std::size_t step = 0; step < writers.size(); ++step) {
          const auto bytes = std::as_bytes(std::span(produced[slot].steps[step]));
          DRIFTLESS_RETURN_IF_ERROR(writers[step].append(bytes));
          changed[step] += produced[slot].changed[step];
          done += bytes.size();
        }
        if (options.progress) options.progress(done, total);
        return {};
      });
}

}  // namespace

Result<SynthReport> synthesize(FileSystem& fs, const SynthOptions& options) {
  DRIFTLESS_RETURN_IF_ERROR(check_options(options));
  DRIFTLESS_ASSIGN_OR_RETURN(const Qwen3Shape shape, qwen3_shape(options.params));
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<TensorSpec> tensors, qwen3_tensors(shape));
  const ShardPlan plan = ShardPlan::make(std::move(tensors), options.shard_bytes);

  StepDirectories directories(fs, options.out, options.steps);
  DRIFTLESS_RETURN_IF_ERROR(directories.claim());
  std::vector<CheckpointWriter> writers;
  for (unsigned step = 0; step <= options.steps; ++step) {
    writers.emplace_back(fs, directories.hidden(step), plan);
  }
  std::vector<std::uint64_t> changed(writers.size());
  DRIFTLESS_RETURN_IF_ERROR(write_steps(options, plan, writers, changed));

  SynthReport report;
  report.params = shape.params();
  report.bytes_per_step = plan.total_bytes();
  for (unsigned step = 0; step <= options.steps; ++step) {
    DRIFTLESS_RETURN_IF_ERROR(write_text(fs, join_path(directories.hidden(step), "config.json"),
                                         qwen3_config_json(shape)));
    DRIFTLESS_RETURN_IF_ERROR(writers[step].finish());
    report.directories.push_back(directories.named(step));
    if (step > 0) {
      report.density.push_back(static_cast<double>(changed[step]) /
                               static_cast<double>(report.params));
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(directories.publish());
  return report;
}

}  // namespace driftless
