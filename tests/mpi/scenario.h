// SPDX-License-Identifier: Apache-2.0
// What the scenarios of mpi_road_test share: roles, content that can be told from its place, and a
// manifest that carries the receipts.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/mpi_rma/mpi_rma_road.h"

namespace driftless::testing {

struct ScenarioOptions {
  std::uint64_t versions = 20;
  std::uint64_t part_bytes = 1 << 20;
  std::uint64_t compute_ms = 0;  // of the publisher between versions, without entering MPI
  std::uint64_t deadline_ms = 20'000;
  unsigned publishers = 1;
  bool expect_deadline = false;  // the link is cut for good: end with kDeadlineExceeded
  bool lossy = false;            // versions may be gone
  std::string log_dir;           // a file per process: where standard output may not arrive
};

class Scenario {
 public:
  Scenario(std::string name, const ScenarioOptions& options);
  ~Scenario();

  [[nodiscard]] unsigned rank() const { return rank_; }
  [[nodiscard]] unsigned size() const { return size_; }
  [[nodiscard]] const ScenarioOptions& options() const { return options_; }
  [[nodiscard]] Deadline soon() const {
    return Deadline::after(std::chrono::milliseconds(options_.deadline_ms));
  }
  void say(const std::string& line);
  // Notes a failure and goes on.
  bool expect(bool holds, std::string_view what, const char* file, int line);
  bool expect_ok(const Status& status, const char* file, int line) {
    return expect(status.ok(), status.to_string(), file, line);
  }
  [[nodiscard]] int failures() const { return failures_; }

 private:
  std::string name_;
  ScenarioOptions options_;
  unsigned rank_ = 0, size_ = 0;
  int failures_ = 0;
  std::FILE* log_ = nullptr;
};

#define HOLDS(scenario, condition) (scenario).expect((condition), #condition, __FILE__, __LINE__)
#define OK_OR_SAY(scenario, status) (scenario).expect_ok((status), __FILE__, __LINE__)

using ScenarioFunction = std::function<void(Scenario&)>;
[[nodiscard]] const std::map<std::string, ScenarioFunction>& all_scenarios();

inline PublicationId step(std::uint64_t version) { return {version, PublicationKind::kVersion}; }
inline PublicationId anchor(std::uint64_t version) { return {version, PublicationKind::kAnchor}; }

// The same bytes for the same place, others for any other.
[[nodiscard]] std::vector<std::byte> content(const PublicationId& id, unsigned rank, unsigned part,
                                             std::uint64_t size_bytes);
[[nodiscard]] std::string pack(const std::vector<PartReceipt>& parts);
[[nodiscard]] std::vector<PartReceipt> unpack(const std::string& manifest);

// One publisher rank's part in a publication, the leader sealing; `group` joins the ranks.
[[nodiscard]] Status publish(SendRoad& road, Group& group, const PublicationId& id, unsigned parts,
                             std::uint64_t part_bytes, const Deadline& deadline);
// Manifest and all parts; kMismatch where a hash is wrong.
[[nodiscard]] Result<std::uint64_t> fetch_all(ReceiveRoad& road, const PublicationId& id,
                                              const Deadline& deadline);
// Waits until `count` receivers have reported `version`, letting the road work.
[[nodiscard]] Status wait_for_reports(SendRoad& road, std::size_t count, std::uint64_t version,
                                      const Deadline& deadline);

}  // namespace driftless::testing
