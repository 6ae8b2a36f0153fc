// SPDX-License-Identifier: Apache-2.0
#include "mpi/scenario.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "mpi/wire.h"

namespace driftless::testing {

Scenario::Scenario(std::string name, const ScenarioOptions& options)
    : name_(std::move(name)), options_(options) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  rank_ = static_cast<unsigned>(rank);
  size_ = static_cast<unsigned>(size);
  if (!options_.log_dir.empty()) {
    log_ = std::fopen(concat(options_.log_dir, "/rank", rank_, ".log").c_str(), "w");
  }
}

Scenario::~Scenario() {
  if (log_ != nullptr) std::fclose(log_);
}

void Scenario::print(const std::string& line) {
  const std::string text = concat(name_, ", rank ", rank_, ": ", line, "\n");
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (log_ == nullptr) return;
  std::fputs(text.c_str(), log_);
  std::fflush(log_);
}

bool Scenario::expect(bool holds, std::string_view what, const char* file, int line) {
  if (holds) return true;
  ++failures_;
  print(concat("FAILED ", file, ":", line, ": ", what));
  return false;
}

std::vector<std::byte> content(const PublicationId& id, unsigned rank, unsigned part,
                               std::uint64_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  std::uint64_t state = (id.version * 4 + static_cast<std::uint64_t>(id.kind)) * 64 + rank * 8 +
                        part + 0x9e37'79b9'7f4a'7c15;
  for (std::uint64_t i = 0; i < size_bytes; i += sizeof(state)) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t word = state ^ (state >> 29);
    std::memcpy(&bytes[i], &word, std::min<std::uint64_t>(sizeof(word), size_bytes - i));
  }
  return bytes;
}

std::string pack(const std::vector<PartReceipt>& parts) {
  Packer out;
  out.number(parts.size());
  for (const PartReceipt& part : parts) out.receipt(part);
  return out.bytes();
}

std::vector<PartReceipt> unpack(const std::string& manifest) {
  Unpacker in(manifest);
  std::vector<PartReceipt> parts(in.number());
  for (PartReceipt& part : parts) part = in.receipt();
  return parts;
}

namespace {

Result<std::vector<PartReceipt>> write_parts(SendRoad& road, unsigned rank, const PublicationId& id,
                                             unsigned parts, std::uint64_t part_bytes,
                                             const Deadline& deadline) {
  for (unsigned i = 0; i < parts; ++i) {
    const std::vector<std::byte> bytes = content(id, rank, i, part_bytes + i * 100 + rank);
    DRIFTLESS_ASSIGN_OR_RETURN(const auto file, road.create_part(concat("r", rank, "_p", i)));
    const std::size_t half = bytes.size() / 2;
    DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, std::span(bytes).first(half)));
    DRIFTLESS_RETURN_IF_ERROR(file->pwrite(half, std::span(bytes).subspan(half)));
    DRIFTLESS_RETURN_IF_ERROR(file->sync());
  }
  return road.flush(deadline);
}

}  // namespace

Status publish(SendRoad& road, Group& group, const PublicationId& id, unsigned parts,
               std::uint64_t part_bytes, const Deadline& deadline) {
  group.begin_epoch(id.version * 2 + static_cast<std::uint64_t>(id.kind));
  Status status;
  if (group.leads()) status = road.begin(id, deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string go,
                             group.broadcast(status.ok() ? "go" : "stay", deadline));
  DRIFTLESS_RETURN_IF_ERROR(status);
  if (go != "go") return error(StatusCode::kBusy, "the leader could not begin");
  if (!group.leads()) DRIFTLESS_RETURN_IF_ERROR(road.begin(id, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto mine,
                             write_parts(road, group.rank(), id, parts, part_bytes, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto all, group.gather(pack(mine), deadline));
  if (!group.leads()) return {};
  std::vector<PartReceipt> receipts;
  for (const std::string& of_rank : all) {
    for (PartReceipt& part : unpack(of_rank)) receipts.push_back(std::move(part));
  }
  return road.seal(pack(receipts), deadline);
}

Result<std::uint64_t> fetch_all(ReceiveRoad& road, const PublicationId& id,
                                const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string manifest, road.fetch_manifest(id, deadline));
  std::uint64_t size = 0;
  for (const PartReceipt& part : unpack(manifest)) {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile got, road.fetch_part(id, part, deadline));
    if (xxh3_128(got.bytes()) != part.hash) {
      return error(StatusCode::kMismatch, part.name, " of ", to_string(id), " is torn");
    }
    size += part.size_bytes;
  }
  return size;
}

Status wait_for_reports(SendRoad& road, std::size_t count, std::uint64_t version,
                        const Deadline& deadline) {
  Backoff backoff(std::chrono::microseconds(100), std::chrono::milliseconds(2));
  std::string text;
  do {
    road.progress();
    DRIFTLESS_ASSIGN_OR_RETURN(const auto reports, road.receivers());
    const auto there = std::count_if(reports.begin(), reports.end(),
                                     [&](const ReceiverReport& r) { return r.version >= version; });
    if (static_cast<std::size_t>(there) >= count) return {};
    text.clear();
    for (const ReceiverReport& r : reports) text += concat(" ", r.id, "=", r.version);
  } while (backoff.sleep(deadline));
  return deadline.check(concat("waiting for version ", version, "; receivers said", text));
}

}  // namespace driftless::testing
