// SPDX-License-Identifier: Apache-2.0
// C++ objects for the C handles of driftless.h. They throw errors, and free their handles.
#pragma once

#include <driftless/driftless.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct DriftlessError : std::runtime_error {
  explicit DriftlessError(const driftless_error* error)
      : std::runtime_error(std::string(driftless_error_name(error)) + ": " +
                           driftless_error_message(error)),
        code(driftless_error_code(error)) {}
  driftless_code code;
};

template <typename Struct>
[[nodiscard]] Struct sized() {
  Struct made{};
  made.struct_size = sizeof(Struct);
  return made;
}

class Receiver {
 public:
  Receiver(const std::string& config, const std::vector<const char*>& overrides) {
    call(driftless_open, config.c_str(), overrides.data(), overrides.size(), nullptr, &handle_);
  }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver() { driftless_close(&handle_, 0, nullptr); }  // does not wait for others

  // Calls driftless_...(ARGUMENTS, &error) and throws the error.
  template <typename Function, typename... Arguments>
  static void call(Function function, Arguments... arguments) {
    driftless_error* error = nullptr;
    if (function(arguments..., &error) == DRIFTLESS_OK) return;
    const std::unique_ptr<driftless_error, void (*)(driftless_error*)> held(error,
                                                                            driftless_error_free);
    throw DriftlessError(error);
  }
  [[nodiscard]] driftless_receiver* get() const { return handle_; }
  void close() { call(driftless_close, &handle_, int64_t{DRIFTLESS_BY_CONFIG}); }

 private:
  driftless_receiver* handle_ = nullptr;
};
