// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/window_map.h"

#include "collectives/mpi_rma/part_ring.h"

namespace driftless::mpi_rma {
namespace {

constexpr std::uint64_t kPage = 4096;  // areas do not share pages
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 44;
constexpr std::uint64_t kLeastRing = 1024;
constexpr unsigned kMostVersions = 1U << 16;

Status check_bytes(std::string_view key, std::uint64_t value, std::uint64_t least) {
  if (value >= least && value <= kMostBytes) return {};
  return error(StatusCode::kInvalidArgument, key, " is ", value, ": expected ", least, " to ",
               kMostBytes);
}

}  // namespace

WindowMap WindowMap::of(const MpiRmaOptions& options, unsigned receivers, bool leader) {
  WindowMap map;
  std::uint64_t end = sizeof(Control);
  map.records = options.ring_versions;
  if (leader) {
    map.announcement_record = end;
    map.anchor_record = end + sizeof(Record);
    map.version_records = end + 2 * sizeof(Record);
    map.slots = map.version_records + map.records * sizeof(Record);
    map.announcement = round_up(map.slots + std::uint64_t{receivers} * sizeof(ReceiverSlot), kPage);
    map.announcement_bytes = options.announcement_bytes;
    end = map.announcement + map.announcement_bytes;
  }
  map.ring = round_up(end, kPage);
  map.ring_bytes = round_up(options.ring_bytes, kPartAlignment);
  map.anchor = round_up(map.ring + map.ring_bytes, kPage);
  map.anchor_bytes = round_up(options.anchor_bytes, kPartAlignment);
  map.window_bytes = map.anchor + map.anchor_bytes;
  return map;
}

bool WindowMap::holds_part(PublicationKind kind, std::uint64_t offset, std::uint64_t size) const {
  const bool is_anchor = kind == PublicationKind::kAnchor;
  const std::uint64_t begin = is_anchor ? anchor : ring;
  const std::uint64_t length = is_anchor ? anchor_bytes : ring_bytes;
  return offset >= begin + sizeof(PartLabel) && offset - begin <= length &&
         size <= length - (offset - begin);
}

Status check_options(const MpiRmaOptions& options, unsigned publishers, unsigned ranks) {
  if (publishers == 0 || publishers > ranks) {
    return error(StatusCode::kInvalidArgument, publishers, " publishers among ", ranks,
                 " ranks: at least one, and no more than there are");
  }
  if (options.ring_versions == 0 || options.ring_versions > kMostVersions) {
    return error(StatusCode::kInvalidArgument, "road.ring_versions is ", options.ring_versions,
                 ": expected 1 to ", kMostVersions);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_bytes("road.ring_size", options.ring_bytes, kLeastRing));
  DRIFTLESS_RETURN_IF_ERROR(check_bytes("road.mpi_rma.anchor_size", options.anchor_bytes, 0));
  return check_bytes("announcement_bytes", options.announcement_bytes, 1);
}

LeaderRecords LeaderRecords::read(const WindowMap& map, std::span<const std::byte> bytes) {
  LeaderRecords records;
  records.control = load<Control>(bytes, 0);
  records.announcement = load<Record>(bytes, map.announcement_record);
  records.anchor = load<Record>(bytes, map.anchor_record);
  if (!is_whole(records.announcement)) records.announcement = {};
  if (!is_whole(records.anchor)) records.anchor = {};
  for (std::uint64_t i = 0; i < map.records; ++i) {
    const auto record = load<Record>(bytes, map.version_record(i));
    if (is_whole(record)) records.versions.push_back(record);
  }
  std::sort(records.versions.begin(), records.versions.end(),
            [](const Record& a, const Record& b) { return a.version < b.version; });
  return records;
}

std::optional<Record> LeaderRecords::find(const PublicationId& id) const {
  if (id.kind == PublicationKind::kAnchor) {
    if (anchor.hash.is_zero() || anchor.version != id.version) return std::nullopt;
    return anchor;
  }
  const auto found = std::lower_bound(
      versions.begin(), versions.end(), id.version,
      [](const Record& record, std::uint64_t version) { return record.version < version; });
  if (found == versions.end() || found->version != id.version) return std::nullopt;
  return *found;
}

}  // namespace driftless::mpi_rma
