// SPDX-License-Identifier: Apache-2.0
#include "sim/fleet.h"

#include <algorithm>
#include <utility>

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Fleet {
 public:
  Fleet(std::uint64_t seed, const SeedOptions& options)
      : seed_(seed),
        simulation_(seed),
        random_(simulation_.random_source()),
        world_(simulation_, random_.chance(0.25), random_.chance(0.3) ? 2 : 1) {
    world_.receive_fault_rate = random_.chance(0.5) ? 0.03 : 0;
    world_.call_fault_rate = random_.chance(0.6) ? 0.05 : 0;
    if (random_.chance(0.3)) world_.disk.error_rate = 0.002;
    choose_layout();
    contracts_ = options.contracts;
    world_.loader_breaks = contracts_.failed_undo;
    world_.rolls_back = contracts_.rollbacks;
    add_rollouts(options);
  }

  FleetResult run() {
    trainers_.push_back(new_trainer(model_weights(seed_, seed_)));
    simulation_.start("operator", [this](Process&) { operate(); });
    simulation_.run([this](const Process& ran) { check(ran); });
    FleetResult result;
    result.seed = seed_;
    result.failure = simulation_.failure();
    result.trace = simulation_.traced();
    result.steps = simulation_.steps();
    result.versions = world_.versions;
    result.commits = world_.commits;
    return result;
  }

 private:
  // If engines read directories after a call, the layout is `flush` or `hf_delta` and the trainer
  // has one rank.
  void choose_layout() {
    if (world_.hub != nullptr) return;
    if (world_.ranks == 1 && random_.chance(0.5)) {
      notified_ = std::make_unique<NotifiedEngine>(
          world_, random_.chance(0.5) ? EngineAction::kUpdateFlush : EngineAction::kPullWeights);
    }
    if (notified_ ? !notified_->pulls() : random_.chance(0.2)) {
      world_.layout = DirectoryLayout::kFlush;
    } else if (notified_ || random_.chance(0.2)) {
      world_.layout = DirectoryLayout::kHfDelta;
    }
  }

  void add_rollouts(const SeedOptions& options) {
    const auto add = [this](const std::string& name, Holds holds, unsigned part) {
      rollouts_.push_back(std::make_unique<Rollout>(world_, name, holds, part));
    };
    add("slice", Holds::kSlice, static_cast<unsigned>(random_.below(2)));
    if (random_.chance(0.5)) add("all", Holds::kAll, 0);
    if (random_.chance(0.5)) add("some0", Holds::kSome, 0);
    if (random_.chance(0.3)) add("some1", Holds::kSome, 1);
    if (random_.chance(0.6)) add("checkpoint", Holds::kCheckpoint, 0);
    if (world_.layout != DirectoryLayout::kHfDelta && random_.chance(0.3)) {
      add("loader", Holds::kLoader, 0);
      world_.plain_deltas = true;
    }
    engines_.push_back(std::make_unique<Engine>(world_, "engine0"));
    if (random_.chance(0.3)) engines_.push_back(std::make_unique<Engine>(world_, "engine1"));
    std::vector<Engine*> driven;
    for (const auto& engine : engines_) driven.push_back(engine.get());
    agent_ = std::make_unique<Agent>(world_, std::move(driven));
    if (options.liar) world_.liar = "slice";
  }

  std::unique_ptr<Trainer> new_trainer(Weights base) {
    return std::make_unique<Trainer>(world_, concat("trainer", trainers_.size()), std::move(base),
                                     notified_.get());
  }
  [[nodiscard]] Trainer& trainer() { return *trainers_.back(); }

  // Weights are changed only by the process that holds them, or by the operator: check those.
  void check(const Process& ran) {
    for (const auto& rollout : rollouts_) {
      if (&ran != rollout->process() && ran.name != "operator") continue;
      if (std::string wrong = rollout->check(); !wrong.empty()) simulation_.fail(wrong);
    }
    for (const auto& engine : engines_) {
      if (&ran != engine->server() && ran.name != "operator") continue;
      if (std::string wrong = engine->check(); !wrong.empty()) simulation_.fail(wrong);
    }
    if (notified_ && (&ran == notified_->server() || ran.name == "operator")) {
      if (std::string wrong = notified_->check(); !wrong.empty()) simulation_.fail(wrong);
    }
  }

  // The operator, whose own process never dies.
  void operate();
  void start_engines();
  void disturb();
  void kill(Process* process);
  void start_rollout(Rollout& rollout);
  void new_run();
  void second_trainer();
  void other_run();
  void damage_road();
  void make_whole();
  void stop_all();
  [[nodiscard]] bool all_are_at(const VersionId& id) const;
  [[nodiscard]] Rollout& any_rollout() { return *rollouts_[random_.below(rollouts_.size())]; }

  const std::uint64_t seed_;
  Simulation simulation_;
  Random& random_;
  World world_;
  std::vector<std::unique_ptr<Rollout>> rollouts_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<NotifiedEngine> notified_;  // null: there is none
  std::vector<std::unique_ptr<Trainer>> trainers_;
  std::unique_ptr<Trainer> stranger_;  // of another run; null: none came yet
  // A trainer of another run began one on the road: the road may refuse the trainer.
  bool taken_ = false;
  Contracts contracts_;
};

