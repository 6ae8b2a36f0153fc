// SPDX-License-Identifier: Apache-2.0
// Full frames: whole stretches of tensors instead of a bucket.
#include <limits>

#include "formats/frame.h"
#include "formats/frame_parts.h"

namespace driftless {
namespace {

// Checks a stretch of a tensor or block, given by an entry and its first unit.
Status check_run(const WeightLayout& layout, DType dtype, const BucketEntry& run,
                 std::uint64_t first_unit, StatusCode code) {
  if (run.tensor >= layout.size() || (run.block != nullptr && run.block->tensor != run.tensor)) {
    return error(code, "full frame: tensor ", run.tensor, " is not below ", layout.size());
  }
  const TensorSpec& tensor = layout[run.tensor];
  if (tensor.dtype != dtype) {
    return error(code, "full frame: tensor '", tensor.name, "' is ", info(tensor.dtype).name,
                 ", the frame holds ", info(dtype).name);
  }
  const std::uint64_t units = run.block != nullptr ? run.block->place.units : tensor.units();
  if (run.count() == 0 || first_unit >= units || run.count() > units - first_unit) {
    return error(code, "full frame: tensor '", tensor.name, "': ", run.count(), " units from ",
                 first_unit, " on, but ",
                 run.block != nullptr ? concat("block ", run.block->box.to_string()) : "it",
                 " has ", units);
  }
  return {};
}

}  // namespace

Status check_runs(const WeightLayout& layout, DType dtype, std::span<const BucketEntry> runs,
                  std::span<const FrameBlock> blocks, StatusCode code) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BucketEntry& run = runs[i];
    const std::uint64_t first = blocks[i].first_unit;
    DRIFTLESS_RETURN_IF_ERROR(check_run(layout, dtype, run, first, code));
    if (run.value_end > kMaxStreamBytes / unit_bytes(dtype)) {
      return error(code, "a full frame of more than 2^60 bytes");
    }
    if (i == 0 || run.tensor > runs[i - 1].tensor) continue;
    const std::uint64_t end = blocks[i - 1].first_unit + runs[i - 1].count();
    const bool same = run.tensor == runs[i - 1].tensor;
    if (same && (run.block != runs[i - 1].block || first > end)) continue;
    return error(code, "full frame: tensor '", layout[run.tensor].name, "': a run from unit ",
                 first, " on comes after one of tensor '", layout[runs[i - 1].tensor].name,
                 "' up to unit ", end, "; runs must ascend, and those that adjoin must be one");
  }
  const Status apart = check_apart(layout, runs, true);
  return apart.ok() ? apart : error(code, "full frame: ", apart.message());
}

Status encode_full_frame(const FrameContext& context, const WeightLayout& layout, DType dtype,
                         std::span<const DenseRun> runs, std::vector<std::byte>& out) {
  if (context.encoding != Encoding::kFull) {
    return error(StatusCode::kInvalidArgument, "runs cannot go into a frame of ",
                 info(context.encoding).name);
  }
  if (runs.size() > std::numeric_limits<std::uint32_t>::max()) {
    return error(StatusCode::kInvalidArgument, "a full frame of 2^32 runs or more");
  }
  const unsigned unit = unit_bytes(dtype);
  std::vector<BucketEntry> entries;
  std::vector<FrameBlock> blocks;
  std::vector<std::span<const std::byte>> values;
  std::uint64_t units = 0;
  for (const DenseRun& run : runs) {
    if (run.bytes.size() % unit != 0) {
      return error(StatusCode::kInvalidArgument, "full frame: tensor ", run.tensor, ": a run of ",
                   run.bytes.size(), " bytes is not whole units of ", unit);
    }
    const std::uint64_t begin = units;
    units += run.bytes.size() / unit;
    entries.push_back({run.tensor, 0, 0, 0, begin, units, run.block});
    blocks.push_back({run.first_unit, {}, {}, {}, 0});
    values.push_back(run.bytes);
  }
  DRIFTLESS_RETURN_IF_ERROR(
      check_runs(layout, dtype, entries, blocks, StatusCode::kInvalidArgument));
  return append_frame(context, {dtype, entries, std::move(blocks), {}, values, {}}, out);
}

std::vector<DenseRun> Frame::runs() const {
  std::vector<DenseRun> runs;
  if (!dense()) return runs;
  const unsigned unit = unit_bytes(info().dtype);
  runs.reserve(head_.entries.size());
  for (std::size_t i = 0; i < head_.entries.size(); ++i) {
    const BucketEntry& entry = head_.entries[i];
    runs.push_back({entry.tensor, head_.blocks[i].first_unit,
                    values_.subspan(entry.value_begin * unit, entry.count() * unit), entry.block});
  }
  return runs;
}

}  // namespace driftless
