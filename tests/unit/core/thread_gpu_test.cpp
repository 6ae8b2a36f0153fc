// SPDX-License-Identifier: Apache-2.0
#include "core/thread_gpu.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "support/checkout_paths.h"

namespace driftless {
namespace {

// One test: a driver that is loaded stays. Where the real one is there, the GPU's tests ask it.
TEST(KeepThreadGpu, GivesTheThreadItsContextBack) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) GTEST_SKIP() << "there is a real driver";
  {
    const KeepThreadGpu without_a_driver;
  }

  std::optional<KeepThreadGpu> from_before;
  from_before.emplace();
  void* const library = dlopen(testing::driver_stand_in(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto init = reinterpret_cast<void (*)()>(dlsym(library, "cu_init_stand_in"));
  const auto set = reinterpret_cast<int (*)(void*)>(dlsym(library, "cuCtxSetCurrent"));
  const auto get = reinterpret_cast<int (*)(void**)>(dlsym(library, "cuCtxGetCurrent"));
  const auto current = [get] {
    void* context = nullptr;
    EXPECT_EQ(get(&context), 0);
    return context;
  };
  int first = 0, second = 0;

  {
    const KeepThreadGpu not_initialized;
  }
  init();
  set(&second);  // what our own work leaves behind
  from_before.reset();
  EXPECT_EQ(current(), nullptr) << "it had none, and the driver was not even loaded";

  set(&first);
  {
    const KeepThreadGpu keep;
    set(&second);
    {
      const KeepThreadGpu within;
      set(nullptr);
    }
    EXPECT_EQ(current(), &second);
    std::thread([&current, &set, &second] {
      {
        const KeepThreadGpu keep_none;
        set(&second);
      }
      EXPECT_EQ(current(), nullptr) << "a thread without one is left without one";
    }).join();
  }
  EXPECT_EQ(current(), &first);
}

}  // namespace
}  // namespace driftless
