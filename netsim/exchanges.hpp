#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "netsim/transport.hpp"

namespace gradtool::netsim {

/// One step of one rank in a collective: it sends to one rank while it receives from another, and goes on when both are
/// done.
struct Exchange {
  int to = -1;                     ///< -1: sends nothing
  std::uint64_t bytes = 0;         ///< that it sends
  int ahead = 0;                   ///< the other rank receives it so many steps before this one
  int from = -1;                   ///< -1: receives nothing
  int unit = 0;                    ///< to which the step belongs
  double first = 0.0, last = 1.0;  ///< which part of the unit it sends
};

/// The exchanges of collectives among `ranks`, one list a rank, as lib/comm/ring.cpp makes them. All lists have the
/// same length. Each function appends one collective.
class Schedule {
 public:
  explicit Schedule(int ranks) : steps_(static_cast<std::size_t>(ranks)) {}
  [[nodiscard]] int ranks() const { return static_cast<int>(steps_.size()); }
  [[nodiscard]] const std::vector<std::vector<Exchange>>& steps() const { return steps_; }
  [[nodiscard]] std::size_t length() const { return steps_.front().size(); }
  /// Bytes that one rank sends in all.
  [[nodiscard]] std::uint64_t bytes_of(int rank) const;

  /// On the ring, of a vector of `elements` of `element_bytes` each.
  void reduce_scatter(std::size_t elements, std::size_t element_bytes, int unit);
  void all_reduce(std::size_t elements, std::size_t element_bytes, int unit);
  /// Rank r's part has sizes[r] bytes and goes round the ring.
  void all_gather(std::span<const std::uint64_t> sizes, int unit);
  /// Rank r sends sizes[r] bytes to every other rank, in p - 1 exchanges.
  void all_to_all(std::span<const std::uint64_t> sizes, int unit);
  /// Along the chain root, root + 1, ... in chunks.
  void broadcast(std::uint64_t bytes, int root, int unit);
  /// Rank r sends sizes[r] bytes to rank r + 1.
  void hop(std::span<const std::uint64_t> sizes, int unit);

 private:
  [[nodiscard]] int wrap(int rank) const { return (rank + 2 * ranks()) % ranks(); }
  /// One exchange of every rank with its neighbours: rank r sends `bytes_of(r)` bytes.
  template <class Bytes>
  void ring_step(int unit, Bytes&& bytes_of);
  void relay(std::span<const std::uint64_t> sizes, int unit);

  std::vector<std::vector<Exchange>> steps_;
};

/// Lets ranks go through a schedule over a transport, each as fast as it can.
class ExchangeRun {
 public:
  /// The message of a step, all but its hosts and bytes, which the run fills in.
  using Describe = std::function<Message(int rank, const Exchange& step)>;
  using Sent = std::function<void(const Message&, const Delivery&)>;
  using StepDone = std::function<void(int rank, std::size_t step)>;
  ExchangeRun(const Schedule& schedule, std::vector<int> hosts, Transport& transport, Describe describe, Sent sent,
              StepDone done);

  /// Lets `rank` go on up to, but not including, step `end`.
  void release(int rank, std::size_t end);

 private:
  struct Rank {
    std::size_t at = 0, end = 0;
    bool started = false, sent = false;
    std::vector<bool> arrived;  ///< by step
  };
  void advance(int rank);

  const Schedule& schedule_;
  std::vector<int> hosts_;
  Transport& transport_;
  Describe describe_;
  Sent sent_;
  StepDone done_;
  std::vector<Rank> ranks_;
};

}  // namespace gradtool::netsim
