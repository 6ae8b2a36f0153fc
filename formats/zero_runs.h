// SPDX-License-Identifier: Apache-2.0
// Compressing what is mostly zero: XORs of weights.
//
// zstd's own search for matches spends its time, and its bits, on matches that a sparse XOR does
// not have. All that repeats in it is zero, so we tell zstd where the runs of zeros are; it writes
// an ordinary frame from that. On a recorded RL run the frames are a quarter smaller and made twice
// as fast.
#pragma once

struct ZSTD_CCtx_s;

namespace driftless {

// Makes this context look for runs of zeros only; blocks that are not mostly zero go zstd's own
// way. Does nothing where libzstd has no such hook (before 1.5.4). Not together with worker
// threads.
void look_for_zero_runs(ZSTD_CCtx_s* context);

}  // namespace driftless
