// SPDX-License-Identifier: Apache-2.0
// Full frames: whole stretches of tensors instead of a bucket.
#include <cstring>
#include <limits>

#include "formats/frame.h"
#include "formats/frame_parts.h"

namespace driftless {
namespace {

Status check_run(const WeightLayout& layout, DType dtype, const RunPlace& run, StatusCode code) {
  if (run.tensor >= layout.size()) {
    return error(code, "full frame: tensor ", run.tensor, " of a layout of ", layout.size());
  }
  const TensorSpec& tensor = layout[run.tensor];
  if (tensor.dtype != dtype) {
    return error(code, "full frame: tensor '", tensor.name, "' is ", info(tensor.dtype).name,
                 ", the frame holds ", info(dtype).name);
  }
  if (run.units == 0 || run.first_unit >= tensor.units() ||
      run.units > tensor.units() - run.first_unit) {
    return error(code, "full frame: tensor '", tensor.name, "': ", run.units, " units from ",
                 run.first_unit, " on, but it has ", tensor.units());
  }
  return {};
}

// Where the runs lie, one behind the other. Bytes must be whole units.
Result<std::vector<RunPlace>> places_of(DType dtype, std::span<const DenseRun> runs) {
  const unsigned unit = unit_bytes(dtype);
  std::vector<RunPlace> places;
  places.reserve(runs.size());
  std::uint64_t units = 0;
  for (const DenseRun& run : runs) {
    if (run.bytes.size() % unit != 0) {
      return error(StatusCode::kInvalidArgument, "full frame: tensor ", run.tensor, ": a run of ",
                   run.bytes.size(), " bytes is not whole units of ", unit);
    }
    places.push_back({run.tensor, run.first_unit, run.bytes.size() / unit, units});
    units += places.back().units;
  }
  return places;
}

}  // namespace

Status check_runs(const WeightLayout& layout, DType dtype, std::span<const RunPlace> runs,
                  StatusCode code) {
  const RunPlace* before = nullptr;
  std::uint64_t units = 0;
  for (const RunPlace& run : runs) {
    DRIFTLESS_RETURN_IF_ERROR(check_run(layout, dtype, run, code));
    if (before != nullptr && run.tensor <= before->tensor) {
      const std::uint64_t end = before->first_unit + before->units;
      if (run.tensor < before->tensor || run.first_unit <= end) {
        return error(code, "full frame: tensor '", layout[run.tensor].name, "': a run from unit ",
                     run.first_unit, " on comes after one of tensor '", layout[before->tensor].name,
                     "' up to unit ", end, "; runs must ascend, and those that adjoin must be one");
      }
    }
    if (run.value_begin != units) {
      return error(code, "full frame: tensor '", layout[run.tensor].name, "': values from unit ",
                   run.value_begin, " on, expected ", units, ": runs lie one behind the other");
    }
    if (run.units > kMaxStreamBytes / unit_bytes(dtype) - units) {
      return error(code, "a full frame of more than 2^60 bytes");
    }
    units += run.units;
    before = &run;
  }
  return {};
}

std::vector<BucketEntry> run_entries(std::span<const RunPlace> runs) {
  std::vector<BucketEntry> entries;
  entries.reserve(runs.size());
  for (const RunPlace& run : runs) {
    const std::uint64_t at = entries.size() * std::uint64_t{kFirstUnitBytes};
    entries.push_back({run.tensor, kFirstUnitBytes, at, at + kFirstUnitBytes, run.value_begin,
                       run.value_begin + run.units});
  }
  return entries;
}

std::vector<std::byte> run_firsts(std::span<const RunPlace> runs) {
  std::vector<std::byte> firsts(runs.size() * kFirstUnitBytes);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::memcpy(firsts.data() + i * kFirstUnitBytes, &runs[i].first_unit, kFirstUnitBytes);
  }
  return firsts;
}

// The table has kept the ranges within the streams.
Result<std::vector<RunPlace>> read_runs(const FrameInfo& info, const WeightLayout& layout,
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
  std::vector<RunPlace> runs;
  runs.reserve(entries.size());
  for (const BucketEntry& entry : entries) {
    RunPlace run{entry.tensor, 0, entry.count(), entry.value_begin};
    std::memcpy(&run.first_unit, firsts.data() + entry.position_begin, kFirstUnitBytes);
    runs.push_back(run);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_runs(layout, info.dtype, runs, StatusCode::kCorrupt));
  return runs;
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
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<RunPlace> places, places_of(dtype, runs));
  DRIFTLESS_RETURN_IF_ERROR(check_runs(layout, dtype, places, StatusCode::kInvalidArgument));
  std::vector<std::span<const std::byte>> values;
  values.reserve(runs.size());
  for (const DenseRun& run : runs) values.push_back(run.bytes);
  return append_frame(context, {dtype, run_entries(places), run_firsts(places), values}, out);
}

std::vector<DenseRun> Frame::runs() const {
  std::vector<DenseRun> runs;
  if (!dense()) return runs;
  const unsigned unit = unit_bytes(info_.dtype);
  runs.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const BucketEntry& entry = entries_[i];
    runs.push_back({entry.tensor, first_units_[i],
                    values_.subspan(entry.value_begin * unit, entry.count() * unit)});
  }
  return runs;
}

Status Frame::check_runs_of(const WeightLayout& layout) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<RunPlace> places,
                             read_runs(info_, layout, entries_, positions_));
  first_units_.reserve(places.size());
  for (const RunPlace& place : places) first_units_.push_back(place.first_unit);
  return {};
}

}  // namespace driftless
