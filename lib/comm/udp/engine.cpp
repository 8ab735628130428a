#include "lib/comm/udp/engine.hpp"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "lib/comm/udp/datagrams.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool::udp {
namespace {

constexpr double kFeedbackSeconds = 1e-3;
/// Without a probe, for so long nothing must come before a receiver that has enough is content.
constexpr double kSilence = 10e-3;
/// The time that a batch of datagrams may take at the current rate: short enough for queues, long enough to save system
/// calls.
constexpr double kBatchSeconds = 0.5e-3;
/// How far behind its rate a sender may catch up, when it was not scheduled.
constexpr double kCatchUp = 1e-3;
constexpr std::size_t kHeadersOnWire = 28 + sizeof(PacketHeader);  // IP, UDP and ours

/// Bits that a frame carries for a plan's packets; nothing when it does not carry so many.
std::optional<Bits> bits_in(std::span<const std::byte> body, const Plan& plan) {
  Bits bits(bit_words(plan.packets()));
  if (body.size() != 8 * bits.size()) return std::nullopt;
  std::memcpy(bits.data(), body.data(), body.size());
  return bits;
}

}  // namespace

class Engine::Datagrams : public DatagramSocket {
  using DatagramSocket::DatagramSocket;
};

struct Engine::Peer {
  std::uint64_t next_out = 0;  ///< numbers of the next messages to and from it
  std::uint64_t next_in = 0;
  std::uint64_t ready = 0;  ///< message that it has last said to be ready for
  ReadyBody ready_body;
  RateControl rate{RateControl::Limits{}};
  /// The fastest transit of a datagram, in microseconds between two clocks that do not agree: the least of this and the
  /// last ten seconds, so that a drift of the clocks is followed.
  std::uint32_t fastest = 0, fastest_before = 0;
  double fastest_since = -1.0;
};

struct Engine::Sender {
  Outbound out;
  bool stopped = false;
  bool probed = false;           ///< and waits for the answer
  bool nothing_missing = false;  ///< the receiver has everything, so that its stop must come
  std::uint32_t reported = 0;    ///< transmissions up to here are known to have arrived or not
  std::uint32_t reported_datagrams = 0;
  std::uint32_t reported_marked = 0;
  double next_send = 0.0;
  double last_report = 0.0;
  bool paced = false;    ///< the rate has held it back since the last report
  bool blocked = false;  ///< the kernel's buffer is full
};

struct Engine::Receiver {
  Inbound in;
  bool stopped = false;
  bool probed = false;  ///< the answer is due
  bool counted = false;
  std::uint32_t pass = 0;
  double probe_time = 0.0;
  double quiet = 0.0;
  double last_arrival = 0.0;
  double last_feedback = 0.0;
  FeedbackBody feedback{};
  std::uint32_t unreported = 0;
};

Engine::Engine(Mesh mesh, const Options& options)
    : mesh_{std::move(mesh)},
      options_{options},
      liveness_{mesh_, options.timeout_seconds},
      datagrams_{std::make_unique<Datagrams>(mesh_.datagrams.fd())} {
  Peer peer;
  peer.next_out = peer.next_in = options.first_message + 1;
  peer.rate = RateControl{options.rate};
  peers_.assign(static_cast<std::size_t>(mesh_.size), peer);
}

Engine::~Engine() {
  for (ControlLine& line : mesh_.lines) line.send(FrameType::leaving, 0);
}

std::uint16_t Engine::port() const {
  return port_of(mesh_.datagrams);
}

Engine::Peer& Engine::peer(int rank) {
  return peers_[static_cast<std::size_t>(rank)];
}
const Engine::Peer& Engine::peer(int rank) const {
  return peers_[static_cast<std::size_t>(rank)];
}

