// SPDX-License-Identifier: Apache-2.0
// object_store: a road through a store of objects that both sides reach: S3 and what speaks like
// it. Below the prefix:
//
//   run.json                                        the announcement
//   versions/0000000000000000007.version.json       a version: its manifest, and a line with that
//   versions/0000000000000000007.anchor.json        text's hash and the number of its attempt
//   parts/0000000000000000007.version.<attempt>/<name>   parts, under a number of their own
//   receivers/<id>.json                             what a receiver last said
//   publisher.json                                  the session that publishes here
//   index.json                                      what is there, for readers that cannot list
//   closed.json                                     the trainer's last word, to its rollouts
//
// Parts are uploaded while they are written. A version appears by one conditional PUT of its object
// (If-None-Match): of two publishers one wins, and the other is fenced (kWrongRun). What was
// removed leaves an empty object, so that a number which was visible once is never used again. A
// store that ignores the condition is found out by announce(), and refused.
//
// Memory: a piece of 8 MiB for each stream under way; larger parts are spooled to `spool_dir`.
#pragma once

#include <functional>
#include <memory>

#include "collectives/object_store/object_store.h"
#include "collectives/object_store/object_store_options.h"
#include "collectives/road.h"

namespace driftless {

inline constexpr std::string_view kEndKey = "closed.json";

// The store that `options.url` names.
[[nodiscard]] Result<std::shared_ptr<ObjectStore>> open_object_store(
    const ObjectStoreOptions& options);

// The parts that a manifest names, for `what`: a road does not read manifests itself, and signs
// links of what they name.
using ReadParts = std::function<Result<std::vector<PartReceipt>>(std::string_view manifest,
                                                                 std::string_view what)>;

// `ranks` publisher ranks share the prefix; each makes its own sender. Without `read` it makes no
// links.
[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_object_store_sender(
    std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options, unsigned rank,
    unsigned ranks, ReadParts read = {});
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_object_store_receiver(
    std::shared_ptr<ObjectStore> store, const ObjectStoreOptions& options);

// Puts fresh presigned links into index.json and returns a presigned URL of that object: a
// receiver's road.url, for one without credentials. kUnsupported if the store has none such.
[[nodiscard]] Result<std::string> share_object_store(ObjectStore& store, const ReadParts& read,
                                                     std::chrono::seconds valid,
                                                     const Deadline& deadline);

}  // namespace driftless
