// SPDX-License-Identifier: Apache-2.0
#include "mpi/remote_world.h"

#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <mutex>
#include <optional>
#include <set>

#include "mpi/wire.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

// The processes, and one call at a time to each.
struct Workers {
  MPI_Comm comm = MPI_COMM_NULL;
  unsigned count = 0;
  std::vector<std::mutex> mutexes;

  void start(unsigned worker, const Packer& call) {
    send_bytes(comm, static_cast<int>(worker) + 1, kCallTag, call.bytes());
  }
  Unpacker finish(unsigned worker) {
    return Unpacker(receive_bytes(comm, static_cast<int>(worker) + 1, kReplyTag));
  }
  Unpacker call(unsigned worker, const Packer& packed) {
    const std::lock_guard lock(mutexes[worker]);
    start(worker, packed);
    return finish(worker);
  }
};
Workers* workers = nullptr;  // made by main() before any test

Packer packed(Call call) {
  Packer out;
  out.number(static_cast<std::uint64_t>(call));
  return out;
}
std::uint64_t ms(const Deadline& deadline) {
  return static_cast<std::uint64_t>(deadline.remaining().count());
}
Packer packed(Call call, const PublicationId& id) {
  Packer out = packed(call);
  out.number(id.version).number(static_cast<std::uint64_t>(id.kind));
  return out;
}

class RemoteFile final : public File {
 public:
  RemoteFile(unsigned worker, std::uint64_t number, std::string name)
      : worker_(worker), number_(number), name_(std::move(name)) {}
  ~RemoteFile() override { workers->call(worker_, packed(Call::kClose).number(number_)); }
  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    Packer out = packed(Call::kWrite).number(number_).number(offset);
    out.text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return workers->call(worker_, out).status();
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    Unpacker in = workers->call(
        worker_, packed(Call::kRead).number(number_).number(offset).number(bytes.size()));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    const std::string text = in.text();
    std::memcpy(bytes.data(), text.data(), text.size());
    return {};
  }
  Status sync() override {
    return workers->call(worker_, packed(Call::kSync).number(number_)).status();
  }
  const std::string& path() const override { return name_; }

 private:
  unsigned worker_;
  std::uint64_t number_;
  std::string name_;
};

class RemoteSender final : public SendRoad {
 public:
  explicit RemoteSender(unsigned worker) : worker_(worker) {}
  Status announce(std::string_view run_info, const Deadline& deadline) override {
    return call(packed(Call::kAnnounce).text(run_info).number(ms(deadline))).status();
  }
  Status begin(const PublicationId& id, const Deadline& deadline) override {
    return call(packed(Call::kBegin, id).number(ms(deadline))).status();
  }
  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    Unpacker in = call(packed(Call::kCreatePart).text(name));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    return std::unique_ptr<File>(std::make_unique<RemoteFile>(worker_, in.number(), name));
  }
  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    Unpacker in = call(packed(Call::kFlush).number(ms(deadline)));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    std::vector<PartReceipt> parts(in.number());
    for (PartReceipt& part : parts) part = in.receipt();
    return parts;
  }
  Status seal(std::string_view manifest, const Deadline& deadline) override {
    return call(packed(Call::kSeal).text(manifest).number(ms(deadline))).status();
  }
  Status abort() override { return call(packed(Call::kAbort)).status(); }
  Result<std::optional<Hash128>> published(const PublicationId& id,
                                           const Deadline& deadline) override {
    Unpacker in = call(packed(Call::kPublished, id).number(ms(deadline)));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    const bool there = in.number() != 0;
    const Hash128 manifest{in.number(), in.number()};
    return there ? std::optional(manifest) : std::nullopt;
  }
  Result<std::vector<ReceiverReport>> receivers() override {
    Unpacker in = call(packed(Call::kReceivers));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    std::vector<ReceiverReport> all(in.number());
    for (ReceiverReport& report : all) {
      report.id = in.text();
      report.version = in.number();
      report.proof = in.text();
      report.needs = in.text();
    }
    left_.resize(in.number());
    for (std::string& each : left_) each = in.text();
    return all;
  }
  std::vector<std::string> left() const override { return left_; }
  Result<std::vector<PublicationId>> prune(std::uint64_t version) override {
    Unpacker in = call(packed(Call::kPrune).number(version));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    return in.ids();
  }
  Result<std::uint64_t> highest_number() override {
    Unpacker in = call(packed(Call::kHighestNumber));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    return in.number();
  }
  [[nodiscard]] MemoryKind part_memory() const override { return MemoryKind::kHost; }
  void progress() override {}

 private:
  Unpacker call(const Packer& out) { return workers->call(worker_, out); }
  unsigned worker_;
  std::vector<std::string> left_;  // as of the last receivers()
};

