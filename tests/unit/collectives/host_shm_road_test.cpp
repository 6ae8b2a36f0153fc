// SPDX-License-Identifier: Apache-2.0
// Tests that only host_shm needs: privacy, the lock, leftovers of dead processes, and memory. The
// processes here are real, and die by SIGKILL.
#include "collectives/host_shm/host_shm_road.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>

#include "collectives/host_shm/record.h"
#include "support/road_contract.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

namespace stdfs = std::filesystem;

// A process that does `work`, reports that, and then waits to be killed. Its exit status is not 0
// if the work failed.
class Child {
 public:
  explicit Child(const std::function<bool()>& work) {
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const char ready = work() ? 'y' : 'n';
      static_cast<void>(!::write(pipe[1], &ready, 1));
      for (;;) ::pause();
    }
    ::close(pipe[1]);
    char ready = 'n';
    ready_ = ::read(pipe[0], &ready, 1) == 1 && ready == 'y';
    ::close(pipe[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { kill(); }
  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  bool ready_ = false;
};

class HostShmTest : public ::testing::Test {
 protected:
  HostShmTest() {
    options_.dir = dir_.path();
    options_.name = "road";
  }
  [[nodiscard]] std::unique_ptr<SendRoad> sender() const {
    auto made = make_host_shm_sender(options_);
    EXPECT_TRUE(is_ok(made));
    return made.ok() ? std::move(*made) : nullptr;
  }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() const {
    auto made = make_host_shm_receiver(options_);
    EXPECT_TRUE(is_ok(made));
    return std::move(*made);
  }
  [[nodiscard]] static Result<std::vector<PartReceipt>> put(SendRoad& road, const PublicationId& id,
                                                            const std::vector<TestPart>& parts) {
    DRIFTLESS_RETURN_IF_ERROR(road.begin(id, soon()));
    for (const TestPart& part : parts) DRIFTLESS_RETURN_IF_ERROR(write_part(road, part));
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<PartReceipt> receipts, road.flush(soon()));
    DRIFTLESS_RETURN_IF_ERROR(road.seal(manifest_of(id), soon()));
    return receipts;
  }
  [[nodiscard]] std::string road_dir() const {
    return dir_.file("driftless-" + std::to_string(::geteuid()) + "-road");
  }
  // Files of publications: records and segments.
  [[nodiscard]] std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : stdfs::directory_iterator(road_dir())) {
      const std::string name = entry.path().filename().string();
      if (name != "lock" && name != "receivers") names.insert(name);
    }
    return names;
  }

  TempDir dir_{TempDir::Where::kMemory};
  HostShmOptions options_;
};

TEST_F(HostShmTest, EverythingIsPrivateToTheUser) {
  const ::mode_t before = ::umask(0);
  const auto road = sender();
  ASSERT_OK(road->announce("run", soon()));
  ASSERT_OK(put(*road, step(1), {{"part", random_part(10, 1)}}));
  const auto worker = receiver();
  ASSERT_OK(worker->report({"worker", 0, ""}, soon()));
  ::umask(before);
  EXPECT_EQ(stdfs::status(road_dir()).permissions(), stdfs::perms::owner_all);
  unsigned files = 0;
  for (const auto& entry : stdfs::recursive_directory_iterator(road_dir())) {
    const auto wanted = entry.is_directory() ? stdfs::perms::owner_all
                                             : stdfs::perms::owner_read | stdfs::perms::owner_write;
    EXPECT_EQ(entry.status().permissions(), wanted) << entry.path();
    files += entry.is_directory() ? 0 : 1;
  }
  EXPECT_EQ(files, 5U);  // lock, run, record, segment, report
}

TEST_F(HostShmTest, WhatOthersMayGetAtIsRefused) {
  stdfs::create_directory(road_dir());
  ASSERT_EQ(::chmod(road_dir().c_str(), 0777), 0);
  const auto refused = make_host_shm_sender(options_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(refused.status().message().find(road_dir()), std::string::npos);
  EXPECT_FALSE(receiver()->list(soon()).ok());
  stdfs::remove(road_dir());
  stdfs::create_directory(dir_.file("elsewhere"));
  ASSERT_EQ(::chmod(dir_.file("elsewhere").c_str(), 0700), 0);
  stdfs::create_directory_symlink(dir_.file("elsewhere"), road_dir());
  EXPECT_FALSE(make_host_shm_sender(options_).ok()) << "a symbolic link is not followed";
}

TEST_F(HostShmTest, ALinkInPlaceOfASegmentIsNotFollowed) {
  const auto road = sender();
  const auto receipts = put(*road, step(1), {{"part", random_part(100, 1)}});
  ASSERT_OK(receipts);
  for (const std::string& name : files()) {
    if (!name.ends_with(".0")) continue;
    stdfs::rename(road_dir() + "/" + name, dir_.file("moved"));
    stdfs::create_symlink(dir_.file("moved"), road_dir() + "/" + name);
  }
  EXPECT_FALSE(receiver()->fetch_part(step(1), receipts->front(), soon()).ok());
}

TEST_F(HostShmTest, NamesArePlainAndShort) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string("../up"), std::string("a/b"),
        std::string(".hidden"), std::string("a b"), std::string("a\n"), std::string(65, 'x')}) {
    options_.name = name;
    EXPECT_EQ(make_host_shm_sender(options_).status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(make_host_shm_receiver(options_).status().code(), StatusCode::kInvalidArgument);
  }
  options_.name = std::string(64, 'x');
  EXPECT_TRUE(make_host_shm_sender(options_).ok());
}

