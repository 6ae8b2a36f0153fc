// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/step_weights.h"

#include "core/parallel.h"
#include "core/version.h"
#include "plugin/checkpoint/journal.h"
#include "plugin/checkpoint/verify.h"
#include "plugin/publish/quantized_source.h"

namespace driftless::cli {

Result<RunSteps> RunSteps::replay(const std::string& directory,
                                  std::optional<std::uint64_t> steps) {
  DRIFTLESS_ASSIGN_OR_RETURN(const RunSteps found, find(directory, steps));
  if (!steps || found.last_ == *steps) return found;
  return error(StatusCode::kNotFound, found.step_path(found.last_ + 1),
               ": is not there, and --steps asks for ", *steps);
}

Result<RunSteps> RunSteps::to_and_fro(const std::string& directory, std::uint64_t steps) {
  DRIFTLESS_ASSIGN_OR_RETURN(RunSteps found, find(directory, steps));
  if (found.distinct_ > 0) found.last_ = steps;
  return found;
}

std::string RunSteps::path(std::uint64_t version) const {
  if (distinct_ == 0) return step_path(0);
  const std::uint64_t place = version % (2 * distinct_);
  return step_path(place <= distinct_ ? place : 2 * distinct_ - place);
}

Result<RunSteps> RunSteps::find(const std::string& directory, std::optional<std::uint64_t> enough) {
  RunSteps steps;
  steps.directory_ = directory;
  FileSystem& fs = posix_file_system();
  DRIFTLESS_RETURN_IF_ERROR(fs.info(steps.step_path(0)).status());
  std::uint64_t& last = steps.last_;
  while ((!enough || last < *enough) && exists(fs, steps.step_path(last + 1))) ++last;
  steps.distinct_ = last;
  return steps;
}

std::string RunSteps::step_path(std::uint64_t step) const {
  return join_path(directory_, concat("step_", version_string(step)));
}

Result<StepWeights> StepWeights::open(RunSteps steps, std::string base,
                                      const QuantizeSettings& settings, unsigned threads) {
  StepWeights weights;
  weights.steps_ = std::move(steps);
  weights.base_ = std::move(base);
  weights.threads_ = threads;
  FileSystem& fs = posix_file_system();
  DRIFTLESS_RETURN_IF_ERROR(check_no_journal(fs, weights.path(0)));
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint first, Checkpoint::open(fs, weights.path(0)));
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint last,
                             Checkpoint::open(fs, weights.steps_.path(weights.last())));
  DRIFTLESS_ASSIGN_OR_RETURN(weights.quantized_as_,
                             needs_quantization(fs, first, last.layout(), settings));
  DRIFTLESS_ASSIGN_OR_RETURN(weights.left_out_, leave_out_copies(fs, first, last.layout()));
  weights.layout_ = first.layout();
  weights.companions_dir_ = first.directory();
  if (!weights.quantized_as_.quantized) return weights;
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint step, weights.open_step(weights.last()));
  DRIFTLESS_RETURN_IF_ERROR(weights.source_of(weights.last(), step, 0, 1).status());
  return weights;
}

std::string StepWeights::quantize_rule() const {
  return quantized_as_.quantized ? std::string(quantized_as_.rule_name()) : std::string();
}

Result<Checkpoint> StepWeights::open_step(std::uint64_t step) const {
  FileSystem& fs = posix_file_system();
  DRIFTLESS_ASSIGN_OR_RETURN(Checkpoint weights, Checkpoint::open(fs, path(step)));
  DRIFTLESS_RETURN_IF_ERROR(leave_out_copies(fs, weights, layout_).status());
  return weights;
}

Result<std::unique_ptr<WeightSource>> StepWeights::source_of(std::uint64_t step,
                                                             const Checkpoint& weights,
                                                             unsigned stage,
                                                             unsigned stages) const {
  if (!quantized_as_.quantized || step == 0) {
    return std::unique_ptr<WeightSource>(
        std::make_unique<CheckpointSource>(weights, stage, stages));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(QuantizedSource source,
                             QuantizedSource::make(weights, layout_, companions_dir_, quantized_as_,
                                                   threads_, stage, stages));
  return std::unique_ptr<WeightSource>(std::make_unique<QuantizedSource>(std::move(source)));
}

Result<Digest> StepWeights::digest(std::uint64_t step) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint weights, open_step(step));
  if (!quantized_as_.quantized) return digest_checkpoint(weights, threads_);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                             source_of(step, weights, 0, 1));
  return digest_source(*source, threads_);
}

Status StepWeights::bring_in(const Checkpoint& weights, const WeightSource& source) const {
  constexpr std::uint64_t kPage = 4096;
  const std::span<const TensorSpec> offered = source.tensors();
  return parallel_for(offered.size(), threads_, [&](std::size_t i, unsigned) {
    const std::optional<std::uint32_t> at = weights.layout().find(offered[i].name);
    if (!at) return Status();
    const TensorView tensor = weights.tensor(*at);
    for (std::uint64_t byte = 0; byte < tensor.spec->size_bytes; byte += kPage) {
      static_cast<void>(*static_cast<const volatile std::byte*>(tensor.data + byte));
    }
    return Status();
  });
}

}  // namespace driftless::cli
