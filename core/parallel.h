// SPDX-License-Identifier: Apache-2.0
// Loops whose tasks run on several threads. No thread outlives the call that started it. In an
// Environment without threads the caller's thread does all the work.
#pragma once

#include <cstddef>
#include <functional>

#include "core/status.h"

namespace driftless {

// The default number of threads: the cores that this process may run on.
[[nodiscard]] unsigned default_threads();

// Calls work(task, worker) for every task below `tasks`, on up to `threads` threads (the caller's
// among them), worker < threads. After a failure no further task is started; the failure of the
// lowest task that failed is returned. Exceptions become kInternal.
[[nodiscard]] Status parallel_for(std::size_t tasks, unsigned threads,
                                  const std::function<Status(std::size_t, unsigned)>& work);

// Produces in parallel, consumes in order: produce(task, slot) is called for every task, on up to
// `threads` threads; consume(task, slot) is called for one task at a time, in ascending order, with
// the slot that holds what produce left there. Slots are below `slots`, which bounds how far
// producers run ahead. Fails as parallel_for does.
[[nodiscard]] Status ordered_pipeline(
    std::size_t tasks, unsigned threads, std::size_t slots,
    const std::function<Status(std::size_t task, std::size_t slot)>& produce,
    const std::function<Status(std::size_t task, std::size_t slot)>& consume);

}  // namespace driftless
