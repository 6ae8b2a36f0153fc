// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "collectives/nccl/nccl_options.h"

namespace driftless {
namespace nccl {
namespace {

using namespace road_key;
#define DRIFTLESS_FIELD(field) DRIFTLESS_ROAD_FIELD(NcclSettings, field)

constexpr std::string_view kFileScheme = "file://";
constexpr std::string_view kMeetings = "mpi, hub or file://DIR";
constexpr setting::Choice<MemoryKind> kArrivals[] = {{"host", MemoryKind::kHost},
                                                     {"device", MemoryKind::kDevice}};

Status set_rendezvous(RoadOptions& options, std::size_t, std::string_view value) {
  RendezvousOptions& meet = options_in<NcclSettings>(options).rendezvous;
  const bool file = value.starts_with(kFileScheme) && value.size() > kFileScheme.size();
  if (value.starts_with("tcp://")) {
    return error(StatusCode::kInvalidArgument, "expected ", kMeetings, ", found ", shown(value),
                 ": set rendezvous: hub, and hub.address: ", value.substr(6));
  }
  if (!file && value != "hub" && value != "mpi") return setting::not_one_of(kMeetings, value);
  DRIFTLESS_RETURN_IF_ERROR(setting::Text::parse(value).status());
  meet.kind = file             ? RendezvousKind::kFile
              : value == "hub" ? RendezvousKind::kHub
                               : RendezvousKind::kMpi;
  meet.dir = file ? value.substr(kFileScheme.size()) : "";
  return {};
}
std::string rendezvous_text(const RoadOptions& options, std::size_t) {
  const RendezvousOptions& meet = options_in<NcclSettings>(options).rendezvous;
  switch (meet.kind) {
    case RendezvousKind::kMpi: return "mpi";
    case RendezvousKind::kHub: return "hub";
    case RendezvousKind::kFile: break;
  }
  return concat(kFileScheme, meet.dir);
}

constexpr std::array kKeys = {
    // The GPU of the process; the job has a key for it.
    Rows::key<setting::GpuNumber, DRIFTLESS_FIELD(device)>("gpu.device", "")
        .once("road.nccl.device"),
    ring_size<DRIFTLESS_FIELD(ring_bytes)>(),
    ring_versions<DRIFTLESS_FIELD(ring_versions)>(),
    patience<DRIFTLESS_FIELD(patience)>(),
    RoadKey{"road.nccl.rendezvous", kMeetings, "",
            "How processes find each other: in one mpirun job; by the hub (hub.address), under any "
            "launcher; or in a directory that all see, closed to other users",
            set_rendezvous, rendezvous_text, "road.nccl.dir"},
    road_key::hub_address<DRIFTLESS_FIELD(rendezvous.hub.address)>(),
    road_key::hub_token_file<DRIFTLESS_FIELD(rendezvous.hub.token_file)>(),
    Rows::key<setting::OneOf<kArrivals>, DRIFTLESS_FIELD(arrival)>(
        "road.nccl.arrival", "host or device",
        "Where a rollout reads frames that arrived: in host memory, after a copy, or on its GPU"),
    Rows::key<setting::Count<>, DRIFTLESS_FIELD(receivers)>(
        "road.nccl.receivers",
        "The first version waits until this many rollouts have joined; 0: those of the mpirun job"),
    Rows::key<setting::Duration, DRIFTLESS_FIELD(silence)>(
        "road.nccl.silence", "A rollout that has sent nothing for this long counts as gone"),
};
#undef DRIFTLESS_FIELD

Status check(const RoadOptions& options, const RoadUse& use) {
  const RendezvousOptions& meet = options_in<NcclSettings>(options).rendezvous;
  if (!use.chosen || meet.kind != RendezvousKind::kHub) return {};
  return hub::check_token_file(meet.hub);
}

std::string_view variant(const RoadOptions& options, std::string_view) {
  switch (options_in<NcclSettings>(options).rendezvous.kind) {
    case RendezvousKind::kHub: return "hub";
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
                                   .on_device = nccl::on_device,
                                   .gpu_library = "NCCL"};

}  // namespace driftless
