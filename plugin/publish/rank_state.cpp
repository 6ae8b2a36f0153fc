// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/rank_state.h"

#include "core/parallel.h"

namespace driftless {

RankState::RankState(const PublisherOptions& given, Group& ranks, SendRoad& to, ReceiveRoad* from)
    : options(given),
      group(ranks),
      road(to),
      history(from),
      threads(given.threads > 0 ? given.threads : default_threads()),
      offers(std::make_unique<RankOffers>()) {
  run.shape.encoding = options.encoding;
  if (group.leads()) {
    leader = std::make_unique<PublisherLeader>(options, group.size(), road, history, run, threads);
  }
}

void RankState::use_buffers() {
  buffers = std::make_unique<PayloadBuffers>(run.layout, run.shape.encoding);
}

void RankState::set_digests(std::vector<Digest> digests) {
  tensor_digests = std::move(digests);
  part_digest = Digest();
  for (const Digest& digest : tensor_digests) part_digest += digest;
}

PayloadContext RankState::context(const PublicationId& id, std::uint64_t base_version, bool full) {
  PayloadContext made;
  made.layout = &run.layout;
  made.store = store.get();
  made.buffers = buffers.get();
  made.frame.id = {run.id.run, id.version};
  made.frame.base_version = base_version;
  made.frame.layout = run.layout.signature();
  made.frame.encoding = full ? Encoding::kFull : run.shape.encoding;
  made.frame.rank = group.rank();
  made.plain = run.shape.plain;
  made.directory_layout = options.layout;
  made.checksum = options.checksum;
  made.buffer_bytes = options.buffer_bytes;
  made.position_limit = options.position_limit;
  made.ranks = group.size() + (mirror ? 1 : 0);  // ranks that write, the mirror included
  made.threads = threads;
  made.background = options.background;
  return made;
}

Result<bool> RankState::use_fallback() {
  Fallback* const fallback = road.fallback();
  if (fallback == nullptr || fallback->used()) return false;
  const Deadline deadline = Deadline::after(options.deadline);
  const Result<std::vector<std::string>> troubles =
      group.gather(to_message(StatusMessage{fallback->trouble()}), deadline);
  FallbackMessage message;
  message.status = troubles.status();
  if (leader && troubles.ok()) message = leader->use_fallback(*troubles, deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(const FallbackMessage agreed,
                             broadcast_checked(group, std::move(message), deadline));
  if (agreed.reason.empty()) return false;
  DRIFTLESS_RETURN_IF_ERROR(fallback->use(agreed.reason, std::nullopt, deadline));
  return true;
}

Status RankState::agree_on_blocks(const Status& measured, const Deadline& deadline) {
  if (quantized && !shares_blocks) quantized->agree_alone();
  if (!shares_blocks) return {};
  MaximaMessage mine;
  if (quantized) mine = quantized->maxima_to_send();
  mine.status = measured;
  if (quantized) quantized->forget();  // until take_maxima() succeeds
  const Result<std::vector<MaximaMessage>> ranks = collect(group, mine, deadline);
  MaximaMessage merged;
  if (leader) merged = leader->agree(ranks);
  DRIFTLESS_ASSIGN_OR_RETURN(const MaximaMessage agreed,
                             broadcast_checked(group, std::move(merged), deadline));
  if (quantized) quantized->take_maxima(agreed);
  return {};
}

}  // namespace driftless
