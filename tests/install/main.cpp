// SPDX-License-Identifier: Apache-2.0
// Uses the installed library as a user's program does: publishes weights over a road, and follows
// them by a receiver.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <driftless/collectives/shared_fs/shared_fs_road.h>
#include <driftless/plugin/publish/publisher.h>
#include <driftless/plugin/receive/receiver.h>

namespace {

class OneTensor final : public driftless::WeightSource {
 public:
  OneTensor(const driftless::TensorSpec& spec, std::byte fill)
      : specs_{spec}, bytes_(static_cast<std::size_t>(spec.units()) * 2, fill) {}
  std::span<const driftless::TensorSpec> tensors() const override { return specs_; }
  driftless::Status visit(
      const std::function<driftless::Status(std::span<const driftless::OfferedTensor>)>& use)
      override {
    const driftless::OfferedTensor offered{0, bytes_.data()};
    return use(std::span(&offered, 1));
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<driftless::TensorSpec> specs_;
  std::vector<std::byte> bytes_;
};

driftless::Status run() {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const driftless::TensorSpec spec,
      driftless::TensorSpec::make("model.norm.weight", driftless::DType::kBF16, {640}));
  OneTensor weights(spec, std::byte{7});

  char made[] = "/tmp/driftless-install-XXXXXX";
  if (mkdtemp(made) == nullptr) return driftless::error(driftless::StatusCode::kIo, made);
  const std::unique_ptr<char, void (*)(char*)> removed(
      made, [](char* dir) { std::filesystem::remove_all(dir); });
  driftless::SharedFsOptions road;
  road.dir = made;
  driftless::FileSystem& files = driftless::posix_file_system();
  driftless::SoloGroup group;
  DRIFTLESS_ASSIGN_OR_RETURN(const auto send_road,
                             driftless::make_shared_fs_sender(files, road, 0, 1));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto receive_road,
                             driftless::make_shared_fs_receiver(files, road));
  driftless::PublisherOptions options;
  options.first_anchor = true;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const auto publisher,
      driftless::Publisher::open(options, group, *send_road, nullptr, weights));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto target, driftless::make_owned_target(files, {}, 1));
  const auto deadline = driftless::Deadline::after(std::chrono::seconds(30));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto receiver,
                             driftless::Receiver::open({}, *receive_road, *target, deadline));

  weights.bytes()[42] = std::byte{99};
  DRIFTLESS_ASSIGN_OR_RETURN(const driftless::PublishReport published, publisher->publish(weights));
  while (target->state().id.version < published.version) {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool staged, receiver->stage(deadline));
    if (!staged) return driftless::error(driftless::StatusCode::kDeadlineExceeded, "nothing new");
    DRIFTLESS_ASSIGN_OR_RETURN(const driftless::UpdateReport update, receiver->commit());
    std::printf("version %llu\n", static_cast<unsigned long long>(update.version));
  }
  const std::span<const std::byte> held = target->tensor(0);
  if (!std::equal(held.begin(), held.end(), weights.bytes().begin(), weights.bytes().end()) ||
      target->state().digest != published.digest) {
    return driftless::error(driftless::StatusCode::kCorrupt, "the receiver has other weights");
  }
  return {};
}

}  // namespace

int main() {
  const driftless::Status status = run();
  if (!status.ok()) std::printf("%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
