// SPDX-License-Identifier: Apache-2.0
// object_store: a road through a store of objects that both sides reach: S3 and what speaks like
// it. Below the prefix:
//
//   run.json                                the announcement
//   weight_v000007.json                     a version: its manifest, and that text's hash in a line
//   anchor_v000007.json                     an anchor, likewise
//   parts/weight_v000007.<locator>/<name>   parts, under a number that is new for each attempt
//   receivers/<id>.json                     what a receiver last said
//   publisher.json                          the session that publishes here
//   index.json                              what is there, for readers that cannot list
//
// Parts are uploaded while they are written. A version appears by one conditional PUT of its
// manifest (If-None-Match): of two publishers one wins, and the other is fenced (kWrongRun). A
// store that ignores the condition is found out when the road is opened, and refused unless
// `single_writer` is set; then a second publisher is noticed by publisher.json before a seal.
//
// Memory: 16 MiB for each stream under way; what is larger is spooled to `spool_dir`.
#pragma once

#include <memory>

#include "collectives/object_store/object_store.h"
#include "collectives/object_store/object_store_options.h"
#include "collectives/road.h"

namespace driftless {

// The store that `options.url` names.
[[nodiscard]] Result<std::shared_ptr<ObjectStore>> open_object_store(
    const ObjectStoreOptions& options);

// `ranks` publisher ranks share the prefix; each makes its own sender.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_object_store_sender(
    std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options, unsigned rank,
    unsigned ranks);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_object_store_receiver(
    std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options);

}  // namespace driftless
