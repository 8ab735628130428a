#include "lib/bench/gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "lib/bench/modelled.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kLargest = 1024.0 * 1024.0 * 1024.0 * 1024.0;  // bytes up to which a gate is looked for

/// A unit of `scale` times the size: it codes in proportion, and sends as many messages of proportional bytes.
double scaled_seconds(const ResultRow& row, const UnitProfile& unit, double scale) {
  CollectiveUses uses = unit.uses;
  for (CollectiveUse& use : uses) use.bytes *= scale;
  const Network network = carrying(row, unit, *row.network);
  return scale * (unit.encode + unit.decode) + model_step(uses, network, counted_ranks(row), row.ranks).seconds;
}

double unit_seconds(const ResultRow& row, const UnitProfile& unit) {
  return scaled_seconds(row, unit, 1.0);
}

/// A unit of a codec's row and the same one uncompressed.
struct UnitPair {
  const ResultRow *codec, *none;
  std::size_t unit;
  CodedSize times;

  UnitPair(const ResultRow& row, const ResultRow& uncompressed, std::size_t u)
      : codec{&row},
        none{&uncompressed},
        unit{u},
        times{.bytes = uncompressed.units[u].bytes.payload,
              .codec = unit_seconds(row, row.units[u]),
              .none = unit_seconds(uncompressed, uncompressed.units[u])} {}

  [[nodiscard]] bool gains_at(double scale) const {
    return scaled_seconds(*codec, codec->units[unit], scale) < scaled_seconds(*none, none->units[unit], scale);
  }
  /// The size at which both take the same time, between this one and the far end, `last` bytes.
  [[nodiscard]] double gate_towards(double last) const {
    const bool here = gains_at(1.0);
    double same = 1.0, other = last / times.bytes;
    if (gains_at(other) == here) return here ? 0.0 : kInfinite;
    for (int step = 0; step < 60; ++step) {
      const double middle = std::sqrt(same * other);
      (gains_at(middle) == here ? same : other) = middle;
    }
    return same * times.bytes;
  }
};

/// `pairs` in ascending order of size, and where they are cut.
struct Cut {
  std::vector<UnitPair> pairs;
  std::size_t first = 0;  ///< that is compressed
  double gate = 0.0;      ///< bytes

  explicit Cut(std::vector<UnitPair> units) : pairs{std::move(units)} {
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const UnitPair& a, const UnitPair& b) { return a.times.bytes < b.times.bytes; });
    std::vector<CodedSize> sizes;
    sizes.reserve(pairs.size());
    for (const UnitPair& pair : pairs) sizes.push_back(pair.times);
    first = first_compressed(sizes);
    gate = first == 0              ? (pairs.front().gains_at(1.0) ? pairs.front().gate_towards(1.0) : 0.0)
           : first == pairs.size() ? pairs.back().gate_towards(std::max(kLargest, pairs.back().times.bytes))
                                   : gate_between(sizes[first - 1], sizes[first]);
  }
};

bool is_codec(const ResultRow& row) {
  return row.codec.name() != "none" && row.codec.name() != "noop";
}

/// The part of the raw bytes in units that go uncompressed, by the codec's own gate or by the modelled one.
double gated_share(const ResultRow& row, const ResultRow& none) {
  double bytes = 0.0, gated = 0.0;
  for (std::size_t u = 0; u < row.units.size(); ++u) {
    const double raw = none.units[u].bytes.payload;
    bytes += raw;
    if (row.units[u].gated) gated += raw;
  }
  return bytes > 0.0 ? gated / bytes : 0.0;
}

/// Sends the units below the gate as `none` does.
void leave_small_units(ResultRow& row, const ResultRow& none, const Cut& cut) {
  ResultRow gated = row;
  for (std::size_t i = 0; i < cut.first; ++i) {
    const std::size_t unit = cut.pairs[i].unit;
    gated.units[unit] = none.units[unit];
    gated.units[unit].gated = true;
  }
  double encode = 0.0, decode = 0.0;
  for (const UnitProfile& unit : gated.units) {
    encode += unit.encode;
    decode += unit.decode;
  }
  const auto scale = [](PhaseSummary& phase, double to) {
    const double by = phase.median > 0.0 ? to / phase.median : 1.0;
    phase.median = to;
    if (phase.low) *phase.low *= by;
    if (phase.high) *phase.high *= by;
  };
  scale(*gated.encode, encode);
  scale(*gated.decode, decode);
  set_modelled_times(gated);
  gated.gated_share = gated_share(gated, none);
  gated.gate_applied = true;
  if (judged_seconds(gated) < judged_seconds(row)) row = std::move(gated);
}

