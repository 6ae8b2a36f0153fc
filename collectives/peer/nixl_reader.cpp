// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/nixl_reader.h"

#include <thread>

#include "collectives/part_ranges.h"

namespace driftless::peer {
namespace {

// The place is requested again between two pieces: the rank keeps the part for PeerOptions::stall
// after each request.
constexpr std::uint64_t kReadBytes = std::uint64_t{64} << 20;
constexpr std::size_t kReadMoves = 4096;
constexpr std::chrono::microseconds kBetweenLooks{20};

}  // namespace

NixlReader::NixlReader(const PeerOptions& options, std::shared_ptr<NixlAgent> agent)
    : options_(options),
      agent_(std::move(agent)),
      memory_(std::make_shared<ReadMemory>(options.read_bytes, agent_)) {}

Result<std::unique_ptr<NixlReader>> NixlReader::make(const PeerOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<NixlAgent> agent,
                             NixlAgent::make(options.library, NixlRole::kReads));
  return std::unique_ptr<NixlReader>(new NixlReader(options, std::move(agent)));
}

NixlReader::~NixlReader() {
  if (quarantined_bytes() == 0) return;
  // A read may still write into its memory. The block keeps the agent alive.
  static std::mutex mutex;
  static auto* const forever = new std::vector<GivenUp>();
  const std::scoped_lock lock(mutex);
  std::ranges::move(given_up_, std::back_inserter(*forever));
}

std::uint64_t NixlReader::quarantined_bytes() {
  std::uint64_t bytes = 0;
  std::erase_if(given_up_, [&](const GivenUp& each) {
    const Result<bool> ended = agent_->ended(each.read);
    const bool over = !ended.ok() || *ended;
    if (over && each.memory.lease != nullptr) each.memory.lease->spoil();
    if (!over) bytes += each.memory.bytes;
    return over;
  });
  memory_->set_used(bytes);
  return bytes;
}

Status NixlReader::check_quarantine() {
  const std::uint64_t bytes = quarantined_bytes();
  if (bytes < options_.read_bytes) return {};
  return error(StatusCode::kBusy, "peer: NIXL: ", given_up_.size(), " reads of ", bytes,
               " bytes were given up and are still in progress, and road.peer.read_memory is ",
               options_.read_bytes,
               ": NIXL cannot cancel a read; it ends once the trainer rank runs again or is gone");
}

void NixlReader::connected(unsigned rank) { loaded_[rank].known = 0; }

void NixlReader::forget(Loaded& loaded) {
  if (!loaded.name.empty()) agent_->forget(loaded.name);
  loaded = {};
}

Status NixlReader::load(Loaded& loaded, const Place& place) {
  if (place.description.empty()) return {};  // nothing new
  if (place.removals != loaded.removals) {
    if (std::ranges::find(given_up_, loaded.name, &GivenUp::name) != given_up_.end()) {
      return error(StatusCode::kBusy,
                   "peer: NIXL: a read that was given up is still in progress on a trainer rank "
                   "that has changed its memory since");
    }
    forget(loaded);
  }
  Result<std::string> name = agent_->load(place.description);
  if (!name.ok()) {  // the description does not extend the loaded one
    forget(loaded);
    name = agent_->load(place.description);
  }
  if (!name.ok()) return name.status();
  if (!loaded.name.empty() && loaded.name != *name) agent_->forget(loaded.name);
  loaded = {*name, place.state, place.removals, place.state};
  return {};
}

Result<std::uint64_t> NixlReader::find_place(unsigned rank, const AskPlace& ask) {
  Loaded& loaded = loaded_[rank];
  DRIFTLESS_ASSIGN_OR_RETURN(const Place place, ask(loaded.known));
  if (place.description.empty() && (loaded.known == 0 || place.state != loaded.known)) {
    return error(StatusCode::kCorrupt,
                 "peer: NIXL: an answer that does not list what the rank serves");
  }
  DRIFTLESS_RETURN_IF_ERROR(load(loaded, place));
  return place.address;
}