void Fleet::operate() {
  trainer().start(100);
  for (const auto& rollout : rollouts_) {
    if (random_.chance(0.7)) start_rollout(*rollout);  // the others join late
  }
  start_engines();
  const std::uint64_t events = 5 + random_.below(25);
  for (std::uint64_t i = 0; i < events && simulation_.failure().empty(); ++i) {
    simulation_.sleep(random_.between(milliseconds(1), milliseconds(4'000)));
    disturb();
  }
  if (simulation_.failure().empty()) make_whole();
  world_.ending = true;
}

void Fleet::start_engines() {
  for (const auto& engine : engines_) engine->start_server(trainer().base());
  if (notified_) notified_->start_server(trainer().base());
  agent_->start();
}

void Fleet::disturb() {
  Rollout& rollout = any_rollout();
  Engine& engine = *engines_[random_.below(engines_.size())];
  switch (random_.below(22)) {
    case 0: return kill(trainer().process());
    case 1: return kill(rollout.process());
    case 2:
    case 3:
      if (!rollout.running()) start_rollout(rollout);
      return;
    case 4:
    case 5:
      if (!trainer().running()) trainer().start(100);
      return;
    case 6: return new_run();
    case 7: return second_trainer();
    case 8: world_.disk.full = random_.chance(0.5); return;
    case 9: rollout.disk().full = random_.chance(0.5); return;
    case 10:
      if (rollout.process() != nullptr) {
        Simulation::jump(*rollout.process(), milliseconds(std::uint64_t{1} << random_.below(21)));
      }
      return;
    case 11:
      if (random_.chance(0.5) && rollout.scribble()) {
        simulation_.trace(concat("a stranger writes into ", rollout.name()));
      } else if (rollout.restore_files(trainer().base())) {
        simulation_.trace(concat("a stranger restores the files of ", rollout.name()));
      }
      return;
    case 12: return damage_road();
    case 13: return engine.start_server(trainer().base());  // ends the one before
    case 14: return kill(engine.server());
    case 15: return kill(agent_->process());
    case 16:
      if (notified_) notified_->restart_server(trainer().base());
      return;
    case 17: return other_run();
    default:
      if (!agent_->running()) agent_->start();
      return;
  }
}

void Fleet::kill(Process* process) {
  if (process == nullptr || process->dead || process->fibers == 0) return;
  if (random_.chance(0.7)) {
    process->crash_in = 1 + random_.below(60);  // in the middle of an operation
  } else {
    simulation_.kill(*process);
  }
}

void Fleet::start_rollout(Rollout& rollout) {
  StartsFrom from = StartsFrom::kBase;
  if (random_.chance(0.2)) from = StartsFrom::kNothing;
  if (random_.chance(0.1)) from = StartsFrom::kAnotherBase;
  if (rollout.holds() == Holds::kCheckpoint && random_.chance(0.8)) from = StartsFrom::kWhatIsThere;
  if (contracts_.stored_claims && trainer().published() && random_.chance(0.15) &&
      (rollout.holds() == Holds::kAll || rollout.holds() == Holds::kSome)) {
    const VersionId id = *trainer().published();
    StoredClaim claim{id, world_.truth.of(id.run, id.version).back().weights};
    if (random_.chance(0.5)) claim.weights = trained_weights(std::move(claim.weights), 78);
    simulation_.trace(concat(rollout.name(), " starts with a claim of version ", id.version));
    return rollout.start(trainer().base(), StartsFrom::kClaim, std::move(claim));
  }
  rollout.start(trainer().base(), from);
}

// Every restart of a trainer without its directory is a new run: its versions count from 0 again.
void Fleet::new_run() {
  if (world_.hub != nullptr) return;
  simulation_.trace("a new run in the same directory");
  // Only one trainer at a time calls an engine.
  if (notified_ && trainer().process() != nullptr) simulation_.kill(*trainer().process());
  if (random_.chance(0.7)) kill(trainer().process());
  world_.disk.remove(kRoad);
  ++world_.wipes;
  world_.road_is_damaged = false;
  const Weights base =
      random_.chance(0.5) ? trainer().base() : model_weights(seed_, random_.word());
  // A call that is still under way names a directory, not a run: the operator waits for it, or
  // restarts the engine, as docs/operate/notify.md asks. A checkpoint that was patched belongs to
  // the old run.
  if (notified_ && (notified_->pulls() || !same(base, trainer().base()) || !notified_->idle())) {
    notified_->start_server(base);
  }
  trainers_.push_back(new_trainer(base));
  trainer().start(100);
}

// Starts a second publisher of the same run; the lock file is gone.
void Fleet::second_trainer() {
  if (world_.hub != nullptr || notified_) return;
  simulation_.trace("a second trainer on the same directory");
  if (random_.chance(0.8)) world_.disk.remove(concat(kRoad, "/.driftless-publisher.lock"));
  trainers_.push_back(new_trainer(trainer().base()));
  trainer().start(100);
}

// Starts a trainer of another run, by mistake in the same directory. It calls its own engine and
// publishes its own versions; the first trainer continues later.
void Fleet::other_run() {
  if (world_.hub != nullptr || notified_ || (stranger_ && stranger_->running())) return;
  simulation_.trace("a trainer of another run in the same directory");
  if (random_.chance(0.7) && trainer().process() != nullptr) {
    simulation_.kill(*trainer().process());
  }
  const std::uint64_t shape = random_.chance(0.2) ? random_.word() : seed_;
  taken_ = taken_ || (stranger_ && stranger_->began());
  stranger_ =
      std::make_unique<Trainer>(world_, "stranger", model_weights(shape, random_.word()), nullptr);
  stranger_->start(3);
}

void Fleet::damage_road() {
  if (world_.hub != nullptr) return;
  const std::vector<std::string> names = world_.disk.list(kRoad);
  if (names.empty()) return;
  const std::string path = concat(kRoad, "/", names[random_.below(names.size())]);
  simulation_.trace(concat("a stranger damages ", path));
  world_.road_is_damaged = true;
  if (random_.chance(0.3)) return world_.disk.remove(path);
  const std::vector<std::string> files = world_.disk.list(path);
  const bool done =
      files.empty()
          ? world_.disk.damage(path, random_)
          : world_.disk.damage(concat(path, "/", files[random_.below(files.size())]), random_);
  if (!done) simulation_.trace("... which has no bytes");
}

void Fleet::stop_all() {
  for (const auto& trainer : trainers_) {
    if (trainer->process() != nullptr) simulation_.kill(*trainer->process());
  }
  if (stranger_) simulation_.kill(*stranger_->process());
  for (const auto& rollout : rollouts_) {
    if (rollout->process() != nullptr) simulation_.kill(*rollout->process());
  }
  for (const auto& engine : engines_) {
    if (engine->server() != nullptr) simulation_.kill(*engine->server());
  }
  if (agent_->process() != nullptr) simulation_.kill(*agent_->process());
  if (notified_ && notified_->server() != nullptr) simulation_.kill(*notified_->server());
  const auto running = [this] {
    return agent_->running() || (notified_ && notified_->running()) ||
           (stranger_ && stranger_->running()) ||
           std::ranges::any_of(trainers_, [](const auto& one) { return one->running(); }) ||
           std::ranges::any_of(rollouts_, [](const auto& one) { return one->running(); }) ||
           std::ranges::any_of(engines_, [](const auto& one) { return one->running(); });
  };
  while (running()) simulation_.sleep(milliseconds(10));
}

bool Fleet::all_are_at(const VersionId& id) const {
  return std::ranges::all_of(rollouts_,
                             [&](const auto& rollout) { return rollout->claim() == id; }) &&
         std::ranges::all_of(engines_, [&](const auto& engine) { return engine->serves(id); }) &&
         (!notified_ || notified_->serves(id));
}

// From now on nothing fails: every version that could not be had before must arrive now.
void Fleet::make_whole() {
  stop_all();
  simulation_.trace("all is made whole");
  simulation_.calm();
  world_.calm = true;
  world_.disk.full = false;
  world_.disk.error_rate = 0;
  world_.receive_fault_rate = 0;
  for (const auto& rollout : rollouts_) rollout->disk().full = false;
  taken_ = taken_ || (stranger_ && stranger_->began());
  if (world_.road_is_damaged || taken_ ||
      notified_) {  // a new engine is not called for earlier deltas
    world_.disk.remove(kRoad);
    trainers_.push_back(new_trainer(trainer().base()));
  }
  if (notified_) notified_->start_server(trainer().base());
  trainer().start(3);
  while (trainer().running()) simulation_.sleep(milliseconds(100));
  if (!trainer().published().has_value()) {
    return simulation_.fail(concat("no version was published although nothing fails any more"));
  }
  for (const auto& rollout : rollouts_) rollout->start(trainer().base(), StartsFrom::kBase);
  for (const auto& engine : engines_) engine->start_server(trainer().base());
  agent_->start();
  const VersionId newest = *trainer().published();
  for (int i = 0; i < 600 && !all_are_at(newest); ++i) simulation_.sleep(milliseconds(100));
  if (all_are_at(newest) || !simulation_.failure().empty()) return;
  for (const auto& rollout : rollouts_) {
    if (rollout->claim() == newest) continue;
    return simulation_.fail(concat(rollout->name(), " did not get to version ", newest.version,
                                   " although nothing fails any more"));
  }
  for (const auto& engine : engines_) {
    if (engine->serves(newest)) continue;
    return simulation_.fail(concat(engine->name(), " does not serve version ", newest.version,
                                   " although nothing fails any more"));
  }
  simulation_.fail(
      concat("told does not serve version ", newest.version, " although nothing fails any more"));
}

}  // namespace

FleetResult run_fleet(std::uint64_t seed, const SeedOptions& options) {
  return Fleet(seed, options).run();
}

}  // namespace driftless::testing
