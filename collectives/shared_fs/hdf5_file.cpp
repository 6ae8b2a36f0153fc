// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>

#include "collectives/shared_fs/hdf5_rounds.h"

namespace driftless {
namespace {

// Smaller parts need not begin at a stripe.
constexpr std::uint64_t kAlignFromBytes = 65536;

Status write_attribute(const Hid& object, const char* name, const Hid& type, hid_t memory_type,
                       const void* value, const std::string& what) {
  const Hid space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hid attribute(
      H5Acreate2(object.get(), name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (!attribute.valid() || H5Awrite(attribute.get(), memory_type, value) < 0) {
    return hdf5_error(StatusCode::kIo, concat(what, ": attribute ", name));
  }
  return {};
}

Status write_text_attribute(const Hid& object, const char* name, std::string_view text,
                            const std::string& what) {
  const Hid type(H5Tcopy(H5T_C_S1), H5Tclose);
  if (!type.valid() || H5Tset_size(type.get(), text.size()) < 0 ||
      H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0) {
    return hdf5_error(StatusCode::kInternal, what);
  }
  return write_attribute(object, name, type, type.get(), text.data(), what);
}

Status write_number_attribute(const Hid& object, const char* name, std::uint64_t value,
                              const std::string& what) {
  const Hid type(H5Tcopy(H5T_STD_U64LE), H5Tclose);
  return write_attribute(object, name, type, H5T_NATIVE_UINT64, &value, what);
}

// Names may be UTF-8.
Result<Hid> link_properties(const std::string& what) {
  Hid properties(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  if (!properties.valid() || H5Pset_char_encoding(properties.get(), H5T_CSET_UTF8) < 0) {
    return hdf5_error(StatusCode::kInternal, what);
  }
  return properties;
}

Status set_hints(MPI_Info& info, const std::vector<std::pair<std::string, std::string>>& hints) {
  if (hints.empty()) return {};
  DRIFTLESS_RETURN_IF_ERROR(mpi_rma::mpi_status(MPI_Info_create(&info), "MPI-IO hints"));
  for (const auto& [key, value] : hints) {
    DRIFTLESS_RETURN_IF_ERROR(mpi_rma::mpi_status(MPI_Info_set(info, key.c_str(), value.c_str()),
                                                  concat("MPI-IO hint ", key, "=", value)));
  }
  return {};
}

}  // namespace

void Hdf5Message::set_failure(const Status& why) {
  kind = kFailed;
  code = static_cast<std::uint32_t>(why.code());
  const std::string_view message = why.message().substr(0, text.size() - 1);
  text.fill('\0');
  std::copy(message.begin(), message.end(), text.begin());
}

Status Hdf5Message::failure(unsigned rank) const {
  const bool known = code > 0 && code <= static_cast<std::uint32_t>(StatusCode::kInternal);
  return error(known ? static_cast<StatusCode>(code) : StatusCode::kInternal, "publisher rank ",
               rank, ": ", std::string_view(text.data(), ::strnlen(text.data(), text.size())));
}

Result<Hid> Hdf5VersionFile::access_properties() const {
  MPI_Info info = MPI_INFO_NULL;
  const Status hinted = set_hints(info, options_.mpi_io_hints);
  Hid access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  const bool made =
      hinted.ok() && access.valid() && H5Pset_fapl_mpio(access.get(), MPI_COMM_SELF, info) >= 0 &&
      (options_.alignment_bytes <= 1 ||
       H5Pset_alignment(access.get(), kAlignFromBytes, options_.alignment_bytes) >= 0);
  if (info != MPI_INFO_NULL) MPI_Info_free(&info);
  DRIFTLESS_RETURN_IF_ERROR(hinted);
  if (!made) return hdf5_error(StatusCode::kInternal, concat(path_, ": MPI-IO"));
  return access;
}

Status Hdf5VersionFile::create(const std::string& path) {
  const Hdf5Scope scope;
  path_ = path;
  DRIFTLESS_ASSIGN_OR_RETURN(const Hid access, access_properties());
  file_ = Hid(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), H5Fclose);
  if (!file_.valid()) return hdf5_error(StatusCode::kIo, concat(path, ": cannot be created"));
  return create_groups();
}

Status Hdf5VersionFile::create_groups() {
  const Hid root(H5Gopen2(file_.get(), "/", H5P_DEFAULT), H5Gclose);
  if (!root.valid()) return hdf5_error(StatusCode::kIo, path_);
  DRIFTLESS_RETURN_IF_ERROR(write_text_attribute(root, "format", "driftless", path_));
  DRIFTLESS_RETURN_IF_ERROR(
      write_number_attribute(root, "format_version", kHdf5FormatVersion, path_));
  DRIFTLESS_RETURN_IF_ERROR(write_number_attribute(root, "ranks", size_, path_));
  for (unsigned rank = 0; rank < size_; ++rank) {
    const std::string name = hdf5_group_name(rank);
    const Hid group(H5Gcreate2(file_.get(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                    H5Gclose);
    if (!group.valid()) return hdf5_error(StatusCode::kIo, concat(path_, ":", name));
  }
  return {};
}

Result<std::uint64_t> Hdf5VersionFile::create_dataset(unsigned rank, const Hdf5Message& part) {
  const std::string name = concat(hdf5_group_name(rank), "/", part.name.data());
  const std::string what = concat(path_, ":", name);
  DRIFTLESS_ASSIGN_OR_RETURN(const Hid link, link_properties(what));
  const Hid creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const hsize_t length = part.size_bytes;
  const Hid space(H5Screate_simple(1, &length, nullptr), H5Sclose);
  // Without fill values: every byte is written, or the publication fails.
  if (!creation.valid() || !space.valid() || H5Pset_layout(creation.get(), H5D_CONTIGUOUS) < 0 ||
      H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY) < 0 ||
      H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER) < 0) {
    return hdf5_error(StatusCode::kInternal, what);
  }
  const Hid dataset(H5Dcreate2(file_.get(), name.c_str(), H5T_STD_U8LE, space.get(), link.get(),
                               creation.get(), H5P_DEFAULT),
                    H5Dclose);
  if (!dataset.valid()) return hdf5_error(StatusCode::kIo, what);
  DRIFTLESS_RETURN_IF_ERROR(write_number_attribute(dataset, "size", part.size_bytes, what));
  DRIFTLESS_RETURN_IF_ERROR(write_text_attribute(dataset, "xxh3_128", to_hex(part.hash), what));
  if (length == 0) return std::uint64_t{0};
  const haddr_t place = H5Dget_offset(dataset.get());
  if (place == HADDR_UNDEF) return hdf5_error(StatusCode::kInternal, what);
  return std::uint64_t{place};
}

Result<std::vector<std::uint64_t>> Hdf5VersionFile::place(
    const std::vector<Hdf5Message>& announcements) {
  const Hdf5Scope scope;
  std::vector<std::uint64_t> places(announcements.size(), kHdf5Nowhere);
  for (unsigned rank = 0; rank < announcements.size(); ++rank) {
    if (announcements[rank].kind != Hdf5Message::kPart) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(places[rank], create_dataset(rank, announcements[rank]));
  }
  return places;
}

Status Hdf5VersionFile::close() {
  {
    const Hdf5Scope scope;
    if (!file_.close()) return hdf5_error(StatusCode::kIo, concat(path_, ": closing"));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, posix_file_system().open(path_));
  return file->sync();
}

void Hdf5VersionFile::discard(bool ours) {
  if (!is_open()) return;
  if (ours) (void)::truncate(path_.c_str(), 0);
  const Hdf5Scope scope;
  if (H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) >= 0) {
    (void)file_.close();
  } else {
    (void)H5Eclear2(H5E_DEFAULT);
    leave();
  }
}

void Hdf5VersionFile::leave() { file_.forget(); }

}  // namespace driftless