void Engine::exchange(std::span<const Sending> out, std::span<const Receiving> in) {
  begin(out, in);
  while (!done()) {
    const bool busy = liveness_.moved();
    liveness_.check(awaited());
    wait_for_events(busy ? 0.0 : patience());
    take_datagrams();
    for (Sender& sender : senders_) send_data(sender);
    for (Receiver& receiver : receivers_) advance(receiver);
  }
  senders_.clear();
  receivers_.clear();
}

void Engine::begin(std::span<const Sending> out, std::span<const Receiving> in) {
  const double begun = liveness_.begin();
  std::size_t incoming = 0;
  for (const Receiving& one : in) incoming += one.data.empty() ? 0 : 1;
  for (const Receiving& one : in) {
    if (one.data.empty()) continue;
    expects(one.from >= 0 && one.from < size() && one.from != rank(), "a message comes from another rank");
    Peer& from = peer(one.from);
    receivers_.push_back(
        {.in = Inbound{Plan{one.tensors, options_.packet_bytes}, one.data, one.from, rank(), from.next_in++}});
    receivers_.back().last_arrival = receivers_.back().last_feedback = begun;
    const ReadyBody ready{one.data.size(),
                          std::max<std::uint64_t>(datagrams_->room() / (2 * std::max<std::size_t>(1, incoming)),
                                                  2 * options_.packet_bytes)};
    mesh_.lines[static_cast<std::size_t>(one.from)].send(FrameType::ready, receivers_.back().in.message(),
                                                         bytes_of(ready));
  }
  for (const Sending& one : out) {
    if (one.data.empty()) continue;
    expects(one.to >= 0 && one.to < size() && one.to != rank(), "a message goes to another rank");
    senders_.push_back({.out = Outbound{Plan{one.tensors, options_.packet_bytes}, one.data, rank(), one.to,
                                        peer(one.to).next_out++, one.important}});
    senders_.back().last_report = begun;
  }
}

bool Engine::done() const {
  return std::all_of(senders_.begin(), senders_.end(), [](const Sender& s) { return s.stopped; }) &&
         std::all_of(receivers_.begin(), receivers_.end(), [](const Receiver& r) { return r.stopped; }) &&
         std::none_of(mesh_.lines.begin(), mesh_.lines.end(),
                      [](const ControlLine& line) { return line.open() && line.has_unsent(); });
}

void Engine::take_datagrams() {
  datagrams_->receive([this](std::span<const std::byte> bytes, bool marked, std::uint32_t arrived_us) {
    take_datagram(bytes, marked, arrived_us);
  });
  counts_.overflowed = datagrams_->overflowed();
}

void Engine::take_datagram(std::span<const std::byte> bytes, bool marked, std::uint32_t arrived_us) {
  PacketHeader header;
  if (bytes.size() < sizeof(header)) {
    ++counts_.misfits;
    return;
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != PacketHeader::kMagic) {
    ++counts_.misfits;
    return;
  }
  const auto receiver = std::find_if(receivers_.begin(), receivers_.end(), [&](const Receiver& one) {
    return one.in.from() == header.from && static_cast<std::uint32_t>(one.in.message()) == header.message;
  });
  if (receiver == receivers_.end() || receiver->stopped) {
    ++counts_.stale;
    return;
  }
  switch (receiver->in.take(header, bytes.subspan(sizeof(header)), mesh_.key)) {
    case Arrival::misfit:
      ++counts_.misfits;
      return;
    case Arrival::damaged:
      ++counts_.damaged;
      return;
    case Arrival::duplicate:
      ++counts_.duplicates;
      break;
    case Arrival::placed:
      break;
  }
  liveness_.note_progress();
  Peer& from = peer(header.from);
  const double time = now();
  receiver->last_arrival = time;
  // The clocks of two machines differ by a constant and a drift; the fastest transit stands for an empty network.
  const std::uint32_t transit = arrived_us - header.sent_us;
  const auto later = [](std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b); };
  if (from.fastest_since < 0.0 || time - from.fastest_since > 10.0) {
    from.fastest_before = from.fastest_since < 0.0 ? transit : from.fastest;
    from.fastest = transit;
    from.fastest_since = time;
  }
  if (later(transit, from.fastest) < 0) from.fastest = transit;
  const std::uint32_t fastest = later(from.fastest_before, from.fastest) < 0 ? from.fastest_before : from.fastest;
  FeedbackBody& feedback = receiver->feedback;
  feedback.highest = std::max(feedback.highest, header.transmission);
  ++feedback.datagrams;
  feedback.marked += marked ? 1 : 0;
  feedback.sent_us = header.sent_us;
  feedback.queue_delay_us = static_cast<std::uint32_t>(std::max(0, later(transit, fastest)));
  ++receiver->unreported;
  counts_.marked += marked ? 1 : 0;
}

