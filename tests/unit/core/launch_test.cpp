// SPDX-License-Identifier: Apache-2.0
// Environments as the launchers leave them: Open MPI 4.1 and 5, Hydra, Slurm 22.05, torchrun of
// torch 2.13, Ray 2.60; and one inside another.
#include "core/launch.h"

#include <gtest/gtest.h>

#include <map>

namespace driftless {
namespace {

using Environ = std::map<std::string, std::string>;

constexpr long kParent = 4711;

Result<Launch> launch_in(const Environ& environ, const LaunchNames& names = {}) {
  const auto get = [&](const char* name) {
    const auto found = environ.find(name);
    return found == environ.end() ? std::nullopt : std::optional(found->second);
  };
  return read_launch(get, kParent, names);
}

Environ both(Environ inner, const Environ& outer) {
  inner.insert(outer.begin(), outer.end());
  return inner;
}

// "srun mpi 1/4 local 1 node1 7.0.0"
std::string shown(const Result<Launch>& found) {
  if (!found.ok()) return found.status().to_string();
  return concat(to_string(found->launcher), found->mpi ? " mpi " : " ", found->rank, "/",
                found->world, " local ", found->local_rank, " ", found->address, " ",
                found->attempt);
}

const Environ kMpirun = {{"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "6"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "3"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "6"},
                         {"OMPI_APP_CTX_NUM_PROCS", "6"},     {"PMIX_RANK", "3"},
                         {"PMIX_NAMESPACE", "90439681"}};
const Environ kSrun = {{"SLURM_JOB_ID", "7"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_PROCID", "1"},
                       {"SLURM_STEP_NUM_TASKS", "4"},
                       {"SLURM_NTASKS", "4"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_STEP_NODELIST", "n[05-06]"},
                       {"SLURM_JOB_NODELIST", "n[04-06]"}};
const Environ kPmix = {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "slurm.pmix.7.0"}};
const Environ kPmi2 = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"PMI_JOBID", "7.0"}};
const Environ kTorchrun = {{"TORCHELASTIC_RUN_ID", "run"},
                           {"TORCHELASTIC_RESTART_COUNT", "2"},
                           {"RANK", "5"},
                           {"WORLD_SIZE", "8"},
                           {"LOCAL_RANK", "1"},
                           {"MASTER_ADDR", "head"}};
const Environ kRay = {{"RAY_RAYLET_PID", "4711"}, {"RAY_JOB_ID", "ffffffff"}};

TEST(Launch, NothingStartedIt) {
  EXPECT_EQ(shown(launch_in({})), "none 0/1 local 0  ");
  EXPECT_EQ(shown(launch_in({{"MASTER_ADDR", "head"}, {"RANK", "0"}})), "none 0/1 local 0  ");
}

TEST(Launch, Mpirun) {
  EXPECT_EQ(shown(launch_in(kMpirun)), "mpirun mpi 3/6 local 3 127.0.0.1 90439681");
}

TEST(Launch, ARankOfMpirunIsThatOfItsPartOfTheCommandLine) {
  EXPECT_EQ(shown(launch_in(both({{"OMPI_APP_CTX_NUM_PROCS", "2 4"}}, kMpirun))),
            "mpirun mpi 1/4 local 3 127.0.0.1 90439681");
  EXPECT_EQ(shown(launch_in(both({{"OMPI_APP_CTX_NUM_PROCS", "2 3"}}, kMpirun))),
            "mpirun mpi 3/6 local 3 127.0.0.1 90439681");
}

TEST(Launch, OnSeveralHostsMpirunDoesNotSayWhereRank0Is) {
  const Environ hosts = both({{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}}, kMpirun);
  EXPECT_EQ(shown(launch_in(hosts)), "mpirun mpi 3/6 local 3  90439681");
  EXPECT_EQ(launch_in(both({{"SLURM_JOB_NODELIST", "n[4-6]"}}, hosts))->address, "n4");
  EXPECT_EQ(launch_in(both({{"MASTER_ADDR", "head"}}, hosts))->address, "head");
}

TEST(Launch, OtherMpiLaunchers) {
  EXPECT_EQ(shown(launch_in({{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}})),
            "mpirun mpi 2/4 local 1  ");
  // The size is asked of MPI.
  EXPECT_EQ(shown(launch_in({{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "prte-1"}})),
            "mpirun mpi 2/0 local 0  prte-1");
}

TEST(Launch, SrunWithoutPmi) {
  EXPECT_EQ(shown(launch_in(kSrun)), "srun 1/4 local 1 n05 7.0.0");
  EXPECT_EQ(launch_in(both({{"SLURM_RESTART_COUNT", "3"}}, kSrun))->attempt, "7.0.3");
  EXPECT_EQ(launch_in(both({{"MASTER_ADDR", "head"}}, kSrun))->address, "head");
}

TEST(Launch, SrunWithPmi) {
  EXPECT_EQ(shown(launch_in(both(kPmix, kSrun))), "srun mpi 1/4 local 1 n05 7.0.0");
  EXPECT_EQ(shown(launch_in(both(kPmi2, kSrun))), "srun mpi 1/4 local 1 n05 7.0.0");
}

TEST(Launch, PmiOfAnotherStepIsNotThisOnes) {
  EXPECT_FALSE(
      launch_in(both({{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "slurm.pmix.7.1"}}, kSrun))->mpi);
  EXPECT_FALSE(launch_in(both({{"PMI_RANK", "1"}, {"PMI_JOBID", "6.0"}}, kSrun))->mpi);
}

TEST(Launch, AShellOfSallocAndABatchScriptAreNoTasks) {
  const Environ salloc = {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}};
  EXPECT_EQ(shown(launch_in(salloc)), "none 0/1 local 0  ");
  const Environ batch = both({{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}}, salloc);
  EXPECT_EQ(shown(launch_in(batch)), "none 0/1 local 0  ");
  const Environ interactive = both({{"SLURM_STEP_ID", "4294967290"}}, batch);
  EXPECT_EQ(shown(launch_in(interactive)), "none 0/1 local 0  ");
  EXPECT_EQ(launch_in(both(kMpirun, batch))->launcher, Launcher::kMpirun);
}

TEST(Launch, MpirunInsideSlurm) {
  // Open MPI starts its daemons by srun: their processes inherit a task's variables.
  EXPECT_EQ(shown(launch_in(both(kMpirun, kSrun))), "mpirun mpi 3/6 local 3 127.0.0.1 90439681");
  // srun --mpi=pmix in a process of mpirun.
  EXPECT_EQ(launch_in(both(both(kPmix, kSrun), kMpirun))->launcher, Launcher::kSrun);
}

TEST(Launch, Torchrun) {
  EXPECT_EQ(shown(launch_in(kTorchrun)), "torchrun 5/8 local 1 head run.2");
}

TEST(Launch, TorchrunInsideOthers) {
  const std::string wanted = shown(launch_in(kTorchrun));
  EXPECT_EQ(shown(launch_in(both(kTorchrun, kSrun))), wanted);
  EXPECT_EQ(shown(launch_in(both(kTorchrun, both(kPmix, kSrun)))), wanted);
  EXPECT_EQ(shown(launch_in(both(kTorchrun, kMpirun))), wanted);
  // An actor that started torchrun.
  EXPECT_EQ(shown(launch_in(both(kTorchrun, {{"RAY_RAYLET_PID", "12"}}))), wanted);
}

TEST(Launch, AnActorOfRayHasNoRankAndIsNoMpiProcess) {
  const std::string wanted = "ray 0/0 local 0  ";
  EXPECT_EQ(shown(launch_in(kRay)), wanted);
  for (const Environ& outer : {kMpirun, kSrun, both(kPmix, kSrun), kTorchrun}) {
    EXPECT_EQ(shown(launch_in(both(kRay, outer))), wanted);
  }
  EXPECT_EQ(shown(launch_in(both({{"RAY_RAYLET_PID", "12"}}, kMpirun))), wanted);
}

TEST(Launch, VariablesThatAreSetByHand) {
  const Environ set = {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "1"}};
  EXPECT_EQ(shown(launch_in(set)), "variables 2/3 local 1  ");
  // One task of srun for each host starts the others.
  const Environ more = {{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}};
  EXPECT_EQ(shown(launch_in(both(more, both(kPmix, kSrun)))), "variables 9/16 local 1  7.0.0");
  EXPECT_FALSE(launch_in(both(more, kMpirun))->mpi);
  // An engine's own world in one task.
  const Environ engine = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_EQ(launch_in(both(engine, kSrun))->rank, 1U);
  EXPECT_EQ(launch_in(both(engine, kMpirun))->rank, 3U);
}

