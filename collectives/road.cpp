// SPDX-License-Identifier: Apache-2.0
#include "collectives/road.h"

#include "collectives/part_ranges.h"

namespace driftless {

std::string to_string(const PublicationId& id) {
  return concat(id.kind == PublicationKind::kAnchor ? "anchor of version " : "version ",
                id.version);
}

bool has_version_past(const std::vector<PublicationId>& ids, std::uint64_t version) {
  return std::ranges::any_of(
      ids, [&](const PublicationId& id) { return is_version(id) && id.version > version; });
}

Status not_there(std::string_view road, const PublicationId& id) {
  return error(StatusCode::kNotFound, road, ": ", to_string(id),
               " is not there (any more); take the newest anchor");
}

Result<MappedFile> ReceiveRoad::fetch_part(const PublicationId& id, const PartReceipt& part,
                                           const Deadline& deadline) {
  const ByteRange whole{0, part.size_bytes};
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<MappedFile> bytes,
                             fetch_ranges(id, part, {&whole, 1}, deadline));
  return std::move(bytes.front());
}

namespace {

// Limit for bytes that are on the host at once before they are copied to a device. Ranges are cut
// at multiples of kDeviceCut in the part, which are ends of the road peer's chunks, too.
constexpr std::uint64_t kDeviceBatch = std::uint64_t{64} << 20;
constexpr std::uint64_t kDeviceCut = std::uint64_t{1} << 20;

}  // namespace

Status ReceiveRoad::fetch_to_device(const PublicationId& id, const PartReceipt& part,
                                    std::span<const DeviceRange> ranges, const DeviceSpace& space,
                                    const Deadline& deadline) {
  std::vector<ByteRange> batch;
  for (const DeviceRange& each : ranges) batch.push_back(each.range);
  DRIFTLESS_RETURN_IF_ERROR(check_ranges("a read into a GPU's memory", id, part, batch));
  batch.clear();
  std::vector<std::byte*> to;
  std::uint64_t bytes = 0;
  const auto flush = [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<MappedFile> found,
                               fetch_ranges(id, part, batch, deadline));
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i].bytes().empty()) {
        DRIFTLESS_RETURN_IF_ERROR(space.copy(to[i], found[i].bytes()));
      }
    }
    batch.clear();
    to.clear();
    bytes = 0;
    return {};
  };
  for (const DeviceRange& each : ranges) {
    ByteRange rest = each.range;
    std::byte* into = space.memory.get() + each.to;
    while (rest.size_bytes > 0) {
      const std::uint64_t room = kDeviceBatch - bytes;
      const std::uint64_t over = (rest.offset + room) % kDeviceCut;
      const std::uint64_t size = rest.size_bytes <= room ? rest.size_bytes
                                 : room > over           ? room - over
                                                         : 0;
      if (size > 0) {
        batch.push_back({rest.offset, size});
        to.push_back(into);
      }
      bytes += size;
      into += size;
      rest = {rest.offset + size, rest.size_bytes - size};
      if (rest.size_bytes > 0) DRIFTLESS_RETURN_IF_ERROR(flush());
    }
  }
  return flush();
}

Status check_report(const ReceiverReport& report) {
  const Status name = check_file_name(report.id);
  if (!name.ok() || report.id.size() > kMaxReceiverIdBytes) {
    return error(StatusCode::kInvalidArgument, "the receiver's id must be a plain file name of at ",
                 "most ", kMaxReceiverIdBytes,
                 " bytes: ", name.ok() ? std::string_view("it is longer") : name.message());
  }
  if (report.proof.size() > kMaxProofBytes) {
    return error(StatusCode::kInvalidArgument, "receiver ", report.id, ": a proof of ",
                 report.proof.size(), " bytes, at most ", kMaxProofBytes, " are allowed");
  }
  if (report.needs.size() > kMaxNeedsBytes) {
    return error(StatusCode::kInvalidArgument, "receiver ", report.id, ": needs of ",
                 report.needs.size(), " bytes, at most ", kMaxNeedsBytes, " are allowed");
  }
  return {};
}

}  // namespace driftless