void Engine::wait_for_events(double patience) {
  std::vector<pollfd> fds;
  fds.reserve(mesh_.lines.size() + 1);
  const bool blocked = std::any_of(senders_.begin(), senders_.end(), [](const Sender& s) { return s.blocked; });
  fds.push_back({mesh_.datagrams.fd(), static_cast<short>(POLLIN | (blocked ? POLLOUT : 0)), 0});
  for (const ControlLine& line : mesh_.lines)
    fds.push_back({line.open() ? line.fd() : -1, static_cast<short>(POLLIN | (line.has_unsent() ? POLLOUT : 0)), 0});
  const timespec time{static_cast<time_t>(patience), static_cast<long>((patience - std::floor(patience)) * 1e9)};
  if (::ppoll(fds.data(), fds.size(), &time, nullptr) < 0 && errno != EINTR)
    throw_error(Fault::backend, "--comm udp: ppoll: {}", std::strerror(errno));
  if ((fds[0].revents & POLLOUT) != 0) {
    for (Sender& sender : senders_) sender.blocked = false;
  }
  for (int r = 0; r < size(); ++r) {
    const short events = fds[static_cast<std::size_t>(r) + 1].revents;
    ControlLine& line = mesh_.lines[static_cast<std::size_t>(r)];
    if ((events & POLLOUT) != 0) line.flush();
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) read_line(r);
  }
}

void Engine::read_line(int other) {
  ControlLine& line = mesh_.lines[static_cast<std::size_t>(other)];
  line.read();
  while (const auto frame = line.next()) take_frame(other, *frame);
  if (!line.open()) liveness_.expect_left(other);
}

void Engine::take_frame(int from, const Frame& frame) {
  const auto sender = std::find_if(senders_.begin(), senders_.end(), [&](const Sender& one) {
    return one.out.to() == from && one.out.message() == frame.message && !one.stopped;
  });
  const auto receiver = std::find_if(receivers_.begin(), receivers_.end(), [&](const Receiver& one) {
    return one.in.from() == from && one.in.message() == frame.message && !one.stopped;
  });
  const bool sending = sender != senders_.end();
  switch (frame.type) {
    case FrameType::ready:
      if (const auto body = value_in<ReadyBody>(frame.body)) {
        peer(from).ready = frame.message;
        peer(from).ready_body = *body;
        liveness_.note_progress();
      }
      break;
    case FrameType::feedback:
      if (sending) take_feedback(*sender, frame);
      break;
    case FrameType::bitmap:
      if (sending) take_bitmap(*sender, frame);
      break;
    case FrameType::stop:
      if (sending) {
        sender->stopped = true;
        liveness_.note_progress();
      }
      break;
    case FrameType::probe:
      // A probe of a message that is over needs no answer, because its stop is on its way.
      if (const auto body = value_in<ProbeBody>(frame.body); body && receiver != receivers_.end()) {
        receiver->probed = true;
        receiver->pass = body->pass;
        receiver->probe_time = now();
        receiver->quiet = std::clamp(0.25e-6 * body->round_trip_us, 0.2e-3, 10e-3);
        if (const auto bits = bits_in(frame.body.subspan(sizeof(ProbeBody)), receiver->in.plan()))
          receiver->in.set_important(*bits);
        liveness_.note_progress();
      }
      break;
    case FrameType::values:
    case FrameType::result:
      take_values(from, frame);
      break;
    case FrameType::waiting:
    case FrameType::failed:
    case FrameType::leaving:
      liveness_.take(from, frame);
      break;
    case FrameType::nothing:
      break;
  }
}

