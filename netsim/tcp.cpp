// Messages over ns-3's TCP sockets.
#include <ns3/boolean.h>
#include <ns3/config.h>
#include <ns3/inet-socket-address.h>
#include <ns3/ipv4-route.h>
#include <ns3/simulator.h>
#include <ns3/tcp-cubic.h>
#include <ns3/tcp-dctcp.h>
#include <ns3/tcp-l4-protocol.h>
#include <ns3/tcp-socket-base.h>
#include <ns3/tcp-socket-factory.h>
#include <ns3/uinteger.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "netsim/switch_queue.hpp"
#include "netsim/transport.hpp"

namespace gradtool::netsim {
namespace {

using ns3::MakeCallback;
using ns3::Ptr;
using ns3::Simulator;

constexpr std::uint16_t kPort = 9;
constexpr std::uint32_t kSocketBuffer = 8U << 20;

/// One direction between two hosts: messages in order over one connection.
class TcpConnection final : public ns3::SimpleRefCount<TcpConnection> {
 public:
  TcpConnection(Ptr<ns3::Socket> socket, ns3::Ipv4Address to) : socket_{std::move(socket)}, to_{to} {
    socket_->SetSendCallback(MakeCallback(&TcpConnection::writable, this));
    socket_->SetConnectCallback(MakeCallback(&TcpConnection::connected, this),
                                MakeCallback(&TcpConnection::failed, this));
  }

  /// Only now, because the port that the connection gets is what the other side knows it by.
  void connect() { socket_->Connect(ns3::InetSocketAddress{to_, kPort}); }

  void send(std::uint64_t bytes, Transport::Done done) {
    messages_.push_back({bytes, bytes, Simulator::Now(), std::move(done)});
    unwritten_ += bytes;
    if (connected_) write();
  }

  void accept(Ptr<ns3::Socket> peer) {
    peer_ = std::move(peer);
    peer_->SetRecvCallback(MakeCallback(&TcpConnection::readable, this));
  }

 private:
  struct Pending {
    std::uint64_t bytes, missing;
    ns3::Time start;
    Transport::Done done;
  };

  void connected(Ptr<ns3::Socket> /*socket*/) {
    connected_ = true;
    write();
  }
  void failed(Ptr<ns3::Socket> /*socket*/) { connect(); }
  void writable(Ptr<ns3::Socket> /*socket*/, std::uint32_t /*room*/) {
    if (connected_) write();
  }
  void write() {
    while (unwritten_ > 0 && socket_->GetTxAvailable() > 0) {
      const auto part = static_cast<std::uint32_t>(std::min<std::uint64_t>(unwritten_, socket_->GetTxAvailable()));
      const int written = socket_->Send(ns3::Create<ns3::Packet>(part));
      if (written <= 0) return;
      unwritten_ -= static_cast<std::uint64_t>(written);
    }
  }
  void readable(Ptr<ns3::Socket> socket) {
    while (auto packet = socket->Recv()) {
      std::uint64_t bytes = packet->GetSize();
      if (bytes == 0) return;
      while (bytes > 0) {
        Pending& head = messages_.front();
        const std::uint64_t part = std::min(bytes, head.missing);
        head.missing -= part;
        bytes -= part;
        if (head.missing > 0) continue;
        const Pending whole = std::move(head);
        messages_.pop_front();
        whole.done({.seconds = (Simulator::Now() - whole.start).GetSeconds(),
                    .bytes = whole.bytes,
                    .important = whole.bytes,
                    .important_sent = whole.bytes});
      }
    }
  }

