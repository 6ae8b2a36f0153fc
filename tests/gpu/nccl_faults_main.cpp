// SPDX-License-Identifier: Apache-2.0
// Faults of the nccl road with three real NCCL processes: this one publishes, and two that it
// starts receive. It kills one, stops one, starts another late, and checks the result and the time
// of seal().
//
// gpu_nccl_faults             runs everything; exit status 0 if all checks passed
//   gpu_nccl_faults DIR NAME    a receiver, started by the former
#include <cstdio>
#include <random>
#include <string>
#include <thread>

#include "gpu/nccl_processes.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

using Clock = std::chrono::steady_clock;

class Faults {
 public:
  Faults(std::string self, std::string dir) : self_(std::move(self)), dir_(std::move(dir)) {}

  Status run() {
    be_a_host("publisher");
    const NcclOptions options = options_of();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<nccl::Fabric> fabric,
                               make_nccl_fabric(options));
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<hub::Hub> hub, hub::make_file_hub(dir_));
    DRIFTLESS_ASSIGN_OR_RETURN(sender_,
                               nccl::make_leading_sender(options, 1, fabric, std::move(hub)));
    DRIFTLESS_RETURN_IF_ERROR(sender_->announce("run", in_ms(1'000)));
    Child a(self_, dir_, "a");
    Child b(self_, dir_, "b");
    DRIFTLESS_RETURN_IF_ERROR(wait_for("a", 0));
    DRIFTLESS_RETURN_IF_ERROR(wait_for("b", 0));
    DRIFTLESS_RETURN_IF_ERROR(follow());
    DRIFTLESS_RETURN_IF_ERROR(killed(b));
    DRIFTLESS_RETURN_IF_ERROR(stopped(a));
    Child c(self_, dir_, "c");
    return late();
  }

 private:
  // Both follow; the second and third version use the communicators of the first.
  Status follow() {
    for (std::uint64_t version = 1; version <= 3; ++version) {
      DRIFTLESS_RETURN_IF_ERROR(publish({version, PublicationKind::kVersion}, 20'000, [] {}));
    }
    DRIFTLESS_RETURN_IF_ERROR(wait_for("a", 3));
    DRIFTLESS_RETURN_IF_ERROR(wait_for("b", 3));
    return print("follow: three versions, two receivers, right bytes");
  }

  // One dies while a version travels: an error within the deadline; then it goes to the other.
  Status killed(Child& b) {
    const auto begin = Clock::now();
    const Status failed = publish({4, PublicationKind::kVersion}, 8'000, [&] { b.kill(); });
    const auto took = Clock::now() - begin;
    if (failed.ok()) return error(StatusCode::kInternal, "killed: the version was sealed");
    if (took > milliseconds(9'000)) return error(StatusCode::kInternal, "killed: took too long");
    DRIFTLESS_RETURN_IF_ERROR(
        print(concat("killed: after ", took / milliseconds(1), " ms: ", failed.to_string())));
    DRIFTLESS_RETURN_IF_ERROR(until_published({4, PublicationKind::kVersion}));
    DRIFTLESS_RETURN_IF_ERROR(wait_for("a", 4));
    return print("killed: the version then went to who is there");
  }

  // One stops answering: the same; it comes back, and follows again.
  Status stopped(Child& a) {
    const auto begin = Clock::now();
    const Status failed =
        publish({5, PublicationKind::kVersion}, 3'000, [&] { a.signal(SIGSTOP); });
    const auto took = Clock::now() - begin;
    a.signal(SIGCONT);
    if (failed.ok()) return error(StatusCode::kInternal, "stopped: the version was sealed");
    if (took > milliseconds(4'500)) return error(StatusCode::kInternal, "stopped: took too long");
    DRIFTLESS_RETURN_IF_ERROR(
        print(concat("stopped: after ", took / milliseconds(1), " ms: ", failed.to_string())));
    for (std::uint64_t version = 5; version < 30; ++version) {
      DRIFTLESS_RETURN_IF_ERROR(until_published({version, PublicationKind::kVersion}));
      last_ = version;
      if (wait_for("a", version, 2'000).ok()) return print("stopped: it came back and follows");
    }
    return error(StatusCode::kInternal, "stopped: it never came back");
  }

  // One joins later: it gets what is published from then on, steps and anchors.
  Status late() {
    DRIFTLESS_RETURN_IF_ERROR(wait_for("c", 0));
    DRIFTLESS_RETURN_IF_ERROR(until_published({last_ + 1, PublicationKind::kVersion}));
    DRIFTLESS_RETURN_IF_ERROR(until_published({last_ + 1, PublicationKind::kAnchor}));
    DRIFTLESS_RETURN_IF_ERROR(wait_for("c", last_ + 1));
    DRIFTLESS_RETURN_IF_ERROR(wait_for("a", last_ + 1));
    return print("late: a third receiver joined the group");
  }

  // `fault` happens once the group is settled, before the bytes travel.
  template <typename Fault>
  Status publish(const PublicationId& id, int wait_ms, Fault fault) {
    const Deadline deadline = in_ms(wait_ms);
    DRIFTLESS_RETURN_IF_ERROR(sender_->begin(id, deadline));
    std::mt19937_64 random(id.version);
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> bytes(1'000'000 + 777 * static_cast<std::size_t>(i));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                                 sender_->create_part(concat("part", i)));
      DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, bytes));
      DRIFTLESS_RETURN_IF_ERROR(file->sync());
    }
    fault();
    const Result<std::vector<PartReceipt>> parts = sender_->flush(deadline);
    Status status = parts.status();
    if (parts.ok()) status = sender_->seal(manifest_of(*parts), deadline);
    if (!status.ok()) DRIFTLESS_RETURN_IF_ERROR(sender_->abort());
    return status;
  }

  Status until_published(const PublicationId& id) {
    Status last;
    for (int tries = 0; tries < 5; ++tries) {
      last = publish(id, 8'000, [] {});
      if (last.ok()) return last;
      DRIFTLESS_RETURN_IF_ERROR(print(concat("  again: ", last.to_string())));
    }
    return last;
  }

  Status wait_for(const std::string& name, std::uint64_t version, int wait_ms = 60'000) {
    const Deadline deadline = in_ms(wait_ms);
    while (!deadline.expired()) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ReceiverReport> all, sender_->receivers());
      for (const ReceiverReport& report : all) {
        if (report.id != name || report.version < version) continue;
        if (report.proof == "bad") return error(StatusCode::kMismatch, name, " got other bytes");
        return {};
      }
      std::this_thread::sleep_for(milliseconds(20));
    }
    return deadline.check(concat("waiting for ", name, " at version ", version));
  }

  static Status print(const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    return {};
  }

  const std::string self_, dir_;
  std::unique_ptr<SendRoad> sender_;
  std::uint64_t last_ = 0;
};

}  // namespace
}  // namespace driftless::testing

int main(int argc, char** argv) {
  using namespace driftless;
  Status status;
  if (argc == 3) {
    status = testing::receive(argv[1], argv[2]);
  } else {
    const testing::TempDir dir;
    testing::Faults faults("/proc/self/exe", dir.file("meet"));
    status = faults.run();
  }
  if (status.ok()) return 0;
  std::printf("FAILED: %s\n", status.to_string().c_str());
  return status.code() == StatusCode::kUnsupported ? 77 : 1;
}
