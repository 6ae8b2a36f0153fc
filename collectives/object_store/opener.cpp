// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/claim.h"
#include "collectives/object_store/medium.h"
#include "collectives/object_store/object_store_road.h"
#include "collectives/object_store/receiver_objects.h"

namespace driftless {
namespace object_store {
namespace {

constexpr std::size_t kMaxEndBytes = 4096;
constexpr std::chrono::seconds kEndWait{30};

Result<std::shared_ptr<ObjectStore>> store_of(const RoadOptions& options) {
  return open_object_store(options_in<ObjectStoreOptions>(options));
}

Result<std::optional<std::string>> read_end(ObjectStore& store) {
  Result<std::string> read =
      store.get_text(std::string(kEndKey), kMaxEndBytes, Deadline::after(kEndWait));
  if (read.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  if (!read.ok()) return read.status();
  return std::optional<std::string>(std::move(*read));
}

Result<OpenRoad> open(const RoadOptions& given, const RoadPlace& place) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, store_of(given));
  const auto& options = options_in<ObjectStoreOptions>(given);
  OpenRoad road;
  road.sender = [store, options, place] {
    return make_object_store_sender(store, options, place.rank, place.trainers, place.read_parts);
  };
  road.receiver = [store, options] { return make_object_store_receiver(store, options); };
  road.fetch_end = [store] { return read_end(*store); };
  return road;
}

Result<std::unique_ptr<ReceiveRoad>> history(const RoadOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, store_of(options));
  return make_object_store_receiver(store, options_in<ObjectStoreOptions>(options));
}

Status withdraw_end(const RoadOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, store_of(options));
  return store->remove(std::string(kEndKey), Deadline::after(kEndWait));
}

Status publish_end(const RoadOptions& options, std::string_view text) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, store_of(options));
  const std::string line = concat(text, "\n");
  return store->put(std::string(kEndKey), bytes_of(line), false, Deadline::after(kEndWait));
}

Result<std::optional<std::string>> fetch_end(const RoadOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, store_of(options));
  return read_end(*store);
}

Result<RoadSigns> signs(const RoadOptions& options, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, store_of(options));
  RoadSigns signs;
  const Result<NamedPublisher> publisher = read_publisher(*store, deadline);
  if (publisher.ok() && publisher->process != kNobody) signs.publisher = publisher->process;
  ReceiverObjects objects(store, options_in<ObjectStoreOptions>(options));
  const auto found = objects.look(deadline);
  // A store that can only be read by name shows no receivers.
  if (found.status().code() == StatusCode::kUnsupported) return signs;
  DRIFTLESS_RETURN_IF_ERROR(found.status());
  for (const auto& each : *found) signs.receivers.push_back({each.report, each.readable, {}});
  return signs;
}

Result<std::string> share(const RoadOptions& options, const ReadParts& read,
                          std::chrono::seconds valid) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store, store_of(options));
  const auto wait = options_in<ObjectStoreOptions>(options).request_timeout;
  return share_object_store(*store, read, valid, Deadline::after(wait));
}

}  // namespace
}  // namespace object_store

constinit const RoadOpener kObjectStoreOpener{.open = object_store::open,
                                              .history = object_store::history,
                                              .withdraw_end = object_store::withdraw_end,
                                              .publish_end = object_store::publish_end,
                                              .fetch_end = object_store::fetch_end,
                                              .signs = object_store::signs,
                                              .share = object_store::share,
                                              .examine = object_store::examine};

}  // namespace driftless
