#pragma once

#include <nccl.h>

#include <chrono>
#include <mutex>
#include <utility>

/// NCCL's handle and groups, owned. Included by nccl.cpp alone, because nccl.h brings the CUDA header with it.
namespace gradtool::nccl {

/// Throws Fault::backend with NCCL's reason.
void check(ncclResult_t result, const char* call, const char* file = __builtin_FILE(), int line = __builtin_LINE());
#define GT_NCCL(call) ::gradtool::nccl::check(call, #call)

/// For a handle that is gone.
[[noreturn]] void throw_aborted();

/// A communicator handle that another thread may abort. Aborting releases a stream, and a host thread, that wait inside
/// NCCL for a rank that will not come.
class Handle {
 public:
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (comm_ != nullptr) ncclCommAbort(comm_);
  }

  ncclComm_t* address() { return &comm_; }
  /// The handle for one call or group of calls; nobody aborts it in between unless that takes longer than kPatience.
  class Use {
   public:
    explicit Use(Handle& handle) : lock_{handle.mutex_}, comm_{handle.comm_} {
      if (comm_ == nullptr) throw_aborted();
    }
    operator ncclComm_t() const { return comm_; }

   private:
    std::unique_lock<std::timed_mutex> lock_;
    ncclComm_t comm_;
  };

  void abort() {
    // Without the lock, when its holder sits inside an NCCL call that only an abort can end.
    const std::unique_lock lock{mutex_, kPatience};
    if (ncclComm_t comm = std::exchange(comm_, nullptr); comm != nullptr) ncclCommAbort(comm);
  }
  /// The orderly end, after all work; collective.
  void destroy() {
    if (ncclComm_t comm = std::exchange(comm_, nullptr); comm != nullptr) GT_NCCL(ncclCommDestroy(comm));
  }

 private:
  static constexpr std::chrono::seconds kPatience{2};
  std::timed_mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

/// Calls that NCCL starts together. An exception in between closes the group, or this thread could do nothing else any
/// more.
class Group {
 public:
  Group() { GT_NCCL(ncclGroupStart()); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    if (open_) ncclGroupEnd();
  }
  void end() {
    open_ = false;
    GT_NCCL(ncclGroupEnd());
  }

 private:
  bool open_ = true;
};

}  // namespace gradtool::nccl
