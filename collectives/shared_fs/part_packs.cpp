// SPDX-License-Identifier: Apache-2.0
#include "collectives/open_part.h"
#include "collectives/shared_fs/shared_fs_road.h"

namespace driftless {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kReserveWait{60'000};  // the holder of the lock writes only one byte
constexpr unsigned kNameDigits = 4;

// This process's access to the pack of one publication. Thread-safe.
class Pack {
 public:
  Pack(FileSystem& fs, std::string path) : fs_(&fs), path_(std::move(path)) {}

  // Appends a part; returns the offset of its label.
  [[nodiscard]] Result<std::uint64_t> append(const std::string& name,
                                             std::span<const std::byte> bytes) {
    const PackLabel label = pack_label(name, bytes.size());
    std::uint64_t at = 0;
    {
      const std::scoped_lock lock(mutex_);
      DRIFTLESS_ASSIGN_OR_RETURN(at, reserve(sizeof(label) + bytes.size()));
    }
    DRIFTLESS_RETURN_IF_ERROR(file_->pwrite(at, std::as_bytes(std::span(&label, 1))));
    DRIFTLESS_RETURN_IF_ERROR(file_->pwrite(at + sizeof(label), bytes));
    return at;
  }

  // Refuses all further parts.
  void drop() {
    const std::scoped_lock lock(mutex_);
    dropped_ = true;
  }

  [[nodiscard]] Status sync() {
    const std::scoped_lock lock(mutex_);
    return file_ == nullptr ? Status() : file_->sync();
  }

 private:
  // Reserves space after that of all other ranks and threads: the file grows here.
  [[nodiscard]] Result<std::uint64_t> reserve(std::uint64_t size) {
    if (dropped_) return error(StatusCode::kInvalidArgument, path_, ": was aborted");
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock, take_lock());
    if (file_ == nullptr) {
      DRIFTLESS_ASSIGN_OR_RETURN(file_, fs_->open(path_));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs_->info(path_));
    const std::uint64_t at =
        (info.size_bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
    constexpr std::uint64_t kMost = std::uint64_t{1} << kPackOffsetBits;
    if (at >= kMost || size > kMost - at) {
      return error(StatusCode::kNoSpace, path_, ": ", size, " bytes at offset ", at,
                   ": a pack has at most ", kMost, " bytes; raise road.shared_fs.part_files");
    }
    constexpr std::byte kLast{};
    DRIFTLESS_RETURN_IF_ERROR(file_->pwrite(at + size - 1, {&kLast, 1}));
    return at;
  }

  // Locks the pack itself, and creates it if needed. Locks last microseconds, so it polls often.
  [[nodiscard]] Result<std::unique_ptr<FileLock>> take_lock() {
    const Deadline deadline = Deadline::after(kReserveWait);
    Backoff backoff(microseconds(50), microseconds(2'000));
    for (;;) {
      auto lock = fs_->lock(path_, milliseconds(0));
      if (lock.status().code() != StatusCode::kBusy || !backoff.sleep(deadline)) return lock;
    }
  }

  FileSystem* fs_;
  const std::string path_;
  std::mutex mutex_;
  std::unique_ptr<File> file_;  // null until something is reserved
  bool dropped_ = false;
};

class PackedPart final : public BufferPart {
 public:
  PackedPart(std::shared_ptr<Pack> pack, unsigned number, const std::string& directory,
             std::string name)
      : BufferPart(directory, std::move(name), {}, {}), pack_(std::move(pack)), number_(number) {}

 protected:
  // Its place depends on its size, which is only known now.
  void file_closed(bool whole) override {
    const PartBuffer buffer = take();
    if (!whole) return;
    hash_ = known_hash().has_value() ? *known_hash() : xxh3_128(buffer.bytes());
    at_ = pack_->append(name(), buffer.bytes());
  }

  Status complete(PartReceipt& receipt, const Deadline&) override {
    DRIFTLESS_RETURN_IF_ERROR(at_.status());
    receipt.hash = hash_;
    receipt.locator = pack_locator(number_, *at_);
    return {};
  }

 private:
  const std::shared_ptr<Pack> pack_;
  const unsigned number_;
  Hash128 hash_;
  Result<std::uint64_t> at_ = std::uint64_t{0};
};

class PartPacksSink final : public PartSink {
 public:
  PartPacksSink(FileSystem& fs, unsigned number) : fs_(&fs), number_(number) {}

  Status begin(const std::string& directory, const Deadline&) override {
    directory_ = directory;
    parts_.clear();
    pack_ = std::make_shared<Pack>(*fs_, join_path(directory, pack_name(number_)));
    return {};
  }

  Result<std::unique_ptr<File>> create_part(const std::string& name) override {
    DRIFTLESS_RETURN_IF_ERROR(check_part_name(parts_, name, directory_));
    parts_.push_back(std::make_shared<PackedPart>(pack_, number_, directory_, name));
    return make_part_file(parts_.back());
  }

  Result<std::vector<PartReceipt>> flush(const Deadline& deadline) override {
    std::vector<PartReceipt> receipts;
    for (const auto& part : parts_) {
      DRIFTLESS_ASSIGN_OR_RETURN(receipts.emplace_back(), part->finish(0, deadline));
    }
    DRIFTLESS_RETURN_IF_ERROR(pack_->sync());
    return receipts;
  }

  // Files of parts that are still open must not write when they are closed later.
  Status abort() override {
    if (pack_ != nullptr) pack_->drop();
    parts_.clear();
    return {};
  }

 private:
  FileSystem* fs_;
  const unsigned number_;
  std::string directory_;
  std::shared_ptr<Pack> pack_;
  std::vector<std::shared_ptr<PackedPart>> parts_;
};

}  // namespace

std::optional<unsigned> pack_of(const SharedFsOptions& options, unsigned rank, unsigned ranks) {
  if (ranks <= options.part_files) return std::nullopt;
  return static_cast<unsigned>(std::uint64_t{rank} * options.part_files / ranks);
}

std::string pack_name(unsigned pack) {
  const std::string digits = concat(pack);
  return concat("parts",
                std::string(kNameDigits - std::min<std::size_t>(digits.size(), kNameDigits), '0'),
                digits, ".pack");
}

std::unique_ptr<PartSink> make_part_packs_sink(FileSystem& fs, unsigned pack) {
  return std::make_unique<PartPacksSink>(fs, pack);
}

}  // namespace driftless