/// The rows of `none`, by network, ranks and granularity: of several ways the fastest.
class Uncompressed {
 public:
  explicit Uncompressed(std::span<const ResultRow> rows) {
    for (const ResultRow& row : rows) {
      if (row.codec.name() != "none") continue;
      const ResultRow*& best = rows_[key(row)];
      if (best == nullptr || judged_seconds(row) < judged_seconds(*best)) best = &row;
    }
  }
  /// With the same units as `row`; null where there is none.
  [[nodiscard]] const ResultRow* of(const ResultRow& row) const {
    const auto found = rows_.find(key(row));
    return found == rows_.end() || found->second->units.size() != row.units.size() ? nullptr : found->second;
  }

 private:
  using Key = std::tuple<std::string, int, std::string>;
  static Key key(const ResultRow& row) { return {row.network->name, row.ranks, row.granularity}; }
  std::map<Key, const ResultRow*> rows_;
};

bool is_sweep(std::span<const ResultRow> rows) {
  return !rows.empty() && rows.front().granularity.starts_with("size:");
}

/// Tells a codec's rows of a sweep from those of others.
using SweptCodec = std::tuple<std::string, std::string, int>;
SweptCodec swept_codec(const ResultRow& row) {
  return {row.network->name, short_name(row), row.ranks};
}

}  // namespace

std::size_t first_compressed(std::span<const CodedSize> sizes) {
  // How much longer the first k sizes take compressed, largest where exactly those that lose are among them.
  std::size_t best = 0;
  double most = 0.0, lost = 0.0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    lost += sizes[i].codec - sizes[i].none;
    if (lost > most) {
      most = lost;
      best = i + 1;
    }
  }
  return best;
}

double gate_between(const CodedSize& below, const CodedSize& above) {
  const double lost = std::log(below.codec / below.none), gained = std::log(above.none / above.codec);
  const bool crossed = std::isfinite(lost) && std::isfinite(gained) && lost >= 0.0 && gained > 0.0;
  const double share = crossed ? lost / (lost + gained) : 0.5;
  return below.bytes * std::pow(above.bytes / below.bytes, share);
}

void set_gates(std::span<ResultRow> modelled) {
  const bool sweep = is_sweep(modelled);
  const Uncompressed uncompressed{modelled};
  std::map<SweptCodec, std::vector<ResultRow*>> swept;
  std::map<SweptCodec, std::vector<UnitPair>> sizes;
  for (ResultRow& row : modelled) {
    if (!is_codec(row) || row.ranks < 2) continue;
    const ResultRow* none = uncompressed.of(row);
    if (none == nullptr) continue;
    std::vector<UnitPair> pairs;
    for (std::size_t u = 0; u < row.units.size(); ++u) {
      if (none->units[u].bytes.payload > 0.0 && !row.units[u].gated) pairs.emplace_back(row, *none, u);
    }
    if (pairs.empty()) continue;
    if (sweep) {
      auto& all = sizes[swept_codec(row)];
      all.insert(all.end(), pairs.begin(), pairs.end());
      swept[swept_codec(row)].push_back(&row);
      continue;
    }
    const Cut cut{std::move(pairs)};
    row.gated_share = gated_share(row, *none);
    row.gate_bytes = std::max(cut.gate, static_cast<double>(row.codec.gate));
    if (cut.first > 0 && cut.first < cut.pairs.size()) leave_small_units(row, *none, cut);
  }
  for (auto& [codec, pairs] : sizes) {
    const double gate = Cut{std::move(pairs)}.gate;
    for (ResultRow* row : swept[codec]) row->gate_bytes = std::max(gate, static_cast<double>(row->codec.gate));
  }
}

std::string gate_text(double bytes) {
  return bytes == 0.0 ? "any size" : std::isinf(bytes) ? "no size" : human_bytes(bytes);
}

