// SPDX-License-Identifier: Apache-2.0
// Another process that serves one part by NIXL until it is killed:
//   peer_nixl_server LIBRARY BYTES
// Prints the part's Place in hexadecimal. Byte i of the part is i * 31 + (i >> 8).
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "collectives/peer/nixl_places.h"

int main(int argc, char** argv) {
  using namespace driftless;
  using namespace driftless::peer;
  if (argc != 3) return 2;
  const std::uint64_t size = std::strtoull(argv[2], nullptr, 10);
  const auto store = std::make_shared<PartStore>(0);
  Segment memory;
  if (!memory.reserve(size).ok()) return 1;
  for (std::uint64_t i = 0; i < size; ++i) {
    memory.data()[i] = static_cast<std::byte>(i * 31 + (i >> 8));
  }
  const PublicationId id{1, PublicationKind::kVersion};
  store->put(id, "part", std::move(memory), size);
  auto agent = NixlAgent::make(argv[1], NixlRole::kServes);
  if (!agent.ok()) return 1;
  NixlPlaces places(*agent);
  const auto place = places.place_of(*store->find(id, "part"), 0);
  if (!place.ok()) return 1;
  for (const char byte : to_bytes(*place)) std::printf("%02x", static_cast<unsigned char>(byte));
  std::printf("\n");
  std::fflush(stdout);
  for (;;) ::pause();
}
