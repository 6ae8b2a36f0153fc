// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/verify.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>

#include "formats/run_info.h"
#include "formats/version_dir.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {
namespace {

// The number encoded by a sign, `exponent_bits` and `mantissa_bits`.
double small_float(std::uint64_t bits, unsigned exponent_bits, unsigned mantissa_bits) {
  const std::uint64_t mantissa = bits & ((1ULL << mantissa_bits) - 1);
  const std::uint64_t exponent = (bits >> mantissa_bits) & ((1ULL << exponent_bits) - 1);
  const bool negative = ((bits >> (mantissa_bits + exponent_bits)) & 1) != 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto fraction = static_cast<double>(mantissa);
  double value = std::ldexp(fraction + static_cast<double>(1ULL << mantissa_bits),
                            static_cast<int>(exponent) - bias - static_cast<int>(mantissa_bits));
  if (exponent == 0) value = std::ldexp(fraction, 1 - bias - static_cast<int>(mantissa_bits));
  if (exponent == (1ULL << exponent_bits) - 1) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  }
  return negative ? -value : value;
}

std::optional<double> number(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::kBF16: return small_float(bits, 8, 7);
    case DType::kF16: return small_float(bits, 5, 10);
    case DType::kF8E5M2: return small_float(bits, 5, 2);
    case DType::kF32: return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    case DType::kF64: return std::bit_cast<double>(bits);
    default: return std::nullopt;
  }
}

}  // namespace

Digest digest_checkpoint(const Checkpoint& checkpoint, unsigned threads, const Progress& progress) {
  const WeightLayout& layout = checkpoint.layout();
  std::vector<DigestTensorKey> keys;
  for (const TensorSpec& tensor : layout.tensors()) keys.push_back(digest_tensor_key(tensor.name));
  std::vector<TensorBytes> all;
  for (std::size_t tensor = 0; tensor < layout.size(); ++tensor) {
    all.push_back({{0, checkpoint.tensor(tensor).bytes()}, &keys[tensor]});
  }
  std::mutex mutex;
  std::uint64_t done = 0;
  return digest_on_host(all, threads, [&](const TensorBytes& read) {
    const std::uint64_t size = read.piece.bytes.size();
    checkpoint.forget(static_cast<std::size_t>(read.key - keys.data()), read.piece.byte_offset,
                      size);
    const std::scoped_lock lock(mutex);
    done += size;
    if (progress) progress(done, layout.total_bytes());
  });
}

std::map<std::string, Digest> tensor_digests_at(FileSystem& fs, const std::string& directory,
                                                Manifest manifest) {
  std::map<std::string, Digest> known;  // the newest digest of each tensor
  const Hash128 run = manifest.id.run;
  for (;;) {
    for (const ManifestTensor& tensor : manifest.tensors) {
      if (tensor.digest) known.emplace(tensor.name, *tensor.digest);
    }
    // This version may have changed tensors without giving their digests: older digests no longer
    // count.
    if (manifest.encoding == Encoding::kFull || !manifest.has_tensor_digests()) return known;
    if (manifest.base_version == 0) break;
    const std::string path = join_path(
        join_path(directory, version_directory_name(manifest.base_version)), kManifestName);
    const Result<std::string> text = read_text(fs, path, kMaxManifestBytes);
    Result<Manifest> before = text.ok() ? parse_manifest(*text, path) : text.status();
    const VersionId expected{run, manifest.base_version};
    if (!before.ok() || before->id != expected) return known;
    manifest = std::move(*before);
  }
  const std::string path = join_path(directory, "run.json");
  const Result<std::string> text = read_text(fs, path, kMaxRunInfoBytes);
  const Result<RunInfo> info = text.ok() ? parse_run_info(*text, path) : text.status();
  if (!info.ok() || info->run != run) return known;
  for (std::size_t i = 0; i < info->tensor_digests.size(); ++i) {
    known.emplace(info->layout[i].name, info->tensor_digests[i]);
  }
  return known;
}

std::optional<std::string> first_different(const Checkpoint& checkpoint,
                                           const std::map<std::string, Digest>& expected,
                                           unsigned threads) {
  for (const auto& [name, digest] : expected) {
    const auto index = checkpoint.layout().find(name);
    if (!index) continue;
    const Digest found = digest_tensor(host_kernels(), digest_tensor_key(name),
                                       checkpoint.tensor(*index).bytes(), threads);
    if (found != digest) return name;
  }
  return std::nullopt;
}

