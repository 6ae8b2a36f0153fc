// SPDX-License-Identifier: Apache-2.0
// Measures time and memory of the road object_store alone (tests/bench/object_store.py starts the
// servers):
//
//   object_store_bench publish ENDPOINT PREFIX MIB STREAMS
//   object_store_bench fetch ENDPOINT PREFIX MIB STREAMS
//
// The first publishes parts of 64 MiB, then a delta; the second fetches both. Each prints one line
// of JSON. The bytes are generated while they are sent, and take no memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "collectives/object_store/object_store_road.h"
#include "core/stopwatch.h"

namespace driftless {
namespace {

constexpr std::uint64_t kPartBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kChunkBytes = std::uint64_t{4} << 20;
constexpr PublicationId kFull{1, PublicationKind::kVersion}, kDelta{2, PublicationKind::kVersion};

Deadline soon() { return Deadline::after(std::chrono::minutes(10)); }

// Not from getrusage(), whose maximum includes the memory of the process that started this one.
double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) / 1024;
  }
  return -1;
}

Status write_part(SendRoad& road, const std::string& name, std::uint64_t size,
                  std::vector<std::byte>& chunk) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, road.create_part(name));
  for (std::uint64_t at = 0; at < size; at += chunk.size()) {
    std::memcpy(chunk.data(), &at, sizeof(at));
    const std::uint64_t more = std::min<std::uint64_t>(chunk.size(), size - at);
    DRIFTLESS_RETURN_IF_ERROR(file->pwrite(at, std::span(chunk).first(more)));
  }
  return file->sync();
}

Status publish(SendRoad& road, std::uint64_t size) {
  std::vector<std::byte> chunk(kChunkBytes, std::byte{0x5a});
  DRIFTLESS_RETURN_IF_ERROR(road.announce("{}", soon()));
  Stopwatch watch;
  DRIFTLESS_RETURN_IF_ERROR(road.begin(kFull, soon()));
  for (std::uint64_t at = 0; at < size; at += kPartBytes) {
    DRIFTLESS_RETURN_IF_ERROR(
        write_part(road, concat("part", at / kPartBytes), std::min(kPartBytes, size - at), chunk));
  }
  DRIFTLESS_RETURN_IF_ERROR(road.flush(soon()).status());
  DRIFTLESS_RETURN_IF_ERROR(road.seal("{}", soon()));
  const double full_ms = watch.lap_ms();
  DRIFTLESS_RETURN_IF_ERROR(road.begin(kDelta, soon()));
  DRIFTLESS_RETURN_IF_ERROR(write_part(road, "delta", 1 << 20, chunk));
  DRIFTLESS_RETURN_IF_ERROR(road.flush(soon()).status());
  DRIFTLESS_RETURN_IF_ERROR(road.seal("{}", soon()));
  (void)std::printf("{\"publish_ms\": %.1f, \"peak_mib\": %.1f}\n", full_ms, peak_mib());
  return {};
}

Status fetch(ReceiveRoad& road, ObjectStore& store, std::uint64_t size) {
  Stopwatch watch;
  DRIFTLESS_RETURN_IF_ERROR(road.wait_beyond(0, soon()));
  DRIFTLESS_RETURN_IF_ERROR(road.fetch_manifest(kFull, soon()).status());
  // The manifest has no receipts here: the number of the attempt is in the version's object.
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::string text,
      store.get_text("versions/0000000000000000001.version.json", 4096, soon()));
  PartReceipt part;
  part.locator = std::strtoull(text.substr(text.size() - 17, 16).c_str(), nullptr, 16);
  for (std::uint64_t at = 0; at < size; at += kPartBytes) {
    part.name = concat("part", at / kPartBytes);
    part.size_bytes = std::min(kPartBytes, size - at);
    DRIFTLESS_RETURN_IF_ERROR(road.fetch_part(kFull, part, soon()).status());
  }
  const double full_ms = watch.lap_ms();
  DRIFTLESS_RETURN_IF_ERROR(road.wait_beyond(1, soon()));
  DRIFTLESS_RETURN_IF_ERROR(road.list(soon()).status());
  DRIFTLESS_RETURN_IF_ERROR(road.fetch_manifest(kDelta, soon()).status());
  (void)std::printf("{\"fetch_ms\": %.1f, \"peak_mib\": %.1f}\n", full_ms, peak_mib());
  return {};
}

Status run(int count, char** words) {
  if (count != 6) return error(StatusCode::kInvalidArgument, "5 arguments are needed");
  ObjectStoreOptions options;
  options.endpoint = words[2];
  options.url = words[3];
  options.streams = static_cast<unsigned>(std::atoi(words[5]));
  const std::uint64_t size = std::strtoull(words[4], nullptr, 10) << 20;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, open_object_store(options));
  if (std::string_view(words[1]) == "fetch") {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto road, make_object_store_receiver(store, options));
    return fetch(*road, *store, size);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const auto road, make_object_store_sender(store, options, 0, 1));
  return publish(*road, size);
}

}  // namespace
}  // namespace driftless

int main(int count, char** words) {
  const driftless::Status status = driftless::run(count, words);
  if (status.ok()) return 0;
  (void)std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}
