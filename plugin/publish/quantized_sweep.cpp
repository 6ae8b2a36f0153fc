// SPDX-License-Identifier: Apache-2.0
// QuantizedStore: the sweep of all weights, and what it proves.
#include <algorithm>

#include "plugin/publish/quantized_store.h"

namespace driftless {
namespace {

constexpr std::size_t kMostNamed = 8;

// Adds notes: the first kMostNamed name a tensor, the last one counts the others.
class NamedTensors {
 public:
  explicit NamedTensors(std::vector<std::string>& notes) : notes_(notes) {}
  void add(std::string note) {
    if (count_++ < kMostNamed) notes_.push_back(std::move(note));
  }
  void end() {
    if (count_ > kMostNamed) {
      notes_.push_back(concat("and ", count_ - kMostNamed, " further tensors"));
    }
  }

 private:
  std::vector<std::string>& notes_;
  std::size_t count_ = 0;
};

}  // namespace

Result<std::vector<Digest>> QuantizedStore::digests() const {
  std::vector<Digest> sums(layout().size());
  const MemoryKind memory = live_.memory_kind();
  const auto add = [&](std::uint32_t number, const std::byte* units, MemoryKind kind) -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest sum,
                               live_.digest(spec(number), owned(number).place(), units, kind));
    sums[owned(number).tensor()] += sum;
    return {};
  };
  for (std::uint32_t i = 0; i < kept_.size(); ++i) {
    if (kept_[i] != kNotHere) DRIFTLESS_RETURN_IF_ERROR(add(kept_[i], live_.data(i), memory));
  }
  LiveMatrices::Quantized made;
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    const std::byte *codes = nullptr, *scales = nullptr;
    if (on_gpu() && matrix.group > 0) {
      DeviceGroups box = weights_.groups_of(matrix, matrices_.weights_of(m));
      DRIFTLESS_RETURN_IF_ERROR(weights_.quantize_groups_there({&box, 1}));
      codes = box.packed;
      scales = box.scales;
    } else if (on_gpu()) {
      made.largest = matrix.known;
      DeviceMatrix box{matrix.part, matrices_.weights_of(m), made.largest, nullptr};
      DRIFTLESS_RETURN_IF_ERROR(weights_.quantize_there({&box, 1}));
      made.scales.resize(matrix.scale_bytes());
      if (matrix.scales) weights_.make_scales(matrix, made.largest, made.scales.data());
      codes = box.codes;
      scales = made.scales.data();
    } else {
      DRIFTLESS_RETURN_IF_ERROR(matrices_.quantize(m, made));
      codes = made.codes.data();
      scales = made.scales.data();
    }
    DRIFTLESS_RETURN_IF_ERROR(add(codes_of(matrix), codes, memory));
    if (!matrix.scales) continue;
    DRIFTLESS_RETURN_IF_ERROR(
        add(numbers_[*matrix.scales], scales, matrix.group > 0 ? memory : MemoryKind::kHost));
    if (!matrix.shape) continue;
    DRIFTLESS_RETURN_IF_ERROR(
        add(numbers_[*matrix.shape], matrix.shape_bytes.data(), MemoryKind::kHost));
  }
  return sums;
}

// Quantizes all weights: codes and scales must equal the last version's plus the changes. So must
// the weights themselves: some changes of weights change no code.
Status QuantizedStore::sweep(std::span<const Digest> tracked, std::vector<std::string>& notes) {
  // The weights first: if they are written in between, the codes differ.
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<Digest> read_now, live_.digests());
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> now, digests());
  std::set<std::uint32_t> differing;
  for (const OwnedTensor& each : owned()) {
    const std::uint32_t tensor = each.tensor();
    const auto change = changes_.find(tensor);
    const Digest expected =
        tracked[tensor] + (change != changes_.end() ? change->second : Digest());
    if (!whole_.contains(tensor) && now[tensor] != expected) differing.insert(tensor);
  }
  if (!differing.empty() && live_.in_background()) {
    live_.doubt(true);
    return error(StatusCode::kMismatch, "tensor '", layout()[*differing.begin()].name,
                 "' differs from the captured changes: it was written without capture(); "
                 "the next publish() sends its values at that time");
  }
  NamedTensors named(notes);
  for (const std::uint32_t tensor : differing) {
    mark_whole(tensor);
    named.add(concat("tensor '", layout()[tensor].name, "' of publisher rank ", options_.live.rank,
                     " was written without capture(): it is sent whole"));
  }
  named.end();
  sent_.release_whole();
  return adopt(std::move(read_now), notes);
}

Status QuantizedStore::adopt(std::vector<Digest> now, std::vector<std::string>& notes) {
  NamedTensors named(notes);
  std::set<std::uint32_t> seen;  // tensors of the trainer
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    const std::uint32_t tensor = live_.owned(matrices_.number(m)).tensor();
    if (now[tensor] == trainer_digests_now_[tensor]) continue;
    DRIFTLESS_RETURN_IF_ERROR(matrices_.scan(m));
    if (is_whole(m) || !seen.insert(tensor).second) continue;
    named.add(concat("tensor '", live_.spec(matrices_.number(m)).name, "' of publisher rank ",
                     options_.live.rank,
                     " was written without capture(); its codes and scales are as they were"));
  }
  named.end();
  trainer_digests_now_ = std::move(now);
  return {};
}

// Computes the digests of tensors that are sent whole; drops those that receivers already have.
Status QuantizedStore::sum_whole(std::span<const Digest> tracked) {
  if (whole_.empty()) return {};
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = weights_.matrices()[m];
    const bool scales = matrix.scales && whole_.contains(owned(numbers_[*matrix.scales]).tensor());
    if (!is_whole(m) && !scales) continue;
    DRIFTLESS_RETURN_IF_ERROR(matrices_.scan(m));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> now, digests());
  for (const std::uint32_t tensor : whole_) {
    const Digest change = now[tensor] - tracked[tensor];
    if (change == Digest()) {
      changes_.erase(tensor);
    } else {
      changes_[tensor] = change;
    }
  }
  for (std::uint32_t i = 0; i < owned().size(); ++i) {
    const std::uint32_t tensor = owned(i).tensor();
    if (whole_.contains(tensor) && !changes_.contains(tensor)) sent_.drop(i);
  }
  live_.costs().resent_tensors = std::max<std::uint64_t>(live_.costs().resent_tensors, 1);
  coded_anew_ = true;
  return {};
}

Status QuantizedStore::prove_read(const LiveStore::Version& version) {
  LiveStore::Version read = version;
  read.reads_weights = read.reads_weights || coded_anew_;
  read.unswept = !full_ && !sweeps_;
  std::vector<TensorDigest> after;
  for (const OwnedTensor& each : live_.owned()) {
    const std::uint32_t tensor = each.tensor();
    if (after.empty() || after.back().tensor != tensor) {
      after.push_back({tensor, trainer_digests_now_[tensor]});
    }
  }
  return live_.prove_read(read, trainer_digests_, after);
}

}  // namespace driftless
