// SPDX-License-Identifier: Apache-2.0
// object_store: a road through an object store that both sides reach: S3 and compatible stores.
// Below the prefix:
//
//   run.json                                        the announcement
//   versions/0000000000000000007.version.json       a version: its manifest, and a line with the
//   versions/0000000000000000007.anchor.json        manifest's hash and the attempt's number
//   parts/0000000000000000007.version.<attempt>/<name>   parts, below their attempt's number
//   attempts/0000000000000000007.version.<session>.json  an attempt's number, for the other ranks
//   attempts/probe-<session>                        a test of the store, removed at once
//   receivers/<id>.json                             a receiver's last report
//   publisher.json                                  the session that publishes here
//   index.json                                      the publications, for readers that cannot list
//   closed.json                                     the end of the run, for rollouts
//
// Parts are uploaded while they are written. A version appears by one conditional PUT of its object
// (If-None-Match; If-Match if its name is reserved): of two publishers one wins, and the other is
// fenced (kWrongRun). A removed version leaves an empty object, so that a number that was visible
// once is never used again. announce() refuses a store that ignores If-None-Match.
//
// Memory: a piece of 8 MiB for each concurrent transfer; larger parts are spooled to `spool_dir`.
#pragma once

#include <functional>
#include <memory>

#include "collectives/object_store/object_store.h"
#include "collectives/object_store/object_store_options.h"
#include "collectives/road_kind.h"

namespace driftless {

inline constexpr std::string_view kEndKey = "closed.json";

// Opens the store that `options.url` names.
[[nodiscard]] Result<std::shared_ptr<ObjectStore>> open_object_store(
    const ObjectStoreOptions& options);

// `ranks` publisher ranks share the prefix; each makes its own sender. Without `read` the sender
// makes no links.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_object_store_sender(
    std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options, unsigned rank,
    unsigned ranks, ReadParts read = {});
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_object_store_receiver(
    std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options);

// Puts new presigned links into index.json and returns a presigned URL of that object: the
// road.object_store.url for a receiver without credentials. kUnsupported if the store has no
// presigned links.
[[nodiscard]] Result<std::string> share_object_store(ObjectStore& store, const ReadParts& read,
                                                     std::chrono::seconds valid,
                                                     const Deadline& deadline);

}  // namespace driftless
