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
    if (over) each.memory->spoil();
    if (!over) bytes += each.memory->bytes().size();
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
    return error(StatusCode::kCorrupt, "peer: NIXL: an answer without what the rank serves");
  }
  DRIFTLESS_RETURN_IF_ERROR(load(loaded, place));
  return place.address;
}

Result<std::vector<MappedFile>> NixlReader::read(unsigned rank, const std::string& part,
                                                 std::span<const ByteRange> ranges,
                                                 const AskPlace& ask, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(check_quarantine());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t address, find_place(rank, ask));
  const RangePlaces places(ranges);
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::shared_ptr<ReadLease> memory,
      memory_->take(places.total_bytes(), concat("peer: part '", part, "'")));
  std::vector<NixlMove> moves;
  std::uint64_t bytes = 0;
  bool first = true;
  const auto flush = [&]() -> Status {
    if (moves.empty()) return {};
    if (!std::exchange(first, false)) {  // makes the rank keep the part longer
      DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t again, find_place(rank, ask));
      if (again != address) {
        return error(StatusCode::kIncomplete, "peer: part '", part, "' was made anew meanwhile");
      }
    }
    DRIFTLESS_RETURN_IF_ERROR(move(loaded_[rank], moves, memory, deadline));
    moves.clear();
    bytes = 0;
    return {};
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    std::span<std::byte> into = places.of(i, memory->bytes().data());
    for (std::uint64_t from = address + ranges[i].offset; !into.empty();) {
      const std::size_t some = std::min<std::size_t>(into.size(), kReadBytes - bytes);
      moves.push_back({into.data(), from, some});
      into = into.subspan(some);
      from += some;
      bytes += some;
      if (bytes == kReadBytes || moves.size() == kReadMoves) DRIFTLESS_RETURN_IF_ERROR(flush());
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(flush());
  return places.files(part, memory, memory->bytes().data());
}

Status NixlReader::move(Loaded& from, std::span<const NixlMove> moves,
                        const std::shared_ptr<ReadLease>& memory, const Deadline& deadline) {
  const Deadline soon = deadline.sooner(options_.stall);
  const Result<NixlRead> read = agent_->start(from.name, moves);
  if (!read.ok()) {
    forget(from);
    return read.status();
  }
  for (;;) {
    const Result<bool> ended = agent_->ended(*read);
    if (!ended.ok()) {
      memory->spoil();
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
