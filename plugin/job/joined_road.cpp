// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/joined_road.h"

#include <mutex>
#include <set>

#include "plugin/job/metrics.h"
#include "plugin/job/record_sinks.h"

namespace driftless {
namespace {

// An id that is unique among the receivers of this process: a second one with the same name gets
// "name_2".
class UniqueId {
 public:
  explicit UniqueId(const std::string& name) : id_(name) {
    Taken& all = taken();
    const std::scoped_lock lock(all.mutex);
    for (unsigned number = 2; !all.ids.insert(id_).second; ++number) {
      id_ = concat(name, "_", number);
    }
  }
  UniqueId(const UniqueId&) = delete;
  UniqueId& operator=(const UniqueId&) = delete;
  ~UniqueId() {
    Taken& all = taken();
    const std::scoped_lock lock(all.mutex);
    all.ids.erase(id_);
  }
  [[nodiscard]] const std::string& text() const { return id_; }

 private:
  struct Taken {
    std::mutex mutex;
    std::set<std::string> ids;
  };
  static Taken& taken() {
    static Taken all;
    return all;
  }
  std::string id_;
};

struct Kept {
  std::shared_ptr<JobProcess> process;  // outlives the road
  std::optional<UniqueId> id;           // none: the caller chose the id
  std::unique_ptr<RecordSinks> sinks;
  std::unique_ptr<ReceiveRoad> road;
};

}  // namespace

Result<Config> read_config(FileSystem& fs, const std::string& config,
                           std::span<const std::string> sets) {
  const bool text = config.find('\n') != std::string::npos ||
                    (config.find(':') != std::string::npos && !exists(fs, config));
  return text ? parse_config(config, "configuration", sets) : load_config(fs, config, sets);
}

Result<JoinedRoad> join_road(const Config& config, std::shared_ptr<JobProcess> process,
                             const std::optional<std::string>& id, const Deadline& deadline) {
  auto kept = std::make_shared<Kept>();
  kept->process = std::move(process);
  JobProcess& place = *kept->process;
  const unsigned rank = place.rank();
  DRIFTLESS_ASSIGN_OR_RETURN(kept->road, place.receiver(deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(kept->sinks, RecordSinks::open(config, place, "rollout", rank, false));
  if (!id) kept->id.emplace(receiver_id(config, place, rank));
  ReceiverOptions options = config.receiver;
  options.id = id ? *id : kept->id->text();
  options.connect_deadline = config.connect_deadline;
  RecordFanout* const records = &kept->sinks->records();
  options.record = [records, rank, name = options.id, &place](const UpdateReport& report) {
    if (records->empty()) return Status();
    VersionRecord record = record_of(report, rank);
    record.fallback = place.fallback();
    record.origin.id = name;
    records->add(record);
    return records->take_trouble();
  };
  options.fetch_end = [&place] { return place.fetch_end(); };
  options.keeps = kept;
  return JoinedRoad{std::move(options), kept->road.get(), records};
}

}  // namespace driftless
