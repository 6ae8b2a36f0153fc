// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <map>
#include <vector>

#include "core/counted.h"
#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "plugin/checkpoint/delta_writer.h"
#include "tools/bench/bench.h"
#include "tools/temporary_directory.h"

namespace driftless {
namespace {

using Bytes = std::vector<std::byte>;

// The policy's weights at the present step of the trace.
class Replay {
 public:
  static Result<Replay> open(FileSystem& fs, const std::string& directory) {
    DRIFTLESS_ASSIGN_OR_RETURN(SafetensorsFile base,
                               SafetensorsFile::open(fs, join_path(directory, "base.safetensors")));
    DRIFTLESS_ASSIGN_OR_RETURN(
        SafetensorsFile trace,
        SafetensorsFile::open(fs, join_path(directory, "trace.safetensors")));
    Replay replay(std::move(base), std::move(trace));
    for (const SafetensorsEntry& entry : replay.base_.header().tensors) {
      const auto bytes = replay.base_.bytes(entry);
      replay.weights_[entry.spec.name] = Bytes(bytes.begin(), bytes.end());
    }
    return replay;
  }

  // Moves the weights to step `step`; false if the trace has no such step.
  Result<bool> advance(unsigned step) {
    std::string number = std::to_string(step);
    number.insert(0, 3 - std::min<std::size_t>(3, number.size()), '0');
    bool found = false;
    for (auto& [name, bytes] : weights_) {
      const std::string key = concat("s", number, "/", name);
      const SafetensorsEntry* indices = trace_.find(key + ".indices");
      const SafetensorsEntry* values = trace_.find(key + ".values");
      if (indices == nullptr || values == nullptr) continue;
      found = true;
      DRIFTLESS_RETURN_IF_ERROR(overwrite(name, bytes, *indices, *values));
    }
    return found;
  }

  Status write(FileSystem& fs, const std::string& directory) const {
    DRIFTLESS_RETURN_IF_ERROR(fs.make_directory(directory));
    std::vector<std::string> names;
    for (const auto& [name, bytes] : weights_) names.push_back(name);
    DRIFTLESS_ASSIGN_OR_RETURN(
        SafetensorsWriter writer,
        SafetensorsWriter::create(fs, join_path(directory, "model.safetensors"),
                                  SafetensorsWriter::header_bytes_for(names, 8, {})));
    for (const auto& [name, bytes] : weights_) {
      const TensorSpec& spec = base_.find(name)->spec;
      DRIFTLESS_RETURN_IF_ERROR(writer.begin_tensor(name, spec.dtype));
      DRIFTLESS_RETURN_IF_ERROR(writer.append(bytes));
      DRIFTLESS_RETURN_IF_ERROR(writer.end_tensor(spec.shape));
    }
    const Result<std::uint64_t> size = writer.finish();
    return size.ok() ? Status() : size.status();
  }

 private:
  Replay(SafetensorsFile base, SafetensorsFile trace)
      : base_(std::move(base)), trace_(std::move(trace)) {}

  Status overwrite(const std::string& name, Bytes& bytes, const SafetensorsEntry& indices,
                   const SafetensorsEntry& values) const {
    const unsigned width = unit_bytes(base_.find(name)->spec.dtype);
    const std::span<const std::byte> positions = trace_.bytes(indices);
    const std::span<const std::byte> bits = trace_.bytes(values);
    if (indices.spec.dtype != DType::kI32 || positions.size() / 4 * width != bits.size()) {
      return error(StatusCode::kCorrupt, "the trace's indices and values of '", name,
                   "' do not go together");
    }
    for (std::size_t i = 0; i < positions.size() / 4; ++i) {
      std::int32_t position = 0;
      std::memcpy(&position, positions.data() + 4 * i, sizeof(position));
      if (position < 0 || static_cast<std::size_t>(position) >= bytes.size() / width) {
        return error(StatusCode::kCorrupt, "the trace changes '", name, "' at ", position,
                     ", past its end");
      }
      std::memcpy(bytes.data() + static_cast<std::size_t>(position) * width,
                  bits.data() + i * width, width);
    }
    return {};
  }

  SafetensorsFile base_, trace_;
  std::map<std::string, Bytes> weights_;
};

struct Sizes {
  std::uint64_t payload_bytes = 0;
  std::uint64_t directory_bytes = 0;
  std::uint64_t changed_units = 0;
};

Status publish_step(FileSystem& fs, const std::string& root, unsigned step, unsigned threads,
                    std::map<Encoding, Sizes>& sizes) {
  for (const auto& [layout, encoding] : kFileEncodings) {
    DeltaOptions options;
    options.old_checkpoint = concat(root, "/step", step - 1);
    options.new_checkpoint = concat(root, "/step", step);
    options.directory = concat(root, "/", info(encoding).name);
    options.directory_layout = layout;
    options.encoding = encoding;
    options.threads = threads;
    DRIFTLESS_ASSIGN_OR_RETURN(const DeltaReport report, write_delta(fs, options));
    Sizes& sum = sizes[encoding];
    sum.payload_bytes += report.manifest.payload_bytes;
    sum.directory_bytes += report.total_bytes;
    sum.changed_units += report.manifest.changed_units;
  }
  return {};
}

}  // namespace

Result<BenchReport> measure_trace(const std::string& directory, unsigned threads) {
  FileSystem& fs = posix_file_system();
  DRIFTLESS_ASSIGN_OR_RETURN(Replay replay, Replay::open(fs, directory));
  DRIFTLESS_ASSIGN_OR_RETURN(const TemporaryDirectory scratch, TemporaryDirectory::create());
  DRIFTLESS_RETURN_IF_ERROR(replay.write(fs, scratch.path() + "/step0"));
  std::map<Encoding, Sizes> sizes;
  unsigned steps = 0;
  while (true) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool more, replay.advance(steps + 1));
    if (!more) break;
    ++steps;
    DRIFTLESS_RETURN_IF_ERROR(replay.write(fs, concat(scratch.path(), "/step", steps)));
    DRIFTLESS_RETURN_IF_ERROR(publish_step(fs, scratch.path(), steps, threads, sizes));
    DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, concat(scratch.path(), "/step", steps - 1)));
  }
  BenchReport report;
  for (const auto& [layout, encoding] : kFileEncodings) {
    const Sizes& sum = sizes[encoding];
    const auto bits = [&sum](std::uint64_t bytes) {
      return 8.0 * static_cast<double>(bytes) / static_cast<double>(sum.changed_units);
    };
    const std::string name = concat("bits_", info(encoding).name);
    report.figures.push_back({name, bits(sum.payload_bytes), "bits per change",
                              concat("payload over ", counted(steps, "step"), " of the trace")});
    report.figures.push_back({name + "_directory", bits(sum.directory_bytes), "bits per change",
                              "index, manifest and DONE included"});
  }
  return report;
}

}  // namespace driftless
