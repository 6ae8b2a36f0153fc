// SPDX-License-Identifier: Apache-2.0
// Simulation: many processes on one thread, in a time of their own. A seed decides every step.
//
// Each process is one or more fibers. A fiber runs until it sleeps or calls step(). There the seed
// decides whether another fiber runs, or whether the process gets no processor for a while (that
// time does not count as its own). Time passes when all fibers sleep, and a little at each step.
//
// For a process that is dead, every call of the simulated file systems fails and every deadline has
// passed. So its fibers end through the code's own error paths, and nothing that they do has an
// effect on others.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/environment.h"
#include "core/status.h"
#include "sim/fiber.h"

namespace driftless::testing {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  // A number below `end`, which must not be 0.
  std::uint64_t below(std::uint64_t end) { return engine_() % end; }
  bool chance(double probability) {
    return static_cast<double>(engine_() >> 11U) * 0x1p-53 < probability;
  }
  std::chrono::microseconds between(std::chrono::microseconds from, std::chrono::microseconds to) {
    return from +
           std::chrono::microseconds(below(static_cast<std::uint64_t>((to - from).count()) + 1));
  }
  std::uint64_t word() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

struct Process {
  std::string name;
  bool dead = false;
  std::uint64_t crash_in = 0;  // dies after this many further steps; 0: not planned
  std::size_t fibers = 0;      // that have not ended
  // The lead of its clock over the simulation's, and the time for which it got no processor.
  std::chrono::nanoseconds ahead{0}, lost{0};
  std::function<void()> when_dead;  // may be empty
};

struct SimulationOptions {
  double switch_rate = 0.3;    // of steps after which another fiber may go on
  double stall_rate = 0.0005;  // of steps after which a process gets no processor for a while
  std::uint64_t max_steps = 1'000'000;
};

class Simulation final : public Environment {
 public:
  explicit Simulation(std::uint64_t seed, const SimulationOptions& options = {});
  ~Simulation() override;

  [[nodiscard]] Random& random_source() { return random_; }
  // Starts a new process with one fiber.
  std::shared_ptr<Process> start(std::string name, std::function<void(Process&)> body);
  // Starts another fiber of a process.
  void start_fiber(const std::shared_ptr<Process>& process, std::function<void()> body);
  // Runs until every fiber has ended. `check` is called each time a fiber of a process was left.
  void run(const std::function<void(const Process&)>& check);

  // Called by fibers. The running process.
  [[nodiscard]] Process& self();
  // A point at which other fibers may run. kIo if the process is dead.
  Status step();
  void sleep(std::chrono::microseconds time) { sleep_until(now() + time); }
  void kill(Process& process);
  // Lets time pass for this process alone.
  static void jump(Process& process, std::chrono::nanoseconds time);
  // Calls `work`, and records a failure if it took more than a second longer than `limit`. Time for
  // which the process got no processor does not count.
  void within(std::chrono::milliseconds limit, const std::string& what,
              const std::function<void()>& work);

  // From now on no process stalls.
  void calm() { options_.stall_rate = 0; }
  // Records the first violation, which ends the simulation: every process dies.
  void fail(const std::string& what);
  [[nodiscard]] const std::string& failure() const { return failure_; }
  void trace(const std::string& line);
  [[nodiscard]] const std::vector<std::string>& traced() const { return trace_; }
  [[nodiscard]] std::uint64_t steps() const { return steps_; }
  [[nodiscard]] std::chrono::milliseconds elapsed() const;

  TimePoint now() override;
  void sleep_until(TimePoint when) override;
  [[nodiscard]] bool has_threads() const override { return false; }
  // A fiber of the running process.
  std::function<void()> start(std::function<void()> body) override;
  Hash128 random() override { return {random_.word(), random_.word()}; }

 private:
  struct Thread {
    std::shared_ptr<Process> process;
    std::unique_ptr<Fiber> fiber;
    TimePoint wake;  // of the simulation's clock
  };

  void leave(TimePoint wake);
  Thread* next();

  SimulationOptions options_;
  Random random_;
  TimePoint now_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* running_ = nullptr;
  std::uint64_t steps_ = 0;
  std::string failure_;
  std::vector<std::string> trace_;
};

}  // namespace driftless::testing
