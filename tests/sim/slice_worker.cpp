// SPDX-License-Identifier: Apache-2.0
#include "sim/slice_worker.h"

#include <utility>

#include "plugin/targets/mapped_target.h"
#include "sim/step_road.h"

namespace driftless::testing {

namespace {

// A half; a tensor that cannot be divided is on both ranks.
HeldRun piece_of(std::uint64_t units, unsigned part) {
  if (units < 2) return {0, units};
  return part == 0 ? HeldRun{0, units / 2} : HeldRun{units / 2, units - units / 2};
}

}  // namespace

Weights half_of(const Weights& weights, unsigned part) {
  Weights halves;
  for (const auto& [name, tensor] : weights) {
    const std::uint64_t unit = unit_bytes(tensor.dtype);
    const HeldRun held = piece_of(tensor.bytes.size() / unit, part);
    const auto begin = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(held.first * unit);
    TestTensor half{tensor.dtype, {held.count}, {}};
    half.bytes.assign(begin, begin + static_cast<std::ptrdiff_t>(held.count * unit));
    halves[name] = std::move(half);
  }
  return halves;
}

Result<std::unique_ptr<WeightTarget>> make_slice_target(const WeightLayout& layout, Weights& memory,
                                                        unsigned part,
                                                        const std::optional<Digest>& base) {
  MappedParts parts;
  parts.layout = layout;
  for (std::uint32_t i = 0; i < layout.size(); ++i) {
    const HeldRun held = piece_of(layout[i].units(), part);
    if (held.count == 0) continue;
    WeightMap map;
    map.tensor = i;
    map.data = memory.at(layout[i].name).bytes.data();
    map.unit_bytes = unit_bytes(layout[i].dtype);
    map.parameter = layout[i].name;
    DRIFTLESS_ASSIGN_OR_RETURN(map.map,
                               StridedMap::make({held.first, {held.count}, {1}}, layout[i].units(),
                                                {0, {held.count}, {1}}, held.count));
    parts.maps.push_back(std::move(map));
  }
  MappedOptions options;
  options.threads = 1;
  if (base.has_value()) {
    options.initial = VersionId{};
    options.initial_digest = base;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<MappedTarget> made,
                             make_mapped_target(std::move(parts), options));
  return std::unique_ptr<WeightTarget>(std::move(made));
}

struct SliceWorker::Following {
  std::unique_ptr<ReceiveRoad> road;
  std::unique_ptr<Receiver> receiver;
};

SliceWorker::SliceWorker(World& world, const std::shared_ptr<Process>& process, std::string id,
                         unsigned rank, const Weights& base)
    : world_(world),
      process_(process),
      id_(std::move(id)),
      rank_(rank),
      base_(base),
      memory_(half_of(base, rank)) {}

SliceWorker::Claim SliceWorker::claim() const {
  if (torn_) return {"", "", -1};
  if (target_ == nullptr) return {};
  const TargetState state = target_->state();
  if (!state.valid) return {"", "", -1};
  return {state.id.run.is_zero() ? std::string() : to_hex(state.id.run), to_hex(state.digest),
          static_cast<std::int64_t>(state.id.version)};
}

bool SliceWorker::holds_its_claim() const {
  const Claim held = claim();
  if (held.version < 0) return true;  // it claims nothing
  if (held.run.empty()) return same(memory_, half_of(base_, rank_));
  const auto run = hash128_from_hex(held.run);
  for (const KnownWeights& known :
       world_.truth.of(*run, static_cast<std::uint64_t>(held.version))) {
    if (to_hex(known.digest) == held.digest && same(memory_, half_of(known.weights, rank_))) {
      return true;
    }
  }
  return false;
}

nlohmann::json SliceWorker::answer(const std::string& method, const nlohmann::json& arguments) {
  const Status obeyed = obey(method, arguments);
  const std::string wrong = obeyed.ok() ? error_ : obeyed.to_string();
  const Claim held = claim();
  const bool follows = following_ != nullptr && following_->receiver != nullptr;
  nlohmann::json reply = {
      {"rank", rank_},
      {"ok", wrong.empty()},
      {"error", wrong.empty() ? nlohmann::json() : nlohmann::json(wrong)},
      {"state", state_},
      {"version", held.version},
      {"staged_version", staged_ ? nlohmann::json(*staged_) : nlohmann::json()},
      {"run", held.run},
      {"digest", held.digest},
      {"follows", follows ? to_hex(following_->receiver->run()) : std::string()},
      {"session", true}};
  if (method == "driftless_shares" && obeyed.ok()) add_shares(reply);
  return reply;
}

void SliceWorker::add_shares(nlohmann::json& reply) const {
  const auto& target = dynamic_cast<const MappedTarget&>(*target_);
  const WeightLayout& layout = *target.layout();
  const std::vector<Digest>& manifest = following_->receiver->tensor_digests();
  reply["shares"] = reply["unproven"] = reply["absent"] = nlohmann::json::array();
  for (const TensorShare& share : target.tracked().tensors) {
    const bool known = share.tensor < manifest.size();
    reply["shares"].push_back({layout[share.tensor].name, share.units, layout[share.tensor].units(),
                               to_hex(share.region), to_hex(share.digest),
                               known ? to_hex(manifest[share.tensor]) : std::string()});
  }
}

Status SliceWorker::obey(const std::string& method, const nlohmann::json& arguments) {
  if (method == "driftless_status") return {};
  if (method == "driftless_open") return open();
  if (state_ == "staging") return error(StatusCode::kBusy, "rank ", rank_, " is still staging");
  if (method == "driftless_close") return close();
  if (following_ == nullptr) return error(StatusCode::kInvalidArgument, "call open() first");
  if (method == "driftless_shares") return {};
  if (method == "driftless_rollback") return rollback(arguments.at("version"));
  if (method == "driftless_stage") {
    const auto timeout = std::chrono::milliseconds(
        static_cast<std::int64_t>(arguments.at("timeout_s").get<double>() * 1e3));
    return stage(timeout, arguments.at("ticket"));
  }
  return error(StatusCode::kInvalidArgument, "no such call: ", method);
}

Status SliceWorker::open() {
  if (following_ != nullptr) return {};
  if (target_ == nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(
        target_, make_slice_target(layout_of(base_), memory_, rank_, digest_of(base_)));
  }
  auto following = std::make_shared<Following>();
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<ReceiveRoad> road,
                             make_host_shm_receiver(world_.host_shm));
  following->road = std::make_unique<StepReceiveRoad>(world_.simulation, std::move(road),
                                                      world_.receive_fault_rate);
  ReceiverOptions options;
  options.id = id_;
  options.threads = 1;
  options.fetch_deadline = kFetchDeadline;
  options.report_deadline = kReportDeadline;
  DRIFTLESS_ASSIGN_OR_RETURN(
      following->receiver,
      Receiver::open(options, *following->road, *target_, Deadline::after(kConnectDeadline)));
  following_ = std::move(following);
  state_ = "idle";
  error_.clear();
  return {};
}

