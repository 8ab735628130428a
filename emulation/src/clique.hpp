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

/// Memory outside of operator new, where gradtool counts what its timed regions allocate.
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

/// One NCCL call of one rank.
struct Call {
  enum class Kind { send, receive, all_reduce, reduce, reduce_scatter, all_gather, broadcast } kind;
  const std::byte* out;
  std::byte* in;
  std::size_t count;
  ncclDataType_t type;
  int peer;  ///< receiver, sender or root
  bool done = false;
};
using Calls = std::vector<Call, Uncounted<Call>>;

/// The ranks of one communicator, and what they wait for. Used by the GPU's thread alone once it is made.
class Clique {
 public:
  explicit Clique(int ranks) : collectives_(static_cast<std::size_t>(ranks)) {}
  [[nodiscard]] int ranks() const { return static_cast<int>(collectives_.size()); }
  /// The rank is ready for `call`, which must stay where it is until it is done.
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
};