class RemoteGroup final : public Group {
 public:
  RemoteGroup(unsigned rank, unsigned size) : rank_(rank), size_(size) {}
  unsigned rank() const override { return rank_; }
  unsigned size() const override { return size_; }
  void begin_epoch(std::uint64_t epoch) override {
    workers->call(rank_, packed(Call::kEpoch).number(epoch));
  }
  Result<std::vector<std::string>> gather(std::string_view message,
                                          const Deadline& deadline) override {
    Unpacker in = workers->call(rank_, packed(Call::kGather).text(message).number(ms(deadline)));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    std::vector<std::string> all(in.number());
    for (std::string& text : all) text = in.text();
    return all;
  }
  Result<std::string> broadcast(std::string_view message, const Deadline& deadline) override {
    Unpacker in = workers->call(rank_, packed(Call::kBroadcast).text(message).number(ms(deadline)));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    return in.text();
  }

 private:
  unsigned rank_, size_;
};

class RemoteReceiver final : public ReceiveRoad {
 public:
  RemoteReceiver(unsigned worker, std::function<void()> give_back)
      : worker_(worker), give_back_(std::move(give_back)) {
    EXPECT_TRUE(is_ok(call(packed(Call::kMakeReceiver)).status()));
  }
  ~RemoteReceiver() override {
    call(packed(Call::kEndReceiver));
    give_back_();
  }
  Result<std::string> run_info(const Deadline& deadline) override {
    return text(call(packed(Call::kRunInfo).number(ms(deadline))));
  }
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    Unpacker in = call(packed(Call::kList).number(ms(deadline)));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    return in.ids();
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    return call(packed(Call::kWaitBeyond).number(version).number(ms(deadline))).status();
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    return text(call(packed(Call::kFetchManifest, id).number(ms(deadline))));
  }
  Result<MappedFile> fetch_part(const PublicationId& id, const PartReceipt& part,
                                const Deadline& deadline) override {
    Unpacker in = call(packed(Call::kFetchPart, id).receipt(part).number(ms(deadline)));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    const auto bytes = std::make_shared<std::string>(in.text());
    return MappedFile(part.name, bytes, std::as_bytes(std::span(*bytes)));
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId& id, const PartReceipt& part,
                                               std::span<const ByteRange> ranges,
                                               const Deadline& deadline) override {
    Packer out = packed(Call::kFetchRanges, id);
    out.receipt(part).number(ranges.size());
    for (const ByteRange& range : ranges) out.number(range.offset).number(range.size_bytes);
    Unpacker in = call(out.number(ms(deadline)));
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    std::vector<MappedFile> found(in.number());
    for (MappedFile& file : found) file = carried(in);
    return found;
  }
  [[nodiscard]] bool fetches_at_once() const override {
    return workers->call(worker_, packed(Call::kFetchesAtOnce)).number() != 0;
  }
  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    Packer out = packed(Call::kReport);
    out.text(report.id).number(report.version).text(report.proof).text(report.needs);
    out.number(ms(deadline));
    return call(out).status();
  }
  Status leave(const Deadline& deadline) override {
    return call(packed(Call::kLeave).number(ms(deadline))).status();
  }

 private:
  // Keeps the address modulo kRangeAlignment.
  static MappedFile carried(Unpacker& in) {
    const std::uint64_t begin = in.number();
    const auto bytes = std::make_shared<std::string>(std::string(begin, '\0') + in.text());
    return MappedFile("range", bytes, std::as_bytes(std::span(*bytes)).subspan(begin));
  }
  Unpacker call(const Packer& out) { return workers->call(worker_, out); }
  static Result<std::string> text(Unpacker in) {
    DRIFTLESS_RETURN_IF_ERROR(in.status());
    return in.text();
  }
  unsigned worker_;
  std::function<void()> give_back_;
};

