#include "lib/comm/udp/mesh.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "lib/core/sha256.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool::udp {
namespace {

using Clock = std::chrono::steady_clock;
using Nonce = std::array<std::uint64_t, 2>;

constexpr std::uint64_t kGreeting = 0x3130'6c6f'6f74'6467;
/// How long a connection may take to prove that it knows the key, and an address to answer.
constexpr std::chrono::seconds kPatience{5};

/// The first message of a listening rank.
struct Challenge {
  std::uint64_t greeting = kGreeting;
  Nonce nonce{};
};
/// The answer of the connecting rank: its number, with a tag over both nonces, and a nonce for the other side's proof.
struct Hello {
  std::uint64_t greeting = kGreeting;
  Nonce nonce{};
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint16_t control_port = 0;
  std::uint16_t data_port = 0;
  std::uint32_t reserved = 0;
  std::uint64_t tag = 0;
};
/// The address of a rank in rank 0's table.
struct Place {
  std::uint32_t address = 0;  ///< network byte order; 0 for rank 0, whose address everybody knows
  std::uint16_t control_port = 0;
  std::uint16_t data_port = 0;
};

[[noreturn]] void fail(const std::string& what) {
  throw_error(Fault::backend, "--comm udp: {}: {}", what, std::strerror(errno));
}

Nonce random_words() {
  Nonce words{};
  if (::getrandom(words.data(), sizeof(words), 0) != sizeof(words)) fail("the system has no random numbers");
  return words;
}

std::uint64_t hello_tag(const JobKey& key, const Nonce& challenge, Hello hello) {
  hello.tag = 0;
  return siphash(key, bytes_of(challenge), bytes_of(hello));
}

void set_options(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const int service = kControlService;
  ::setsockopt(fd, IPPROTO_IP, IP_TOS, &service, sizeof(service));
}

/// Waits until `fd` is ready for `events`. False at the deadline.
bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left < 0) return false;
    pollfd one{fd, events, 0};
    const int n = ::poll(&one, 1, static_cast<int>(std::min<long long>(left + 1, 1000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

bool read_all(int fd, std::span<std::byte> into, Clock::time_point deadline) {
  while (!into.empty()) {
    const ssize_t n = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
    if (n > 0) {
      into = into.subspan(static_cast<std::size_t>(n));
    } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) ||
               !wait_for(fd, POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

bool write_all(int fd, std::span<const std::byte> from, Clock::time_point deadline) {
  while (!from.empty()) {
    const ssize_t n = ::send(fd, from.data(), from.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      from = from.subspan(static_cast<std::size_t>(n));
    } else if ((errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) || !wait_for(fd, POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

template <class T>
bool read_value(int fd, T& value, Clock::time_point deadline) {
  return read_all(fd, std::as_writable_bytes(std::span{&value, 1}), deadline);
}

/// A connection to one address, or a closed socket.
Socket connect_to(in_addr address, std::uint16_t port, Clock::time_point deadline) {
  Socket socket{::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!socket.open()) fail("no socket");
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr = address;
  to.sin_port = htons(port);
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    if (errno != EINPROGRESS || !wait_for(socket.fd(), POLLOUT, deadline)) return {};
    int error = 0;
    socklen_t length = sizeof(error);
    ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return {};
  }
  set_options(socket.fd());
  return socket;
}

/// The connecting side of the hello. False when the other end is none of this job.
bool introduce(const Socket& socket, const JobKey& key, Hello hello, Clock::time_point deadline) {
  Challenge challenge;
  if (!read_value(socket.fd(), challenge, deadline) || challenge.greeting != kGreeting) return false;
  hello.nonce = random_words();
  hello.tag = hello_tag(key, challenge.nonce, hello);
  if (!write_all(socket.fd(), bytes_of(hello), deadline)) return false;
  std::uint64_t proof = 0;
  return read_value(socket.fd(), proof, deadline) && proof == siphash(key, bytes_of(hello.nonce));
}

/// A connection that has not proved yet that it belongs to the job.
struct Pending {
  Socket socket;
  Nonce nonce{};
  std::array<std::byte, sizeof(Hello)> bytes{};
  std::size_t got = 0;
  Clock::time_point deadline;
};

/// Accepts connections until those of all ranks in [first, size) are there.
class Doorkeeper {
 public:
  Doorkeeper(Mesh& mesh, const Socket& listener, int first)
      : mesh_{mesh}, listener_{listener}, hellos_(static_cast<std::size_t>(mesh.size)), first_{first} {}

  void admit_all(Clock::time_point deadline, double seconds) {
    while (const int missing = count_missing()) {
      if (Clock::now() > deadline) {
        throw_error(Fault::backend, "--comm udp: rank {} has waited {:g} s for {} of {} ranks to connect: {} missing",
                    mesh_.rank, seconds, missing, mesh_.size, names_of_missing());
      }
      std::vector<pollfd> fds{{listener_.fd(), POLLIN, 0}};
      fds.reserve(1 + pending_.size());
      for (const Pending& one : pending_) fds.push_back({one.socket.fd(), POLLIN, 0});
      if (::poll(fds.data(), fds.size(), 100) < 0 && errno != EINTR) fail("poll");
      if ((fds[0].revents & POLLIN) != 0) accept_one();
      std::erase_if(pending_, [this](Pending& one) { return !keep(one); });
    }
  }
  [[nodiscard]] const Hello& hello(int rank) const { return *hellos_[static_cast<std::size_t>(rank)]; }

 private:
  [[nodiscard]] int count_missing() const {
    return static_cast<int>(std::count(hellos_.begin() + first_, hellos_.end(), std::nullopt));
  }
  [[nodiscard]] std::string names_of_missing() const {
    std::string names;
    for (int r = first_; r < mesh_.size; ++r) {
      if (!hellos_[static_cast<std::size_t>(r)]) names += fmt::format("{}{}", names.empty() ? "" : ", ", r);
    }
    return names;
  }
  void accept_one() {
    Pending one{.socket = Socket{::accept4(listener_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)},
                .nonce = random_words(),
                .deadline = Clock::now() + kPatience};
    if (!one.socket.open()) return;
    set_options(one.socket.fd());
    const Challenge challenge{.nonce = one.nonce};
    if (::send(one.socket.fd(), &challenge, sizeof(challenge), MSG_NOSIGNAL) == sizeof(challenge))
      pending_.push_back(std::move(one));
  }
  /// Reads on; false when the connection is done with, admitted or refused.
  bool keep(Pending& one) {
    const ssize_t n = ::recv(one.socket.fd(), one.bytes.data() + one.got, one.bytes.size() - one.got, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return refuse();
    one.got += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
    if (one.got < one.bytes.size()) return Clock::now() < one.deadline || refuse();
    Hello hello;
    std::memcpy(&hello, one.bytes.data(), sizeof(hello));
    const auto rank = static_cast<std::size_t>(hello.rank);
    if (hello.greeting != kGreeting || hello.tag != hello_tag(mesh_.key, one.nonce, hello) ||
        hello.size != static_cast<std::uint32_t>(mesh_.size) || rank >= hellos_.size() ||
        rank < static_cast<std::size_t>(first_) || hellos_[rank])
      return refuse();
    const std::uint64_t proof = siphash(mesh_.key, bytes_of(hello.nonce));
    if (!write_all(one.socket.fd(), bytes_of(proof), one.deadline)) return refuse();
    hellos_[rank] = hello;
    mesh_.lines[rank] = ControlLine{std::move(one.socket)};
    return false;
  }
  bool refuse() {
    ++mesh_.refused;
    return false;
  }

  Mesh& mesh_;
  const Socket& listener_;
  std::vector<std::optional<Hello>> hellos_;
  std::vector<Pending> pending_;
  int first_;
};

sockaddr_in address_at(std::uint32_t address, std::uint16_t port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = address;
  place.sin_port = htons(port);
  return place;
}

sockaddr_in other_end(const ControlLine& line) {
  sockaddr_in place{};
  socklen_t length = sizeof(place);
  ::getpeername(line.fd(), reinterpret_cast<sockaddr*>(&place), &length);
  return place;
}

/// Connects to a rank by whichever of its addresses answers.
Socket reach(const MeetingPoint& point, const JobKey& key, const Hello& hello, int other, Clock::time_point deadline,
             double seconds) {
  while (Clock::now() < deadline) {
    for (const in_addr address : point.addresses) {
      const auto patience =
          std::min(deadline, Clock::now() + (point.addresses.size() > 1 ? std::chrono::seconds{1} : kPatience));
      Socket socket = connect_to(address, point.port, patience);
      if (socket.open() && introduce(socket, key, hello, std::min(deadline, Clock::now() + kPatience))) return socket;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{50});
  }
  std::string tried;
  for (const in_addr address : point.addresses)
    tried += fmt::format("{}{}", tried.empty() ? "" : ", ", text_of(address));
  throw_error(
      Fault::backend,
      "--comm udp: rank {} could not reach rank {} at {} port {} within {:g} s, or it does not have this job's key",
      hello.rank, other, tried, point.port, seconds);
}

Socket open_datagrams() {
  Socket socket{::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!socket.open()) fail("no socket");
  const sockaddr_in any = address_at(htonl(INADDR_ANY), 0);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0) fail("no UDP port is free");
  return socket;
}

/// The key of this job alone, of the launcher's and what rank 0 has drawn: who has recorded the datagrams of another
/// job that had the same secret cannot send them to this one.
JobKey session_key(const JobKey& key, const Nonce& drawn) {
  JobKey session{};
  for (std::size_t i = 0; i < session.size(); ++i)
    session[i] = siphash(key, bytes_of(drawn), bytes_of(std::uint64_t{i}));
  return session;
}

}  // namespace

std::vector<in_addr> local_addresses() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) fail("the network interfaces cannot be listed");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner{all, ::freeifaddrs};
  std::vector<in_addr> outside, loopback;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET || (one->ifa_flags & IFF_UP) == 0) continue;
    auto& list = (one->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : outside;
    list.push_back(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr);
  }
  outside.insert(outside.end(), loopback.begin(), loopback.end());
  return outside;
}

std::vector<in_addr> addresses_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    throw_error(Fault::usage, "MASTER_ADDR {}: {}; write the IPv4 address or the name of rank 0's host", host,
                ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner{found, ::freeaddrinfo};
  std::vector<in_addr> addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next)
    addresses.push_back(reinterpret_cast<const sockaddr_in*>(one->ai_addr)->sin_addr);
  return addresses;
}

std::string text_of(in_addr address) {
  char text[INET_ADDRSTRLEN] = "";
  ::inet_ntop(AF_INET, &address, text, sizeof(text));
  return text;
}

JobKey random_key() {
  return random_words();
}

JobKey key_of_secret(const std::string& secret) {
  if (secret.size() < 16) {
    throw Error{Fault::usage,
                "GRADTOOL_JOB_KEY has fewer than 16 characters; give all ranks one secret, such as what openssl rand "
                "-hex 16 prints"};
  }
  Sha256 hash;
  hash.update(std::as_bytes(std::span{secret}));
  const std::string digits = hash.hex();
  return {std::stoull(digits.substr(0, 16), nullptr, 16), std::stoull(digits.substr(16, 16), nullptr, 16)};
}

Socket listen_on(std::uint16_t port) {
  Socket socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (!socket.open()) fail("no socket");
  const int on = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in any = address_at(htonl(INADDR_ANY), port);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0 || ::listen(socket.fd(), 128) != 0)
    fail(fmt::format("rank 0 cannot listen on port {}", port));
  return socket;
}

std::uint16_t port_of(const Socket& socket) {
  sockaddr_in place{};
  socklen_t length = sizeof(place);
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&place), &length) != 0) fail("getsockname");
  return ntohs(place.sin_port);
}

