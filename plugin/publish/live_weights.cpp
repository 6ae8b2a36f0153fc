// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/live_weights.h"

#include <algorithm>
#include <cstring>

#include "core/parallel.h"

namespace driftless {
namespace {

constexpr std::uint64_t kCopyAlignment = 256;
constexpr std::uint64_t kLeastLimit = std::uint64_t{1} << 20;  // beside the size of small weights

std::uint64_t copy_room(std::uint64_t bytes) {
  return (bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}

}  // namespace

Status moved_error(std::string_view tensor) {
  return error(StatusCode::kInvalidArgument, "tensor '", tensor,
               "' does not lie where it lay when the publisher was opened: without a snapshot the "
               "weights must be updated in place, and be offered themselves, not as copies; open "
               "the publisher anew, or keep a snapshot");
}

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
  rounded_.resize(blocks.size());
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
  return moved_error(snapshot_.spec(number).name);
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
        const std::uint32_t number = piece.delta.tensor;
        if (unknown_bits(number, piece.delta.value_bytes())) fresh_.mark_whole(number);
        return Status();
      },
      [](const DiffPiece&) { return Status(); });
  fresh_.release_whole();
  return done;
}

// Torch's bits of a NaN depend on the processor and on the tensor's strides: such a block is read
// once it is written.
bool LiveWeights::unknown_bits(std::uint32_t number, std::span<const std::byte> values) const {
  if (!rounded_[number]) return false;
  const DType dtype = snapshot_.spec(number).dtype;
  for (std::size_t at = 0; at < values.size(); at += sizeof(std::uint16_t)) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, values.data() + at, sizeof(bits));
    if (is_nan_16(dtype, bits)) return true;
  }
  return false;
}

Status LiveWeights::capture(std::span<const NewValues> blocks, void* stream) {
  std::vector<TensorPair> pairs;
  captured_ = true;
  for (const NewValues& block : blocks) {
    if (places_[block.number].watched) continue;  // publish() sees it
    if (block.memory != snapshot_.memory_kind() && snapshot_.size_bytes(block.number) > 0) {
      return error(StatusCode::kInvalidArgument, "tensor '", snapshot_.spec(block.number).name,
                   "': its new values do not lie in the memory that it lies in");
    }
    if (block.cast != ValueCast::kNone) rounded_[block.number] = true;
    pairs.push_back({block.number, unit_bytes(snapshot_.spec(block.number).dtype),
                     snapshot_.owned(block.number).place().units, places_[block.number].data,
                     block.data, block.cast});
  }
  return compare(pairs, stream);
}

Status LiveWeights::observe(void* stream, bool behind) {
  DRIFTLESS_RETURN_IF_ERROR(watch(stream));
  if (on_gpu()) DRIFTLESS_RETURN_IF_ERROR(device_->mark(stream));
  behind_ = behind;
  seen_.clear();
  if (!behind) return {};
  // On a GPU nobody knows yet which tensors changed in more places than were kept.
  const bool all = doubtful_ || !captured_ || (on_gpu() && had_whole_);
  std::set<std::uint32_t> whole;
  add_whole(fresh_, whole);
  add_whole(sent_, whole);
  if (!all && whole.empty()) return {};
  if (on_gpu()) DRIFTLESS_RETURN_IF_ERROR(device_->wait_for_trainer());
  const std::set<std::uint32_t>* const some = all ? nullptr : &whole;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> now, sweep(some));
  remember(now, some);
  return {};
}

void LiveWeights::remember(const std::vector<Digest>& now, const std::set<std::uint32_t>* tensors) {
  for (const OwnedTensor& owned : snapshot_.owned()) {
    const std::uint32_t tensor = owned.tensor();
    if (tensors == nullptr || tensors->contains(tensor)) seen_[tensor] = now[tensor];
  }
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
        if (unknown_bits(number, changes.values)) fresh_.mark_whole(number);
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
  // With a sweep in the call none is needed now.
  if (sweeps && on_gpu() && seen_.empty())
    swept_ = std::async(std::launch::async, [this] { return sweep(); });
  const Status fetched = fetch();
  if (!fetched.ok()) swept_ = {};  // waits for it
  DRIFTLESS_RETURN_IF_ERROR(fetched);
  sent_.add(fresh_);
  return {};
}

Result<std::vector<Digest>> LiveWeights::sweep(const std::set<std::uint32_t>* tensors) const {
  std::vector<DigestTensorKey> keys;
  std::vector<MapToSum> maps;
  keys.reserve(maps_.size());
  for (const WeightMap& map : maps_) {
    if (tensors != nullptr && !tensors->contains(map.tensor)) continue;
    keys.push_back(digest_tensor_key(snapshot_.layout()[map.tensor].name));
    maps.push_back({&map, &keys.back()});
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<StridedSum> sums,
                             snapshot_.memory()->sum_maps(maps, threads_));
  std::vector<Digest> digests(snapshot_.layout().size());
  for (std::size_t i = 0; i < maps.size(); ++i) digests[maps[i].map->tensor] += sums[i].digest;
  return digests;
}

