// SPDX-License-Identifier: Apache-2.0
// Checks MPI: really creates windows between two ranks, and finds the mpirun flags that this host
// needs.
#include "tools/doctor/command_output.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

using enum FindingState;
using std::chrono::milliseconds;

constexpr milliseconds kLongestTry{6'000};

// A message of mpirun or the road, and the flag that helps. The messages are Open MPI's.
struct Remedy {
  std::string_view words, flag;
};
constexpr Remedy kRemedies[] = {
    {"allow-run-as-root", "--allow-run-as-root"},
    {"not enough slots", "--oversubscribe"},
    {"plm_rsh_agent", "--mca plm isolated"},
    {"ssh : rsh", "--mca plm isolated"},
    {"osc_sm_backing_directory", "--mca osc_sm_backing_directory /tmp"},
    {"--mca pml ucx",
     "--mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any"},
};

std::string next_flag(const std::string& output, const std::string& flags) {
  for (const Remedy& remedy : kRemedies) {
    const bool advised = output.find(remedy.words) != std::string::npos;
    if (advised && flags.find(remedy.flag) == std::string::npos) return std::string(remedy.flag);
  }
  return {};
}

// The error line: our own, or otherwise the first line of the output that is not a rule of dashes.
std::string reason(const CommandOutput& ran) {
  const std::size_t found = ran.text.find("driftless: ");
  std::string line =
      found == std::string::npos ? first_line(ran.text) : first_line(ran.text.substr(found));
  return line.empty() ? std::string(ran.status.message()) : line;
}

struct Probe {
  bool ok = false;
  std::string flags;  // the flags that were needed
  std::string why;
};

Probe probe_windows(const Context& context) {
  Probe probe;
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    const milliseconds left =
        std::min(context.deadline.remaining() - milliseconds(300), kLongestTry);
    if (left <= milliseconds(0)) break;
    const CommandOutput ran =
        run_command(concat("mpirun ", probe.flags, " -n 2 \"$DRIFTLESS_SELF\" doctor --mpi-probe"),
                    {{"DRIFTLESS_SELF", context.self}}, left);
    probe.ok = ran.status.ok() && ran.text.find(kProbeSuccess) != std::string::npos;
    if (probe.ok) return probe;
    probe.why = ran.status.code() == StatusCode::kDeadlineExceeded
                    ? concat("did not end within ", left.count(), " ms")
                    : reason(ran);
    const std::string flag = next_flag(ran.text, probe.flags);
    if (flag.empty()) break;
    probe.flags += concat(probe.flags.empty() ? "" : " ", flag);
  }
  return probe;
}

void report_settings(const Context& context, const Report& report) {
  std::string set;
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_MCA_plm", "OMPI_MCA_pml", "OMPI_MCA_osc",
                           "OMPI_MCA_btl", "OMPI_MCA_osc_sm_backing_directory",
                           "OMPI_MCA_mpi_yield_when_idle", "UCX_TLS", "UCX_NET_DEVICES"}) {
    const auto value = context.variables(name);
    if (value) set += concat(set.empty() ? "" : " ", name, "=", *value);
  }
  if (!set.empty()) report({"environment", kOk, set});
}

}  // namespace

void check_mpi(const Context& context, const Report& report) {
  const bool needed = context.needs_mpi();
  if (const std::string why = context.why_not("mpi_rma"); !why.empty()) {
    return report({"built", unless_needed(needed, kSkip), concat("MPI is not in this build: ", why),
                   needed ? "install MPI (Debian: libopenmpi-dev) and build again" : ""});
  }
  report_settings(context, report);
  const Result<Launch> launch = read_launch(context.variables, 0);
  if (launch.ok() && launch->mpi) {
    return report({"windows", kSkip,
                   concat("doctor runs inside a job of ", to_string(launch->launcher),
                          ", which cannot start another"),
                   "run doctor by itself"});
  }
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) {
    return report({"mpirun", unless_needed(needed, kWarn), "no mpirun is on PATH",
                   "install it (Debian: openmpi-bin), or add its folder to PATH"});
  }
  const CommandOutput release = run_command(
      "mpirun --version", {}, std::min(context.deadline.remaining(), milliseconds(3000)));
  const std::string line = first_line(release.text);
  report({"mpirun", release.status.ok() ? kOk : unless_needed(needed, kWarn),
          concat(mpirun, ": ", line.empty() ? release.status.message() : line),
          release.status.ok() ? "" : "install it again (Debian: openmpi-bin)"});
  const Probe probe = probe_windows(context);
  if (!probe.ok) {
    const bool other = probe.why.find("another MPI") != std::string::npos;
    return report(
        {"windows", unless_needed(needed, kWarn), concat("two ranks made none: ", probe.why),
         other ? "put the mpirun of the MPI that this build was made with first on PATH"
               : "docs/roads/mpi_rma.md has the flags of mpirun; between hosts without RDMA: "
                 "--mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any"});
  }
  report({"windows", kOk, "two ranks of this host made them, and one read the other's",
          probe.flags.empty() ? "" : concat("give mpirun these flags: ", probe.flags)});
}

}  // namespace driftless::doctor