  Ptr<ns3::Socket> socket_, peer_;
  ns3::Ipv4Address to_;
  std::deque<Pending> messages_;  ///< sent and not wholly arrived
  std::uint64_t unwritten_ = 0;
  bool connected_ = false;
};

/// Sends every packet as ECN-capable, as Linux does with DCTCP. ns-3 leaves out connection requests and pure
/// acknowledgements; RED would drop them above its threshold, which they do not deserve.
ns3::IpL4Protocol::DownTargetCallback ecn_capable(ns3::IpL4Protocol::DownTargetCallback target) {
  return ns3::IpL4Protocol::DownTargetCallback{[target](Ptr<ns3::Packet> packet, ns3::Ipv4Address from,
                                                        ns3::Ipv4Address to, std::uint8_t protocol,
                                                        Ptr<ns3::Ipv4Route> route) {
    ns3::SocketIpTosTag tag;
    packet->RemovePacketTag(tag);
    if ((tag.GetTos() & 3U) == 0) tag.SetTos(tag.GetTos() | 2U);
    packet->AddPacketTag(tag);
    target(packet, from, to, protocol, route);
  }};
}

class Tcp final : public Transport {
 public:
  Tcp(Fabric& fabric, const TcpOptions& options, bool dctcp, int band) : fabric_{fabric}, tos_{tos_of(band, false)} {
    using ns3::Config::SetDefault;
    const auto type = dctcp ? ns3::TcpDctcp::GetTypeId() : ns3::TcpCubic::GetTypeId();
    for (int h = 0; h < fabric.hosts(); ++h) {
      const auto tcp = fabric.host(h)->GetObject<ns3::TcpL4Protocol>();
      tcp->SetAttribute("SocketType", ns3::TypeIdValue{type});
      if (dctcp) tcp->SetDownTarget(ecn_capable(tcp->GetDownTarget()));
    }
    SetDefault("ns3::TcpSocket::SegmentSize", ns3::UintegerValue{static_cast<std::uint64_t>(fabric.options().payload)});
    SetDefault("ns3::TcpSocket::SndBufSize", ns3::UintegerValue{kSocketBuffer});
    SetDefault("ns3::TcpSocket::RcvBufSize", ns3::UintegerValue{kSocketBuffer});
    SetDefault("ns3::TcpSocket::InitialCwnd", ns3::UintegerValue{static_cast<std::uint64_t>(options.initial_window)});
    SetDefault("ns3::TcpSocket::ConnTimeout", ns3::TimeValue{ns3::MilliSeconds(10)});
    // A connection must not give up: nobody would open it again.
    SetDefault("ns3::TcpSocket::ConnCount", ns3::UintegerValue{1000});
    SetDefault("ns3::TcpSocket::DataRetries", ns3::UintegerValue{1000});
    // Below the smallest timeout by as much as Linux's 40 ms are below its 200 ms.
    SetDefault("ns3::TcpSocket::DelAckTimeout", ns3::TimeValue{ns3::Seconds(options.min_rto / 5.0)});
    SetDefault("ns3::TcpSocketBase::MinRto", ns3::TimeValue{ns3::Seconds(options.min_rto)});
    SetDefault("ns3::TcpSocketBase::ClockGranularity",
               ns3::TimeValue{ns3::Seconds(std::min(1e-3, options.min_rto / 10.0))});
    listeners_.resize(static_cast<std::size_t>(fabric.hosts()));
  }

  void prepare(int from, int to) override { static_cast<void>(connection(from, to, false)); }

  void send(const Message& message, Done done) override {
    connection(message.from, message.to, message.background).send(message.bytes, std::move(done));
  }

 private:
  TcpConnection& connection(int from, int to, bool background) {
    auto& made = connections_[{from, to, background}];
    if (made != nullptr) return *made;
    listen(to);
    auto socket = ns3::Socket::CreateSocket(fabric_.host(from), ns3::TcpSocketFactory::GetTypeId());
    socket->SetIpTos(tos_);
    socket->Bind();
    made = ns3::Create<TcpConnection>(socket, Fabric::address(to));
    ns3::Address local;
    socket->GetSockName(local);
    callers_[{to, from, ns3::InetSocketAddress::ConvertFrom(local).GetPort()}] = made;
    made->connect();
    return *made;
  }

  void listen(int host) {
    auto& listener = listeners_[static_cast<std::size_t>(host)];
    if (listener != nullptr) return;
    listener = ns3::Socket::CreateSocket(fabric_.host(host), ns3::TcpSocketFactory::GetTypeId());
    listener->SetIpTos(tos_);
    listener->Bind(ns3::InetSocketAddress{ns3::Ipv4Address::GetAny(), kPort});
    listener->Listen();
    listener->SetAcceptCallback(ns3::MakeNullCallback<bool, Ptr<ns3::Socket>, const ns3::Address&>(),
                                MakeCallback(&Tcp::accepted, this));
  }

  void accepted(Ptr<ns3::Socket> socket, const ns3::Address& from) {
    const auto caller = ns3::InetSocketAddress::ConvertFrom(from);
    const int host = Fabric::host_of(caller.GetIpv4());
    ns3::Address own;
    socket->GetSockName(own);
    const int here = Fabric::host_of(ns3::InetSocketAddress::ConvertFrom(own).GetIpv4());
    socket->SetIpTos(tos_);
    callers_.at({here, host, caller.GetPort()})->accept(socket);
  }

  Fabric& fabric_;
  std::uint8_t tos_;
  std::map<std::tuple<int, int, bool>, Ptr<TcpConnection>> connections_;
  std::map<std::tuple<int, int, std::uint16_t>, Ptr<TcpConnection>> callers_;  ///< host called, host calling, its port
  std::vector<Ptr<ns3::Socket>> listeners_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp(Fabric& fabric, const TcpOptions& options, bool dctcp, int band) {
  return std::make_unique<Tcp>(fabric, options, dctcp, band);
}

}  // namespace gradtool::netsim
