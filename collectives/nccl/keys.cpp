// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "collectives/nccl/nccl_options.h"

namespace driftless {
namespace nccl {
namespace {

using namespace road_key;
#define DRIFTLESS_FIELD(field) DRIFTLESS_ROAD_FIELD(NcclSettings, field)

constexpr std::string_view kTcpScheme = "tcp://", kFileScheme = "file://";
constexpr std::string_view kMeetings = "mpi, tcp://host:port or file://DIR";
constexpr setting::Choice<MemoryKind> kArrivals[] = {{"host", MemoryKind::kHost},
                                                     {"device", MemoryKind::kDevice}};

Status set_rendezvous(RoadOptions& options, std::size_t, std::string_view value) {
  RendezvousOptions& meet = options_in<NcclSettings>(options).rendezvous;
  const bool tcp = value.starts_with(kTcpScheme) && value.size() > kTcpScheme.size();
  const bool file = value.starts_with(kFileScheme) && value.size() > kFileScheme.size();
  if (!tcp && !file && value != "mpi") return setting::not_one_of(kMeetings, value);
  DRIFTLESS_RETURN_IF_ERROR(setting::Text::parse(value).status());
  meet.kind = tcp ? RendezvousKind::kTcp : file ? RendezvousKind::kFile : RendezvousKind::kMpi;
  meet.address = tcp ? value.substr(kTcpScheme.size()) : "";
  meet.dir = file ? value.substr(kFileScheme.size()) : "";
  return {};
}
std::string rendezvous_text(const RoadOptions& options, std::size_t) {
  const RendezvousOptions& meet = options_in<NcclSettings>(options).rendezvous;
  if (meet.kind == RendezvousKind::kMpi) return "mpi";
  return meet.kind == RendezvousKind::kTcp ? concat(kTcpScheme, meet.address)
                                           : concat(kFileScheme, meet.dir);
}

constexpr std::array kKeys = {
    // The GPU of the process, which the job has a key for.
    Rows::key<setting::Count<0, 1023>, DRIFTLESS_FIELD(device)>("gpu.device", "")
        .once("road.nccl.device"),
    ring_size<DRIFTLESS_FIELD(ring_bytes)>(),
    ring_versions<DRIFTLESS_FIELD(ring_versions)>(),
    patience<DRIFTLESS_FIELD(patience)>(),
    RoadKey{"road.nccl.rendezvous", kMeetings, "",
            "How processes find each other: in one mpirun job; at an address, where the leading "
            "trainer listens and the others go; or in a directory that all see, closed to other "
            "users",
            set_rendezvous, rendezvous_text, "road.nccl.address road.nccl.dir"},
    Rows::key<setting::Text, DRIFTLESS_FIELD(rendezvous.token_file)>(
        "road.nccl.token_file", setting::kPath,
        "tcp: file with the run's secret, at least 16 bytes, readable by its owner alone"),
    Rows::key<setting::OneOf<kArrivals>, DRIFTLESS_FIELD(arrival)>(
        "road.nccl.arrival", "host or device", "Where a rollout finds the frames that arrived"),
    Rows::key<setting::Count<>, DRIFTLESS_FIELD(receivers)>(
        "road.nccl.receivers",
        "The first version waits until so many rollouts have joined; 0: those of the mpirun job"),
    Rows::key<setting::Duration, DRIFTLESS_FIELD(silence)>(
        "road.nccl.silence", "A rollout of which nothing was heard for so long is gone"),
};
#undef DRIFTLESS_FIELD

Status check(const RoadOptions& options, const RoadUse& use) {
  const RendezvousOptions& meet = options_in<NcclSettings>(options).rendezvous;
  if (!use.chosen || meet.kind != RendezvousKind::kTcp || !meet.token_file.empty()) return {};
  return error(StatusCode::kInvalidArgument,
               "road.nccl.token_file is missing: road.nccl.rendezvous: tcp://... needs a file with "
               "the run's secret");
}

std::string_view variant(const RoadOptions& options, std::string_view) {
  switch (options_in<NcclSettings>(options).rendezvous.kind) {
    case RendezvousKind::kTcp: return "tcp";
    case RendezvousKind::kMpi: return "mpi";
    case RendezvousKind::kFile: break;
  }
  return "";
}

bool on_device(const RoadOptions& options) {
  return options_in<NcclSettings>(options).arrival == MemoryKind::kDevice;
}

}  // namespace
}  // namespace nccl

constinit const RoadKind kNcclKind{.name = "nccl",
                                   .defaults = [] { return RoadOptions(NcclSettings()); },
                                   .keys = nccl::kKeys,
                                   .check = nccl::check,
                                   .variant = nccl::variant,
                                   .on_device = nccl::on_device};

}  // namespace driftless
