// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/live_weights.h"

#include <algorithm>
#include <set>

#include "core/parallel.h"

namespace driftless {
namespace {

constexpr std::uint64_t kCopyAlignment = 256;
constexpr std::uint64_t kLeastLimit = std::uint64_t{1} << 20;  // beside the size of small weights

std::uint64_t copy_room(std::uint64_t bytes) {
  return (bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}

}  // namespace

LiveWeights::LiveWeights(Snapshot& snapshot, PublisherDevice* device, std::uint64_t limit_bytes,
                         unsigned threads)
    : snapshot_(snapshot), device_(device), limit_bytes_(limit_bytes), threads_(threads) {
  std::vector<ChangeStore::Block> blocks;
  std::uint64_t all = kLeastLimit;
  for (std::uint32_t i = 0; i < snapshot.owned().size(); ++i) {
    blocks.push_back({snapshot.owned(i).place().units, unit_bytes(snapshot.spec(i).dtype)});
    all += snapshot.size_bytes(i);
  }
  limit_bytes_ = std::min(limit_bytes, all);  // more than that is no delta any more
  fresh_ = ChangeStore(blocks, limit_bytes_);
  sent_ = ChangeStore(blocks, limit_bytes_);
}

Status LiveWeights::open(std::vector<Place> places) {
  places_ = std::move(places);
  const MemoryKind kind = snapshot_.memory_kind();
  std::uint64_t watched = 0;
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (places_[i].memory != kind && snapshot_.size_bytes(i) > 0) {
      return error(StatusCode::kUnsupported, "tensor '", snapshot_.spec(i).name, "' lies ",
                   kind == MemoryKind::kHost ? "on a GPU" : "in host memory",
                   ", and this publisher's other weights do not: without a snapshot all of a "
                   "rank's weights lie in one memory; set snapshot: pinned");
    }
    // Never written: only copies are.
    snapshot_.place(i, const_cast<std::byte*>(places_[i].data));
    if (places_[i].watched) watched += copy_room(snapshot_.size_bytes(i));
  }
  if (watched > 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(copies_, snapshot_.memory()->allocate(watched));
  }
  std::byte* at = copies_.get();
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (places_[i].watched) {
      snapshot_.place(i, at);
      at += copy_room(snapshot_.size_bytes(i));
      DRIFTLESS_RETURN_IF_ERROR(snapshot_.write(i, places_[i].data));
    }
    if (snapshot_.size_bytes(i) == 0) continue;
    WeightMap& map = maps_.emplace_back();
    map.tensor = snapshot_.owned(i).tensor();
    map.data = snapshot_.data(i);
    map.unit_bytes = unit_bytes(snapshot_.spec(i).dtype);
    DRIFTLESS_ASSIGN_OR_RETURN(map.map,
                               map_of(snapshot_.owned(i).place(), snapshot_.spec(i).units()));
  }
  return {};
}

Status LiveWeights::check(std::uint32_t number, const std::byte* data) const {
  if (data == places_[number].data || snapshot_.size_bytes(number) == 0) return {};
  return error(StatusCode::kInvalidArgument, "tensor '", snapshot_.spec(number).name,
               "' does not lie where it lay when the publisher was opened: without a snapshot the "
               "weights must be updated in place, and be offered themselves, not as copies; open "
               "the publisher anew, or keep a snapshot");
}

Status LiveWeights::compare(std::span<const TensorPair> pairs, void* stream) {
  if (on_gpu()) {
    return device_->capture(pairs, limit_bytes_, stream);
  }
  DiffOptions options;
  options.threads = threads_;
  options.piece_bytes = ChangeStore::kPieceBytes;
  options.old_values = true;
  const Status done = diff_tensors(
      host_kernels(), pairs, options,
      [this](const DiffPiece& piece) {
        fresh_.add(piece.delta, piece.old_values);
        return Status();
      },
      [](const DiffPiece&) { return Status(); });
  fresh_.release_whole();
  return done;
}

