// SPDX-License-Identifier: Apache-2.0
// LiveStore: the weights of a publisher rank that keeps no snapshot. They are read where the
// trainer has them. The changes come from capture(), which compares new values with the weights
// just before they are written. A sweep reads all weights and proves that they equal the last
// version plus the captured changes.
//
// Changes are kept until the version that carries them is committed. Changes that are captured
// before the outcome of that version is known are kept separately, for the next version.
#pragma once

#include <future>
#include <set>

#include "plugin/publish/change_capture.h"
#include "plugin/publish/publisher.h"

namespace driftless {

class LiveStore final : public WeightStore {
 public:
  struct Options {
    std::uint64_t capture_bytes = 0, sweep_every = 1;  // PublisherOptions
    unsigned threads = 1;
    unsigned rank = 0;  // for the notes
  };
  LiveStore(const WeightLayout& layout, std::vector<OwnedTensor> owned, PublisherDevice* device,
            const Options& options);

  // One place for each number. Copies the watched blocks.
  [[nodiscard]] Status open(std::vector<LivePlace> places);
  [[nodiscard]] Status check(const PairedTensor& offered) const {
    return capture_.check(offered.number, offered.new_data);
  }
  // `stream`: the stream on which weights on a GPU are written (PublisherDevice::capture()).
  [[nodiscard]] Status capture(std::span<const NewValues> blocks, void* stream);
  // Fixes the weights of the next version: those of this call, until the next call. Captures the
  // changes of watched blocks. `in_background`: the trainer goes on while the version is made, and
  // the version must have the weights of this call. For most tensors the captured changes determine
  // them; a tensor whose captured changes are incomplete is read and summed here.
  [[nodiscard]] Status observe(void* stream, bool in_background);
  [[nodiscard]] bool in_background() const { return in_background_; }
  void end_background() { in_background_ = false; }

  // Prepares the next version: it carries the changes that were captured until now and that no
  // earlier version carried. Computes what they add to the digest of each tensor, and proves that
  // by a sweep if one is due. `tracked`: the digests at the last version, by tensor. The notes name
  // the tensors that differ from the last version plus the captured changes. Such a tensor is sent
  // whole, unless its digest did not change. In the background, the call instead returns kMismatch
  // if observe() did not sum that tensor, because it may have been written since. kIncomplete: a
  // tensor has more changes than were kept, and observe() did not know that, so its values at the
  // call of observe() are unknown.
  struct Version {
    bool full = false;
    bool reads_weights = false;  // PublicationFormat::reads_weights()
    bool background = true;      // a sweep on a GPU may begin beside other work
    bool unswept = false;        // for prove_read(): nothing proved the weights of this version
  };
  [[nodiscard]] Status prepare(const Version& version, std::span<const Digest> tracked,
                               std::vector<std::string>& notes);
  [[nodiscard]] std::size_t whole_tensors() const;  // in this version
  // Not ok if a tensor that was read differs from the version: it was written while the version was
  // made from it. `after`: the digests after the version.
  [[nodiscard]] Status prove_read(const Version& version, std::span<const Digest> tracked,
                                  std::span<const TensorDigest> after);

  // Whether changes may be missing: a capture failed, or the weights are not those of the last
  // version.
  [[nodiscard]] bool in_doubt() const { return in_doubt_; }
  void doubt(bool in_doubt) { in_doubt_ = in_doubt; }
  [[nodiscard]] LiveCosts& costs() { return costs_; }  // since the last version

  [[nodiscard]] Result<std::vector<Digest>> digests() const override { return sweep(nullptr); }
  [[nodiscard]] bool captured() const override { return true; }
  [[nodiscard]] Status each_change(std::span<const PairedTensor> batch,
                                   std::uint64_t dense_above_units, FoundChanges& found,
                                   const UseChange& use) override;
  [[nodiscard]] bool sent_whole(std::uint32_t number) const override { return sent_.whole(number); }
  void commit() override;

 private:
  [[nodiscard]] bool on_gpu() const { return memory_kind() == MemoryKind::kDevice; }
  [[nodiscard]] bool sweep_due() const {  // with the next version
    return options_.sweep_every > 0 && since_sweep_ + 1 >= options_.sweep_every;
  }
  [[nodiscard]] Status freeze(bool sweeps);
  // Returns the tensors that differ from the last version plus the changes. Compares all tensors,
  // or only those that are sent whole anyway.
  [[nodiscard]] Result<std::vector<std::uint32_t>> prove(std::span<const Digest> tracked, bool all);
  // Digests of the weights as they are now, by tensor, for all or some tensors; empty for tensors
  // of other ranks.
  [[nodiscard]] Result<std::vector<Digest>> sweep(const std::set<std::uint32_t>* tensors) const;
  // Passes the changes of a block in order; if the block is sent whole, all its units.
  [[nodiscard]] Status each_piece(std::uint32_t number, const UseChange& use) const;
  void add_whole(const ChangeStore& store, std::set<std::uint32_t>& tensors) const;
  void remember(const std::vector<Digest>& now, const std::set<std::uint32_t>* tensors);
  [[nodiscard]] Status sum_changes();
  [[nodiscard]] Digest expected(std::span<const Digest> tracked, std::uint32_t tensor) const;
  // Returns an error, and sets in_doubt(). `before`: words for the message if the tensor may have
  // been written earlier, too.
  [[nodiscard]] Status written_since(std::uint32_t tensor, std::string_view before);
  // Marks tensors to be sent whole, with the digests that observe() or a sweep of prove() saw.
  // Tensors whose digest did not change are left out.
  void send_whole(const std::set<std::uint32_t>& whole, std::span<const Digest> tracked);

  Options options_;
  ChangeCapture capture_;
  std::shared_ptr<std::byte> copies_;  // of the watched blocks
  std::vector<WeightMap> maps_;        // place in the tensor of each block that is not empty
  ChangeStore sent_;
  bool in_doubt_ = false;
  bool captured_ = false;   // since the last version
  bool had_whole_ = false;  // the last version, even if it failed, had tensors to send whole
  bool in_background_ = false;
  std::uint64_t since_sweep_ = 0;  // versions
  LiveCosts costs_;
  std::map<std::uint32_t, Digest> seen_;            // by tensor, read by observe() or prove()
  std::map<std::uint32_t, Digest> changes_;         // by tensor
  std::future<Result<std::vector<Digest>>> swept_;  // the last member: its thread reads the others
};

}  // namespace driftless
