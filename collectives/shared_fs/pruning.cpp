// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/pruning.h"

#include <algorithm>
#include <optional>

namespace driftless::shared_fs {
namespace {

// `oldest_anchor`: of those there.
bool needs(const ReceiverWatch::Receiver& receiver, const PublicationId& id,
           const std::optional<PublicationId>& oldest_anchor) {
  if (!receiver.readable) return true;
  const bool holds_nothing = receiver.report.version == 0 && receiver.report.proof.empty();
  if (!holds_nothing) return is_step(id) && id.version > receiver.report.version;
  if (!oldest_anchor.has_value()) return true;
  return id == *oldest_anchor || (is_step(id) && id.version > oldest_anchor->version);
}

}  // namespace

std::vector<PublicationId> prunable(const std::vector<PublicationId>& there, std::uint64_t version,
                                    const std::vector<ReceiverWatch::Receiver>& receivers) {
  std::optional<PublicationId> oldest_anchor;
  for (const PublicationId& id : there) {
    if (!is_step(id) && (!oldest_anchor.has_value() || id < *oldest_anchor)) oldest_anchor = id;
  }
  std::vector<PublicationId> removable;
  for (const PublicationId& id : there) {
    const bool asked = is_step(id) ? id.version <= version : id.version < version;
    const bool needed = std::ranges::any_of(
        receivers, [&](const auto& receiver) { return needs(receiver, id, oldest_anchor); });
    if (asked && !needed) removable.push_back(id);
  }
  std::ranges::sort(removable);
  return removable;
}

}  // namespace driftless::shared_fs