Status LiveWeights::capture(std::span<const NewValues> blocks, void* stream) {
  std::vector<TensorPair> pairs;
  for (const NewValues& block : blocks) {
    if (places_[block.number].watched) continue;  // publish() sees it
    if (block.memory != snapshot_.memory_kind() && snapshot_.size_bytes(block.number) > 0) {
      return error(StatusCode::kInvalidArgument, "tensor '", snapshot_.spec(block.number).name,
                   "': its new values do not lie in the memory that it lies in");
    }
    pairs.push_back({block.number, unit_bytes(snapshot_.spec(block.number).dtype),
                     snapshot_.owned(block.number).place().units, places_[block.number].data,
                     block.data, block.cast});
  }
  return compare(pairs, stream);
}

Status LiveWeights::observe(void* stream) {
  DRIFTLESS_RETURN_IF_ERROR(watch(stream));
  return on_gpu() ? device_->mark(stream) : Status();
}

Status LiveWeights::watch(void* stream) {
  std::vector<TensorPair> pairs;
  for (std::uint32_t i = 0; i < places_.size(); ++i) {
    if (!places_[i].watched) continue;
    pairs.push_back({i, unit_bytes(snapshot_.spec(i).dtype), snapshot_.owned(i).place().units,
                     snapshot_.data(i), places_[i].data});
  }
  if (pairs.empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(compare(pairs, stream));
  for (const TensorPair& pair : pairs) {
    DRIFTLESS_RETURN_IF_ERROR(on_gpu()
                                  ? device_->copy_behind(snapshot_.data(pair.tensor), pair.new_data,
                                                         snapshot_.size_bytes(pair.tensor), stream)
                                  : snapshot_.write(pair.tensor, pair.new_data));
  }
  return {};
}

Status LiveWeights::fetch() {
  if (!on_gpu()) return {};
  const auto missing = device_->fetch_captured(
      threads_, [this](std::uint32_t number, std::uint64_t piece, PieceChanges changes) {
        fresh_.add(number, piece, std::move(changes));
      });
  doubtful_ = doubtful_ || !missing.ok();
  for (std::size_t i = 0; missing.ok() && i < missing->size(); ++i) {
    fresh_.mark_whole((*missing)[i]);
  }
  fresh_.release_whole();
  return missing.status();
}

Status LiveWeights::freeze(bool sweeps) {
  swept_ = {};
  if (on_gpu()) DRIFTLESS_RETURN_IF_ERROR(device_->wait_for_trainer());
  if (sweeps && on_gpu()) swept_ = std::async(std::launch::async, [this] { return sweep(); });
  const Status fetched = fetch();
  if (!fetched.ok()) swept_ = {};  // waits for it
  DRIFTLESS_RETURN_IF_ERROR(fetched);
  sent_.add(fresh_);
  return {};
}

Result<std::vector<Digest>> LiveWeights::sweep() const {
  std::vector<DigestTensorKey> keys;
  std::vector<MapToSum> maps;
  keys.reserve(maps_.size());
  for (const WeightMap& map : maps_) {
    keys.push_back(digest_tensor_key(snapshot_.layout()[map.tensor].name));
    maps.push_back({&map, &keys.back()});
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<StridedSum> sums,
                             snapshot_.memory()->sum_maps(maps, threads_));
  std::vector<Digest> digests(snapshot_.layout().size());
  for (std::size_t i = 0; i < maps.size(); ++i) digests[maps[i].map->tensor] += sums[i].digest;
  return digests;
}

Status LiveWeights::prove_still(std::span<const TensorDigest> said) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> now, sweep());
  for (const auto& [tensor, digest] : said) {
    if (now[tensor] == digest) continue;
    return error(StatusCode::kMismatch, "tensor '", snapshot_.layout()[tensor].name,
                 "' was written while a version was made from it: the weights must stay as they "
                 "are until publish() returns, or wait()");
  }
  return {};
}

