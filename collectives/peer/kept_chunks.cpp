// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/kept_chunks.h"

#include <cstring>

namespace driftless::peer {

const KeptChunks::Part* KeptChunks::part_of(const PublicationId& id,
                                            const PartReceipt& part) const {
  const auto publication = publications_.find(id);
  if (publication == publications_.end()) return nullptr;
  const auto found = publication->second.find(part.name);
  const bool same = found != publication->second.end() && found->second.hash == part.hash &&
                    found->second.hashes.size() == chunks_in(part.size_bytes);
  return same ? &found->second : nullptr;
}

const std::vector<Hash128>* KeptChunks::hashes(const PublicationId& id,
                                               const PartReceipt& part) const {
  const Part* const found = part_of(id, part);
  return found == nullptr ? nullptr : &found->hashes;
}

void KeptChunks::set_hashes(const PublicationId& id, const PartReceipt& part,
                            std::vector<Hash128> hashes) {
  const auto publication = publications_.find(id);
  if (publication != publications_.end() && publication->second.contains(part.name)) {
    drop(publication);
  }
  publications_[id][part.name] = {.hash = part.hash, .hashes = std::move(hashes)};
}

std::span<const std::byte> KeptChunks::find(const PublicationId& id, const PartReceipt& part,
                                            std::uint64_t chunk) const {
  const Part* const found = part_of(id, part);
  if (found == nullptr || found->stored == nullptr || !found->stored->chunks->has(chunk)) return {};
  const ByteRange range = chunk_at(chunk, part.size_bytes);
  return found->stored->bytes().subspan(range.offset, range.size_bytes);
}

bool KeptChunks::keep(const PublicationId& id, const PartReceipt& part, std::uint64_t chunk,
                      std::span<const std::byte> bytes) {
  if (!make_room(id, bytes.size())) return false;
  Part& kept = publications_.at(id).at(part.name);
  if (kept.stored == nullptr) {
    Segment memory;  // only written pages take memory
    if (!memory.reserve(part.size_bytes).ok()) return false;
    kept.memory = memory.data();
    kept.stored = store_->put(id, part.name, std::move(memory), part.size_bytes,
                              std::make_unique<ChunkSet>(part.size_bytes));
  }
  if (kept.stored->chunks->has(chunk)) return true;
  std::memcpy(kept.memory + chunk * kChunkBytes, bytes.data(), bytes.size());
  kept.stored->chunks->add(chunk);
  kept.bytes += bytes.size();
  bytes_ += bytes.size();
  return true;
}

bool KeptChunks::make_room(const PublicationId& id, std::uint64_t bytes) {
  if (bytes > most_bytes_) return false;
  while (bytes_ > most_bytes_ - bytes) {
    if (publications_.empty() || !(publications_.begin()->first < id)) return false;
    drop(publications_.begin());
  }
  return true;
}

void KeptChunks::drop(std::map<PublicationId, Parts>::iterator publication) {
  for (const auto& [name, part] : publication->second) bytes_ -= part.bytes;
  store_->drop(publication->first);
  publications_.erase(publication);
}

void KeptChunks::keep_only(const std::vector<PublicationId>& ids) {
  for (auto it = publications_.begin(); it != publications_.end();) {
    const auto here = it++;
    if (std::ranges::find(ids, here->first) == ids.end()) drop(here);
  }
}

}  // namespace driftless::peer