// On a fiber of its own, in place of a thread.
Status SliceWorker::stage(std::chrono::milliseconds timeout, const std::string& ticket) {
  state_ = "staging";
  error_.clear();
  staged_.reset();
  ticket_ = ticket;
  world_.simulation.start_fiber(process_, [this, self = shared_from_this(), timeout,
                                           following = following_, process = process_] {
    Result<bool> staged = false;
    world_.simulation.within(timeout + kFetchDeadline + kReportDeadline, "a worker's stage()", [&] {
      staged = following->receiver->stage(Deadline::after(timeout));
    });
    if (process->dead) return;  // and the worker may be gone
    staged_ = staged.ok() && *staged ? following->receiver->staged_version() : std::nullopt;
    error_ = staged.ok() ? std::string() : staged.status().to_string();
    state_ = !staged.ok() ? "failed" : *staged ? "staged" : "idle";
  });
  return {};
}

void SliceWorker::commit(std::uint64_t version, const std::string& ticket) {
  const Status done = commit_staged(version, ticket);
  if (!done.ok()) error_ = done.to_string();
}

Status SliceWorker::commit_staged(std::uint64_t version, const std::string& ticket) {
  const std::int64_t now = claim().version;
  if (following_ == nullptr || state_ == "staging") {
    return error(StatusCode::kInvalidArgument, "rank ", rank_, " is not ready");
  }
  if (!staged_ && state_ == "committed" && now == static_cast<std::int64_t>(version)) return {};
  if (staged_ != version || ticket != ticket_) {
    return error(StatusCode::kInvalidArgument, "rank ", rank_, " has other things staged");
  }
  staged_.reset();
  Random& random = world_.random;
  if (!world_.calm && random.chance(0.02)) {
    return error(StatusCode::kIo, "rank ", rank_, ": the commit failed");
  }
  const Result<UpdateReport> report = following_->receiver->commit();
  const bool tears = !world_.calm && random.chance(0.01);
  if (report.ok() && report->anchor) torn_ = false;  // all of it was written again
  if (tears) {
    torn_ = true;
    memory_.begin()->second.bytes[0] ^= std::byte{1};
  }
  const bool moved = claim().version != now;
  state_ = moved ? "committed" : "failed";
  before_ = moved && now >= 0 ? std::optional(now) : std::nullopt;
  if (!report.ok()) return report.status();
  error_.clear();
  return {};
}

Status SliceWorker::rollback(std::int64_t version) {
  const std::int64_t now = claim().version;
  if (version == now) {
    if (staged_) DRIFTLESS_RETURN_IF_ERROR(following_->receiver->rollback());
    state_ = state_ == "committed" && !staged_ ? "committed" : "idle";
    staged_.reset();
    error_.clear();
    return {};
  }
  if (torn_ || state_ != "committed" || before_ != version) {
    return error(StatusCode::kInvalidArgument, "rank ", rank_, " is at version ", now,
                 " and cannot go back to ", version);
  }
  DRIFTLESS_RETURN_IF_ERROR(following_->receiver->rollback());
  state_ = "idle";
  before_.reset();
  error_.clear();
  return {};
}

Status SliceWorker::close() {
  following_.reset();
  state_ = "closed";
  staged_.reset();
  before_.reset();
  error_.clear();
  return {};
}

}  // namespace driftless::testing
