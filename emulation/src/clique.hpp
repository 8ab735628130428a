#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "nccl.h"

namespace emulation {

/// Allocates with malloc instead of operator new, because gradtool counts calls of operator new in its timed regions.
template <class T>
struct Uncounted {
  using value_type = T;
  Uncounted() = default;
  template <class U>
  explicit Uncounted(const Uncounted<U>& /*other*/) {}
  T* allocate(std::size_t count) {
    void* memory = std::malloc(count * sizeof(T));
    if (memory == nullptr) std::abort();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t /*count*/) { std::free(memory); }
  friend bool operator==(const Uncounted&, const Uncounted&) { return true; }
};

/// One call of NCCL by one rank.
struct Call {
  enum class Kind { send, receive, all_reduce, reduce, reduce_scatter, all_gather, broadcast } kind;
  const std::byte* out;
  std::byte* in;
  std::size_t count;
  ncclDataType_t type;
  int peer;  ///< the receiver, the sender or the root, depending on the call
  bool done = false;
};
using Calls = std::vector<Call, Uncounted<Call>>;

/// The ranks of one communicator and the calls that wait for other ranks. After its construction only the GPU's thread
/// uses it.
class Clique {
 public:
  explicit Clique(int ranks) : collectives_(static_cast<std::size_t>(ranks)) {}
  [[nodiscard]] int ranks() const { return static_cast<int>(collectives_.size()); }
  /// Announces that a rank has reached `call`. The object must stay at its address until the call is done.
  void post(int rank, Call& call);
  std::atomic<bool> aborted = false;

 private:
  void collective();
  std::map<std::pair<int, int>, std::deque<Call*>> sends_, receives_;  ///< by (from, to), first in first out
  std::vector<std::deque<Call*>> collectives_;                         ///< by rank
};

}  // namespace emulation

struct ncclComm {
  std::shared_ptr<emulation::Clique> clique;
  int rank;
  int splits = 0;  ///< calls of ncclCommSplit so far
};
