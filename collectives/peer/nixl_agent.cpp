// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/nixl_agent.h"

#include <sys/mman.h>

#include <cstdlib>

#include "core/hash128.h"

namespace driftless::peer {
namespace {

constexpr std::uint64_t kProgressDelayUs = 100;
constexpr const char* kBackend = "UCX";

Status failed(std::string_view what, int code) {
  return error(StatusCode::kIo, "peer: NIXL: ", what, " failed with status ", code);
}

// Calls NIXL's destroy function of a handle at the end of a scope.
class Owned {
 public:
  explicit Owned(int (*destroy)(void*)) : destroy_(destroy) {}
  ~Owned() {
    if (handle_ != nullptr) static_cast<void>(destroy_(handle_));
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  [[nodiscard]] void** out() { return &handle_; }
  [[nodiscard]] void* get() const { return handle_; }
  [[nodiscard]] void* release() { return std::exchange(handle_, nullptr); }

 private:
  int (*destroy_)(void*);
  void* handle_ = nullptr;
};

std::uintptr_t address_of(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }

}  // namespace

Result<std::shared_ptr<NixlAgent>> NixlAgent::make(const std::string& library, NixlRole role) {
  DRIFTLESS_ASSIGN_OR_RETURN(const NixlCalls* const calls, nixl_calls(library));
  const bool serves = role == NixlRole::kServes;
  const NixlAgentConfig config{.progress_thread = serves,
                               .threads = serves ? kNixlManyThreads : kNixlOneThread,
                               .progress_delay_us = serves ? kProgressDelayUs : 0};
  void* agent = nullptr;
  const std::string name = "driftless-" + to_hex(random_hash128());
  const int made = calls->create_configured_agent(name.c_str(), &config, &agent);
  if (made != kNixlDone) return failed("making an agent", made);
  const std::shared_ptr<NixlAgent> wrapped(new NixlAgent(calls, agent));
  DRIFTLESS_RETURN_IF_ERROR(wrapped->make_backend());
  return wrapped;
}

Status NixlAgent::make_backend() {
  Owned kinds(calls_->destroy_mem_list), params(calls_->destroy_params);
  int code = calls_->get_plugin_params(agent_, kBackend, kinds.out(), params.out());
  if (code != kNixlDone) {
    return error(StatusCode::kUnsupported, "peer: NIXL has no plugin ", kBackend, " (status ", code,
                 "); NIXL_PLUGIN_DIR names the folder of its plugins");
  }
  // UCX's shared memory is excluded: if the process whose memory is read dies, it aborts the
  // reader. On one host the carrier is shm anyway. UCX_TLS in the environment has priority.
  static_cast<void>(calls_->params_add(params.get(), "engine_config", "TLS=^sm"));
  code = calls_->create_backend(agent_, kBackend, params.get(), &backend_);
  if (code != kNixlDone) return failed("making its UCX backend", code);
  code = calls_->create_opt_args(&options_);
  if (code == kNixlDone) code = calls_->opt_args_add_backend(options_, backend_);
  return code == kNixlDone ? Status() : failed("choosing its UCX backend", code);
}

NixlAgent::~NixlAgent() {
  if (options_ != nullptr) static_cast<void>(calls_->destroy_opt_args(options_));
  if (backend_ != nullptr) static_cast<void>(calls_->destroy_backend(backend_));
  static_cast<void>(calls_->destroy_agent(agent_));
  // No process reads by address any more.
  for (const std::span<std::byte> each : covered_) ::munmap(each.data(), each.size());
}

Result<void*> NixlAgent::add_now(std::span<std::byte> memory, const NixlWhere& where) {
  const std::scoped_lock lock(mutex_);
  Owned list(calls_->destroy_reg_dlist);
  int code = calls_->create_reg_dlist(where.kind, list.out());
  if (code == kNixlDone) {
    code = calls_->reg_dlist_add_desc(list.get(), address_of(memory.data()), memory.size(),
                                      where.device, nullptr, 0);
  }
  if (code == kNixlDone) code = calls_->register_mem(agent_, list.get(), options_);
  if (code != kNixlDone) {
    const bool host = where.kind == kNixlHostMemory;
    return failed(concat("registering ", memory.size(), " bytes of ",
                         host ? std::string("memory") : concat("GPU ", where.device, "'s memory")),
                  code);
  }
  ++additions_;
  described_.bytes.clear();
  return list.release();
}

void NixlAgent::remove(void* list) {
  const std::scoped_lock lock(mutex_);
  static_cast<void>(calls_->deregister_mem(agent_, list, options_));
  static_cast<void>(calls_->destroy_reg_dlist(list));
  ++removals_;
  described_.bytes.clear();
}

Result<std::shared_ptr<const void>> NixlAgent::add(std::span<std::byte> memory,
                                                   const NixlWhere& where) {
  DRIFTLESS_ASSIGN_OR_RETURN(void* const list, add_now(memory, where));
  return std::shared_ptr<const void>(
      memory.data(), [self = shared_from_this(), list](const void*) { self->remove(list); });
}

Result<std::shared_ptr<const void>> NixlAgent::expose(std::span<std::byte> mapping) {
  DRIFTLESS_ASSIGN_OR_RETURN(void* const list, add_now(mapping, {}));
  return std::shared_ptr<const void>(
      mapping.data(), [self = shared_from_this(), list, mapping](const void*) {
        self->remove(list);
        // If this fails the pages stay, which only costs memory.
        ::mmap(mapping.data(), mapping.size(), PROT_READ,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        const std::scoped_lock lock(self->mutex_);
        self->covered_.push_back(mapping);
      });
}

Result<NixlDescription> NixlAgent::describe() {
  const std::scoped_lock lock(mutex_);
  if (!described_.bytes.empty()) return described_;
  void* bytes = nullptr;
  std::size_t size = 0;
  const int code = calls_->get_local_md(agent_, &bytes, &size);
  if (code != kNixlDone) return failed("describing registered memory", code);
  described_ = {removals_, additions_, std::string(static_cast<const char*>(bytes), size)};
  std::free(bytes);  // NOLINT(cppcoreguidelines-no-malloc)
  return described_;
}

Result<std::string> NixlAgent::load(std::string_view description) {
  const std::scoped_lock lock(mutex_);
  char* name = nullptr;
  const int code = calls_->load_remote_md(agent_, description.data(), description.size(), &name);
  if (code != kNixlDone) return failed("loading what a trainer rank serves", code);
  std::string found(name);
  std::free(name);  // NOLINT(cppcoreguidelines-no-malloc)
  return found;
}

void NixlAgent::forget(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  static_cast<void>(calls_->invalidate_remote_md(agent_, name.c_str()));
}

Result<NixlRead> NixlAgent::start(const std::string& name, std::span<const NixlMove> moves,
                                  const NixlWhere& into) {
  const std::scoped_lock lock(mutex_);
  Owned local(calls_->destroy_xfer_dlist), remote(calls_->destroy_xfer_dlist);
  int code = calls_->create_xfer_dlist(into.kind, local.out());
  if (code == kNixlDone) code = calls_->create_xfer_dlist(kNixlHostMemory, remote.out());
  for (const NixlMove& each : moves) {
    if (code != kNixlDone) break;
    code =
        calls_->xfer_dlist_add_desc(local.get(), address_of(each.to), each.size_bytes, into.device);
    if (code == kNixlDone) {
      code = calls_->xfer_dlist_add_desc(remote.get(), each.from, each.size_bytes, 0);
    }
  }
  if (code != kNixlDone) return failed("listing what to read", code);
  void* request = nullptr;
  code = calls_->create_xfer_req(agent_, kNixlReadOperation, local.get(), remote.get(),
                                 name.c_str(), &request, options_);
  if (code != kNixlDone) return failed("making a read", code);
  code = calls_->post_xfer_req(agent_, request, options_);
  if (code >= kNixlDone) return request;
  static_cast<void>(calls_->release_xfer_req(agent_, request));
  static_cast<void>(calls_->destroy_xfer_req(request));
  return failed("starting a read", code);
}

Result<bool> NixlAgent::ended(NixlRead read) {
  const std::scoped_lock lock(mutex_);
  const int code = calls_->get_xfer_status(agent_, read);
  if (code == kNixlInProgress) return false;
  static_cast<void>(calls_->release_xfer_req(agent_, read));
  static_cast<void>(calls_->destroy_xfer_req(read));
  if (code == kNixlDone) return true;
  return failed("a read", code);
}

}  // namespace driftless::peer
