#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lib/bench/result.hpp"
#include "lib/report/color.hpp"

namespace gradtool {

/// Seconds that one message of so many bytes takes, uncompressed and through a codec.
struct CodedSize {
  double bytes = 0.0;
  double codec = 0.0, none = 0.0;
};

/// The position in `sizes`, which ascend, from which on messages are compressed so that all of them together take the
/// least time; sizes.size() where that is to compress none. Linear in the number of sizes.
[[nodiscard]] std::size_t first_compressed(std::span<const CodedSize> sizes);

/// The bytes at which both take the same time, between a size at which the codec loses and a larger one at which it
/// gains: a straight line through the logarithms of both times. The geometric mean of the sizes where `below` does not
/// lose or `above` does not gain.
[[nodiscard]] double gate_between(const CodedSize& below, const CodedSize& above);

/// Sets `gate_bytes` of modelled rows of codecs, in which every unit is compressed so far, and sends the units below
/// their gates as `none` does: encode, communicate, decode, total, iteration and wire bytes become those of such a
/// step, and `gated_share` the part of the bytes that goes uncompressed. Units are left as they are where every one of
/// them would go uncompressed, and where the iteration would take longer, because of what overlaps.
///
/// The units of a row have sizes and times of their own, and so have the rows of a codec in a size sweep: the gate lies
/// where first_compressed() cuts them. Below the smallest of them, where all gain, and above the largest, where none
/// does, one of that size is scaled: its coding takes time in proportion to its bytes, and its messages keep their
/// number and carry bytes in proportion. 0: it gains down to one byte; infinite: it loses up to 2^40 bytes.
/// Rows without one of `none` with the same network, ranks and granularity, and rows of one rank, have no gate.
void set_gates(std::span<ResultRow> modelled);

/// The codecs of a size sweep on one network with one number of ranks.
struct NetworkGates {
  std::string network;
  int ranks = 0;
  double largest = 0.0;                ///< bytes of the largest size
  std::vector<const ResultRow*> rows;  ///< of that size, each codec by the ways that are its fastest somewhere
};
/// In the order of the rows, which need their verdicts and must outlive the result. Empty without modelled rows.
[[nodiscard]] std::vector<NetworkGates> gates_of(std::span<const ResultRow> rows);

/// For people: for each network and number of ranks, from which size on each codec pays, and what it gains at the
/// largest.
[[nodiscard]] std::string gates_table(std::span<const ResultRow> rows, Style style = Style::plain);

/// The gate of a row of a size sweep, or the sizes that pay where the largest one does not: "16 kB to 1 MB".
[[nodiscard]] std::string pays_text(const ResultRow& row, std::span<const ResultRow> rows);

/// "1.3 MB"; "any size" for 0 and "no size" for infinity.
[[nodiscard]] std::string gate_text(double bytes);

}  // namespace gradtool
