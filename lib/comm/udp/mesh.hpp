#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lib/comm/udp/control.hpp"
#include "lib/comm/udp/packet.hpp"

/// How the ranks of a job find each other: everybody connects to rank 0, learns there where the others are, and
/// connects to each of them.
namespace gradtool::udp {

/// The addresses of rank 0, of which one is enough, and its port. IPv4, in network byte order.
struct MeetingPoint {
  std::vector<in_addr> addresses{};
  std::uint16_t port = 0;  ///< host byte order
};

/// The addresses of this machine's interfaces that are up, those of the loopback interface last.
[[nodiscard]] std::vector<in_addr> local_addresses();
/// The addresses of a host by its name or dotted address. Throws Fault::usage when it is not known.
[[nodiscard]] std::vector<in_addr> addresses_of(const std::string& host);
[[nodiscard]] std::string text_of(in_addr address);

/// A key that nobody can guess, from the kernel's random numbers.
[[nodiscard]] JobKey random_key();
/// The key that a secret of the launcher stands for: half of its SHA-256. Throws Fault::usage for one of fewer than 16
/// characters.
[[nodiscard]] JobKey key_of_secret(const std::string& secret);

/// Listens for connections on all interfaces; port 0 lets the kernel choose. Throws Fault::backend when the port is
/// taken.
[[nodiscard]] Socket listen_on(std::uint16_t port);
[[nodiscard]] std::uint16_t port_of(const Socket& socket);

/// This rank and its connections to all others. Each of them has proved that it knows the key of the job.
struct Mesh {
  int rank = 0;
  int size = 1;
  JobKey key{};        ///< of this job's datagrams: of the launcher's key and of what rank 0 has drawn for this job
  Socket datagrams{};  ///< the UDP socket, bound and not blocking
  std::vector<sockaddr_in> addresses{};  ///< where each rank takes datagrams
  std::vector<ControlLine> lines{};      ///< to each rank; the own one is closed
  std::uint64_t refused = 0;             ///< connections of strangers, which did not know the key

  /// Ranks with this one's address, this one included.
  [[nodiscard]] int on_machine() const;
};

/// Collective over the ranks of the job. Rank 0 passes the socket on which it listens at `point`, the others a closed
/// one. Connections that do not prove within seconds that they know the key are closed and counted, and disturb nobody.
/// Throws Fault::backend naming the ranks that are missing after `timeout_seconds`.
[[nodiscard]] Mesh join_mesh(int rank, int size, const JobKey& key, const MeetingPoint& point, Socket listener,
                             double timeout_seconds);

}  // namespace gradtool::udp
