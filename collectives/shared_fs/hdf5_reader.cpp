// SPDX-License-Identifier: Apache-2.0
#include "collectives/part_ranges.h"
#include "collectives/shared_fs/hdf5_container.h"
#include "collectives/shared_fs/hdf5_handle.h"

namespace driftless {
namespace {

// Slabs keep each system call below the limit of one read().
constexpr std::uint64_t kReadSlabBytes = std::uint64_t{1} << 30;

Result<Hid> open_file(const std::string& path) {
  const Hid access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // Without file locks: a published file never changes, and many file systems have no locks.
  if (!access.valid() || H5Pset_fapl_sec2(access.get()) < 0 ||
      H5Pset_file_locking(access.get(), false, true) < 0) {
    return hdf5_error(StatusCode::kInternal, path);
  }
  Hid file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose);
  if (!file.valid()) {
    return hdf5_error(StatusCode::kIncomplete, concat(path, ": cannot be opened (yet)"));
  }
  return file;
}

// Refuses a group or dataset that is a link to another place.
Status check_link(const Hid& file, const std::string& link, const std::string& what) {
  H5L_info_t info;
  if (H5Lget_info(file.get(), link.c_str(), &info, H5P_DEFAULT) < 0) {
    (void)H5Eclear2(H5E_DEFAULT);
    return error(StatusCode::kCorrupt, what, ": is not in the file");
  }
  if (info.type != H5L_TYPE_HARD) {
    return error(StatusCode::kCorrupt, what, ": is a link to elsewhere, which is not followed");
  }
  return {};
}

// Checks that the bytes are in this file: no external storage, no virtual dataset, no filter.
Status check_storage(const Hid& dataset, const std::string& what) {
  const Hid properties(H5Dget_create_plist(dataset.get()), H5Pclose);
  if (!properties.valid()) return hdf5_error(StatusCode::kCorrupt, what);
  if (H5Pget_layout(properties.get()) != H5D_CONTIGUOUS ||
      H5Pget_external_count(properties.get()) != 0) {
    return error(StatusCode::kCorrupt, what, ": expected contiguous storage within the file");
  }
  return {};
}

Status check_shape(const Hid& dataset, std::uint64_t size_bytes, const std::string& what) {
  const Hid type(H5Dget_type(dataset.get()), H5Tclose);
  const Hid space(H5Dget_space(dataset.get()), H5Sclose);
  if (!type.valid() || !space.valid()) return hdf5_error(StatusCode::kCorrupt, what);
  if (H5Tequal(type.get(), H5T_STD_U8LE) <= 0 || H5Sget_simple_extent_ndims(space.get()) != 1) {
    return error(StatusCode::kCorrupt, what, ": expected a 1-D dataset of uint8");
  }
  hsize_t length = 0;
  if (H5Sget_simple_extent_dims(space.get(), &length, nullptr) != 1 || length != size_bytes) {
    return error(StatusCode::kCorrupt, what, ": expected ", size_bytes, " bytes, found ", length);
  }
  return {};
}

Result<Hid> open_part(const Hid& file, const PartReceipt& part, const std::string& what) {
  const std::string group = hdf5_group_name(part.rank);
  const std::string name = concat(group, "/", part.name);
  DRIFTLESS_RETURN_IF_ERROR(check_link(file, group, what));
  DRIFTLESS_RETURN_IF_ERROR(check_link(file, name, what));
  Hid dataset(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
  if (!dataset.valid()) return hdf5_error(StatusCode::kCorrupt, what);
  DRIFTLESS_RETURN_IF_ERROR(check_storage(dataset, what));
  DRIFTLESS_RETURN_IF_ERROR(check_shape(dataset, part.size_bytes, what));
  return dataset;
}

Status read_range(const Hid& dataset, std::uint64_t offset, std::span<std::byte> into,
                  const std::string& what, const Deadline& deadline) {
  const Hid space(H5Dget_space(dataset.get()), H5Sclose);
  for (std::uint64_t done = 0; done < into.size(); done += kReadSlabBytes) {
    DRIFTLESS_RETURN_IF_ERROR(deadline.check(what));
    const hsize_t at = offset + done;
    const hsize_t count = std::min<hsize_t>(kReadSlabBytes, into.size() - done);
    const Hid memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    if (!memory.valid() ||
        H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &at, nullptr, &count, nullptr) < 0 ||
        H5Dread(dataset.get(), H5T_NATIVE_UINT8, memory.get(), space.get(), H5P_DEFAULT,
                into.data() + done) < 0) {
      return hdf5_error(StatusCode::kCorrupt, concat(what, ": ", count, " bytes at offset ", at));
    }
  }
  return {};
}

Result<std::vector<MappedFile>> read_ranges(const std::string& directory, const PartReceipt& part,
                                            std::span<const ByteRange> ranges,
                                            const Deadline& deadline) {
  const std::string path = join_path(directory, kHdf5FileName);
  const std::string what = concat(path, ":", hdf5_group_name(part.rank), "/", part.name);
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(what));
  DRIFTLESS_RETURN_IF_ERROR(check_file_name(part.name));
  const Result<FileInfo> info = posix_file_system().info(path);
  if (!info.ok() && info.status().code() == StatusCode::kNotFound) {
    return error(StatusCode::kIncomplete, path, ": is not there (yet)");
  }
  if (!info.ok()) return info.status();
  if (info->kind != FileKind::kFile) {
    return error(StatusCode::kCorrupt, path, ": is no regular file");
  }
  // The file contains the part verbatim, so nothing larger than the file is allocated for it.
  if (info->size_bytes < part.size_bytes) {
    return error(StatusCode::kIncomplete, what, ": the file has ", info->size_bytes,
                 " bytes, the part alone has ", part.size_bytes);
  }
  const Hdf5Scope scope;
  DRIFTLESS_ASSIGN_OR_RETURN(const Hid file, open_file(path));
  DRIFTLESS_ASSIGN_OR_RETURN(const Hid dataset, open_part(file, part, what));
  const RangePlaces places(ranges);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory,
                             allocate_ranges(places, what));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    DRIFTLESS_RETURN_IF_ERROR(
        read_range(dataset, ranges[i].offset, places.of(i, memory.get()), what, deadline));
  }
  return places.files(part.name, memory, memory.get());
}

}  // namespace

PartReader make_hdf5_reader() { return read_ranges; }

}  // namespace driftless