void Engine::take_feedback(Sender& sender, const Frame& frame) {
  const auto body = value_in<FeedbackBody>(frame.body);
  if (!body || body->highest >= sender.out.transmissions()) return;
  const double time = now();
  const std::uint32_t until = body->highest + 1;
  const auto sent = static_cast<double>(until - std::min(until, sender.reported));
  const auto arrived = static_cast<double>(body->datagrams - sender.reported_datagrams);
  PathReport report;
  if (sent > 0.0) report.loss = std::max(0.0, 1.0 - arrived / sent);
  if (arrived > 0.0) report.marked = static_cast<double>(body->marked - sender.reported_marked) / arrived;
  report.queue_delay = 1e-6 * body->queue_delay_us;
  report.round_trip = 1e-6 * static_cast<double>(clock_us() - body->sent_us);
  report.paced = sender.paced;
  peer(sender.out.to()).rate.take(time, report);
  sender.reported = std::max(sender.reported, until);
  sender.reported_datagrams = body->datagrams;
  sender.reported_marked = body->marked;
  sender.last_report = time;
  sender.paced = false;
}

void Engine::take_bitmap(Sender& sender, const Frame& frame) {
  const auto head = value_in<ProbeBody>(frame.body);
  if (!head || !sender.probed || head->pass != static_cast<std::uint32_t>(sender.out.passes())) return;
  const auto bits = bits_in(frame.body.subspan(sizeof(ProbeBody)), sender.out.plan());
  if (!bits) return;
  sender.probed = false;
  sender.reported = sender.out.transmissions();
  sender.last_report = now();
  sender.out.repeat_missing(*bits);
  sender.nothing_missing = sender.out.pass_ended();
  liveness_.note_progress();
}

std::uint32_t Engine::clock_us() const {
  return static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

void Engine::send_data(Sender& sender) {
  Peer& to = peer(sender.out.to());
  if (sender.stopped || sender.probed || sender.nothing_missing || sender.blocked || to.ready != sender.out.message())
    return;
  Outbound& out = sender.out;
  if (to.ready_body.bytes != out.plan().bytes()) {
    throw_error(Fault::usage, "rank {} sent {} bytes to rank {}, which expected {}: the ranks' calls do not match",
                rank(), out.plan().bytes(), out.to(), to.ready_body.bytes);
  }
  const double time = now();
  sender.next_send = std::max(sender.next_send, time - kCatchUp);
  while (!out.pass_ended()) {
    const double rate = to.rate.rate();
    if (sender.next_send > now()) {
      sender.paced = true;
      return;
    }
    const std::size_t under_way = (out.transmissions() - sender.reported) * options_.packet_bytes;
    if (under_way + options_.packet_bytes > to.ready_body.window) {
      // Nothing is heard of them: they may all be lost. The answer to a probe says so.
      if (now() - sender.last_report > std::max(20e-3, 4.0 * to.rate.round_trip())) probe(sender);
      return;
    }
    std::array<DatagramSocket::Outgoing, DatagramSocket::kMostTogether> batch;
    const auto most = static_cast<std::size_t>(std::clamp(
        rate * kBatchSeconds / static_cast<double>(options_.packet_bytes), 1.0, static_cast<double>(batch.size())));
    const std::uint8_t service = out.service_of(out.next_packet());
    const std::size_t each = out.data_of(out.next_packet()).size();
    const std::uint32_t sent_us = clock_us();
    std::size_t count = 0;
    while (count < most && !out.pass_ended() && out.service_of(out.next_packet()) == service) {
      const auto data = out.data_of(out.next_packet());
      if (data.size() > each) break;
      batch[count++] = {out.take(mesh_.key, sent_us), data};
      if (data.size() < each) break;
    }
    const std::size_t taken =
        datagrams_->send(mesh_.addresses[static_cast<std::size_t>(out.to())], std::span{batch}.first(count), service);
    if (taken < count) {
      out.give_back(count - taken);
      sender.blocked = true;
    }
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < taken; ++i) bytes += batch[i].data.size() + kHeadersOnWire;
    counts_.sent += taken;
    counts_.repeated += out.passes() > 1 ? taken : 0;
    counts_.wire_bytes += bytes;
    sender.next_send += static_cast<double>(bytes) / rate;
    if (taken < count) return;
  }
  probe(sender);
}

