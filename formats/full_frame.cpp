// SPDX-License-Identifier: Apache-2.0
// Full frames: whole stretches of tensors instead of a bucket.
#include <cstring>
#include <limits>

#include "formats/frame.h"
#include "formats/frame_parts.h"

namespace driftless {
namespace {

// A stretch of a tensor, as an entry and its first unit say.
Status check_run(const WeightLayout& layout, DType dtype, const BucketEntry& run,
                 std::uint64_t first_unit, StatusCode code) {
  if (run.tensor >= layout.size()) {
    return error(code, "full frame: tensor ", run.tensor, " of a layout of ", layout.size());
  }
  const TensorSpec& tensor = layout[run.tensor];
  if (tensor.dtype != dtype) {
    return error(code, "full frame: tensor '", tensor.name, "' is ", info(tensor.dtype).name,
                 ", the frame holds ", info(dtype).name);
  }
  if (run.count() == 0 || first_unit >= tensor.units() ||
      run.count() > tensor.units() - first_unit) {
    return error(code, "full frame: tensor '", tensor.name, "': ", run.count(), " units from ",
                 first_unit, " on, but it has ", tensor.units());
  }
  return {};
}

// The one way to write runs: inside their tensors, ascending, with a gap between two of a tensor.
Status check_runs(const WeightLayout& layout, DType dtype, std::span<const BucketEntry> runs,
                  std::span<const std::uint64_t> first_units, StatusCode code) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const BucketEntry& run = runs[i];
    DRIFTLESS_RETURN_IF_ERROR(check_run(layout, dtype, run, first_units[i], code));
    if (run.value_end > kMaxStreamBytes / unit_bytes(dtype)) {
      return error(code, "a full frame of more than 2^60 bytes");
    }
    if (i == 0 || run.tensor > runs[i - 1].tensor) continue;
    const std::uint64_t end = first_units[i - 1] + runs[i - 1].count();
    if (run.tensor == runs[i - 1].tensor && first_units[i] > end) continue;
    return error(code, "full frame: tensor '", layout[run.tensor].name, "': a run from unit ",
                 first_units[i], " on comes after one of tensor '", layout[runs[i - 1].tensor].name,
                 "' up to unit ", end, "; runs must ascend, and those that adjoin must be one");
  }
  return {};
}

}  // namespace

// The table has kept the ranges within the streams, and the header their sizes.
Result<std::vector<std::uint64_t>> read_runs(const FrameInfo& info, const WeightLayout& layout,
                                             std::span<const BucketEntry> entries,
                                             std::span<const std::byte> firsts) {
  for (const BucketEntry& entry : entries) {
    if (entry.position_bytes != kFirstUnitBytes) {
      return error(StatusCode::kCorrupt, "full frame: a width of ", entry.position_bytes,
                   ", expected ", kFirstUnitBytes);
    }
  }
  const std::uint64_t units = entries.empty() ? 0 : entries.back().value_end;
  if (units * unit_bytes(info.dtype) != info.values_bytes) {
    return error(StatusCode::kCorrupt, "full frame: its runs have ", units, " units of ",
                 info.values_bytes, " bytes of values");
  }
  std::vector<std::uint64_t> first_units(entries.size());
  if (!entries.empty()) std::memcpy(first_units.data(), firsts.data(), firsts.size());
  DRIFTLESS_RETURN_IF_ERROR(
      check_runs(layout, info.dtype, entries, first_units, StatusCode::kCorrupt));
  return first_units;
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
  std::vector<std::uint64_t> first_units;
  std::vector<std::span<const std::byte>> values;
  std::uint64_t units = 0;
  for (const DenseRun& run : runs) {
    if (run.bytes.size() % unit != 0) {
      return error(StatusCode::kInvalidArgument, "full frame: tensor ", run.tensor, ": a run of ",
                   run.bytes.size(), " bytes is not whole units of ", unit);
    }
    const std::uint64_t at = entries.size() * std::uint64_t{kFirstUnitBytes};
    const std::uint64_t begin = units;
    units += run.bytes.size() / unit;
    entries.push_back({run.tensor, kFirstUnitBytes, at, at + kFirstUnitBytes, begin, units});
    first_units.push_back(run.first_unit);
    values.push_back(run.bytes);
  }
  DRIFTLESS_RETURN_IF_ERROR(
      check_runs(layout, dtype, entries, first_units, StatusCode::kInvalidArgument));
  return append_frame(context, {dtype, entries, std::as_bytes(std::span(first_units)), values},
                      out);
}

std::vector<DenseRun> Frame::runs() const {
  std::vector<DenseRun> runs;
  if (!dense()) return runs;
  const unsigned unit = unit_bytes(info().dtype);
  runs.reserve(head_.entries.size());
  for (std::size_t i = 0; i < head_.entries.size(); ++i) {
    const BucketEntry& entry = head_.entries[i];
    runs.push_back({entry.tensor, head_.first_units[i],
                    values_.subspan(entry.value_begin * unit, entry.count() * unit)});
  }
  return runs;
}

}  // namespace driftless
