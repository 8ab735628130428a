#include "nccl.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "emulation/launch.hpp"
#include "src/clique.hpp"
#include "src/device.hpp"

namespace {

using emulation::Call;
using emulation::Clique;

/// The calls of one group on one stream of one rank.
class Group final : public emulation::Task {
 public:
  Group(ncclComm_t comm, emulation::Calls calls) : clique_{comm->clique}, rank_{comm->rank}, calls_{std::move(calls)} {}
  State run() override {
    if (clique_->aborted) return State::done;
    const bool first = !posted_;
    if (first) {
      posted_ = true;
      for (Call& call : calls_) clique_->post(rank_, call);
    }
    for (const Call& call : calls_) {
      if (!call.done) return first ? State::begun : State::waiting;
    }
    return State::done;
  }

 private:
  std::shared_ptr<Clique> clique_;
  int rank_;
  emulation::Calls calls_;
  bool posted_ = false;
};

/// The calls that a thread has made since its outermost ncclGroupStart.
struct Pending {
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  emulation::Calls calls;
};
thread_local Pending pending;

ncclResult_t flush() {
  if (pending.calls.empty()) return ncclSuccess;
  void* memory = std::malloc(sizeof(Group));
  if (memory == nullptr) return ncclInternalError;
  emulation::enqueue_task(pending.stream, new (memory) Group{pending.comm, std::exchange(pending.calls, {})});
  return ncclSuccess;
}

ncclResult_t call(ncclComm_t comm, cudaStream_t stream, const Call& what) {
  if (comm == nullptr || what.peer < 0 || what.peer >= comm->clique->ranks()) return ncclInvalidArgument;
  // gradtool uses one communicator and one stream in a group.
  if (!pending.calls.empty() && (pending.comm != comm || pending.stream != stream)) return ncclInvalidUsage;
  pending.comm = comm;
  pending.stream = stream;
  pending.calls.push_back(what);
  return pending.depth == 0 ? flush() : ncclSuccess;
}
const std::byte* bytes(const void* memory) {
  return static_cast<const std::byte*>(memory);
}
std::byte* bytes(void* memory) {
  return static_cast<std::byte*>(memory);
}

std::mutex mutex;
std::map<int, std::weak_ptr<Clique>>& cliques() {
  static auto* const all = new std::map<int, std::weak_ptr<Clique>>;
  return *all;
}

/// The ranks' arguments to one call of ncclCommSplit, and the cliques that it made, by color.
struct Split {
  explicit Split(int ranks) : asked(static_cast<std::size_t>(ranks)) {}
  struct Asked {
    int color = 0, key = 0;
  };
  std::vector<Asked> asked;  ///< by rank
  int arrived = 0;
  std::map<int, std::shared_ptr<Clique>> parts;
};
std::condition_variable all_have_arrived;
std::map<std::pair<std::shared_ptr<Clique>, int>, std::shared_ptr<Split>>& splits() {
  static auto* const all = new std::map<std::pair<std::shared_ptr<Clique>, int>, std::shared_ptr<Split>>;
  return *all;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "invalid call";
}
const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return "";
}
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  const std::lock_guard lock{mutex};
  *id = {};
  const int number = ++made;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  const std::lock_guard lock{mutex};
  auto clique = cliques()[number].lock();
  if (clique == nullptr) cliques()[number] = clique = std::make_shared<Clique>(ranks);
  *comm = new ncclComm{std::move(clique), rank};
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t* /*config*/) {
  if (comm == nullptr || color < 0) return ncclInvalidArgument;
  const int ranks = comm->clique->ranks();
  std::unique_lock lock{mutex};
  auto& place = splits()[{comm->clique, comm->splits++}];
  if (place == nullptr) place = std::make_shared<Split>(ranks);
  const std::shared_ptr<Split> split = place;
  split->asked[static_cast<std::size_t>(comm->rank)] = {color, key};
  if (++split->arrived == ranks) all_have_arrived.notify_all();
  while (split->arrived < ranks) {
    all_have_arrived.wait_for(lock, std::chrono::milliseconds{10});
    if (comm->clique->aborted) return ncclInternalError;
  }
  int size = 0, rank = 0;
  for (int r = 0; r < ranks; ++r) {
    const auto& other = split->asked[static_cast<std::size_t>(r)];
    if (other.color != color) continue;
    ++size;
    if (std::pair{other.key, r} < std::pair{key, comm->rank}) ++rank;
  }
  auto& clique = split->parts[color];
  if (clique == nullptr) clique = std::make_shared<Clique>(size);
  *part = new ncclComm{clique, rank};
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->clique->aborted = true;
  emulation::wake();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t /*comm*/, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t /*comm*/, void* memory, std::size_t /*bytes*/, void** handle) {
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t /*comm*/, void* handle) {
  return handle == nullptr ? ncclInvalidArgument : ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++pending.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (pending.depth == 0) return ncclInvalidUsage;
  return --pending.depth == 0 ? flush() : ncclSuccess;
}

ncclResult_t ncclSend(const void* out, std::size_t count, ncclDataType_t type, int to, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, stream, {Call::Kind::send, bytes(out), nullptr, count, type, to});
}
ncclResult_t ncclRecv(void* in, std::size_t count, ncclDataType_t type, int from, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(comm, stream, {Call::Kind::receive, nullptr, bytes(in), count, type, from});
}
ncclResult_t ncclAllReduce(const void* out, void* in, std::size_t count, ncclDataType_t type, ncclRedOp_t /*op*/,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Call::Kind::all_reduce, bytes(out), bytes(in), count, type, 0});
}
ncclResult_t ncclReduce(const void* out, void* in, std::size_t count, ncclDataType_t type, ncclRedOp_t /*op*/, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Call::Kind::reduce, bytes(out), bytes(in), count, type, root});
}
ncclResult_t ncclReduceScatter(const void* out, void* in, std::size_t in_count, ncclDataType_t type, ncclRedOp_t /*op*/,
                               ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream, {Call::Kind::reduce_scatter, bytes(out), bytes(in), in_count, type, 0});
}
ncclResult_t ncclAllGather(const void* out, void* in, std::size_t out_count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, stream, {Call::Kind::all_gather, bytes(out), bytes(in), out_count, type, 0});
}
ncclResult_t ncclBroadcast(const void* out, void* in, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return call(comm, stream, {Call::Kind::broadcast, bytes(out), bytes(in), count, type, root});
}