std::size_t LiveWeights::whole_tensors() const {
  std::set<std::uint32_t> tensors;
  for (std::uint32_t i = 0; i < sent_.blocks(); ++i) {
    if (sent_.whole(i)) tensors.insert(snapshot_.owned(i).tensor());
  }
  return tensors.size();
}

Result<std::vector<std::uint32_t>> LiveWeights::prove(std::span<const Digest> tracked, bool all) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> tasks;
  std::set<std::uint32_t> whole;
  for (std::uint32_t i = 0; i < sent_.blocks(); ++i) {
    if (sent_.whole(i)) whole.insert(snapshot_.owned(i).tensor());
    for (std::uint64_t piece = 0; piece < sent_.pieces(i); ++piece) {
      if (sent_.delta(i, piece).count() > 0) tasks.emplace_back(i, piece);
    }
  }
  std::vector<Digest> sums(tasks.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(tasks.size(), threads_, [&](std::size_t task, unsigned) -> Status {
        const auto [number, piece] = tasks[task];
        sums[task] =
            digest_block_change(host_kernels(), digest_tensor_key(snapshot_.spec(number).name),
                                snapshot_.owned(number).place(), sent_.delta(number, piece),
                                sent_.old_values(number, piece));
        return {};
      }));
  changes_.clear();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    changes_[snapshot_.owned(tasks[i].first).tensor()] += sums[i];
  }
  std::vector<std::uint32_t> differing;
  if (!all && whole.empty()) return differing;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> now,
                             swept_.valid() ? swept_.get() : sweep());
  for (std::uint32_t i = 0; i < sent_.blocks(); ++i) {
    const std::uint32_t tensor = snapshot_.owned(i).tensor();
    const auto found = changes_.find(tensor);
    const Digest expected = tracked[tensor] + (found != changes_.end() ? found->second : Digest());
    const bool differs = all && !whole.contains(tensor) && now[tensor] != expected;
    if (differs) differing.push_back(tensor);
    if (differs) whole.insert(tensor);
    if (whole.contains(tensor)) {
      changes_[tensor] = now[tensor] - tracked[tensor];
      sent_.mark_whole(i);
    }
  }
  if (all) doubtful_ = false;
  sent_.release_whole();
  return differing;
}

const Digest* LiveWeights::change(std::uint32_t tensor) const {
  const auto found = changes_.find(tensor);
  return found != changes_.end() ? &found->second : nullptr;
}

Status LiveWeights::each_piece(
    std::uint32_t number,
    const std::function<Status(const DeltaView&, const std::byte*)>& use) const {
  if (!sent_.whole(number)) {
    for (std::uint64_t piece = 0; piece < sent_.pieces(number); ++piece) {
      const DeltaView delta = sent_.delta(number, piece);
      if (delta.count() == 0) continue;
      DRIFTLESS_RETURN_IF_ERROR(use(delta, sent_.old_values(number, piece)));
    }
    return {};
  }
  const unsigned width = unit_bytes(snapshot_.spec(number).dtype);
  const std::uint64_t units = snapshot_.owned(number).place().units;
  const std::span<const std::uint32_t> offsets = all_offsets();
  const bool fetched = snapshot_.memory_kind() == MemoryKind::kDevice;
  std::vector<std::byte> held(fetched ? offsets.size() * width : 0);
  for (std::uint64_t first = 0; first < units; first += offsets.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(units - first, offsets.size());
    const std::byte* values = snapshot_.data(number) + first * width;
    if (fetched) {
      DRIFTLESS_RETURN_IF_ERROR(
          snapshot_.memory()->fetch(std::span(held).first(count * width), values));
      values = held.data();
    }
    DRIFTLESS_RETURN_IF_ERROR(use({number, width, first, offsets.first(count), values}, nullptr));
  }
  return {};
}

}  // namespace driftless
