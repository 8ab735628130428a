#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/comm/udp/mesh.hpp"

namespace gradtool::udp {

/// Seconds of a clock that only goes forward.
[[nodiscard]] double now();

/// How a rank learns that it waits in vain. Ranks that wait say so and for whom, those that end or fail say that, and a
/// call in which nothing happens for longer than the time limit ends with the number of the rank that is to blame. Time
/// counts only while this process runs: one that was stopped and continued has not waited.
class Liveness {
 public:
  /// Refers to `mesh`.
  Liveness(Mesh& mesh, double timeout_seconds);

  void set_timeout(double seconds) { timeout_seconds_ = seconds; }

  /// A call begins, in which this rank has not waited yet. Returns the time.
  double begin();
  /// Something has happened, so that nobody waits in vain.
  void note_progress() { moved_ = true; }
  /// Whether anything has happened since the last check().
  [[nodiscard]] bool moved() const { return moved_; }
  /// Once in each round of a call. `awaited` is a rank without which this one cannot go on, or -1. Throws
  /// Fault::backend where that one has ended, or where the wait was too long.
  void check(int awaited);

  /// Takes a frame of one of the types waiting, failed and leaving. Throws Fault::backend for a rank that has failed.
  void take(int from, const Frame& frame);
  /// The connection to a rank has closed: throws Fault::backend unless it had said that it leaves.
  void expect_left(int other) const;

  /// Tells all ranks that this one ends because of `what`, so that none waits for it.
  void fail(const std::string& what) noexcept;

 private:
  struct Peer {
    double told_waiting = -1e9;  ///< when it last said that it waits, and for which rank
    int waits_for = -1;
    bool left = false;
  };
  [[noreturn]] void blame(int other) const;
  [[nodiscard]] const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  Mesh& mesh_;
  double timeout_seconds_;
  std::vector<Peer> peers_;
  double last_look_ = 0.0;  ///< when check() was called last
  double waited_ = 0.0;     ///< without anything having happened
  double last_told_ = 0.0;  ///< when the others were told last
  bool moved_ = false;
  int failed_rank_ = -1;  ///< the rank that was the first to fail, as far as this one was told, and why
  std::string failure_;
};

}  // namespace gradtool::udp