namespace {

/// Whether the row is the fastest of all ways of its codec at its size, or the only one.
bool is_fastest_way(const ResultRow& row, std::span<const ResultRow> rows) {
  return std::none_of(rows.begin(), rows.end(), [&](const ResultRow& other) {
    return other.modelled() && other.network->name == row.network->name && other.ranks == row.ranks &&
           other.raw_bytes() == row.raw_bytes() && same_method(other, row) &&
           other.verdict.speedup_vs_none > row.verdict.speedup_vs_none;
  });
}

/// Rows of the same codec, way, network and number of ranks, at all sizes.
std::vector<const ResultRow*> sizes_of(const ResultRow& row, std::span<const ResultRow> rows) {
  std::vector<const ResultRow*> sizes;
  const SweptCodec key = swept_codec(row);
  for (const ResultRow& other : rows) {
    if (other.modelled() && other.codec.name() == row.codec.name() && swept_codec(other) == key)
      sizes.push_back(&other);
  }
  return sizes;
}

}  // namespace

std::string pays_text(const ResultRow& row, std::span<const ResultRow> rows) {
  double from = kInfinite, to = 0.0;
  for (const ResultRow* size : sizes_of(row, rows)) {
    if (!(size->verdict.speedup_vs_none > 1.0)) continue;
    from = std::min(from, size->raw_bytes());
    to = std::max(to, size->raw_bytes());
  }
  if (!std::isinf(*row.gate_bytes) || to == 0.0) return gate_text(*row.gate_bytes);
  return from == to ? human_bytes(from) + " alone" : fmt::format("{} to {}", human_bytes(from), human_bytes(to));
}

std::vector<NetworkGates> gates_of(std::span<const ResultRow> rows) {
  double largest = 0.0;
  for (const ResultRow& row : rows) {
    if (row.modelled()) largest = std::max(largest, row.raw_bytes());
  }
  std::vector<NetworkGates> all;
  for (const ResultRow& row : rows) {
    if (!row.modelled() || row.raw_bytes() != largest || !row.gate_bytes || !row.verdict.speedup_vs_none) continue;
    const auto sizes = sizes_of(row, rows);
    const bool wins = std::any_of(sizes.begin(), sizes.end(), [&](const ResultRow* size) {
      return size->verdict.speedup_vs_none > 1.0 && is_fastest_way(*size, rows);
    });
    if (!wins && !is_fastest_way(row, rows)) continue;
    const auto found = std::find_if(all.begin(), all.end(), [&](const NetworkGates& gates) {
      return gates.network == row.network->name && gates.ranks == row.ranks;
    });
    NetworkGates& gates =
        found != all.end() ? *found : all.emplace_back(NetworkGates{row.network->name, row.ranks, largest, {}});
    gates.rows.push_back(&row);
  }
  for (NetworkGates& gates : all) {
    std::stable_sort(gates.rows.begin(), gates.rows.end(),
                     [](auto* a, auto* b) { return a->verdict.speedup_vs_none > b->verdict.speedup_vs_none; });
  }
  return all;
}

std::string gates_table(std::span<const ResultRow> rows, Style style) {
  double smallest = kInfinite;
  for (const ResultRow& row : rows) {
    if (row.modelled()) smallest = std::min(smallest, row.raw_bytes());
  }
  std::string out;
  for (const NetworkGates& gates : gates_of(rows)) {
    std::vector<std::vector<std::string>> cells;
    for (const ResultRow* row : gates.rows) {
      const double gate = *row->gate_bytes;
      const bool outside = std::isfinite(gate) && gate > 0.0 && (gate < smallest || gate > gates.largest);
      cells.push_back({short_name(*row), (outside ? "~" : "") + pays_text(*row, rows),
                       fmt::format("{:.2f}", *row->verdict.speedup_vs_none)});
    }
    const std::vector<std::string> header{"codec", "pays from", fmt::format("gain at {}", human_bytes(gates.largest))};
    const std::vector<bool> right{false, true, true};
    out += fmt::format("{}, {} ranks, modelled: the size of a message from which on a codec pays\n{}", gates.network,
                       gates.ranks, style == Style::markdown ? "\n" : "");
    out +=
        style == Style::markdown ? markdown_rows(header, cells, right) + "\n" : format_rows(header, cells, right, 40);
  }
  if (out.empty()) return out;
  const std::string words =
      "Smaller messages are faster uncompressed. gain: times as fast as uncompressed. ~: beyond the sizes that were "
      "measured, where coding is taken to be in proportion. Errors are not judged: made-up gradients do not tell those "
      "of yours, a capture does.";
  return out + (style == Style::markdown ? words + "\n\n" : wrapped(words, 80));
}

}  // namespace gradtool