Status LiveWeights::prove_still(std::span<const TensorDigest> said) {
  std::set<std::uint32_t> tensors;
  for (const TensorDigest& each : said) tensors.insert(each.tensor);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> now, sweep(on_gpu() ? nullptr : &tensors));
  for (const auto& [tensor, digest] : said) {
    if (now[tensor] != digest) return written_since(tensor);
  }
  return {};
}

Status LiveWeights::prove_full(std::span<const Digest> tracked,
                               std::span<const TensorDigest> said) {
  for (const auto& [tensor, digest] : said) {
    if (digest != expected(tracked, tensor)) return written_since(tensor);
  }
  return {};
}

Status LiveWeights::written_since(std::uint32_t tensor) {
  doubtful_ = true;
  return error(StatusCode::kMismatch, "tensor '", snapshot_.layout()[tensor].name,
               "' was written without capture(), while a version was made from it",
               behind_ ? " or before" : "",
               ": the weights must stay as they are until publish() returns, or wait(); the next "
               "publish() sends what they are then");
}

void LiveWeights::add_whole(const ChangeStore& store, std::set<std::uint32_t>& tensors) const {
  for (std::uint32_t i = 0; i < store.blocks(); ++i) {
    if (store.whole(i)) tensors.insert(snapshot_.owned(i).tensor());
  }
}

std::size_t LiveWeights::whole_tensors() const {
  std::set<std::uint32_t> tensors;
  add_whole(sent_, tensors);
  return tensors.size();
}

Status LiveWeights::sum_changes() {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> tasks;
  for (std::uint32_t i = 0; i < sent_.blocks(); ++i) {
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
  return {};
}

Digest LiveWeights::expected(std::span<const Digest> tracked, std::uint32_t tensor) const {
  const Digest* const added = change(tensor);
  return added != nullptr ? tracked[tensor] + *added : tracked[tensor];
}

Result<std::vector<std::uint32_t>> LiveWeights::prove(std::span<const Digest> tracked, bool all) {
  const Status summed = sum_changes();
  std::optional<std::vector<Digest>> now;
  if (swept_.valid()) {
    DRIFTLESS_ASSIGN_OR_RETURN(now, swept_.get());
  }
  DRIFTLESS_RETURN_IF_ERROR(summed);
  std::set<std::uint32_t> whole;
  add_whole(sent_, whole);
  had_whole_ = !whole.empty();
  const bool seen_all = std::ranges::all_of(
      snapshot_.owned(), [&](const OwnedTensor& owned) { return seen_.contains(owned.tensor()); });
  const bool sweeps = !seen_all && (all || (!behind_ && !whole.empty()));
  if (sweeps && !now) {
    DRIFTLESS_ASSIGN_OR_RETURN(now, sweep());
  }
  if (!behind_ && now) remember(*now, nullptr);
  std::vector<std::uint32_t> differing;
  for (const OwnedTensor& owned : snapshot_.owned()) {
    const std::uint32_t tensor = owned.tensor();
    const auto seen = seen_.find(tensor);
    const bool is_seen = seen != seen_.end();
    if (whole.contains(tensor) && !is_seen) {
      doubtful_ = true;
      return error(StatusCode::kIncomplete, "tensor '", snapshot_.layout()[tensor].name,
                   "' changed in more places than were kept, or holds a NaN, and nobody knows what "
                   "it was when publish(wait=False) was called: the next publish() sends it whole");
    }
    const Digest must = is_seen ? seen->second : expected(tracked, tensor);
    if (behind_ && now && (*now)[tensor] != must) return written_since(tensor);
    if (whole.contains(tensor) || must == expected(tracked, tensor)) continue;
    differing.push_back(tensor);
    whole.insert(tensor);
  }
  send_whole(whole, tracked);
  if (all || seen_all) doubtful_ = false;
  return differing;
}

void LiveWeights::send_whole(const std::set<std::uint32_t>& whole,
                             std::span<const Digest> tracked) {
  for (const std::uint32_t tensor : whole) changes_[tensor] = seen_[tensor] - tracked[tensor];
  for (std::uint32_t i = 0; i < sent_.blocks(); ++i) {
    const std::uint32_t tensor = snapshot_.owned(i).tensor();
    if (!whole.contains(tensor)) continue;
    if (changes_[tensor] == Digest()) {
      sent_.drop(i);  // receivers have it so
    } else {
      sent_.mark_whole(i);
    }
  }
  std::erase_if(changes_, [&](const auto& each) {
    return whole.contains(each.first) && each.second == Digest();
  });
  sent_.release_whole();
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
