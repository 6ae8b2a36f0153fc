// SPDX-License-Identifier: Apache-2.0
// Receives a run into tensors of its own, and ends when the run has ended. It is
// examples/c/follow.c in C++, with a thread that stages while the engine works.
//
//   follow CONFIG TENSORS BASE OUT [KEY=VALUE...]
//
// TENSORS has a line for each tensor: its name, its type, its shape. BASE has the bytes of all
// tensors, one after the other, with which the trainer started, or is "-". At the end the program
// writes the bytes of the tensors to OUT.
#include <chrono>
#include <cstddef>
#include <fstream>
#include <future>
#include <iostream>
#include <sstream>

#include "receiver.hpp"

namespace {

constexpr int kIdleSeconds = 120;

struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};

std::size_t width_of(const std::string& dtype) {
  for (const char* bits : {"64", "32", "16"}) {
    if (dtype.find(bits) != std::string::npos) return std::stoul(bits) / 8;
  }
  return 1;
}

std::vector<Tensor> read_tensors(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<Tensor> tensors;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Tensor tensor;
    words >> tensor.name >> tensor.dtype;
    std::size_t size = width_of(tensor.dtype);
    for (int64_t dim = 0; words >> dim;) {
      tensor.shape.push_back(dim);
      size *= static_cast<std::size_t>(dim);
    }
    tensor.bytes.resize(size);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Stands in for an engine: counts the steps that an engine could make between two updates.
class Engine {
 public:
  void generate() {
    if (!paused_) ++steps_;
  }
  static int32_t pause(void* self) {
    static_cast<Engine*>(self)->paused_ = true;
    return DRIFTLESS_OK;
  }
  static int32_t resume(void* self) {
    static_cast<Engine*>(self)->paused_ = false;
    return DRIFTLESS_OK;
  }
  [[nodiscard]] bool paused() const { return paused_; }
  [[nodiscard]] long steps() const { return steps_; }

 private:
  bool paused_ = false;
  long steps_ = 0;
};

// Runs on a thread of its own. DRIFTLESS_WRONG_BASE: there is no anchor yet; the trainer's next
// version brings one.
bool stage(const Receiver& receiver) {
  int32_t staged = 0;
  try {
    Receiver::call(driftless_stage, receiver.get(), int64_t{1000}, &staged);
  } catch (const DriftlessError& error) {
    if (error.code != DRIFTLESS_WRONG_BASE) throw;
  }
  return staged != 0;
}

bool ended(const Receiver& receiver) {
  auto end = sized<driftless_end>();
  Receiver::call(driftless_look_for_end, receiver.get(), &end);
  if (end.ended != 0 && end.reached != 0) {
    std::cout << "the run ended at version " << end.version << "\n";
    return true;
  }
  return false;
}

void follow(const Receiver& receiver, Engine& engine) {
  for (int idle = 0; idle < kIdleSeconds; ++idle) {
    std::future<bool> staged = std::async(std::launch::async, stage, std::cref(receiver));
    while (staged.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      engine.generate();
    }
    if (staged.get()) {
      auto report = sized<driftless_report>();
      Receiver::call(driftless_commit, receiver.get(), &report);
      std::cout << "version " << report.version << " digest " << report.digest << " changed "
                << report.changed_units << " fetch " << report.fetch_ms << " ms stage "
                << report.stage_ms << " ms pause "
                << report.pause_ms + report.apply_ms + report.resume_ms << " ms" << std::endl;
      idle = -1;
    }
    if (ended(receiver)) return;
  }
  throw std::runtime_error("nothing new for " + std::to_string(kIdleSeconds) + " s");
}

void run(const std::vector<std::string>& arguments) {
  std::vector<Tensor> tensors = read_tensors(arguments[1]);
  const bool has_base = arguments[2] != "-";
  std::ifstream base(arguments[2], std::ios::binary);
  std::vector<const char*> overrides;
  for (std::size_t i = 4; i < arguments.size(); ++i) overrides.push_back(arguments[i].c_str());

  Engine engine;
  Receiver receiver(arguments[0], overrides);
  auto callbacks = sized<driftless_callbacks>();
  callbacks.user = &engine;
  callbacks.pause = Engine::pause;
  callbacks.resume = Engine::resume;
  Receiver::call(driftless_set_callbacks, receiver.get(), &callbacks);
  for (Tensor& tensor : tensors) {
    const auto size = static_cast<std::streamsize>(tensor.bytes.size());
    if (has_base && !base.read(tensor.bytes.data(), size)) {
      throw std::runtime_error("the base is too short");
    }
    auto registered = sized<driftless_tensor>();
    registered.name = tensor.name.c_str();
    registered.dtype = tensor.dtype.c_str();
    registered.dims = static_cast<uint32_t>(tensor.shape.size());
    registered.shape = tensor.shape.data();
    registered.data = tensor.bytes.data();
    Receiver::call(driftless_register, receiver.get(), &registered);
  }
  Receiver::call(driftless_start, receiver.get(),
                 int32_t{has_base ? DRIFTLESS_HOLDS_BASE : DRIFTLESS_HOLDS_NOTHING},
                 int64_t{DRIFTLESS_BY_CONFIG});
  follow(receiver, engine);
  receiver.close();
  std::cout << "the engine made " << engine.steps()
            << " steps meanwhile, paused: " << engine.paused() << "\n";
  std::ofstream out(arguments[3], std::ios::binary);
  for (const Tensor& tensor : tensors) {
    out.write(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()));
  }
  if (!out.flush()) throw std::runtime_error("cannot write " + arguments[3]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 4) {
    std::cerr << "usage: follow CONFIG TENSORS BASE OUT [KEY=VALUE...]\n";
    return 2;
  }
  try {
    run(arguments);
    return 0;
  } catch (const std::exception& failure) {
    std::cerr << "follow: " << failure.what() << "\n";
    return 1;
  }
}
