// SPDX-License-Identifier: Apache-2.0
#include "core/disk_space.h"

#include <sys/statfs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "core/setting_values.h"

namespace driftless {
namespace {

struct Kind {
  std::uint32_t magic;
  const char* name;
};
// The numbers are those of statfs(2) and of the file systems' own headers.
constexpr Kind kKinds[] = {
    {0x6969, "nfs"},        {0x0BD00BD0, "lustre"},  {0x47504653, "gpfs"}, {0x00C36400, "ceph"},
    {0x19830326, "beegfs"}, {0xFF534D42, "cifs"},    {0xFE534D42, "smb2"}, {0x65735546, "fuse"},
    {0x01021994, "tmpfs"},  {0x794C7630, "overlay"}, {0xEF53, "ext4"},     {0x58465342, "xfs"},
    {0x9123683E, "btrfs"},  {0x2FC12FC1, "zfs"},     {0x01021997, "9p"},   {0xF2F52010, "f2fs"}};

}  // namespace

Result<DiskSpace> disk_space(const std::string& path) {
  struct statfs info{};
  if (::statfs(path.c_str(), &info) != 0) return errno_status(errno, path);
  DiskSpace space;
  const auto block = static_cast<std::uint64_t>(info.f_bsize);
  space.free_bytes = static_cast<std::uint64_t>(info.f_bavail) * block;
  space.total_bytes = static_cast<std::uint64_t>(info.f_blocks) * block;
  const auto magic = static_cast<std::uint32_t>(info.f_type);
  const auto* const kind = std::ranges::find(kKinds, magic, &Kind::magic);
  char number[16];
  (void)std::snprintf(number, sizeof(number), "0x%x", magic);
  space.kind = kind == std::end(kKinds) ? number : kind->name;
  return space;
}

std::string about(std::uint64_t bytes) {
  for (const unsigned shift : {30U, 20U, 10U}) {
    if (bytes >> shift >= 10) return size_text(bytes >> shift << shift);
  }
  return size_text(bytes);
}

}  // namespace driftless
