#include "collectives/road.h"

namespace driftless {

std::string to_string(const PublicationId& id) {
  return concat(id.kind == PublicationKind::kAnchor ? "anchor of version " : "version ",
                id.version);
}

}  // namespace driftless