Result<std::vector<MappedFile>> NixlReader::read(unsigned rank, const std::string& part,
                                                 std::span<const ByteRange> ranges,
                                                 const AskPlace& ask, const Deadline& deadline) {
  const RangePlaces places(ranges);
  DRIFTLESS_RETURN_IF_ERROR(check_quarantine());
  // Asks the rank first: it refuses a wrong size before memory of that size is allocated.
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t address, find_place(rank, ask));
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::shared_ptr<ReadLease> lease,
      memory_->take(places.total_bytes(), concat("peer: part '", part, "'")));
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    pieces.push_back({ranges[i], places.of(i, lease->bytes().data()).data()});
  }
  const Memory memory{{}, lease->bytes().size(), lease, nullptr, nullptr};
  DRIFTLESS_RETURN_IF_ERROR(read_pieces(rank, part, address, pieces, memory, ask, deadline));
  return places.files(part, lease, lease->bytes().data());
}

bool NixlReader::takes(const DeviceSpace& space) {
  if (no_device_ || device_memory_ == space.allocation) return !no_device_;
  device_registration_.reset();
  device_memory_ = space.allocation;
  auto added = agent_->add({space.allocation.get(), space.allocation_bytes},
                           {kNixlDeviceMemory, static_cast<std::uint64_t>(space.device)});
  no_device_ = !added.ok();
  if (no_device_) device_memory_.reset();
  if (added.ok()) device_registration_ = std::move(*added);
  return !no_device_;
}

Status NixlReader::read_to_device(unsigned rank, const std::string& part,
                                  std::span<const DeviceRange> ranges, const DeviceSpace& space,
                                  const AskPlace& ask, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_quarantine());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t address, find_place(rank, ask));
  std::vector<Piece> pieces;
  for (const DeviceRange& each : ranges) {
    pieces.push_back({each.range, space.memory.get() + each.to});
  }
  const Memory memory{{kNixlDeviceMemory, static_cast<std::uint64_t>(space.device)},
                      space.allocation_bytes,
                      nullptr,
                      space.memory,
                      device_registration_};
  return read_pieces(rank, part, address, pieces, memory, ask, deadline);
}

Status NixlReader::read_pieces(unsigned rank, const std::string& part, std::uint64_t address,
                               std::span<const Piece> pieces, const Memory& memory,
                               const AskPlace& ask, const Deadline& deadline) {
  std::vector<NixlMove> moves;
  std::uint64_t bytes = 0;
  bool first = true;
  const auto flush = [&]() -> Status {
    if (moves.empty()) return {};
    if (!std::exchange(first, false)) {  // makes the rank keep the part longer
      DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t again, find_place(rank, ask));
      if (again != address) {
        return error(StatusCode::kIncomplete, "peer: part '", part, "' was replaced meanwhile");
      }
    }
    DRIFTLESS_RETURN_IF_ERROR(move(loaded_[rank], moves, memory, deadline));
    moves.clear();
    bytes = 0;
    return {};
  };
  for (const Piece& piece : pieces) {
    std::span<std::byte> into(piece.to, piece.range.size_bytes);
    for (std::uint64_t from = address + piece.range.offset; !into.empty();) {
      const std::size_t some = std::min<std::size_t>(into.size(), kReadBytes - bytes);
      moves.push_back({into.data(), from, some});
      into = into.subspan(some);
      from += some;
      bytes += some;
      if (bytes == kReadBytes || moves.size() == kReadMoves) DRIFTLESS_RETURN_IF_ERROR(flush());
    }
  }
  return flush();
}

Status NixlReader::move(Loaded& from, std::span<const NixlMove> moves, const Memory& memory,
                        const Deadline& deadline) {
  const Deadline soon = deadline.sooner(options_.stall);
  const Result<NixlRead> read = agent_->start(from.name, moves, memory.where);
  if (!read.ok()) {
    forget(from);
    return read.status();
  }
  for (;;) {
    const Result<bool> ended = agent_->ended(*read);
    if (!ended.ok()) {
      if (memory.lease != nullptr) memory.lease->spoil();
      forget(from);
      return ended.status();
    }
    if (*ended) return {};
    if (soon.expired()) break;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  given_up_.push_back({*read, from.name, memory});
  DRIFTLESS_RETURN_IF_ERROR(deadline.check("peer: a read by NIXL"));
  return error(StatusCode::kIo, "peer: a read by NIXL has not ended within road.peer.stall");
}

}  // namespace driftless::peer
