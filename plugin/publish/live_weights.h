// SPDX-License-Identifier: Apache-2.0
// LiveWeights: the weights of a publisher rank that keeps no snapshot. They are read where the
// trainer has them; what changed comes from capture(), which compares new values with the weights
// just before those are written. A sweep proves that the weights are what the captured changes make
// of the last version.
//
// Changes are kept until the version that carries them is committed. Those captured meanwhile are
// kept apart, because the outcome of a version may become known later.
#pragma once

#include <future>
#include <map>
#include <set>

#include "plugin/publish/change_store.h"
#include "plugin/publish/publisher.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {

// A tensor does not lie where it lay.
[[nodiscard]] Status moved_error(std::string_view tensor);

// What capture() compares a block with.
struct NewValues {
  std::uint32_t number = 0;  // in the snapshot
  const std::byte* data = nullptr;
  ValueCast cast = ValueCast::kNone;
  MemoryKind memory = MemoryKind::kHost;
};

// One thread at a time.
class LiveWeights {
 public:
  // Where a block lies, and whether it is compared with a copy of its own.
  struct Place {
    const std::byte* data = nullptr;
    MemoryKind memory = MemoryKind::kHost;
    bool watched = false;
  };
  // The snapshot (Snapshot::without_memory()) and the device (may be null) outlive it.
  LiveWeights(Snapshot& snapshot, PublisherDevice* device, std::uint64_t limit_bytes,
              unsigned threads);

  // One place for each number of the snapshot, which gets them. What is watched is copied.
  [[nodiscard]] Status open(std::vector<Place> places);
  // Ok if a block lies where it lay.
  [[nodiscard]] Status check(std::uint32_t number, const std::byte* data) const;

  // `stream`: what weights on a GPU are written on (PublisherDevice::capture()).
  [[nodiscard]] Status capture(std::span<const NewValues> blocks, void* stream);
  // The weights are as they will be once this is done. Captures what is watched: until the next
  // call the snapshot has it as it is now. `behind`: the version is made while the trainer goes on,
  // and must be the weights of now. Captured changes say what these are; tensors of which they do
  // not are summed here.
  [[nodiscard]] Status observe(void* stream, bool behind);
  [[nodiscard]] bool behind() const { return behind_; }
  void end_behind() { behind_ = false; }
  // What was captured until now is what the next version carries, beside what no version did.
  // `sweeps`: prove() follows, and sweeps; on a GPU that begins here.
  [[nodiscard]] Status freeze(bool sweeps);

  // Works out what those changes add to the digest of each tensor, and compares with a sweep.
  // `tracked`: the digests at the last version, by tensor. Of all tensors, or of those alone that
  // go out whole anyway. Returns the tensors that are not what the changes say: they go out whole,
  // too, unless they are as they were. Behind the trainer's back such a tensor is a kMismatch,
  // unless observe() summed it: it may have been written since. kIncomplete: more changed than was
  // kept, and observe() did not know.
  [[nodiscard]] Result<std::vector<std::uint32_t>> prove(std::span<const Digest> tracked, bool all);
  // By tensor, of the weights as they are, or of some; other tensors than these ranks' have none.
  [[nodiscard]] Result<std::vector<Digest>> sweep(
      const std::set<std::uint32_t>* tensors = nullptr) const;
  // As prove() found it; null: the tensor does not change.
  [[nodiscard]] const Digest* change(std::uint32_t tensor) const;
  // The changes of a block in order. Of one that goes out whole all units, and no old values
  // (null).
  [[nodiscard]] Status each_piece(
      std::uint32_t number,
      const std::function<Status(const DeltaView&, const std::byte* old_values)>& use) const;
  [[nodiscard]] bool whole(std::uint32_t number) const { return sent_.whole(number); }
  [[nodiscard]] std::size_t whole_tensors() const;
  // Not ok if a tensor does not have the digest that a version says: it was written while that was
  // made from it.
  [[nodiscard]] Status prove_still(std::span<const TensorDigest> said);
  // Not ok if a tensor of a full version, as it was read, is not what prove() expects.
  [[nodiscard]] Status prove_full(std::span<const Digest> tracked,
                                  std::span<const TensorDigest> said);

  // The last version has what freeze() took.
  void commit() {
    sent_.clear();
    changes_.clear();
    captured_ = false;
  }
  // Changes may be missing: a capture failed, or the weights are not those of the last version.
  [[nodiscard]] bool doubtful() const { return doubtful_; }
  void doubt(bool doubtful) { doubtful_ = doubtful; }
  [[nodiscard]] std::uint64_t held_bytes() const {
    return fresh_.size_bytes() + sent_.size_bytes();
  }

 private:
  [[nodiscard]] bool on_gpu() const { return snapshot_.memory_kind() == MemoryKind::kDevice; }
  [[nodiscard]] Status compare(std::span<const TensorPair> pairs, void* stream);
  [[nodiscard]] Status watch(void* stream);
  [[nodiscard]] Status fetch();
  // Changes with a value that nobody can tell before it is written.
  [[nodiscard]] bool unknown_bits(std::uint32_t number, std::span<const std::byte> values) const;
  void add_whole(const ChangeStore& store, std::set<std::uint32_t>& tensors) const;
  void remember(const std::vector<Digest>& now, const std::set<std::uint32_t>* tensors);
  [[nodiscard]] Status sum_changes();
  [[nodiscard]] Digest expected(std::span<const Digest> tracked, std::uint32_t tensor) const;
  [[nodiscard]] Status written_since(std::uint32_t tensor);  // and doubts
  // As observe(), or a sweep of prove(), saw them; those that are as they were are left out.
  void send_whole(const std::set<std::uint32_t>& whole, std::span<const Digest> tracked);

  Snapshot& snapshot_;
  PublisherDevice* device_;
  std::uint64_t limit_bytes_;
  unsigned threads_;
  std::vector<Place> places_;
  std::shared_ptr<std::byte> copies_;  // of what is watched
  std::vector<WeightMap> maps_;        // of what is not empty: the snapshot's places, in its tensor
  ChangeStore fresh_, sent_;
  std::vector<bool> rounded_;  // of each block: capture() rounded values of it
  bool doubtful_ = false;
  bool captured_ = false;   // since the last version
  bool had_whole_ = false;  // tensors of the last version, also if that failed
  bool behind_ = false;
  std::map<std::uint32_t, Digest> seen_;            // by tensor: what the weights had in the call
  std::map<std::uint32_t, Digest> changes_;         // by tensor
  std::future<Result<std::vector<Digest>>> swept_;  // last: it reads the rest
};

}  // namespace driftless
