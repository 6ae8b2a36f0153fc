// SPDX-License-Identifier: Apache-2.0
// A run made by hand: weights step by step, each as a publication in any layout and encoding. A
// test may change a publication before it sends it over a loopback road or straight into a target.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/frame.h"
#include "formats/run_info.h"
#include "kernels/host_kernels.h"
#include "plugin/checkpoint/compact_writer.h"
#include "plugin/checkpoint/delta_writer.h"
#include "plugin/targets/weight_target.h"
#include "support/loopback_road.h"
#include "support/temp_dir.h"
#include "support/weights.h"

namespace driftless::testing {

struct Publication {
  PublicationId id;
  Manifest manifest;
  std::map<std::string, std::vector<std::byte>> parts;

  // Sizes and hashes of the parts as they are now.
  void list_parts() {
    manifest.files.clear();
    for (const auto& [name, bytes] : parts) {
      unsigned rank = 0;
      std::sscanf(name.c_str(), "rank%u_", &rank);
      manifest.files.push_back({name, bytes.size(), xxh3_128(std::span(bytes)), rank, 0});
      manifest.ranks = std::max(manifest.ranks, rank + 1);
    }
  }
  [[nodiscard]] FetchedVersion fetched() const {
    FetchedVersion version{manifest, to_string(id), {}};
    for (const ManifestFile& file : manifest.files) {
      const auto held = std::make_shared<std::vector<std::byte>>(parts.at(file.name));
      version.parts.emplace_back(file.name, held, *held);
    }
    return version;
  }
};

inline WeightLayout layout_of(const Weights& weights) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : weights) {
    specs.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
  }
  return *WeightLayout::make(std::move(specs));
}

inline Digest digest_of(const Weights& weights) {
  Digest sum;
  for (const auto& [name, tensor] : weights) {
    sum += host_kernels().digest(digest_tensor_key(name), 0, tensor.bytes);
  }
  return sum;
}

inline std::vector<std::byte*> pointers(Weights& weights) {
  std::vector<std::byte*> data;
  for (auto& [name, tensor] : weights) data.push_back(tensor.bytes.data());
  return data;
}

[[nodiscard]] inline bool same(const Weights& a, const Weights& b) {
  for (const auto& [name, tensor] : a) {
    if (tensor.bytes != b.at(name).bytes) return false;
  }
  return true;
}

class PublishedRun {
 public:
  explicit PublishedRun(Weights base, Hash128 id = {11, 22}) : run(id), layout(layout_of(base)) {
    weights.push_back(std::move(base));
  }

  // The step from weights[version - 1] to weights[version]; makes the latter if they are missing.
  Publication step(std::uint64_t version, DirectoryLayout kind = DirectoryLayout::kFrames,
                   Encoding encoding = Encoding::kDeltas) {
    while (weights.size() <= version) {
      weights.push_back(changed_weights(weights.back(), weights.size(), 0.01));
    }
    return make({version, PublicationKind::kVersion}, version - 1, kind, encoding);
  }
  Publication anchor(std::uint64_t version, DirectoryLayout kind = DirectoryLayout::kFrames) {
    return make({version, PublicationKind::kAnchor}, version == 0 ? 0 : version - 1, kind,
                Encoding::kFull);
  }

  [[nodiscard]] RunInfo info() const {
    RunInfo made{run, layout, digest_of(weights.front()), 1, {}};
    for (const auto& [name, tensor] : weights.front()) {
      made.tensor_digests.push_back(digest_of({{name, tensor}}));
    }
    return made;
  }

  const Hash128 run;
  const WeightLayout layout;
  std::vector<Weights> weights;  // by version

 private:
  Publication make(const PublicationId& id, std::uint64_t base, DirectoryLayout kind,
                   Encoding encoding) {
    Publication made;
    made.id = id;
    const bool frames = kind == DirectoryLayout::kFrames || kind == DirectoryLayout::kHdf5;
    if (frames && encoding == Encoding::kFull) add_full_frames(made, base);
    if (frames && encoding == Encoding::kCompact) add_compact_frames(made, base);
    if (frames && encoding != Encoding::kFull && encoding != Encoding::kCompact) {
      add_frames(made, base, encoding);
    }
    if (!frames) add_files(made, base, kind, encoding);
    made.manifest.id = {run, id.version};
    made.manifest.base_version = base;
    made.manifest.directory_layout = kind;
    made.manifest.encoding = encoding;
    made.manifest.layout = layout.signature();
    made.manifest.base_digest = digest_of(weights[base]);
    made.manifest.digest = digest_of(weights[id.version]);
    made.manifest.total_units = layout.total_units();
    made.manifest.full_bytes = layout.total_bytes();
    if (frames) list_tensors(made.manifest);
    made.list_parts();
    return made;
  }

