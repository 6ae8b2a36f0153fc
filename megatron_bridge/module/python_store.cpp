// SPDX-License-Identifier: Apache-2.0
#include "module/python_store.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/file_system.h"
#include "core/hash128.h"
#include "module/errors.h"

namespace driftless::python {
namespace {

constexpr std::chrono::milliseconds kFirstRetry{50}, kLongestRetry{5000};

StatusCode code_of(const py::error_already_set& raised) {
  const std::pair<PyObject*, StatusCode> kinds[] = {
      {PyExc_FileNotFoundError, StatusCode::kNotFound},
      {PyExc_FileExistsError, StatusCode::kAlreadyExists},
      {PyExc_NotImplementedError, StatusCode::kUnsupported},
      {PyExc_PermissionError, StatusCode::kInvalidArgument},
      {PyExc_ValueError, StatusCode::kInvalidArgument},
      {PyExc_TypeError, StatusCode::kInvalidArgument}};
  for (const auto& [kind, code] : kinds) {
    if (raised.matches(kind)) return code;
  }
  return StatusCode::kIo;
}

py::bytes as_bytes(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class PythonStore final : public ObjectStore {
 public:
  PythonStore(py::object store, std::string spool_dir)
      : store_(std::move(store)),
        name_(py::cast<std::string>(store_.attr("name"))),
        spool_dir_(std::move(spool_dir)) {}
  PythonStore(const PythonStore&) = delete;
  PythonStore& operator=(const PythonStore&) = delete;
  ~PythonStore() override {
    if (Py_IsInitialized() == 0) {
      (void)store_.release();
      return;
    }
    try {
      const py::gil_scoped_acquire acquired;
      store_ = py::object();
    } catch (...) {  // the interpreter is ending
      (void)store_.release();
    }
  }

  [[nodiscard]] const std::string& name() const override { return name_; }

  Status put(const std::string& key, std::span<const std::byte> bytes, bool only_new,
             const Deadline& deadline) override {
    return call("put", key, deadline, [&](const py::object& method) {
      method(key, as_bytes(bytes), only_new);
      return Status();
    });
  }
  Status replace(const std::string& key, std::span<const std::byte>, const std::string&,
                 const Deadline&) override {
    return error(StatusCode::kUnsupported, name_, "/", key,
                 ": the store has no conditional writes");
  }
  Result<std::unique_ptr<Upload>> upload(const std::string& key, const Deadline& deadline) override;
  // Nothing to drop: an unfinished upload is a file on this machine.
  Status drop_uploads(const std::string&, const Deadline&) override { return {}; }
  Status put_file(const std::string& key, const std::string& path, const Deadline& deadline) {
    return call("put_file", key, deadline, [&](const py::object& method) {
      method(key, path);
      return Status();
    });
  }
  Result<std::uint64_t> size(const std::string& key, const Deadline& deadline) override {
    return call("size", key, deadline, [&](const py::object& method) {
      return Result<std::uint64_t>(py::cast<std::uint64_t>(method(key)));
    });
  }
  Result<std::uint64_t> get(const std::string& key, std::uint64_t offset,
                            std::span<std::byte> bytes, const Deadline& deadline) override {
    return call("read", key, deadline, [&](const py::object& method) -> Result<std::uint64_t> {
      const py::bytes read = method(key, offset, bytes.size());
      const auto came = static_cast<std::string_view>(read);
      if (came.size() > bytes.size()) {
        return error(StatusCode::kCorrupt, name_, "/", key, ": read() returned ", came.size(),
                     " bytes, expected at most ", bytes.size());
      }
      std::memcpy(bytes.data(), came.data(), came.size());
      return std::uint64_t{came.size()};
    });
  }
  Result<TaggedText> get_tagged(const std::string& key, std::size_t max_bytes,
                                const Deadline& deadline) override {
    return call("read", key, deadline, [&](const py::object& method) -> Result<TaggedText> {
      const py::bytes read = method(key, 0, max_bytes + 1);
      const auto came = static_cast<std::string_view>(read);
      if (came.size() <= max_bytes) return TaggedText{std::string(came), ""};
      return error(StatusCode::kCorrupt, name_, "/", key, ": expected at most ", max_bytes,
                   " bytes, found more");
    });
  }
  Result<std::vector<ObjectInfo>> list(const std::string& prefix, const std::string& after,
                                       const Deadline& deadline) override {
    return call("list", prefix, deadline, [&](const py::object& method) {
      std::vector<ObjectInfo> found;
      for (const py::handle each : method(prefix)) {
        auto [key, size] = py::cast<std::pair<std::string, std::uint64_t>>(each);
        if (key.starts_with(prefix) && key > after) found.push_back({std::move(key), size});
      }
      std::ranges::sort(found);
      return Result<std::vector<ObjectInfo>>(std::move(found));
    });
  }
  Status remove(const std::string& key, const Deadline& deadline) override {
    const Status removed = call("remove", key, deadline, [&](const py::object& method) {
      method(key);
      return Status();
    });
    return removed.code() == StatusCode::kNotFound ? Status() : removed;
  }

  Result<Presigned> presign(std::span<const std::string>, std::chrono::seconds,
                            const Deadline&) override {
    return error(StatusCode::kUnsupported, name_, ": has no presigned URLs");
  }

 private:
  class SpooledUpload;

  // Calls a method once; its exception becomes a status.
  template <typename Work>
  [[nodiscard]] auto call_once(const char* method, const std::string& key, const Work& work)
      -> decltype(work(py::object())) {
    const py::gil_scoped_acquire acquired;
    try {
      return work(store_.attr(method));
    } catch (py::error_already_set& raised) {
      // Reports only the type: the text of an HTTP library may contain a header or a signed URL.
      const std::string type = py::cast<std::string>(raised.type().attr("__name__"));
      return error(code_of(raised), name_, "/", key, ": ", method, " failed: ", type);
    } catch (const std::exception& unfit) {
      return error(StatusCode::kInvalidArgument, name_, "/", key, ": ", method,
                   " returned a value of the wrong type: ", unfit.what());
    }
  }

  template <typename Work>
  [[nodiscard]] auto call(const char* method, const std::string& key, const Deadline& deadline,
                          const Work& work) -> decltype(work(py::object())) {
    Backoff backoff(kFirstRetry, kLongestRetry);
    for (;;) {
      DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat(name_, "/", key, ": ", method)));
      auto result = call_once(method, key, work);
      const Status status = status_of(result);
      if (status.code() != StatusCode::kIo) return result;
      if (!backoff.sleep(deadline)) return status.with_context("gave up");
    }
  }
  static Status status_of(const Status& status) { return status; }
  template <typename T>
  static Status status_of(const Result<T>& result) {
    return result.status();
  }

