// SPDX-License-Identifier: Apache-2.0
// The object_store road, for a process of a job.
#include "collectives/object_store/object_store_road.h"
#include "formats/manifest.h"
#include "plugin/job/road_openers.h"

namespace driftless {
namespace {

constexpr std::size_t kMaxEndBytes = 4096;
constexpr std::chrono::seconds kEndWait{30};

Result<std::optional<std::string>> read_end(ObjectStore& store) {
  Result<std::string> read =
      store.get_text(std::string(kEndKey), kMaxEndBytes, Deadline::after(kEndWait));
  if (read.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  if (!read.ok()) return read.status();
  return std::optional<std::string>(std::move(*read));
}

Result<std::vector<PartReceipt>> read_parts(std::string_view manifest, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest parsed, parse_manifest(manifest, what));
  std::vector<PartReceipt> parts;
  for (const ManifestFile& file : parsed.files) {
    parts.push_back({file.name, file.rank, file.size_bytes, file.hash, file.locator});
  }
  return parts;
}

}  // namespace

Result<OpenRoad> open_object_store_road(const Config& config, const RoadPlace& place) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store,
                             open_object_store(config.object_store));
  OpenRoad road;
  road.sender = [store, options = config.object_store, place] {
    return make_object_store_sender(store, options, place.rank, place.trainers, read_parts);
  };
  road.receiver = [store, options = config.object_store] {
    return make_object_store_receiver(store, options);
  };
  road.hear_end = [store] { return read_end(*store); };
  return road;
}

Result<std::unique_ptr<ReceiveRoad>> object_store_history(const Config& config) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store,
                             open_object_store(config.object_store));
  return make_object_store_receiver(store, config.object_store);
}

Status withdraw_object_store_end(const Config& config) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store,
                             open_object_store(config.object_store));
  return store->remove(std::string(kEndKey), Deadline::after(kEndWait));
}

Status tell_object_store_end(const Config& config, std::string_view text) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store,
                             open_object_store(config.object_store));
  const std::string line = concat(text, "\n");
  return store->put(std::string(kEndKey), bytes_of(line), false, Deadline::after(kEndWait));
}

Result<std::string> share_object_store_road(const Config& config, std::chrono::seconds valid) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store,
                             open_object_store(config.object_store));
  return share_object_store(*store, read_parts, valid,
                            Deadline::after(config.object_store.request_timeout));
}

}  // namespace driftless
