// SPDX-License-Identifier: Apache-2.0
// write_flush_payload(): buckets of the running comparison, each written as soon as it is full.
#include "formats/bucket.h"
#include "formats/flush_file.h"
#include "plugin/checkpoint/payload_writer.h"

namespace driftless {

Status write_flush_payload(FileSystem& fs, const DeltaInput& input, const VersionWriter& version,
                           DeltaFindings& findings) {
  BucketBuilder builder(input.layout(), input.encoding);
  std::uint32_t flushes = 0;
  const auto flush = [&]() -> Status {
    if (builder.empty()) return {};
    const std::string path = version.file_path(flush_file_name(0, flushes++));
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::uint64_t size,
        write_flush_file(fs, path, input.layout(), builder.view(), input.encoding, input.version,
                         {{"base_version", std::to_string(input.base_version)},
                          {std::string(kOursKey), std::to_string(kManifestFormat)}}));
    findings.payload_bytes += size;
    builder.clear();
    return {};
  };
  DRIFTLESS_RETURN_IF_ERROR(
      compare_checkpoints(input, findings, [&](const DeltaView& delta) -> Status {
        if (!builder.accepts(delta) || builder.size_bytes() >= input.options->buffer_bytes) {
          DRIFTLESS_RETURN_IF_ERROR(flush());
        }
        return builder.add(delta);
      }));
  DRIFTLESS_RETURN_IF_ERROR(flush());
  std::vector<std::uint32_t> changed;
  for (std::uint32_t tensor = 0; tensor < input.layout().size(); ++tensor) {
    if (findings.changed_units[tensor] > 0) changed.push_back(tensor);
  }
  return sum_tensors(input, changed, findings);
}

}  // namespace driftless