TEST_F(HostShmTest, ASecondSenderIsRefusedWithTheProcessOfTheFirst) {
  Child first([&] {
    static auto road = make_host_shm_sender(options_);
    return road.ok();
  });
  ASSERT_TRUE(first.ready());
  const auto second = make_host_shm_sender(options_);
  ASSERT_EQ(second.status().code(), StatusCode::kBusy);
  EXPECT_NE(second.status().message().find(concat("process ", first.pid())), std::string::npos)
      << second.status().message();
  options_.name = "other";
  EXPECT_TRUE(make_host_shm_sender(options_).ok());
  options_.name = "road";
  first.kill();
  EXPECT_TRUE(make_host_shm_sender(options_).ok()) << "a dead one holds nothing";
}

TEST_F(HostShmTest, ASenderWhoseLockFileWasRemovedIsFenced) {
  auto first = sender();
  ASSERT_OK(first->announce("run", soon()));
  ASSERT_OK(put(*first, step(1), {{"part", random_part(100, 1)}}));
  ASSERT_OK(first->begin(step(2), soon()));
  ASSERT_OK(write_part(*first, {"part", random_part(100, 2)}));
  ASSERT_OK(first->flush(soon()));
  stdfs::remove(road_dir() + "/lock");
  const auto second = sender();
  ASSERT_OK(second->announce("another run", soon()));
  ASSERT_OK(put(*second, step(1), {{"part", random_part(100, 3)}}));
  const Status sealed = first->seal(manifest_of(step(2)), soon());
  EXPECT_EQ(sealed.code(), StatusCode::kWrongRun) << sealed.to_string();
  EXPECT_NE(sealed.message().find("process"), std::string::npos) << sealed.to_string();
  EXPECT_EQ(first->begin(step(2), soon()).code(), StatusCode::kWrongRun);
  EXPECT_EQ(first->published(step(1), soon()).status().code(), StatusCode::kWrongRun);
  EXPECT_EQ(first->announce("run", soon()).code(), StatusCode::kWrongRun);
  first.reset();
  const auto there = receiver();
  EXPECT_EQ(listed(*there), std::vector{step(1)}) << "what the other one sent stays";
  const auto run = there->run_info(soon());
  ASSERT_OK(run);
  EXPECT_EQ(*run, "another run");
}