std::string describe_unit(DType dtype, const std::byte* unit) {
  const unsigned width = unit_bytes(dtype);
  std::uint64_t bits = 0;
  std::memcpy(&bits, unit, width);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "0x%0*llx", static_cast<int>(2 * width),
                static_cast<unsigned long long>(bits));
  std::string result = text.data();
  if (const std::optional<double> value = number(dtype, bits)) {
    std::snprintf(text.data(), text.size(), " (%.9g)", *value);
    result += text.data();
  }
  return result;
}

Status diff_checkpoints(const Checkpoint& before, const Checkpoint& after, unsigned threads,
                        const Progress& progress,
                        const std::function<Status(const DiffPiece&)>& in_parallel,
                        const std::function<Status(const DiffPiece&)>& in_order) {
  const WeightLayout& layout = before.layout();
  std::vector<TensorPair> pairs;
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    pairs.push_back({tensor, unit_bytes(layout[tensor].dtype), layout[tensor].units(),
                     before.tensor(tensor).data, after.tensor(tensor).data});
  }
  std::mutex mutex;
  std::uint64_t done = 0;
  DiffOptions options;
  options.threads = threads;
  options.old_values = true;
  return diff_tensors(
      host_kernels(), pairs, options,
      [&](const DiffPiece& piece) -> Status {
        if (in_parallel) DRIFTLESS_RETURN_IF_ERROR(in_parallel(piece));
        const std::uint64_t offset = piece.origin * piece.pair->unit_bytes;
        const std::uint64_t size = piece.units * piece.pair->unit_bytes;
        before.forget(piece.pair->tensor, offset, size);
        after.forget(piece.pair->tensor, offset, size);
        const std::scoped_lock lock(mutex);
        done += size;
        if (progress) progress(done, layout.total_bytes());
        return {};
      },
      in_order);
}

CompanionDifferences compare_companions(FileSystem& fs, const std::string& here,
                                        const std::string& there) {
  CompanionDifferences found;
  const Result<Companions> mine = open_companions(fs, here);
  const Result<Companions> theirs = open_companions(fs, there);
  for (const Result<Companions>* side : {&mine, &theirs}) {
    if (!side->ok()) {
      found.not_compared.emplace_back(side->status().message());
    } else {
      const auto& left_out = (*side)->left_out;
      found.not_compared.insert(found.not_compared.end(), left_out.begin(), left_out.end());
    }
  }
  if (!mine.ok() || !theirs.ok()) return found;
  for (const auto& [name, file] : mine->files) {
    const auto twin = theirs->files.find(name);
    if (twin == theirs->files.end()) {
      found.here_alone.push_back(name);
    } else if (!std::ranges::equal(file.bytes(), twin->second.bytes())) {
      found.others.push_back(name);
    }
  }
  for (const auto& [name, file] : theirs->files) {
    if (!mine->files.contains(name)) found.there_alone.push_back(name);
  }
  return found;
}

Result<std::optional<Difference>> compare_weights(const Checkpoint& checkpoint,
                                                  const Checkpoint& other, unsigned threads,
                                                  const Progress& progress) {
  const WeightLayout& layout = checkpoint.layout();
  DRIFTLESS_RETURN_IF_ERROR(layout.check_same(other.layout(), checkpoint.path(), other.path()));
  std::optional<Difference> first;
  std::uint32_t last_tensor = 0;
  const auto in_order = [&](const DiffPiece& piece) -> Status {
    const std::uint32_t tensor = piece.pair->tensor;
    if (!first) {
      const std::uint64_t position = piece.origin + piece.delta.offsets.front();
      const std::uint64_t at = position * piece.pair->unit_bytes;
      const DType dtype = layout[tensor].dtype;
      first = Difference{layout[tensor].name,
                         position,
                         describe_unit(dtype, piece.pair->new_data + at),
                         describe_unit(dtype, piece.pair->old_data + at),
                         0,
                         1};
    } else if (tensor != last_tensor) {
      ++first->tensors;
    }
    last_tensor = tensor;
    first->units += piece.delta.count();
    return {};
  };
  DRIFTLESS_RETURN_IF_ERROR(diff_checkpoints(other, checkpoint, threads, progress, {}, in_order));
  return first;
}

}  // namespace driftless
