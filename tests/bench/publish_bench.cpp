// SPDX-License-Identifier: Apache-2.0
// Measures publishing and committing, as ratios of times from one run:
//
//     publish_bench [GIGABYTES] [THREADS] [REPEATS] [loopback|files|commit]
//
// - loopback: publishing over the road loopback / the diff alone; also the publisher's peak memory
//   beyond its snapshot
// - files: plain writes and fsync / publishing the same bytes into files
// - commit: committing into all weights / committing as many changes into a tenth of the weights
//
// Prints medians. The first versions of a process touch new memory, and are printed separately.
// Files go to TMPDIR.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "collectives/shared_fs/shared_fs_road.h"
#include "core/stopwatch.h"
#include "kernels/tensor_ops.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "support/loopback_road.h"
#include "tools/temporary_directory.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

[[noreturn]] void fail(const Status& status) {
  std::fprintf(stderr, "publish_bench: %s\n", status.to_string().c_str());
  std::exit(1);
}
template <typename T>
T take(Result<T> result) {
  if (!result.ok()) fail(result.status());
  return std::move(*result);
}
void check(const Status& status) {
  if (!status.ok()) fail(status);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

// The current anonymous memory, in MiB.
double anonymous_mb() {
  std::ifstream status("/proc/self/status");
  std::string word;
  double resident = 0;
  while (status >> word) {
    if (word == "RssAnon:") status >> resident;
  }
  return resident / 1024;
}

// The processor time of all threads of this process: other processes affect it less than elapsed
// time.
double processor_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Records the peak of anonymous memory during its life, by a look every millisecond.
class MemoryWatch {
 public:
  MemoryWatch()
      : thread_([this] {
          while (!stop_) {
            most_ = std::max(most_.load(), anonymous_mb());
            std::this_thread::sleep_for(1ms);
          }
        }) {}
  [[nodiscard]] double most_mb() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return most_;
  }
  ~MemoryWatch() { static_cast<void>(most_mb()); }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<double> most_ = 0;
  std::thread thread_;
};

// bf16 tensors in memory, offered without copying.
class Arrays final : public WeightSource {
 public:
  Arrays(std::uint64_t total_bytes, std::uint64_t seed) {
    constexpr std::uint64_t kColumns = 4096;
    const std::uint64_t tensors = 48;
    const std::uint64_t rows = std::max<std::uint64_t>(1, total_bytes / tensors / kColumns / 2);
    std::mt19937_64 random(seed);
    for (std::uint64_t i = 0; i < tensors; ++i) {
      specs_.push_back(take(TensorSpec::make(concat("model.layers.", 1000 + i, ".weight"),
                                             DType::kBF16, {rows, kColumns})));
      data_.emplace_back(rows * kColumns);
      for (std::uint16_t& value : data_.back()) value = static_cast<std::uint16_t>(random());
    }
  }
  void change(std::uint64_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (std::uint64_t i = 0; i < count; ++i) {
      std::vector<std::uint16_t>& tensor = data_[random() % data_.size()];
      tensor[random() % tensor.size()] ^= static_cast<std::uint16_t>(1 + random() % 7);
    }
  }
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return specs_; }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    std::vector<OfferedTensor> offered;
    for (std::size_t i = 0; i < data_.size(); ++i) {
      offered.push_back({i, reinterpret_cast<const std::byte*>(data_[i].data())});
    }
    return use(offered);
  }
  [[nodiscard]] std::vector<std::vector<std::uint16_t>>& data() { return data_; }
  [[nodiscard]] std::uint64_t units() const { return data_.size() * data_.front().size(); }

 private:
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<std::uint16_t>> data_;
};

double diff_alone_ms(Arrays& before, Arrays& after, unsigned threads) {
  std::vector<TensorPair> pairs;
  for (std::uint32_t i = 0; i < before.data().size(); ++i) {
    pairs.push_back({i, 2, before.data()[i].size(),
                     reinterpret_cast<const std::byte*>(before.data()[i].data()),
                     reinterpret_cast<const std::byte*>(after.data()[i].data())});
  }
  DiffOptions options;
  options.threads = threads;
  Stopwatch watch;
  check(
      diff_tensors(host_kernels(), pairs, options, {}, [](const DiffPiece&) { return Status(); }));
  return watch.lap_ms();
}