  // With their digests, as every publisher does.
  void list_tensors(Manifest& manifest) const {
    for (const auto& [name, tensor] : weights[manifest.id.version]) {
      const bool full = manifest.encoding == Encoding::kFull;
      if (!full && weights[manifest.base_version].at(name).bytes == tensor.bytes) continue;
      manifest.tensors.push_back({name, {}, digest_of({{name, tensor}})});
    }
    manifest.changed_tensors = manifest.tensors.size();
  }

  FrameContext context(const PublicationId& id, std::uint64_t base, Encoding encoding) const {
    return {{run, id.version}, base, layout.signature(), encoding, 0, 0};
  }

  static void add_frame(Publication& made, FrameContext& at, const BucketView& bucket) {
    std::vector<std::byte>& out = made.parts[frame_file_name(at.rank, at.index)];
    const Status status = encode_frame(at, bucket, out);
    EXPECT_TRUE(status.ok()) << status.to_string();
    ++at.index;
  }

  // Buckets are so small that tensors are divided between frames.
  void add_frames(Publication& made, std::uint64_t base, Encoding encoding) {
    FrameContext at = context(made.id, base, encoding);
    BucketBuilder builder(layout, encoding);
    const HostKernels& kernels = host_kernels();
    for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
      const TensorSpec& spec = layout[tensor];
      const unsigned width = unit_bytes(spec.dtype);
      const auto& before = weights[base].at(spec.name).bytes;
      const auto& after = weights[made.id.version].at(spec.name).bytes;
      bool changed = false;
      for (std::uint64_t first = 0; first < spec.units(); first += 1000) {
        const auto units =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(1000, spec.units() - first));
        std::vector<std::uint32_t> offsets(units + kDiffSlackUnits);
        std::vector<std::byte> values((units + kDiffSlackUnits) * std::size_t{width});
        const std::uint32_t count =
            kernels.diff(before.data() + first * width, after.data() + first * width, units, width,
                         offsets.data(), values.data(), nullptr);
        if (count == 0) continue;
        const DeltaView delta{tensor, width, first, {offsets.data(), count}, values.data()};
        if (!builder.accepts(delta) || builder.size_bytes() > 600) {
          add_frame(made, at, builder.view());
          builder.clear();
        }
        EXPECT_TRUE(builder.add(delta).ok());
        made.manifest.changed_units += count;
        changed = true;
      }
      made.manifest.changed_tensors += changed ? 1 : 0;
    }
    if (!builder.empty()) add_frame(made, at, builder.view());
  }

  // One frame per tensor. A matrix is written in two blocks if possible: some of its columns, and
  // the others.
  void add_compact_frames(Publication& made, std::uint64_t base) {
    FrameContext at = context(made.id, base, Encoding::kCompact);
    for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
      const TensorSpec& spec = layout[tensor];
      const auto& before = weights[base].at(spec.name).bytes;
      const auto& after = weights[made.id.version].at(spec.name).bytes;
      if (before == after) continue;
      ++made.manifest.changed_tensors;
      std::vector<std::unique_ptr<TensorBlock>> cut;
      if (spec.shape.size() == 2 && spec.shape[1] >= 2 && compact_fields(spec.dtype)) {
        const std::uint64_t columns = spec.shape[1] / 2;
        for (const auto& [first, count] : {std::pair<std::uint64_t, std::uint64_t>(0, columns),
                                           {columns, spec.shape[1] - columns}}) {
          cut.push_back(std::make_unique<TensorBlock>(
              *TensorBlock::make(tensor, spec, {{0, first}, {spec.shape[0], count}})));
        }
      } else {
        cut.push_back(nullptr);
      }
      std::vector<ChangedBlock> blocks;
      for (const auto& block : cut) {
        ChangedBlock changed = change_of(tensor, block.get(), before, after);
        made.manifest.changed_units += changed.changes();
        if (!changed.pieces.empty()) blocks.push_back(std::move(changed));
      }
      std::vector<std::byte>& out = made.parts[frame_file_name(at.rank, at.index)];
      Status status;
      if (compact_fields(spec.dtype)) {
        status = encode_changed_blocks(at, layout, spec.dtype, blocks, 2, out);
      } else {
        FrameContext plain = at;
        plain.encoding = Encoding::kDeltas;
        BucketBuilder builder(layout, Encoding::kDeltas);
        const ChangedBlock::Piece& piece = blocks.front().pieces.front();
        EXPECT_TRUE(builder
                        .add({tensor, unit_bytes(spec.dtype), piece.origin, piece.offsets,
                              piece.values.data()})
                        .ok());
        status = encode_frame(plain, builder.view(), out);
      }
      EXPECT_TRUE(status.ok()) << status.to_string();
      ++at.index;
    }
  }

  ChangedBlock change_of(std::uint32_t tensor, const TensorBlock* block,
                         const std::vector<std::byte>& before,
                         const std::vector<std::byte>& after) const {
    const unsigned width = unit_bytes(layout[tensor].dtype);
    const BlockPlace place =
        block != nullptr ? block->place : BlockPlace::all(layout[tensor].units());
    ChangedBlock changed{tensor, block, after.data(), place, {}};
    ChangedBlock::Piece piece;
    for (std::uint64_t unit = 0; unit < place.units; ++unit) {
      const auto from = static_cast<std::ptrdiff_t>(place.at(unit) * width);
      if (std::equal(before.begin() + from, before.begin() + from + width, after.begin() + from)) {
        continue;
      }
      piece.offsets.push_back(static_cast<std::uint32_t>(unit));
      piece.values.insert(piece.values.end(), after.begin() + from, after.begin() + from + width);
      piece.old_values.insert(piece.old_values.end(), before.begin() + from,
                              before.begin() + from + width);
    }
    if (!piece.offsets.empty()) changed.pieces.push_back(std::move(piece));
    return changed;
  }

  // One frame per tensor; one tensor is divided into blocks.
  void add_full_frames(Publication& made, std::uint64_t base) {
    FrameContext at = context(made.id, base, Encoding::kFull);
    for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
      const TensorSpec& spec = layout[tensor];
      if (spec.units() == 0) continue;
      const std::uint64_t cut = spec.units() / 3;
      const std::span<const std::byte> bytes(weights[made.id.version].at(spec.name).bytes);
      const std::uint64_t cut_bytes = cut * unit_bytes(spec.dtype);
      for (const DenseRun& dense : {DenseRun{tensor, 0, bytes.first(cut_bytes)},
                                    DenseRun{tensor, cut, bytes.subspan(cut_bytes)}}) {
        if (dense.bytes.empty()) continue;
        const Status status = encode_full_frame(at, layout, spec.dtype, std::span(&dense, 1),
                                                made.parts[frame_file_name(at.rank, at.index)]);
        EXPECT_TRUE(status.ok()) << status.to_string();
        ++at.index;
      }
    }
  }

  // The files that write_delta() makes.
  void add_files(Publication& made, std::uint64_t base, DirectoryLayout kind, Encoding encoding) {
    const TempDir dir(TempDir::Where::kMemory);
    write_checkpoint(dir.file("old"), weights[base]);
    write_checkpoint(dir.file("new"), weights[made.id.version]);
    DeltaOptions options;
    options.old_checkpoint = dir.file("old");
    options.new_checkpoint = dir.file("new");
    options.directory = dir.file("published");
    options.directory_layout = kind;
    options.encoding = encoding;
    options.version = made.id.version;
    options.base_version = base;
    options.buffer_bytes = 600;
    const auto written = write_delta(posix_file_system(), options);
    ASSERT_TRUE(written.ok()) << written.status().to_string();
    made.manifest = written->manifest;
    for (const ManifestFile& file : made.manifest.files) {
      const auto mapped = posix_file_system().map(join_path(written->path, file.name));
      ASSERT_TRUE(mapped.ok());
      made.parts[file.name].assign(mapped->bytes().begin(), mapped->bytes().end());
    }
  }
};

// Publishes over a sender of rank 0.
inline void send(SendRoad& road, const Publication& publication) {
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(5000));
  ASSERT_TRUE(road.begin(publication.id, deadline).ok());
  for (const auto& [name, bytes] : publication.parts) {
    auto part = road.create_part(name);
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    ASSERT_TRUE((*part)->pwrite(0, bytes).ok());
    ASSERT_TRUE((*part)->sync().ok());
  }
  ASSERT_TRUE(road.flush(deadline).ok());
  Manifest manifest = publication.manifest;
  for (ManifestFile& file : manifest.files) file.rank = 0;  // of the road's one rank
  const Status sealed = road.seal(manifest_to_json(manifest), deadline);
  ASSERT_TRUE(sealed.ok()) << sealed.to_string();
}

}  // namespace driftless::testing
