// SPDX-License-Identifier: Apache-2.0
// The specification: each operation of HostKernels and Quantizer is a plain loop. Contracts:
// host_kernels.h, quantize.h.
#pragma once

#include "kernels/host_kernels.h"
#include "kernels/quantize.h"

namespace driftless::reference {

HostKernels::Diff diff;
HostKernels::DiffCast diff_cast;
HostKernels::Gather gather;
HostKernels::Scatter scatter;
HostKernels::MaskedOverwrite masked_overwrite;
HostKernels::DigestOf digest;
HostKernels::ScatterDigested scatter_digested;
HostKernels::GatherStrided gather_strided;
HostKernels::ScatterStrided scatter_strided;
HostKernels::DigestStrided digest_strided;
HostKernels::CompactEncode compact_encode;
HostKernels::CompactDecode compact_decode;
Quantizer::Part quantize_part;
Quantizer::Groups quantize_groups;

}  // namespace driftless::reference
