#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/transport_counts.hpp"
#include "lib/comm/udp/liveness.hpp"
#include "lib/comm/udp/mesh.hpp"
#include "lib/comm/udp/message.hpp"
#include "lib/comm/udp/rate.hpp"

namespace gradtool::udp {

/// The bounded-loss transport between the ranks of a mesh (DLCP, specification part 3.3): every message is sent once
/// over UDP; then the sender probes, the receiver answers with what has arrived, and the rest is repeated while more is
/// missing than the message tolerates. All work is done inside of the calls, on the caller's thread.
///
/// A rank that is gone, has failed, or for which others wait longer than the time limit ends the call with
/// Fault::backend and its number. Buffers grow with the largest message and are kept.
class Engine {
 public:
  struct Options {
    std::size_t packet_bytes = 1424;  ///< data of a full packet: 1500 less the headers of IP, UDP and our own
    RateControl::Limits rate;
    double timeout_seconds = 120.0;
    std::uint64_t first_message = 0;  ///< number before that of the first message between two ranks; for tests
  };
  struct Sending {
    int to = 0;
    std::span<const std::byte> data;
    std::span<const TensorPart> tensors;  ///< their bytes add up to those of `data`
    Bits important;                       ///< one bit for each packet, or empty, as Outbound takes it
  };
  struct Receiving {
    int from = 0;
    std::span<std::byte> data;
    std::span<const TensorPart> tensors;  ///< as the sender has them
  };

  Engine(Mesh mesh, const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] int rank() const { return mesh_.rank; }
  [[nodiscard]] int size() const { return mesh_.size; }
  /// The UDP port of this rank.
  [[nodiscard]] std::uint16_t port() const;

  /// Sends and receives all of these messages, at most one to and one from each other rank; empty ones do not count.
  /// Returns when every receiver has enough. What stays missing is zero. Throws Fault::usage when sender and receiver
  /// do not agree on a size.
  void exchange(std::span<const Sending> out, std::span<const Receiving> in);

  /// values := their maxima over ranks. With no values it is a barrier.
  void meet(std::span<double> values);

  /// Tells all ranks that this one ends because of `what`, so that none waits for it.
  void fail(const std::string& what) noexcept;
  /// From now on this rank waits so long for others.
  void set_timeout(double seconds) { liveness_.set_timeout(seconds); }

  [[nodiscard]] const TransportCounts& counts() const { return counts_; }
  void reset_counts() noexcept { counts_ = {}; }

 private:
  struct Peer;
  struct Sender;
  struct Receiver;
  class Datagrams;

  [[nodiscard]] std::uint32_t clock_us() const;

  void begin(std::span<const Sending> out, std::span<const Receiving> in);
  [[nodiscard]] bool done() const;
  void wait_for_events(double patience);
  [[nodiscard]] double patience() const;

  void take_datagrams();
  void take_datagram(std::span<const std::byte> bytes, bool marked, std::uint32_t arrived_us);
  void read_line(int other);
  void take_frame(int from, const Frame& frame);
  void take_feedback(Sender& sender, const Frame& frame);
  void take_bitmap(Sender& sender, const Frame& frame);
  void take_values(int from, const Frame& frame);

  void send_data(Sender& sender);
  void probe(Sender& sender);
  void advance(Receiver& receiver);
  void send_feedback(Receiver& receiver);
  void finish(Receiver& receiver);
  void count_losses(Receiver& receiver);

  [[nodiscard]] int awaited() const;
  [[nodiscard]] Peer& peer(int rank);
  [[nodiscard]] const Peer& peer(int rank) const;

  Mesh mesh_;
  Options options_;
  Liveness liveness_;
  std::vector<Peer> peers_;
  std::deque<Sender> senders_;
  std::deque<Receiver> receivers_;
  std::unique_ptr<Datagrams> datagrams_;
  TransportCounts counts_;

  bool in_meeting_ = false;
  std::uint64_t meeting_ = 0;     ///< number of this rank's last meeting
  std::uint64_t answered_ = 0;    ///< number of the last meeting whose result has come; not of rank 0
  std::vector<double> gathered_;  ///< maxima of those who have come, or the result
  std::vector<int> met_;          ///< rank 0: who has come to the next meeting
};

}  // namespace gradtool::udp
