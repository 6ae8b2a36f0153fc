// SPDX-License-Identifier: Apache-2.0
// Input: a flush file, plain or compressed.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "formats/flush_file.h"
#include "support/golden_case.h"
#include "support/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace driftless;
  static const testing::TempDir spool;
  static const WeightLayout layout = testing::golden_layout();
  const int fd = ::memfd_create("flush", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  FileSystem& fs = posix_file_system();
  {
    const auto file =
        FlushFile::open(fs, fs.map(concat("/proc/self/fd/", fd)).value(), layout, 7, spool.path());
    if (file.ok()) {
      for (const BucketView& bucket : file->buckets()) {
        (void)testing::decode_all(layout, bucket).ok();
      }
    }
  }
  ::close(fd);
  if (!fs.list(spool.path())->empty()) std::abort();  // a spool file was left behind
  return 0;
}
