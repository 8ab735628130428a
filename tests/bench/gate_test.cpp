#include "lib/bench/gate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradtool::test {
namespace {

constexpr double kAlpha = 1e-3, kBeta = 1e6;  // of the network, seconds and bytes a second
constexpr int kRanks = 8;                     // a broadcast takes 3 alpha + bytes / beta

const std::vector<Network>& slow_network() {
  static const std::vector<Network> networks{Network::parse("slow:alpha=1000us,beta=0.001GBps")};
  return networks;
}

/// A measured row with one unit for each size: `messages` broadcasts that carry `ratio` of its bytes between them, and
/// `coding` seconds a byte.
ResultRow measured(const std::string& codec, const std::vector<double>& sizes, int messages, double ratio,
                   double coding = 0.0) {
  ResultRow row{parse_codec(codec)};
  row.timing = Timing::isolated;
  row.scheme = Scheme::sum;
  row.ranks = row.measured_ranks = 4;
  row.bytes = StepBytes{};
  double encode = 0.0;
  for (const double size : sizes) {
    UnitProfile unit;
    unit.bytes.payload = ratio * size;
    unit.encode = coding * size;
    for (int m = 0; m < messages; ++m) add_use(unit.uses, "broadcast", ratio * size / messages);
    encode += unit.encode;
    row.elements += static_cast<std::uint64_t>(size / 4.0);
    row.units.push_back(unit);
  }
  row.encode = PhaseSummary{.median = encode, .low = 0.9 * encode, .high = 1.2 * encode};
  row.decode = PhaseSummary{.median = 0.0, .low = 0.0, .high = 0.0};
  return row;
}

/// The modelled rows of `rows`, in their order.
std::vector<ResultRow> modelled(std::vector<ResultRow> rows, double compute = 0.0) {
  const std::size_t first = rows.size();
  add_modelled(rows, {.networks = slow_network(),
                      .machines = {kRanks},
                      .tensor_bytes = {},
                      .compute = {.seconds = compute},
                      .overlap = Overlap::none});
  return {rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end()};
}

// 3 alpha + S / beta = 2 x 3 alpha + S / 4 beta + coding S.
double planted_gate(double coding) {
  return 3.0 * kAlpha / (0.75 / kBeta - coding);
}

TEST(Gate, LiesWhereBothTakeTheSameTimeWhateverSizeWasMeasured) {
  for (const double size : {100.0, 3000.0, 4100.0, 5e7}) {
    for (const double coding : {0.0, 2e-7}) {
      const auto rows = modelled({measured("none", {size}, 1, 1.0), measured("fp16", {size}, 2, 0.25, coding)});
      EXPECT_NEAR(rows[1].gate_bytes.value() / planted_gate(coding), 1.0, 1e-9) << size;
      EXPECT_EQ(rows[1].gated_share, 0.0) << "a step whose only unit is small is modelled compressed";
      EXPECT_FALSE(rows[0].gate_bytes.has_value());
    }
  }
}

TEST(Gate, IsNowhereOrEverywhereWhereLatencyDoesNotDecide) {
  const auto rows = modelled({measured("none", {1e5}, 1, 1.0), measured("fp16", {1e5}, 1, 0.5),
                              measured("zstd", {1e5}, 1, 1.5), measured("qsgd", {1e5}, 1, 0.25, 1e-6)});
  EXPECT_EQ(rows[1].gate_bytes.value(), 0.0);
  EXPECT_TRUE(std::isinf(rows[2].gate_bytes.value()));
  EXPECT_TRUE(std::isinf(rows[3].gate_bytes.value())) << "coding takes longer than it saves";
}

TEST(Gate, UnitsBelowItGoAsNoneSendsThem) {
  const std::vector<double> sizes{40'000.0, 1'000.0, 100'000.0, 3'900.0};
  const auto rows = modelled({measured("none", sizes, 1, 1.0), measured("fp16", sizes, 2, 0.25, 1e-8)}, 2.0);
  const ResultRow& row = rows[1];
  const double communication = 2.0 * 3.0 * kAlpha + 4'900.0 / kBeta + 2.0 * 6.0 * kAlpha + 35'000.0 / kBeta;
  const double encode = 140'000.0 * 1e-8;
  EXPECT_NEAR(row.communicate->median, communication, 1e-12);
  EXPECT_NEAR(row.encode->median, encode, 1e-12);
  EXPECT_NEAR(row.total->median, communication + encode, 1e-12);
  EXPECT_NEAR(row.total->low.value(), communication + 0.9 * encode, 1e-12);
  EXPECT_NEAR(row.total->high.value(), communication + 1.2 * encode, 1e-12);
  EXPECT_NEAR(row.iteration->seconds, 2.0 + communication + encode, 1e-12);
  EXPECT_NEAR(row.iteration->high.value(), 2.0 + communication + 1.2 * encode, 1e-12);
  EXPECT_NEAR(row.bytes->wire_per_rank, 4'900.0 + 35'000.0, 1e-6);
  EXPECT_NEAR(row.gated_share, 4'900.0 / 144'900.0, 1e-12);
  EXPECT_GT(row.gate_bytes.value(), 3'900.0);
  EXPECT_LT(row.gate_bytes.value(), 40'000.0);
}

TEST(Gate, TheShareHasTheUnitsBelowTheCodecsOwn) {
  std::vector<ResultRow> rows{measured("none", {1'000.0, 100'000.0}, 1, 1.0),
                              measured("fp16:gate=2048", {1'000.0, 100'000.0}, 2, 0.25)};
  rows[1].units[0] = rows[0].units[0];
  rows[1].units[0].gated = true;
  const auto found = modelled(rows);
  EXPECT_NEAR(found[1].gated_share, 1'000.0 / 101'000.0, 1e-12);
  EXPECT_EQ(found[0].gated_share, 0.0);
}

TEST(Gate, UnitsBelowItRideTheLibraryBelowTheHook) {
  // A broadcast of the hook is a chain: 7 latencies among 8 ranks; that of gloo goes through a tree, 4 of its own.
  std::vector<ResultRow> rows{measured("none", {10.0, 1e6}, 1, 1.0), measured("fp16", {10.0, 1e6}, 2, 0.25)};
  std::vector<Network> networks = slow_network();
  Network& network = networks.front();
  network.library = Library::hook;
  network.under_hook = Library::gloo;
  add_modelled(
      rows, {.networks = networks, .machines = {kRanks}, .tensor_bytes = {}, .compute = {}, .overlap = Overlap::none});
  const ResultRow &none = rows[2], &fp16 = rows[3];
  ASSERT_GT(fp16.gated_share, 0.0);
  ResultRow large = fp16;
  large.units.erase(large.units.begin());
  ResultRow small = none;
  small.units.pop_back();
  const auto seconds = [&](const ResultRow& row) { return model_units(row, network, kRanks).seconds; };
  EXPECT_NEAR(fp16.communicate->median, seconds(small) + seconds(large), 1e-12);
}

TEST(Gate, OfASweepLiesBetweenTheSizesOfItsRows) {
  std::vector<ResultRow> all;
  for (double size = 256.0; size < 1e6; size *= 4.0) {
    for (const bool codec : {false, true}) {
      all.push_back(codec ? measured("fp16", {size}, 2, 0.25) : measured("none", {size}, 1, 1.0));
      all.back().granularity = "size:" + std::to_string(static_cast<int>(size));
    }
  }
  auto rows = modelled(std::move(all));
  for (std::size_t i = 1; i < rows.size(); i += 2)
    EXPECT_NEAR(std::log(rows[i].gate_bytes.value() / planted_gate(0.0)), 0.0, std::log(1.1));
  set_verdicts(rows);
  const std::string said = gates_table(rows);
  EXPECT_NE(said.find("slow:alpha=1000us,beta=0.001GBps, 8 ranks"), std::string::npos) << said;
  EXPECT_NE(said.find("fp16"), std::string::npos) << said;
}

TEST(Gate, OfASweepIsToldOfEveryWayThatIsTheFastestSomewhere) {
  std::vector<ResultRow> all;
  for (double size = 256.0; size < 1e6; size *= 4.0) {
    const bool small = size < 3e4;
    const auto add = [&](const char* codec, Scheme scheme, double speedup) {
      ResultRow row = measured(codec, {size}, 1, 1.0);
      row.network = slow_network().front();
      row.comm = "model";
      row.granularity = "size:" + std::to_string(static_cast<int>(size));
      row.scheme = scheme;
      row.verdict.speedup_vs_none = speedup;
      row.gate_bytes = scheme == Scheme::gather ? std::numeric_limits<double>::infinity() : 2e4;
      all.push_back(std::move(row));
    };
    add("topk", Scheme::gather, small ? 1.5 : 0.5);
    add("topk", Scheme::alltoall, small ? 0.9 : 2.0);
    add("fp16", Scheme::gather, 0.5);
    add("fp16", Scheme::alltoall, 0.4);
  }
  const auto gates = gates_of(all);
  ASSERT_EQ(gates.size(), 1U);
  ASSERT_EQ(gates[0].rows.size(), 3U) << "top-k by both ways, and fp16 by the better one";
  EXPECT_EQ(pays_text(*gates[0].rows[0], all), "20.0 kB");
  EXPECT_EQ(pays_text(*gates[0].rows[1], all), "256 B to 16.4 kB");
  EXPECT_EQ(pays_text(*gates[0].rows[2], all), "no size");
}

TEST(Gate, CutsSoThatAllSizesTogetherTakeTheLeastTime) {
  const auto size = [](double bytes, double codec) { return CodedSize{.bytes = bytes, .codec = codec, .none = 1.0}; };
  EXPECT_EQ(first_compressed(std::vector<CodedSize>{}), 0U);
  EXPECT_EQ(first_compressed(std::vector{size(1, 2), size(2, 1.5), size(3, 0.5)}), 2U);
  EXPECT_EQ(first_compressed(std::vector{size(1, 0.9), size(2, 1.05), size(3, 0.5)}), 0U) << "a gain that outweighs";
  EXPECT_EQ(first_compressed(std::vector{size(1, 0.9), size(2, 2.0), size(3, 0.5)}), 2U);
  EXPECT_EQ(first_compressed(std::vector{size(1, 2), size(2, 2)}), 2U);
  EXPECT_DOUBLE_EQ(gate_between(size(1, 2.0), size(16, 0.5)), 4.0);
  EXPECT_DOUBLE_EQ(gate_between(size(1, 1.0), size(16, 0.5)), 1.0);
  EXPECT_DOUBLE_EQ(gate_between(size(1, 0.9), size(16, 0.5)), 4.0) << "neither loses: the middle";
}

}  // namespace
}  // namespace gradtool::test