TEST(Launch, RanksThatContradictEachOtherAreRefused) {
  const Environ environ = both({{"RANK", "0"}, {"WORLD_SIZE", "4"}}, kSrun);
  EXPECT_EQ(shown(launch_in(environ)),
            "invalid_argument: RANK is 0, but SLURM_PROCID 1, each of 4 processes: unset RANK and "
            "WORLD_SIZE, or name the launcher whose rank counts");
  EXPECT_EQ(launch_in(environ, {.launcher = "srun"})->rank, 1U);
  EXPECT_EQ(launch_in(environ, {.launcher = "variables"})->rank, 0U);
  EXPECT_TRUE(launch_in(both({{"RANK", "1"}, {"WORLD_SIZE", "4"}}, kSrun)).ok());
}

TEST(Launch, WhatIsNoPlaceIsRefused) {
  EXPECT_EQ(shown(launch_in(both({{"RANK", "8"}}, kTorchrun))),
            "invalid_argument: rank 8 of 8 processes (launcher: torchrun): expected a rank below "
            "that number");
  EXPECT_EQ(shown(launch_in(both({{"RANK", "-1"}}, kTorchrun))),
            "invalid_argument: RANK is '-1': expected a number");
}

TEST(Launch, SelectedByName) {
  const LaunchNames names{.rank = 1, .world = 2, .local_rank = 3, .address = "here"};
  EXPECT_EQ(shown(launch_in(kRay, names)), "ray 1/2 local 3 here ");
  EXPECT_EQ(shown(launch_in({}, {.rank = 1, .world = 2})), "none 1/2 local 0  ");
  EXPECT_EQ(shown(launch_in({}, {.rank = 1, .world = 2, .attempt = "third"})),
            "none 1/2 local 0  third");
  EXPECT_EQ(shown(launch_in(both(kTorchrun, kMpirun), {.launcher = "mpirun"})),
            "mpirun mpi 3/6 local 3 head 90439681");
  EXPECT_EQ(shown(launch_in(kMpirun, {.launcher = "none"})), "none 0/1 local 0  ");
  EXPECT_FALSE(launch_in({}, {.launcher = "slurm"}).ok());
  EXPECT_FALSE(launch_in({}, {.rank = 1}).ok());
  EXPECT_FALSE(launch_in({}, {.rank = 2, .world = 2}).ok());
  EXPECT_FALSE(launch_in({}, {.rank = 0, .world = 0}).ok());
}

TEST(Launch, FirstHostOfAList) {
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("vm"), "vm");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("gpu[03-05,7],x"), "gpu03");
  EXPECT_EQ(first_host("r[1,4]n[2-3].lan"), "r1n2.lan");
  EXPECT_EQ(first_host("broken[1"), "broken1");
}

}  // namespace
}  // namespace driftless
