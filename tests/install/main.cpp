// Uses the installed library as a stranger would: a layout, its signature, a digest.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "core/layout.h"

int main() {
  auto spec = driftless::TensorSpec::make("model.norm.weight", driftless::DType::kBF16, {64});
  if (!spec.ok()) return 1;
  std::vector<driftless::TensorSpec> tensors;
  tensors.push_back(std::move(*spec));
  const auto layout = driftless::WeightLayout::make(std::move(tensors));
  if (!layout.ok() || layout->total_bytes() != 128) return 1;
  const driftless::Digest digest{{1, 2}};
  const auto parsed = driftless::digest_from_hex(driftless::to_hex(digest + digest));
  if (!parsed.ok() || !(*parsed - digest == digest)) return 1;
  std::printf("layout %s\n", driftless::to_hex(layout->signature()).c_str());
  return 0;
}