  py::object store_;
  const std::string name_, spool_dir_;
};

// Collects the pieces of an upload in a file on this machine, and puts the file when it is
// complete.
class PythonStore::SpooledUpload final : public ObjectStore::Upload {
 public:
  SpooledUpload(PythonStore& store, std::string key, std::unique_ptr<File> file)
      : store_(store), key_(std::move(key)), file_(std::move(file)) {}
  SpooledUpload(const SpooledUpload&) = delete;
  SpooledUpload& operator=(const SpooledUpload&) = delete;
  ~SpooledUpload() override { drop(); }

  Status put(std::uint32_t piece, std::span<const std::byte> bytes, const Deadline&) override {
    return file_->pwrite(piece * kPieceBytes, bytes);
  }
  Status finish(std::uint32_t, const Deadline& deadline) override {
    return store_.put_file(key_, file_->path(), deadline);
  }
  void drop() override {
    if (file_ == nullptr) return;
    const Status ignored = posix_file_system().remove_file(file_->path());
    file_.reset();
  }

 private:
  PythonStore& store_;
  const std::string key_;
  std::unique_ptr<File> file_;
};

Result<std::unique_ptr<ObjectStore::Upload>> PythonStore::upload(const std::string& key,
                                                                 const Deadline&) {
  std::string directory = spool_dir_;
  if (directory.empty()) {
    const char* const named = std::getenv("TMPDIR");
    directory = named == nullptr || *named == '\0' ? "/tmp" : named;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(
      std::unique_ptr<File> file,
      posix_file_system().create(
          join_path(directory, concat("driftless-upload-", to_hex(random_hash128())))));
  return std::unique_ptr<Upload>(std::make_unique<SpooledUpload>(*this, key, std::move(file)));
}

}  // namespace

std::shared_ptr<ObjectStore> make_python_store(py::object store, std::string spool_dir) {
  return std::make_shared<PythonStore>(std::move(store), std::move(spool_dir));
}

}  // namespace driftless::python
