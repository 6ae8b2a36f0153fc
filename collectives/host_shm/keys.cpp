// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/road_kind.h"

namespace driftless {
namespace host_shm {
namespace {

using namespace road_key;
#define DRIFTLESS_FIELD(field) DRIFTLESS_ROAD_FIELD(HostShmOptions, field)

struct HostShmName : setting::Text {
  static Result<std::string> parse(std::string_view value) {
    HostShmOptions named;
    named.name = value;
    DRIFTLESS_RETURN_IF_ERROR(check_host_shm(named));
    return named.name;
  }
};

constexpr std::array kKeys = {
    poll_first<DRIFTLESS_FIELD(poll_first)>(),
    poll_longest<DRIFTLESS_FIELD(poll_longest)>(),
    patience<DRIFTLESS_FIELD(patience)>(),
    Rows::key<HostShmName, DRIFTLESS_FIELD(name)>(
        "road.host_shm.name", "a plain name",
        "Name of the agent's shared memory: the same for the agent and its workers"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(dir)>(
        "road.host_shm.dir", setting::kPath,
        "The file system in memory that holds the files of the road"),
    Rows::key<setting::Size<64 * setting::kKiB, 16 * setting::kTiB>, DRIFTLESS_FIELD(size_bytes)>(
        "road.host_shm.size", "Memory for versions and an anchor, at most"),
    Rows::key<setting::Count<1, 65'536>, DRIFTLESS_FIELD(versions)>("road.host_shm.versions",
                                                                    "Versions kept at most"),
};
#undef DRIFTLESS_FIELD

// Also checked if another road is chosen: an agent hands versions over by host_shm.
Status check(const RoadOptions& options, const RoadUse&) {
  return check_host_shm(options_in<HostShmOptions>(options));
}

}  // namespace
}  // namespace host_shm

constinit const RoadKind kHostShmKind{.name = "host_shm",
                                      .defaults = [] { return RoadOptions(HostShmOptions()); },
                                      .keys = host_shm::kKeys,
                                      .check = host_shm::check,
                                      .one_host = true};

}  // namespace driftless