TEST_F(HostShmTest, TheSegmentsOfADeadSenderAreReadableUntilTheNextRemovesThem) {
  const std::vector<TestPart> parts{{"part", random_part(200'000, 1)}};
  Child dying([&] {
    static auto road = make_host_shm_sender(options_);
    if (!road.ok() || !(*road)->announce("run", soon()).ok()) return false;
    if (!put(**road, step(1), parts).ok() || !(*road)->begin(step(2), soon()).ok()) return false;
    static auto half = (*road)->create_part("half");  // dies while it writes
    return half.ok() && (*half)->pwrite(0, random_part(100'000, 2)).ok();
  });
  ASSERT_TRUE(dying.ready());
  dying.kill();
  const auto worker = receiver();
  EXPECT_EQ(listed(*worker), std::vector{step(1)}) << "the half one never shows";
  EXPECT_EQ(*worker->run_info(soon()), "run");
  const PartReceipt receipt{"part", 0, 200'000, xxh3_128(parts[0].bytes), 0};
  const auto held = worker->fetch_part(step(1), receipt, soon());
  ASSERT_OK(held);
  EXPECT_EQ(files().size(), 4U);  // run, record, two segments
  const auto next = sender();
  EXPECT_TRUE(files().empty()) << *files().begin();
  EXPECT_TRUE(listed(*worker).empty());
  EXPECT_TRUE(std::ranges::equal(held->bytes(), parts[0].bytes)) << "a mapping lives on";
  ASSERT_OK(next->announce("another run", soon()));
  ASSERT_OK(put(*next, step(1), parts));
  EXPECT_EQ(listed(*worker), std::vector{step(1)}) << "the receiver goes on";
  ASSERT_OK(worker->wait_beyond(0, soon()));
}

TEST_F(HostShmTest, ADeadReceiverIsForgottenAtOnceAndBlocksNothing) {
  const auto road = sender();
  const auto living = receiver();
  ASSERT_OK(living->report({"living", 1, "proof"}, soon()));
  Child dying([&] {
    static auto made = make_host_shm_receiver(options_);
    return made.ok() && (*made)->report({"dying", 3, "proof"}, soon()).ok();
  });
  ASSERT_TRUE(dying.ready());
  EXPECT_EQ(road->receivers()->size(), 2U);
  dying.kill();
  const auto left = road->receivers();
  ASSERT_OK(left);
  ASSERT_EQ(left->size(), 1U);
  EXPECT_EQ(left->front().id, "living");
  const auto again = receiver();
  ASSERT_OK(again->report({"dying", 0, ""}, soon())) << "the name is free";
  EXPECT_EQ(road->receivers()->size(), 2U);
  EXPECT_EQ(receiver()->report({"living", 1, ""}, in_ms(50)).code(), StatusCode::kBusy)
      << "this one is not";
}

TEST_F(HostShmTest, AReceiverThatIsKilledWhileItReportsLeavesNothing) {
  const auto road = sender();
  for (int i = 0; i < 20; ++i) {
    Child busy([&] {
      static auto made = make_host_shm_receiver(options_);
      if (::fork() == 0) {  // reports for ever, and is killed in the middle of it
        for (std::uint64_t n = 0;; ++n) {
          const Status ignored = (*made)->report({"busy", n, std::string(n % 500, 'x')}, soon());
        }
      }
      return true;
    });
    const auto seen = road->receivers();
    ASSERT_OK(seen);
    for (const ReceiverReport& report : *seen) {
      EXPECT_EQ(report.proof, std::string(report.version % 500, 'x')) << "half a report";
    }
    // The grandchild is ours to end, too: it shares the group of the child.
    ::kill(busy.pid(), SIGSTOP);
    std::ifstream children(concat("/proc/", busy.pid(), "/task/", busy.pid(), "/children"));
    pid_t grandchild = 0;
    children >> grandchild;
    if (grandchild > 0) ::kill(grandchild, SIGKILL);
    busy.kill();
  }
  const Deadline deadline = soon();
  while (!road->receivers()->empty() && !deadline.expired()) ::usleep(1000);
  EXPECT_TRUE(road->receivers()->empty());
}

TEST_F(HostShmTest, WhatIsNotSealedOrAbortedLeavesNoSegments) {
  const auto road = sender();
  const auto worker = receiver();
  ASSERT_OK(road->begin(step(1), soon()));
  ASSERT_OK(write_part(*road, {"part", random_part(1000, 1)}));
  const auto receipts = road->flush(soon());
  ASSERT_OK(receipts);
  EXPECT_TRUE(listed(*worker).empty());
  EXPECT_EQ(worker->fetch_manifest(step(1), soon()).status().code(), StatusCode::kNotFound);
  ASSERT_OK(road->abort());
  EXPECT_TRUE(files().empty());
  ASSERT_OK(road->begin(step(1), soon()));
  ASSERT_OK(write_part(*road, {"part", random_part(1000, 2)}));
  ASSERT_OK(road->begin(step(2), soon())) << "drops the unfinished one";
  EXPECT_TRUE(files().empty());
  ASSERT_OK(put(*road, step(3), {{"part", random_part(1000, 3)}}));
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(road->begin(step(3), soon()).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(road->begin(step(2), soon()).code(), StatusCode::kInvalidArgument);
}

TEST_F(HostShmTest, TheOrderlyEndRemovesEverythingButTheEndOfTheRun) {
  {
    const auto road = sender();
    ASSERT_OK(road->announce("run", soon()));
    ASSERT_OK(put(*road, step(1), {{"part", random_part(1000, 1)}}));
    ASSERT_OK(publish_host_shm_end(options_, "the end"));
  }
  EXPECT_EQ(files(), std::set<std::string>{"end"});
  const auto note = fetch_host_shm_end(options_);
  ASSERT_OK(note);
  EXPECT_EQ(note->value_or(""), "the end");
  const auto next = sender();
  EXPECT_FALSE(fetch_host_shm_end(options_)->has_value()) << "another run has begun";
}

TEST_F(HostShmTest, AnAnchorTakesTheRoomOfStepsAndOfTheOneBefore) {
  options_.size_bytes = 100'000;
  const auto road = sender();
  ASSERT_OK(put(*road, anchor(0), {{"part", random_part(60'000, 1)}}));
  ASSERT_OK(put(*road, step(1), {{"part", random_part(20'000, 2)}}));
  ASSERT_OK(put(*road, step(2), {{"part", random_part(20'000, 3)}}));
  const auto worker = receiver();
  EXPECT_EQ(listed(*worker).size(), 3U);
  ASSERT_OK(put(*road, anchor(2), {{"part", random_part(60'000, 4)}}));
  EXPECT_EQ(listed(*worker), (std::vector{step(2), anchor(2)}));
  ASSERT_OK(put(*road, step(3), {{"part", random_part(30'000, 5)}}));
  EXPECT_EQ(listed(*worker), (std::vector{anchor(2), step(3)})) << "the anchor is not dropped";
  const auto full = put(*road, step(4), {{"part", random_part(50'000, 6)}});
  ASSERT_EQ(full.status().code(), StatusCode::kNoSpace);
  EXPECT_NE(full.status().message().find("road.host_shm.size"), std::string::npos);
  ASSERT_OK(road->abort());
  ASSERT_OK(put(*road, step(4), {{"part", random_part(40'000, 7)}}));
}

TEST_F(HostShmTest, HolesOfAPartAreZerosInAllocatedMemory) {
  const auto road = sender();
  ASSERT_OK(road->begin(step(1), soon()));
  {
    auto file = road->create_part("part");
    ASSERT_OK(file);
    ASSERT_OK((*file)->pwrite(1'000'000, random_part(1, 1)));
    ASSERT_OK((*file)->sync());
  }
  const auto receipts = road->flush(soon());
  ASSERT_OK(receipts);
  ASSERT_OK(road->seal("manifest", soon()));
  const auto part = receiver()->fetch_part(step(1), receipts->front(), soon());
  ASSERT_OK(part);
  EXPECT_EQ(part->bytes().size(), 1'000'001U);
  EXPECT_EQ(xxh3_128(part->bytes()), receipts->front().hash);
  struct stat found{};
  for (const std::string& name : files()) {
    if (!name.ends_with(".0")) continue;
    ASSERT_EQ(::stat((road_dir() + "/" + name).c_str(), &found), 0);
    EXPECT_GE(found.st_blocks * 512, 1'000'001);
  }
}

TEST_F(HostShmTest, AWriteThatFailsStopsNothing) {
  // Without a small file system of its own a process can still be limited.
  Child limited([&] {
    rlimit limit{100'000, 100'000};
    ::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    auto road = make_host_shm_sender(options_);
    if (!road.ok()) return false;
    const auto put_it = put(**road, step(1), {{"part", random_part(200'000, 1)}});
    return !put_it.ok() && (*road)->abort().ok() &&
           put(**road, step(1), {{"part", random_part(50'000, 1)}}).ok();
  });
  EXPECT_TRUE(limited.ready()) << "a write that fails is an error, and the road goes on";
}

TEST(HostShmRecord, WhatIsDamagedIsNotTaken) {
  const host_shm::Record record{to_hex(random_hash128()), "manifest", {{"a", 1}, {"b", 1U << 30}}};
  const std::string bytes = host_shm::record_to_bytes(record);
  const auto back = host_shm::record_from_bytes(bytes, "record");
  ASSERT_OK(back);
  EXPECT_EQ(back->manifest, "manifest");
  ASSERT_EQ(back->parts.size(), 2U);
  EXPECT_EQ(back->parts[1].size_bytes, 1U << 30);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    EXPECT_FALSE(host_shm::record_from_bytes(flipped, "record").ok()) << i;
    EXPECT_FALSE(host_shm::record_from_bytes(bytes.substr(0, i), "record").ok()) << i;
  }
  const host_shm::Report report{{"id", 7, std::string("\0\xff", 2)}, 9};
  const auto parsed = host_shm::report_from_bytes(host_shm::report_to_bytes(report), "report");
  ASSERT_OK(parsed);
  EXPECT_EQ(parsed->report.proof, report.report.proof);
  ReceiverReport longest{std::string(kMaxReceiverIdBytes, 'i'), 1,
                         std::string(kMaxProofBytes, 'p')};
  EXPECT_LE(host_shm::report_to_bytes({longest, 1}).size(), host_shm::kMaxReportBytes);
}

}  // namespace
}  // namespace driftless::testing
