// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/live_store.h"

#include <algorithm>

#include "core/parallel.h"
#include "core/stopwatch.h"

namespace driftless {
namespace {

constexpr std::uint64_t kCopyAlignment = 256;
constexpr std::string_view kOrBefore = " or before";
constexpr std::string_view kSinceSweep =
    " or since the last sweep of all weights (capture.sweep_every)";

std::uint64_t copy_room(std::uint64_t bytes) {
  return (bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}

}  // namespace

LiveStore::LiveStore(const WeightLayout& layout, std::vector<OwnedTensor> owned,
                     PublisherDevice* device, const Options& options)
    : WeightStore(layout, std::move(owned), device,
                  device != nullptr ? device->memory() : make_host_memory(), options.threads),
      options_(options),
      capture_(*this, device, options.capture_bytes, options.threads),
      sent_(capture_.empty_store()) {}

Status LiveStore::open(std::vector<LivePlace> places) {
  const MemoryKind kind = memory_kind();
  std::uint64_t watched = 0;
  for (std::uint32_t i = 0; i < places.size(); ++i) {
    if (places[i].memory != kind && size_bytes(i) > 0) {
      return error(StatusCode::kUnsupported, "tensor '", spec(i).name, "' lies ",
                   kind == MemoryKind::kHost ? "on a GPU" : "in host memory",
                   ", and this publisher's other weights do not: without a snapshot all of a "
                   "rank's weights lie in one memory; set snapshot: pinned");
    }
    // The const_cast is safe: this memory is only read.
    place(i, const_cast<std::byte*>(places[i].data));
    if (places[i].watched) watched += copy_room(size_bytes(i));
  }
  if (watched > 0) {
    DRIFTLESS_ASSIGN_OR_RETURN(copies_, memory()->allocate(watched));
  }
  std::byte* at = copies_.get();
  for (std::uint32_t i = 0; i < places.size(); ++i) {
    if (places[i].watched) {
      place(i, at);
      at += copy_room(size_bytes(i));
      DRIFTLESS_RETURN_IF_ERROR(write(i, places[i].data));
    }
    if (size_bytes(i) == 0) continue;
    WeightMap& map = maps_.emplace_back();
    map.tensor = owned(i).tensor();
    map.data = data(i);
    map.unit_bytes = unit_bytes(spec(i).dtype);
    DRIFTLESS_ASSIGN_OR_RETURN(map.map, map_of(owned(i).place(), spec(i).units()));
  }
  capture_.open(std::move(places));
  return {};
}

Status LiveStore::capture(std::span<const NewValues> blocks, void* stream) {
  captured_ = true;
  return capture_.capture(blocks, stream);
}

Status LiveStore::observe(void* stream, bool in_background) {
  DRIFTLESS_RETURN_IF_ERROR(capture_.watch(stream));
  if (on_gpu()) DRIFTLESS_RETURN_IF_ERROR(device()->mark(stream));
  in_background_ = in_background;
  seen_.clear();
  if (!in_background) return {};
  // On a GPU it is not known yet which tensors changed in more places than were kept.
  const bool all = in_doubt_ || !captured_ || (on_gpu() && had_whole_);
  std::set<std::uint32_t> whole;
  add_whole(capture_.fresh(), whole);
  add_whole(sent_, whole);
  if (!all && whole.empty()) return {};
  if (on_gpu()) DRIFTLESS_RETURN_IF_ERROR(device()->wait_for_trainer());
  const std::set<std::uint32_t>* const some = all ? nullptr : &whole;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> now, sweep(some));
  remember(now, some);
  return {};
}

void LiveStore::remember(const std::vector<Digest>& now, const std::set<std::uint32_t>* tensors) {
  for (const OwnedTensor& owned : owned()) {
    const std::uint32_t tensor = owned.tensor();
    if (tensors == nullptr || tensors->contains(tensor)) seen_[tensor] = now[tensor];
  }
}

Status LiveStore::freeze(bool sweeps) {
  swept_ = {};
  if (on_gpu()) DRIFTLESS_RETURN_IF_ERROR(device()->wait_for_trainer());
  // No sweep is needed if observe() made one.
  if (sweeps && on_gpu() && seen_.empty())
    swept_ = std::async(std::launch::async, [this] { return sweep(nullptr); });
  const Status fetched = capture_.fetch();
  in_doubt_ = in_doubt_ || !fetched.ok();
  if (!fetched.ok()) swept_ = {};  // waits for the sweep
  DRIFTLESS_RETURN_IF_ERROR(fetched);
  sent_.add(capture_.fresh());
  return {};
}

Result<std::vector<Digest>> LiveStore::sweep(const std::set<std::uint32_t>* tensors) const {
  std::vector<DigestTensorKey> keys;
  std::vector<MapToSum> maps;
  keys.reserve(maps_.size());
  for (const WeightMap& map : maps_) {
    if (tensors != nullptr && !tensors->contains(map.tensor)) continue;
    keys.push_back(digest_tensor_key(layout()[map.tensor].name));
    maps.push_back({&map, &keys.back()});
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<StridedSum> sums,
                             memory()->sum_maps(maps, threads()));
  std::vector<Digest> digests(layout().size());
  for (std::size_t i = 0; i < maps.size(); ++i) digests[maps[i].map->tensor] += sums[i].digest;
  return digests;
}

Status LiveStore::prove_read(const Version& version, std::span<const Digest> tracked,
                             std::span<const TensorDigest> after) {
  std::set<std::uint32_t> tensors;
  for (const auto& [tensor, digest] : after) {
    tensors.insert(tensor);
    if (version.full && in_background_ && digest != expected(tracked, tensor)) {
      return written_since(tensor, kOrBefore);
    }
  }
  const std::string_view before = version.unswept ? kSinceSweep : in_background_ ? kOrBefore : "";
  const bool captured = !version.full && !version.reads_weights && whole_tensors() == 0;
  if (captured) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> now, sweep(on_gpu() ? nullptr : &tensors));
  for (const auto& [tensor, digest] : after) {
    if (now[tensor] != digest) return written_since(tensor, before);
  }
  return {};
}