void Engine::probe(Sender& sender) {
  sender.probed = true;
  const ProbeBody body{static_cast<std::uint32_t>(1e6 * peer(sender.out.to()).rate.round_trip()),
                       static_cast<std::uint32_t>(sender.out.passes())};
  // The important packets matter only if some data may stay missing; they do not change, so the first pass alone names
  // them.
  const bool tells = sender.out.passes() == 1 && sender.out.plan().tolerates();
  mesh_.lines[static_cast<std::size_t>(sender.out.to())].send(
      FrameType::probe, sender.out.message(), bytes_of(body),
      tells ? std::as_bytes(sender.out.important()) : std::span<const std::byte>{});
}

void Engine::advance(Receiver& receiver) {
  if (receiver.stopped) return;
  const double time = now();
  if (receiver.in.complete()) return finish(receiver);
  if (receiver.unreported > 0 && time - receiver.last_feedback >= kFeedbackSeconds) send_feedback(receiver);
  if (receiver.probed && time - std::max(receiver.last_arrival, receiver.probe_time) >= receiver.quiet) {
    count_losses(receiver);
    if (receiver.in.satisfied()) return finish(receiver);
    receiver.probed = false;
    const ProbeBody head{0, receiver.pass};
    mesh_.lines[static_cast<std::size_t>(receiver.in.from())].send(
        FrameType::bitmap, receiver.in.message(), bytes_of(head), std::as_bytes(receiver.in.arrived()));
    liveness_.note_progress();
  } else if (!receiver.probed && time - receiver.last_arrival >= kSilence && receiver.in.satisfied()) {
    finish(receiver);
  }
}

void Engine::send_feedback(Receiver& receiver) {
  receiver.unreported = 0;
  receiver.last_feedback = now();
  mesh_.lines[static_cast<std::size_t>(receiver.in.from())].send(FrameType::feedback, receiver.in.message(),
                                                                 bytes_of(receiver.feedback));
}

void Engine::finish(Receiver& receiver) {
  receiver.stopped = true;
  liveness_.note_progress();
  mesh_.lines[static_cast<std::size_t>(receiver.in.from())].send(FrameType::stop, receiver.in.message());
  count_losses(receiver);
  const Plan& plan = receiver.in.plan();
  counts_.expected += plan.packets();
  counts_.expected_bytes += plan.bytes();
  counts_.missing_bytes += receiver.in.missing_bytes();
  counts_.least_delivered = std::min(counts_.least_delivered, receiver.in.least_delivered());
  receiver.in.fill_missing();
}

/// The network's losses are the datagrams that have not arrived once the first pass is over.
void Engine::count_losses(Receiver& receiver) {
  if (receiver.counted) return;
  receiver.counted = true;
  const Inbound& in = receiver.in;
  if (in.complete()) return;
  counts_.lost_first += in.missing_packets();
  counts_.losing_packets += in.plan().packets();
  bool lost_before = false;
  for (std::size_t i = 0; i < in.plan().packets(); ++i) {
    const bool lost = !test_bit(in.arrived(), i);
    const bool important = !in.plan().tolerates() || (in.knows_important() && test_bit(in.important(), i));
    counts_.bursts += lost && !lost_before ? 1 : 0;
    counts_.important += important ? 1 : 0;
    counts_.lost_important += lost && important ? 1 : 0;
    lost_before = lost;
  }
}