// After these versions the road's ring reuses its memory.
constexpr unsigned kFirstVersions = 3;

void bench_loopback(std::uint64_t bytes, unsigned threads, unsigned repeats) {
  Arrays before(bytes, 1);
  Arrays weights(bytes, 1);
  const std::uint64_t changes = weights.units() / 100;
  LoopbackOptions road_options;
  road_options.ring_versions = 2;  // few, so that they are reused during the run
  LoopbackHub hub(road_options, 1);
  SoloGroup group;
  const auto road = hub.sender(0);
  PublisherOptions options;
  options.threads = threads;
  const double anonymous = anonymous_mb();
  const auto publisher = take(Publisher::open(options, group, *road, nullptr, weights));
  std::vector<double> publish, diff, process, publish_cores, diff_cores;
  for (unsigned i = 0; i < kFirstVersions + repeats; ++i) {
    weights.change(changes, i + 2);
    double cores = processor_ms();
    diff.push_back(diff_alone_ms(before, weights, threads));
    diff_cores.push_back(processor_ms() - cores);
    cores = processor_ms();
    Stopwatch watch;
    const PublishReport report = take(publisher->publish(weights));
    publish.push_back(watch.lap_ms());
    publish_cores.push_back(processor_ms() - cores);
    process.push_back(report.process_ms);
    before.change(changes, i + 2);  // the same changes: both sides are equal again
    if (i + 1 != kFirstVersions) continue;
    std::printf("the first %u versions            %8.2f, %.2f, %.2f times the diff alone\n",
                kFirstVersions, publish[0] / diff[0], publish[1] / diff[1], publish[2] / diff[2]);
    for (auto* times : {&publish, &diff, &process, &publish_cores, &diff_cores}) times->clear();
  }
  std::printf("diff alone                      %8.1f ms\n", median(diff));
  std::printf("publish over loopback           %8.1f ms  (of it diff, encoding, writing %.1f)\n",
              median(publish), median(process));
  std::printf("publish / diff alone            %8.2f     (1.5 at most)\n",
              median(publish) / median(diff));
  std::printf("the same, least times           %8.2f     (%.1f / %.1f ms)\n",
              least(publish) / least(diff), least(publish), least(diff));
  std::printf("the same, processor time        %8.2f     (%.1f / %.1f ms)\n",
              median(publish_cores) / median(diff_cores), median(publish_cores),
              median(diff_cores));
  weights.change(changes, 1000);
  MemoryWatch memory;
  take(publisher->publish(weights));
  std::printf(
      "publisher's peak memory         %8.0f MiB: snapshot %.0f MiB and %.0f MiB, of them %u "
      "versions on the road (3 buckets of 64 MiB and 95 MiB at most)\n",
      memory.most_mb() - anonymous, static_cast<double>(bytes) / 1048576,
      memory.most_mb() - anonymous - static_cast<double>(bytes) / 1048576,
      road_options.ring_versions);
}

double plain_files_ms(const std::string& directory, const std::vector<std::uint64_t>& sizes) {
  std::vector<std::byte> bytes(*std::max_element(sizes.begin(), sizes.end()), std::byte{7});
  Stopwatch watch;
  unsigned number = 0;
  for (const std::uint64_t size : sizes) {
    const std::string path = concat(directory, "/plain", number++);
    const int file = ::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    std::uint64_t done = 0;
    while (done < size) {
      const ssize_t wrote = ::write(file, bytes.data() + done, size - done);
      if (wrote <= 0) fail(errno_status(errno, path));
      done += static_cast<std::uint64_t>(wrote);
    }
    ::fsync(file);
    ::close(file);
  }
  const double ms = watch.lap_ms();
  for (unsigned i = 0; i < number; ++i) ::unlink(concat(directory, "/plain", i).c_str());
  return ms;
}