Status LiveStore::written_since(std::uint32_t tensor, std::string_view before) {
  in_doubt_ = true;
  return error(StatusCode::kMismatch, "tensor '", layout()[tensor].name,
               "' was written without capture(), while a version was made from it", before,
               ": the weights must stay as they are until publish() returns, or wait(); the next "
               "publish() sends what they are then");
}

void LiveStore::add_whole(const ChangeStore& store, std::set<std::uint32_t>& tensors) const {
  for (std::uint32_t i = 0; i < store.blocks(); ++i) {
    if (store.whole(i)) tensors.insert(owned(i).tensor());
  }
}

std::size_t LiveStore::whole_tensors() const {
  std::set<std::uint32_t> tensors;
  add_whole(sent_, tensors);
  return tensors.size();
}

Status LiveStore::sum_changes() {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> tasks;
  for (std::uint32_t i = 0; i < sent_.blocks(); ++i) {
    for (std::uint64_t piece = 0; piece < sent_.pieces(i); ++piece) {
      if (sent_.delta(i, piece).count() > 0) tasks.emplace_back(i, piece);
    }
  }
  std::vector<Digest> sums(tasks.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(tasks.size(), threads(), [&](std::size_t task, unsigned) -> Status {
        const auto [number, piece] = tasks[task];
        sums[task] = digest_block_change(host_kernels(), digest_tensor_key(spec(number).name),
                                         owned(number).place(), sent_.delta(number, piece),
                                         sent_.old_values(number, piece));
        return {};
      }));
  changes_.clear();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    changes_[owned(tasks[i].first).tensor()] += sums[i];
  }
  return {};
}

Digest LiveStore::expected(std::span<const Digest> tracked, std::uint32_t tensor) const {
  const auto added = changes_.find(tensor);
  return added != changes_.end() ? tracked[tensor] + added->second : tracked[tensor];
}

Status LiveStore::prepare(const Version& version, std::span<const Digest> tracked,
                          std::vector<std::string>& notes) {
  constexpr std::size_t kNamed = 8;
  const Status frozen = freeze(!version.full && version.background && sweep_due());
  costs_.captured_bytes = capture_.fresh().size_bytes() + sent_.size_bytes();
  DRIFTLESS_RETURN_IF_ERROR(frozen);
  if (version.full) {
    return in_background_ ? prove(tracked, false).status() : Status();  // against observe()
  }
  Stopwatch watch;
  // The sweep of all weights is also needed if the version is made from them: receivers with other
  // weights could not decode `compact`, and a shard has checksums of the weights.
  const bool all = sweep_due() || in_doubt_ || version.reads_weights;
  since_sweep_ = all ? 0 : since_sweep_ + 1;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> differing, prove(tracked, all));
  for (std::size_t i = 0; i < std::min(differing.size(), kNamed); ++i) {
    notes.push_back(concat("tensor '", layout()[differing[i]].name, "' of publisher rank ",
                           options_.rank, " was written without capture()",
                           changes_.contains(differing[i])
                               ? ": it is sent whole"
                               : ", or captured and not written; it has not changed"));
  }
  if (differing.size() > kNamed) {
    notes.push_back(concat("and ", differing.size() - kNamed, " further tensors"));
  }
  costs_.resent_tensors = whole_tensors();
  costs_.sweep_ms += watch.lap_ms();
  return {};
}

