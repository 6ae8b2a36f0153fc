// Full frames: whole stretches of tensors instead of a bucket.
#include <cstring>
#include <limits>

#include "formats/frame.h"
#include "formats/frame_parts.h"

namespace driftless {
namespace {

Status check_run(const WeightLayout& layout, DType dtype, const DenseRun& run, StatusCode code) {
  if (run.tensor >= layout.size()) {
    return error(code, "full frame: tensor ", run.tensor, " of a layout of ", layout.size());
  }
  const TensorSpec& tensor = layout[run.tensor];
  if (tensor.dtype != dtype) {
    return error(code, "full frame: tensor '", tensor.name, "' is ", info(tensor.dtype).name,
                 ", the frame holds ", info(dtype).name);
  }
  const unsigned unit = unit_bytes(dtype);
  const std::uint64_t units = run.bytes.size() / unit;
  if (units == 0 || run.bytes.size() % unit != 0) {
    return error(code, "full frame: tensor '", tensor.name, "': a run of ", run.bytes.size(),
                 " bytes is not one or more whole units of ", unit);
  }
  if (run.first_unit >= tensor.units() || units > tensor.units() - run.first_unit) {
    return error(code, "full frame: tensor '", tensor.name, "': ", units, " units from ",
                 run.first_unit, " on, but it has ", tensor.units());
  }
  return {};
}

// The one way to write them: ascending, with a gap between two runs of a tensor.
Status check_runs(const WeightLayout& layout, DType dtype, std::span<const DenseRun> runs,
                  StatusCode code) {
  const DenseRun* before = nullptr;
  for (const DenseRun& run : runs) {
    DRIFTLESS_RETURN_IF_ERROR(check_run(layout, dtype, run, code));
    if (before != nullptr && run.tensor <= before->tensor) {
      const std::uint64_t end = before->first_unit + before->bytes.size() / unit_bytes(dtype);
      if (run.tensor < before->tensor || run.first_unit <= end) {
        return error(code, "full frame: tensor '", layout[run.tensor].name, "': a run from unit ",
                     run.first_unit, " on comes after one of tensor '", layout[before->tensor].name,
                     "' up to unit ", end, "; runs must ascend, and those that adjoin must be one");
      }
    }
    before = &run;
  }
  return {};
}

}  // namespace

Status encode_full_frame(const FrameContext& context, const WeightLayout& layout, DType dtype,
                         std::span<const DenseRun> runs, std::vector<std::byte>& out) {
  if (context.encoding != Encoding::kFull) {
    return error(StatusCode::kInvalidArgument, "runs cannot go into a frame of ",
                 info(context.encoding).name);
  }
  if (runs.size() > std::numeric_limits<std::uint32_t>::max()) {
    return error(StatusCode::kInvalidArgument, "a full frame of 2^32 runs or more");
  }
  DRIFTLESS_RETURN_IF_ERROR(check_runs(layout, dtype, runs, StatusCode::kInvalidArgument));
  std::vector<BucketEntry> entries;
  std::vector<std::byte> positions(runs.size() * kFirstUnitBytes);
  std::vector<std::span<const std::byte>> values;
  std::uint64_t values_bytes = 0;
  entries.reserve(runs.size());
  values.reserve(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const DenseRun& run = runs[i];
    BucketEntry entry{run.tensor, kFirstUnitBytes, 0, 0, 0, 0};
    entry.value_end = run.bytes.size() / unit_bytes(dtype);
    entries.push_back(entry);
    std::memcpy(positions.data() + i * kFirstUnitBytes, &run.first_unit, kFirstUnitBytes);
    values.push_back(run.bytes);
    if (run.bytes.size() > kMaxStreamBytes - values_bytes) {
      return error(StatusCode::kInvalidArgument, "a full frame of more than 2^60 bytes");
    }
    values_bytes += run.bytes.size();
  }
  return append_frame(context, {dtype, entries, positions, values}, out);
}

std::vector<DenseRun> Frame::runs() const {
  std::vector<DenseRun> runs;
  if (!dense()) return runs;
  const unsigned unit = unit_bytes(info_.dtype);
  runs.reserve(entries_.size());
  for (const BucketEntry& entry : entries_) {
    DenseRun run{entry.tensor, 0, values_.subspan(entry.value_begin * unit, entry.count() * unit)};
    std::memcpy(&run.first_unit, positions_.data() + entry.position_begin, kFirstUnitBytes);
    runs.push_back(run);
  }
  return runs;
}

// read_body() has kept the ranges within the streams.
Status Frame::check_runs_of(const WeightLayout& layout) const {
  for (const BucketEntry& entry : entries_) {
    if (entry.position_bytes != kFirstUnitBytes) {
      return error(StatusCode::kCorrupt, "full frame: a width of ", entry.position_bytes,
                   ", expected ", kFirstUnitBytes);
    }
  }
  const std::uint64_t units = entries_.empty() ? 0 : entries_.back().value_end;
  if (units * unit_bytes(info_.dtype) != info_.values_bytes) {
    return error(StatusCode::kCorrupt, "full frame: its runs have ", units, " units of ",
                 info_.values_bytes, " bytes of values");
  }
  return check_runs(layout, info_.dtype, runs(), StatusCode::kCorrupt);
}

}  // namespace driftless