// Measures the road alone: publishes parts that are in memory already.
void bench_files(unsigned repeats) {
  const auto directory = take(TemporaryDirectory::create());
  SharedFsOptions options;
  options.dir = directory.path() + "/road";
  const auto road = take(make_shared_fs_sender(posix_file_system(), options, 0, 1));
  const std::vector<std::uint64_t> sizes(4, std::uint64_t{32} << 20);
  const std::vector<std::byte> bytes(sizes.front(), std::byte{7});
  std::vector<double> plain, published;
  for (unsigned i = 0; i < repeats; ++i) {
    plain.push_back(plain_files_ms(directory.path(), sizes));
    const Deadline deadline = Deadline::after(60s);
    Stopwatch watch;
    check(road->begin({i + 1, PublicationKind::kVersion}, deadline));
    for (std::size_t part = 0; part < sizes.size(); ++part) {
      const auto file = take(road->create_part(concat("part", part)));
      check(file->pwrite(0, bytes));
      check(file->sync());
    }
    take(road->flush(deadline));
    check(road->seal("{}", deadline));
    published.push_back(watch.lap_ms());
  }
  std::printf("plain writes and fsync, 128 MiB %8.1f ms\n", median(plain));
  std::printf("the same through shared_fs      %8.1f ms\n", median(published));
  std::printf("plain / shared_fs               %8.2f     (0.8 at least)\n",
              median(plain) / median(published));
}

// The target's memory (on large pages, if the system has them), or the caller's.
enum class Memory { kOwned, kCallers };

double commit_ms(Memory memory, std::uint64_t bytes, std::uint64_t changes, unsigned threads,
                 unsigned repeats) {
  Arrays weights(bytes, 1);
  Arrays held(memory == Memory::kCallers ? bytes : 0, 1);
  LoopbackHub hub({}, 1);
  SoloGroup group;
  const auto road = hub.sender(0);
  PublisherOptions options;
  options.threads = threads;
  options.first_anchor = true;  // the target starts from it
  const auto publisher = take(Publisher::open(options, group, *road, nullptr, weights));
  std::vector<std::byte*> data;
  for (auto& tensor : held.data()) data.push_back(reinterpret_cast<std::byte*>(tensor.data()));
  std::unique_ptr<WeightTarget> target;
  if (memory == Memory::kCallers) {
    target = take(make_memory_target(publisher->layout(), data, std::nullopt, threads));
  } else {
    target = take(make_owned_target(posix_file_system(), std::nullopt, threads));
  }
  const auto receive = hub.receiver();
  ReceiverOptions receiver_options;
  receiver_options.threads = threads;
  const auto receiver =
      take(Receiver::open(receiver_options, *receive, *target, Deadline::after(10s)));
  if (!take(receiver->stage(Deadline::after(10s)))) fail(error(StatusCode::kInternal, "nothing"));
  take(receiver->commit());
  std::vector<double> times;
  for (unsigned i = 0; i < repeats; ++i) {
    weights.change(changes, i + 2);
    take(publisher->publish(weights));
    if (!take(receiver->stage(Deadline::after(10s)))) fail(error(StatusCode::kInternal, "nothing"));
    times.push_back(take(receiver->commit()).apply_ms);
  }
  return median(times);
}

void bench_commit(std::uint64_t bytes, unsigned threads, unsigned repeats) {
  const std::uint64_t changes = bytes / 2 / 1000;  // 0.1 % of the large one, 1 % of the small one
  for (const Memory memory : {Memory::kOwned, Memory::kCallers}) {
    const double small = commit_ms(memory, bytes / 10, changes, threads, repeats);
    const double large = commit_ms(memory, bytes, changes, threads, repeats);
    std::printf("commit of %llu changes, %s memory: into %llu MB %.2f ms, into %llu MB %.2f ms\n",
                static_cast<unsigned long long>(changes),
                memory == Memory::kOwned ? "the target's" : "the caller's",
                static_cast<unsigned long long>(bytes / 10 / 1000000), small,
                static_cast<unsigned long long>(bytes / 1'000'000), large);
    std::printf("large / small                   %8.2f     (1.5 at most)\n", large / small);
  }
}

}  // namespace
}  // namespace driftless

int main(int argc, char** argv) {
  const double gigabytes = argc > 1 ? std::atof(argv[1]) : 1.0;
  const auto bytes = static_cast<std::uint64_t>(gigabytes * 1e9);
  const unsigned threads = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 2;
  const unsigned repeats = argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 25;
  const std::string only = argc > 4 ? argv[4] : "";
  const auto wanted = [&only](const char* part) { return only.empty() || only == part; };
  if (wanted("loopback")) driftless::bench_loopback(bytes, threads, repeats);
  if (wanted("files")) driftless::bench_files(repeats);
  if (wanted("commit")) driftless::bench_commit(bytes, threads, repeats);
  return 0;
}
