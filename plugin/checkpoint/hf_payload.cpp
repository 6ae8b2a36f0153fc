// SPDX-License-Identifier: Apache-2.0
// write_hf_payload(): one shard of compressed tensors, or of whole ones, and the index.
#include <vector>

#include "plugin/checkpoint/hf_shard_writer.h"
#include "plugin/checkpoint/payload_writer.h"

namespace driftless {
namespace {

constexpr std::string_view kShardName = "model-00000-of-00001.safetensors";

Status write_shard(FileSystem& fs, const std::string& path, const DeltaInput& input,
                   const std::vector<std::uint32_t>& tensors, DeltaFindings& findings) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs.create(path));
  const ShardOptions options{input.encoding, input.options->checksum, input.options->threads};
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::unique_ptr<HfShardWriter> shard,
      HfShardWriter::create(std::move(file), input.layout(), tensors, options));
  std::vector<HfShardWriter::Tensor> sides;
  for (const std::uint32_t tensor : tensors) {
    sides.push_back(
        {tensor, input.before->tensor(tensor).bytes(), input.after->tensor(tensor).bytes()});
  }
  DRIFTLESS_RETURN_IF_ERROR(shard->add(sides));
  DRIFTLESS_ASSIGN_OR_RETURN(findings.payload_bytes, shard->finish());
  for (const auto& [tensor, checksum] : shard->checksums()) findings.checksums[tensor] = checksum;
  return {};
}

}  // namespace

Status write_hf_payload(FileSystem& fs, const DeltaInput& input, const VersionWriter& version,
                        DeltaFindings& findings) {
  DRIFTLESS_RETURN_IF_ERROR(compare_checkpoints(input, findings, {}));
  findings.checksums.resize(input.layout().size());
  std::vector<std::uint32_t> tensors;
  for (std::uint32_t tensor = 0; tensor < input.layout().size(); ++tensor) {
    const bool wanted = input.encoding == Encoding::kFull || findings.changed_units[tensor] > 0;
    if (wanted) tensors.push_back(tensor);
  }
  HfDeltaIndex index;
  index.ours = true;
  index.version = input.version;
  index.base_version = input.base_version;
  if (input.encoding != Encoding::kFull) index.encoding = input.encoding;
  index.checksum = input.options->checksum;
  if (!tensors.empty()) {
    DRIFTLESS_RETURN_IF_ERROR(
        write_shard(fs, version.file_path(kShardName), input, tensors, findings));
  }
  for (const std::uint32_t tensor : tensors) {
    index.weight_map[input.layout()[tensor].name] = kShardName;
  }
  return write_text(fs, version.file_path(kIndexName), index_to_json(index));
}

}  // namespace driftless