/// How long nothing needs to be done unless something comes.
double Engine::patience() const {
  const double time = now();
  double until = time + 0.5;
  for (const Sender& sender : senders_) {
    if (sender.stopped || sender.probed || sender.nothing_missing || sender.blocked ||
        peer(sender.out.to()).ready != sender.out.message())
      continue;
    // The window may hold it back, which an arriving report ends; a while later it probes.
    until = std::min(until, std::max(sender.next_send, time + (sender.next_send > time ? 0.0 : kFeedbackSeconds)));
  }
  for (const Receiver& receiver : receivers_) {
    if (receiver.stopped) continue;
    if (receiver.probed) until = std::min(until, std::max(receiver.last_arrival, receiver.probe_time) + receiver.quiet);
    if (receiver.unreported > 0) until = std::min(until, receiver.last_feedback + kFeedbackSeconds);
    if (receiver.in.plan().tolerates() && !receiver.probed)
      until = std::min(until, std::max(receiver.last_arrival + kSilence, time + kFeedbackSeconds));
  }
  return std::max(0.0, until - time);
}

/// The first rank without which this one cannot go on, or -1.
int Engine::awaited() const {
  for (const Receiver& one : receivers_) {
    if (!one.stopped) return one.in.from();
  }
  for (const Sender& one : senders_) {
    if (!one.stopped) return one.out.to();
  }
  if (!in_meeting_) return -1;
  if (rank() != 0) return 0;
  for (int r = 1; r < size(); ++r) {
    if (std::find(met_.begin(), met_.end(), r) == met_.end()) return r;
  }
  return -1;
}

void Engine::meet(std::span<double> values) {
  if (size() == 1) return;
  liveness_.begin();
  in_meeting_ = true;
  const std::uint64_t number = ++meeting_;
  if (rank() != 0) mesh_.lines[0].send(FrameType::values, number, std::as_bytes(values));
  while (rank() == 0 ? met_.size() + 1 < mesh_.lines.size() : answered_ < number) {
    const bool busy = liveness_.moved();
    liveness_.check(awaited());
    wait_for_events(busy ? 0.0 : 0.5);
    take_datagrams();  // of messages that are over
  }
  expects(gathered_.size() == values.size(), "ranks meet with the same number of values");
  if (rank() != 0) {
    std::copy(gathered_.begin(), gathered_.end(), values.begin());
  } else {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], gathered_[i]);
    for (std::size_t r = 1; r < mesh_.lines.size(); ++r)
      mesh_.lines[r].send(FrameType::result, number, std::as_bytes(values));
    met_.clear();
  }
  while (std::any_of(mesh_.lines.begin(), mesh_.lines.end(),
                     [](const ControlLine& line) { return line.open() && line.has_unsent(); }))
    wait_for_events(0.01);
  in_meeting_ = false;
}

void Engine::take_values(int from, const Frame& frame) {
  std::vector<double> theirs(frame.body.size() / sizeof(double));
  if (!theirs.empty()) std::memcpy(theirs.data(), frame.body.data(), theirs.size() * sizeof(double));
  liveness_.note_progress();
  if (frame.type == FrameType::result) {
    answered_ = frame.message;
    gathered_ = std::move(theirs);
    return;
  }
  if (met_.empty()) {
    gathered_ = std::move(theirs);
  } else {
    expects(gathered_.size() == theirs.size(), "ranks meet with the same number of values");
    for (std::size_t i = 0; i < theirs.size(); ++i) gathered_[i] = std::max(gathered_[i], theirs[i]);
  }
  met_.push_back(from);
}

void Engine::fail(const std::string& what) noexcept {
  liveness_.fail(what);
}

}  // namespace gradtool::udp
