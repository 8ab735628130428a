#pragma once

#include <cstdint>

namespace gradtool {

/// Counts of one rank over a transport of packets, in datagrams unless a name says bytes.
struct TransportCounts {
  std::uint64_t sent = 0;            ///< all of them
  std::uint64_t repeated = 0;        ///< of them, those after a message's first pass
  std::uint64_t wire_bytes = 0;      ///< of all sent, with our header and those of UDP and IP
  std::uint64_t expected = 0;        ///< packets of all messages that came in
  std::uint64_t expected_bytes = 0;  ///< of data
  std::uint64_t lost_first = 0;      ///< packets that had not arrived when the first pass was over
  std::uint64_t losing_packets = 0;  ///< packets of the messages with such losses
  std::uint64_t important = 0;       ///< of losing_packets, those that their senders called important
  std::uint64_t lost_important = 0;  ///< of lost_first, important ones
  std::uint64_t bursts = 0;          ///< runs of packets in a row that were lost in first passes
  std::uint64_t missing_bytes = 0;   ///< that were never delivered and are zero now
  double least_delivered = 1.0;      ///< smallest delivered share of a tensor's part in a message
  std::uint64_t marked = 0;          ///< arrived with a congestion mark
  std::uint64_t duplicates = 0;      ///< dropped: packets that had arrived already
  std::uint64_t stale = 0;           ///< dropped: of messages that were over
  std::uint64_t misfits = 0;         ///< dropped: headers that fit no message, and what is no datagram of ours
  std::uint64_t damaged = 0;         ///< dropped: the tag is not that of the content under the job's key
  std::uint64_t overflowed = 0;      ///< dropped by the kernel: this process did not read its socket fast enough
};

}  // namespace gradtool