class RemoteWorld final : public RoadWorld {
 public:
  RemoteWorld(const WorldOptions& options, const RemoteRoad& road) : road_(road) {
    if (road.directory) {
      directory_.emplace(TempDir::Where::kMemory);
      remote_.directory = directory_->file("road");
    }
    remote_.ranks = options.ranks;
    remote_.patience = options.patience;
    remote_.ring_bytes = options.ring_bytes;
    remote_.ring_versions = options.ring_versions;
    Packer out = packed(Call::kMakeWorld);
    out.number(remote_.ranks).number(static_cast<std::uint64_t>(remote_.patience.count()));
    out.number(remote_.ring_bytes).number(remote_.ring_versions).text(remote_.directory);
    for (unsigned i = 0; i < workers->count; ++i) workers->start(i, out);
    for (unsigned i = 0; i < workers->count; ++i) {
      EXPECT_TRUE(is_ok(workers->finish(i).status()));
    }
    for (unsigned rank = 0; rank < options.ranks; ++rank) {
      senders_.push_back(std::make_unique<RemoteSender>(rank));
      groups_.push_back(std::make_unique<RemoteGroup>(rank, options.ranks));
    }
    for (unsigned i = options.ranks; i < workers->count; ++i) idle_.insert(i);
  }
  ~RemoteWorld() override {
    for (unsigned i = 0; i < workers->count; ++i) workers->start(i, packed(Call::kEndWorld));
    for (unsigned i = 0; i < workers->count; ++i) workers->finish(i);
  }
  unsigned ranks() const override { return static_cast<unsigned>(senders_.size()); }
  SendRoad& sender(unsigned rank) override { return *senders_[rank]; }
  Group& group(unsigned rank) override { return *groups_[rank]; }
  std::unique_ptr<ReceiveRoad> receiver() override {
    if (road_.receiver) {
      auto made = road_.receiver(remote_);
      EXPECT_TRUE(is_ok(made));
      return made.ok() ? std::move(*made) : nullptr;
    }
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(idle_.empty()) << "start more processes";
    if (idle_.empty()) return nullptr;
    const unsigned worker = *idle_.begin();
    idle_.erase(idle_.begin());
    return std::make_unique<RemoteReceiver>(worker, [this, worker] {
      const std::lock_guard back(mutex_);
      idle_.insert(worker);
    });
  }

 private:
  RemoteRoad road_;
  RemoteWorldOptions remote_;
  std::optional<TempDir> directory_;
  std::vector<std::unique_ptr<SendRoad>> senders_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::mutex mutex_;
  std::set<unsigned> idle_;
};

int run_tests(MPI_Comm calls, unsigned count) {
  Workers made;
  made.comm = calls;
  made.count = count;
  made.mutexes = std::vector<std::mutex>(count);
  workers = &made;
  const int result = RUN_ALL_TESTS();
  for (unsigned i = 0; i < count; ++i) workers->call(i, packed(Call::kQuit));
  return result;
}

}  // namespace

std::unique_ptr<RoadWorld> make_remote_world(const WorldOptions& options, const RemoteRoad& road) {
  if (options.ranks > workers->count) return nullptr;
  return std::make_unique<RemoteWorld>(options, road);
}

int run_remote_contract(int argc, char** argv, int least, int threads, const MakeRoadEnds& make) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, threads, &level);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm calls = MPI_COMM_NULL;
  MPI_Comm others = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &calls);
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 0 : 1, rank, &others);
  int result = 0;
  // The tests of rank 0 call MPI from several threads.
  int usable = rank > 0 || level == MPI_THREAD_MULTIPLE ? 1 : 0;
  MPI_Bcast(&usable, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (usable == 0 || size < least) {
    if (rank == 0) std::printf("needs MPI_THREAD_MULTIPLE and at least %d processes\n", least);
    result = 1;
  } else if (rank == 0) {
    ::testing::InitGoogleTest(&argc, argv);
    result = run_tests(calls, static_cast<unsigned>(size) - 1);
  } else {
    serve_road(calls, others, make);
  }
  MPI_Comm_free(&others);
  MPI_Comm_free(&calls);
  MPI_Finalize();
  return result;
}

}  // namespace driftless::testing
