// SPDX-License-Identifier: Apache-2.0
// One worker of a simulated engine. It holds half of every tensor, updated by a Receiver; its calls
// reply with the state of the rank, as the Python workers do.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "plugin/receive/receiver.h"
#include "sim/world.h"

namespace driftless::testing {

// Half the rows of every tensor.
[[nodiscard]] Weights half_of(const Weights& weights, unsigned part);
// A target for `memory`, which is half `part` of tensors with this layout. `base`: the digest of
// the weights that it was made from; none: it holds no version.
[[nodiscard]] Result<std::unique_ptr<WeightTarget>> make_slice_target(
    const WeightLayout& layout, Weights& memory, unsigned part, const std::optional<Digest>& base);

class SliceWorker : public std::enable_shared_from_this<SliceWorker> {
 public:
  // `process` is the server's; it and `world` outlive the worker.
  SliceWorker(World& world, const std::shared_ptr<Process>& process, std::string id, unsigned rank,
              const Weights& base);

  // driftless_open, _stage, _status, _rollback, _close: the reply, without nonce and process.
  [[nodiscard]] nlohmann::json answer(const std::string& method, const nlohmann::json& arguments);
  void commit(std::uint64_t version, const std::string& ticket);

  // The version that the weights are claimed to be; -1: parts of two versions.
  struct Claim {
    std::string run, digest;
    std::int64_t version = 0;
    friend bool operator==(const Claim&, const Claim&) = default;
  };
  [[nodiscard]] Claim claim() const;
  // The digest of the bytes that it holds.
  [[nodiscard]] Digest fingerprint() const { return digest_of(memory_); }
  // Whether the memory has the weights of the claimed version.
  [[nodiscard]] bool holds_its_claim() const;

 private:
  struct Following;  // a receiver and its road

  void add_shares(nlohmann::json& reply) const;
  [[nodiscard]] Status obey(const std::string& method, const nlohmann::json& arguments);
  [[nodiscard]] Status open();
  [[nodiscard]] Status stage(std::chrono::milliseconds timeout, const std::string& ticket);
  [[nodiscard]] Status rollback(std::int64_t version);
  [[nodiscard]] Status close();
  [[nodiscard]] Status commit_staged(std::uint64_t version, const std::string& ticket);

  World& world_;
  const std::shared_ptr<Process> process_;
  const std::string id_;
  const unsigned rank_;
  const Weights base_;
  Weights memory_;
  bool torn_ = false;  // a commit failed in the middle, and its undo failed, too
  std::unique_ptr<WeightTarget> target_;
  std::shared_ptr<Following> following_;
  std::string state_ = "closed", error_, ticket_;
  std::optional<std::uint64_t> staged_;
  std::optional<std::int64_t> before_;
};

}  // namespace driftless::testing
