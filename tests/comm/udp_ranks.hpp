#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lib/comm/rank_group.hpp"
#include "lib/comm/udp/engine.hpp"

namespace gradtool::test {

inline sockaddr_in loopback_address(std::uint16_t port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  place.sin_port = htons(port);
  return place;
}

/// A network between ranks that loses a share of the datagrams, repeats some, damages some, and keeps some until a
/// later one has passed.
class LossyNetwork {
 public:
  LossyNetwork(int ranks, double loss) : loss_{loss}, to_(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) {
      doors_.emplace_back(::socket(AF_INET, SOCK_DGRAM, 0));
      const sockaddr_in any = loopback_address(0);
      ::bind(doors_.back().fd(), reinterpret_cast<const sockaddr*>(&any), sizeof(any));
      const int room = 4 << 20;
      ::setsockopt(doors_.back().fd(), SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
    }
  }
  ~LossyNetwork() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  /// Datagrams for rank r go through this network from now on. Collective; the mesh is this rank's.
  void enter(udp::Mesh& mesh) {
    to_[static_cast<std::size_t>(mesh.rank)] = loopback_address(udp::port_of(mesh.datagrams));
    for (std::size_t r = 0; r < doors_.size(); ++r) mesh.addresses[r] = loopback_address(udp::port_of(doors_[r]));
  }
  /// Once every rank has entered.
  void open() {
    thread_ = std::thread{[this] { run(); }};
  }
  [[nodiscard]] std::uint64_t lost() const { return lost_; }

 private:
  void run() {
    std::mt19937 random{7};
    std::uniform_real_distribution<double> uniform;
    std::vector<std::vector<std::byte>> kept(doors_.size());
    std::vector<pollfd> fds;
    for (const udp::Socket& door : doors_) fds.push_back({door.fd(), POLLIN, 0});
    while (!stop_) {
      ::poll(fds.data(), fds.size(), 5);
      for (std::size_t r = 0; r < doors_.size(); ++r) {
        std::vector<std::byte> bytes(65536);
        const ssize_t n = ::recv(doors_[r].fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
        if (n < 0) continue;
        bytes.resize(static_cast<std::size_t>(n));
        if (uniform(random) < loss_) {
          ++lost_;
          continue;
        }
        if (uniform(random) < 0.02) send(r, bytes);
        if (uniform(random) < 0.02) {
          auto damaged = bytes;
          damaged[random() % damaged.size()] ^= std::byte{4};
          send(r, damaged);
        }
        if (uniform(random) < 0.05) {
          std::swap(kept[r], bytes);
          if (bytes.empty()) continue;
        }
        send(r, bytes);
      }
    }
  }
  void send(std::size_t rank, const std::vector<std::byte>& bytes) {
    ::sendto(doors_[rank].fd(), bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to_[rank]),
             sizeof(sockaddr_in));
  }

  double loss_;
  std::vector<sockaddr_in> to_;
  std::vector<udp::Socket> doors_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> lost_{0};
  std::thread thread_;
};

/// Runs body(engine) on one thread for each rank, connected over the loopback interface, and through `network` where
/// one is given.
inline void run_engines(int ranks, const udp::Engine::Options& options, const std::function<void(udp::Engine&)>& body,
                        LossyNetwork* network = nullptr) {
  udp::Socket listener = udp::listen_on(0);
  const udp::MeetingPoint point{{loopback_address(0).sin_addr}, udp::port_of(listener)};
  const udp::JobKey key = udp::random_key();
  RankGroup group{ranks, 60.0};
  run_ranks(group, [&](int rank) {
    udp::Mesh mesh = udp::join_mesh(rank, ranks, key, point, rank == 0 ? std::move(listener) : udp::Socket{}, 30.0);
    if (network != nullptr) {
      network->enter(mesh);
      group.meet(rank, {});
      if (rank == 0) network->open();
    }
    udp::Engine engine{std::move(mesh), options};
    try {
      body(engine);
    } catch (const std::exception& error) {
      engine.fail(error.what());
      throw;
    }
  });
}

}  // namespace gradtool::test