Result<std::vector<std::uint32_t>> LiveStore::prove(std::span<const Digest> tracked, bool all) {
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
      owned(), [&](const OwnedTensor& owned) { return seen_.contains(owned.tensor()); });
  const bool sweeps = !seen_all && (all || (!in_background_ && !whole.empty()));
  if (sweeps && !now) {
    DRIFTLESS_ASSIGN_OR_RETURN(now, sweep(nullptr));
  }
  if (!in_background_ && now) remember(*now, nullptr);
  std::vector<std::uint32_t> differing;
  for (const OwnedTensor& owned : owned()) {
    const std::uint32_t tensor = owned.tensor();
    const auto seen = seen_.find(tensor);
    const bool is_seen = seen != seen_.end();
    if (whole.contains(tensor) && !is_seen) {
      in_doubt_ = true;
      return error(StatusCode::kIncomplete, "tensor '", layout()[tensor].name,
                   "' changed in more places than were kept, or holds a NaN, and its values at the "
                   "call of publish(wait=False) are unknown: the next publish() sends it whole");
    }
    const Digest must = is_seen ? seen->second : expected(tracked, tensor);
    if (in_background_ && now && (*now)[tensor] != must) return written_since(tensor, kOrBefore);
    if (whole.contains(tensor) || must == expected(tracked, tensor)) continue;
    differing.push_back(tensor);
    whole.insert(tensor);
  }
  send_whole(whole, tracked);
  if (all || seen_all) in_doubt_ = false;
  return differing;
}

void LiveStore::send_whole(const std::set<std::uint32_t>& whole, std::span<const Digest> tracked) {
  for (const std::uint32_t tensor : whole) changes_[tensor] = seen_[tensor] - tracked[tensor];
  for (std::uint32_t i = 0; i < sent_.blocks(); ++i) {
    const std::uint32_t tensor = owned(i).tensor();
    if (!whole.contains(tensor)) continue;
    if (changes_[tensor] == Digest()) {
      sent_.drop(i);  // receivers have these weights already
    } else {
      sent_.mark_whole(i);
    }
  }
  std::erase_if(changes_, [&](const auto& each) {
    return whole.contains(each.first) && each.second == Digest();
  });
  sent_.release_whole();
}

void LiveStore::commit() {
  if (on_gpu()) {
    // Filling new memory is slow: keep this for the next changes.
    sent_.clear_and_keep();
    capture_.fresh().add(sent_);
  } else {
    sent_.clear();
  }
  changes_.clear();
  captured_ = false;
}

Status LiveStore::each_change(std::span<const PairedTensor> batch, std::uint64_t dense_above_units,
                              FoundChanges& found, const UseChange& use) {
  for (const PairedTensor& offered : batch) {
    if (found.dense) return {};
    const std::uint32_t tensor = owned(offered.number).tensor();
    const auto change = changes_.find(tensor);
    if (change == changes_.end()) continue;
    found.digests[tensor] = change->second;
    DRIFTLESS_RETURN_IF_ERROR(each_piece(offered.number, [&](const DiffPiece& piece) -> Status {
      found.changed_units += piece.delta.count();
      found.units[tensor] += piece.delta.count();
      found.dense = found.changed_units > dense_above_units;
      return found.dense ? Status() : use(piece);
    }));
  }
  return {};
}

Status LiveStore::each_piece(std::uint32_t number, const UseChange& use) const {
  if (!sent_.whole(number)) {
    for (std::uint64_t piece = 0; piece < sent_.pieces(number); ++piece) {
      const DeltaView delta = sent_.delta(number, piece);
      if (delta.count() == 0) continue;
      DRIFTLESS_RETURN_IF_ERROR(
          use({nullptr, delta.origin, 0, delta, sent_.old_values(number, piece), true}));
    }
    return {};
  }
  const unsigned width = unit_bytes(spec(number).dtype);
  const std::uint64_t units = owned(number).place().units;
  const std::span<const std::uint32_t> offsets = all_offsets();
  const bool fetched = on_gpu();
  std::vector<std::byte> held(fetched ? offsets.size() * width : 0);
  for (std::uint64_t first = 0; first < units; first += offsets.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(units - first, offsets.size());
    const std::byte* values = data(number) + first * width;
    if (fetched) {
      DRIFTLESS_RETURN_IF_ERROR(memory()->fetch(std::span(held).first(count * width), values));
      values = held.data();
    }
    DRIFTLESS_RETURN_IF_ERROR(use(
        {nullptr, first, 0, {number, width, first, offsets.first(count), values}, nullptr, false}));
  }
  return {};
}

}  // namespace driftless
