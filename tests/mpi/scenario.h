// SPDX-License-Identifier: Apache-2.0
// Shared by the scenarios of mpi_road_test: roles, content that depends on its place, and a
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
  bool lossy = false;            // versions may have been removed
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
  void print(const std::string& line);
  // Prints a failure and continues.
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
#define OK_OR_REPORT(scenario, status) (scenario).expect_ok((status), __FILE__, __LINE__)

using ScenarioFunction = std::function<void(Scenario&)>;
[[nodiscard]] const std::map<std::string, ScenarioFunction>& all_scenarios();

inline PublicationId step(std::uint64_t version) { return {version, PublicationKind::kVersion}; }
inline PublicationId anchor(std::uint64_t version) { return {version, PublicationKind::kAnchor}; }

// The same bytes for the same place, and other bytes for any other place.
[[nodiscard]] std::vector<std::byte> content(const PublicationId& id, unsigned rank, unsigned part,
                                             std::uint64_t size_bytes);
[[nodiscard]] std::string pack(const std::vector<PartReceipt>& parts);
[[nodiscard]] std::vector<PartReceipt> unpack(const std::string& manifest);

// Publishes one rank's part of a publication; the leader seals it. `group` connects the ranks.
[[nodiscard]] Status publish(SendRoad& road, Group& group, const PublicationId& id, unsigned parts,
                             std::uint64_t part_bytes, const Deadline& deadline);
// Fetches the manifest and all parts; kMismatch if a hash is wrong.
[[nodiscard]] Result<std::uint64_t> fetch_all(ReceiveRoad& road, const PublicationId& id,
                                              const Deadline& deadline);
// Waits until `count` receivers have reported `version`, and calls progress() meanwhile.
[[nodiscard]] Status wait_for_reports(SendRoad& road, std::size_t count, std::uint64_t version,
                                      const Deadline& deadline);

}  // namespace driftless::testing