int Mesh::on_machine() const {
  const auto mine = addresses[static_cast<std::size_t>(rank)].sin_addr.s_addr;
  return static_cast<int>(std::count_if(addresses.begin(), addresses.end(),
                                        [mine](const sockaddr_in& one) { return one.sin_addr.s_addr == mine; }));
}

Mesh join_mesh(int rank, int size, const JobKey& key, const MeetingPoint& point, Socket listener,
               double timeout_seconds) {
  const auto ranks = static_cast<std::size_t>(size);
  expects(size >= 1 && size <= 65535 && rank >= 0 && rank < size, "a job has 1 to 65,535 ranks");
  Mesh mesh{.rank = rank, .size = size, .key = key, .datagrams = open_datagrams()};
  mesh.addresses.resize(ranks);
  mesh.lines.resize(ranks);
  if (size == 1) return mesh;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));

  if (rank != 0) listener = listen_on(0);
  const Hello hello{.rank = static_cast<std::uint32_t>(rank),
                    .size = static_cast<std::uint32_t>(size),
                    .control_port = port_of(listener),
                    .data_port = port_of(mesh.datagrams)};
  std::vector<Place> table(ranks);
  Nonce drawn{};
  if (rank == 0) {
    drawn = random_words();
    Doorkeeper door{mesh, listener, 1};
    door.admit_all(deadline, timeout_seconds);
    table[0].data_port = hello.data_port;
    for (int r = 1; r < size; ++r) {
      const Hello& theirs = door.hello(r);
      table[static_cast<std::size_t>(r)] = {other_end(mesh.lines[static_cast<std::size_t>(r)]).sin_addr.s_addr,
                                            theirs.control_port, theirs.data_port};
    }
    for (std::size_t r = 1; r < ranks; ++r) {
      if (!write_all(mesh.lines[r].fd(), bytes_of(drawn), deadline) ||
          !write_all(mesh.lines[r].fd(), std::as_bytes(std::span{table}), deadline))
        throw_error(Fault::backend, "--comm udp: rank {} left while the ranks were connecting", r);
    }
  } else {
    Socket socket = reach(point, key, hello, 0, deadline, timeout_seconds);
    if (!read_value(socket.fd(), drawn, deadline) ||
        !read_all(socket.fd(), std::as_writable_bytes(std::span{table}), deadline)) {
      throw_error(Fault::backend, "--comm udp: rank {} reached rank 0, which left or waits for others", rank);
    }
    mesh.lines[0] = ControlLine{std::move(socket)};
    table[0].address = other_end(mesh.lines[0]).sin_addr.s_addr;
  }
  for (std::size_t r = 0; r < ranks; ++r) mesh.addresses[r] = address_at(table[r].address, table[r].data_port);
  const JobKey session = session_key(key, drawn);
  if (rank == 0) {
    mesh.key = session;
    return mesh;
  }

  // A rank connects to those before it and then waits for those behind it: rank 1 waits at once, so nobody waits in a
  // circle.
  for (int r = 1; r < rank; ++r) {
    const Place& place = table[static_cast<std::size_t>(r)];
    const MeetingPoint there{{in_addr{place.address}}, place.control_port};
    mesh.lines[static_cast<std::size_t>(r)] = ControlLine{reach(there, key, hello, r, deadline, timeout_seconds)};
  }
  Doorkeeper{mesh, listener, rank + 1}.admit_all(deadline, timeout_seconds);
  mesh.key = session;
  return mesh;
}

}  // namespace gradtool::udp
