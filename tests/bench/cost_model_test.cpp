// The alpha-beta model against its closed forms, and what may be written after --network and --nodes.
#include <gtest/gtest.h>

#include "lib/core/error.hpp"
#include "lib/model/cost_model.hpp"

namespace gradtool::test {
namespace {

using Kind = CollectiveUse::Kind;

double seconds(Kind kind, double calls, double bytes, const Network& network, int measured, int p) {
  const std::array<CollectiveUse, 1> uses{{{kind, calls, bytes}}};
  return model_step(uses, network, measured, p).seconds;
}
double wire(Kind kind, double bytes, int measured, int p) {
  const std::array<CollectiveUse, 1> uses{{{kind, 1.0, bytes}}};
  return model_step(uses, Network::parse("1gbe"), measured, p).wire_bytes;
}

const Network kFlat = Network::parse("lab:alpha=10us,beta=1GBps");

TEST(CostModel, LargeVectorsAreHalvedAndSmallOnesDoubledWhole) {
  // 1 GB on 8 ranks: 2 * 7/8 s and 6 messages.
  EXPECT_NEAR(seconds(Kind::all_reduce, 1, 1e9, kFlat, 4, 8), 1.75 + 6 * 10e-6, 1e-12);
  // 1 kB on 1024 ranks: 10 messages of 1 us. On 6 ranks, of which two are folded in before, it would be 4; all six
  // vectors are sent to everyone in 3. 12 kB are halved.
  EXPECT_NEAR(seconds(Kind::all_reduce, 1, 1e3, kFlat, 4, 1024), 10 * 11e-6, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, 1, 1e3, kFlat, 4, 6), 3 * 10e-6 + 5e-6, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_reduce, 1, 12e3, kFlat, 4, 6), 6 * 10e-6 + 2 * 5.0 / 6 * 12e-6, 1e-12);
  // Two ranks send each other all they have.
  EXPECT_NEAR(seconds(Kind::all_reduce, 1, 1e9, kFlat, 4, 2), 1.0 + 10e-6, 1e-12);
  EXPECT_EQ(seconds(Kind::all_reduce, 1, 1e9, kFlat, 4, 1), 0.0);
}

TEST(CostModel, CallsAreAddedNotMerged) {
  // A hundred small all-reduces cost a hundred latencies.
  EXPECT_NEAR(seconds(Kind::all_reduce, 100, 100e3, kFlat, 4, 2), 100 * (10e-6 + 1e-6), 1e-12);
}

TEST(CostModel, AReduceScatterAndAnAllGatherAreARingsBytes) {
  const Network no_latency = Network::parse("lab:alpha=0us,beta=1GBps");
  for (const int p : {1, 2, 3, 8, 64}) {
    const double halves = seconds(Kind::reduce_scatter, 1, 4e6, no_latency, 4, p) +
                          seconds(Kind::all_gather, 1, 4e6 / p, no_latency, 4, p);
    EXPECT_NEAR(halves, seconds(Kind::all_reduce, 1, 4e6, no_latency, 4, p), 1e-15) << p;
    EXPECT_NEAR(wire(Kind::reduce_scatter, 4e6, 4, p), wire(Kind::all_reduce, 4e6, 4, p) / 2, 1e-9) << p;
  }
  // Recursive halving: 3 messages among 8.
  EXPECT_NEAR(seconds(Kind::reduce_scatter, 1, 8e3, kFlat, 4, 8), 3 * 10e-6 + 7e-6, 1e-12);
  // 4 machines of 2: a half of 8 kB inside, then three quarters of it across, carried by a link that two ranks share.
  const Network two_level = Network::parse("lab:alpha=10us,beta=1GBps,node=2,inner=nvlink");
  EXPECT_NEAR(seconds(Kind::reduce_scatter, 1, 8e3, two_level, 4, 8), 2e-6 + 4e3 / 360e9 + 2 * 10e-6 + 6e-6, 1e-12);
}

TEST(CostModel, AnAllToAllIsItsExchanges) {
  // 3 MB to the 3 others of 4 ranks; on 8 the same 4 MB are cut in 8.
  for (const int p : {2, 4, 8}) {
    // The exchange waits for one message after the other.
    EXPECT_NEAR(seconds(Kind::all_to_all, 1, 3e6, kFlat, 4, p), 10e-6 + 4e-3 * (p - 1) / p, 1e-12);
    EXPECT_NEAR(seconds(Kind::exchange, 3, 3e6, kFlat, 4, p), (p - 1) * 10e-6 + 4e-3 * (p - 1) / p, 1e-12);
    EXPECT_NEAR(wire(Kind::all_to_all, 3e6, 4, p), 4e6 * (p - 1) / p, 1e-6);
  }
}

TEST(CostModel, SharesShrinkAndPayloadsDoNot) {
  // Parts of 1 MB on 4 ranks: of one whole of 4 MB, half as large on 8; or each rank's own.
  EXPECT_NEAR(seconds(Kind::shard_gather, 1, 1e6, kFlat, 4, 8), 3 * 10e-6 + 7 * 0.5e-3, 1e-12);
  EXPECT_NEAR(seconds(Kind::all_gather, 1, 1e6, kFlat, 4, 8), 3 * 10e-6 + 7 * 1e-3, 1e-12);
  EXPECT_NEAR(wire(Kind::shard_gather, 1e6, 4, 8), 7 * 0.5e6, 1e-6);
  EXPECT_NEAR(wire(Kind::shard_gather, 1e6, 4, 4), wire(Kind::all_gather, 1e6, 4, 4), 1e-6);
}

TEST(CostModel, AWayRoundARingCrossesAMachinesLinkOnce) {
  // 3 hops of 1 MB on 4 ranks are 7 hops of half as much on 8, flat or two to a machine.
  const Network two_level = Network::parse("lab:alpha=10us,beta=1GBps,node=2,inner=nvlink");
  EXPECT_NEAR(seconds(Kind::ring_hop, 3, 3e6, kFlat, 4, 8), 7 * (10e-6 + 0.5e-3), 1e-12);
  EXPECT_NEAR(seconds(Kind::ring_hop, 3, 3e6, two_level, 4, 8), 7 * (10e-6 + 0.5e-3), 1e-12);
  EXPECT_NEAR(wire(Kind::ring_hop, 3e6, 4, 8), 3.5e6, 1e-6);
}

TEST(CostModel, CallsAreKnownByTheirNames) {
  CollectiveUses uses = no_uses();
  for (const char* call : {"all_reduce_f32", "all_gather", "all_gather_v", "broadcast", "exchange",
                           "reduce_scatter_f16", "all_to_all", "all_to_all_v"}) {
    add_use(uses, call, 8.0);
  }
  add_use(uses, "all_gather", 8.0, true, true);
  add_use(uses, "all_gather_v", 8.0, true, true);
  add_use(uses, "exchange", 8.0, true, true);
  const double expected[] = {1, 3, 1, 1, 1, 2, 1, 1};
  for (std::size_t i = 0; i < uses.size(); ++i) {
    EXPECT_EQ(static_cast<std::size_t>(uses[i].kind), i % 8);
    EXPECT_EQ(static_cast<std::size_t>(uses[i].level), i / 8);
    EXPECT_EQ(uses[i].calls, i < 8 ? expected[i] : 0) << i;
    EXPECT_EQ(uses[i].bytes, i < 8 ? 8 * expected[i] : 0) << i;
  }
}

TEST(CostModel, LevelsAreAmongTheRanksOfAMachineAndAmongMachines) {
  // Measured on 2 machines of 4; modelled on 4 machines of 4, whose ranks share 1 GB/s between machines.
  CollectiveUses uses = no_uses();
  add_use(uses, "reduce_scatter_f32", 4e6, false, false, Level::inside, 4);
  add_use(uses, "all_reduce_f32", 1e6, false, false, Level::across, 4);
  const Network two = Network::parse("lab:alpha=10us,beta=1GBps,node=4,inner=nvlink");
  const auto step = model_step(uses, two, 8, 16);
  EXPECT_DOUBLE_EQ(step.wire_inside, 3.0 / 4 * 4e6);
  EXPECT_DOUBLE_EQ(step.wire_across, 2 * 3.0 / 4 * 1e6);
  EXPECT_DOUBLE_EQ(step.wire_bytes, step.wire_inside + step.wire_across);
  const double inside = 2 * two.inner.alpha + 3.0 / 4 * 4e6 / two.inner.beta;
  const double shared = 1e9 / 4;
  const double across = 4 * 10e-6 + 1.5 * 1e6 / shared;
  EXPECT_NEAR(step.seconds, inside + across, 1e-12);
  // Machines of the network that hold several of these, or parts of them.
  const auto on = [&uses](const std::string& network, int ranks) {
    return model_step(uses, Network::parse("lab:alpha=10us," + network + "inner=nvlink"), 8, ranks).seconds;
  };
  EXPECT_DOUBLE_EQ(on("beta=1GBps,node=8,", 8), on("beta=0.001GBps,node=8,", 8)) << "all ranks are on one machine";
  EXPECT_GT(on("beta=1GBps,node=8,", 16), on("beta=1GBps,node=8,", 8));
  // Half as many ranks on a machine: 4 exchange over two links, then 2 share each between machines.
  const Network half = Network::parse("lab:alpha=10us,beta=1GBps,node=2,inner=nvlink");
  const double spanned = half.inner.alpha + 2e6 / half.inner.beta + 10e-6 + 2e6 / 1e9;
  EXPECT_NEAR(model_step(uses, half, 8, 16).seconds, spanned + 4 * 10e-6 + 1.5e6 / 5e8, 1e-12);
  // Without machines both levels have links of their own.
  const auto flat = model_step(uses, kFlat, 8, 16);
  EXPECT_NEAR(flat.seconds, 2 * 10e-6 + 3e6 / 1e9 + 4 * 10e-6 + 1.5e6 / 1e9, 1e-12);
}

TEST(CostModel, AGatherBeatsTheDenseRingAboveARatioOfHalfTheRanks) {
  const Network no_latency = Network::parse("lab:alpha=0us,beta=1GBps");
  for (const int p : {2, 8, 32, 256}) {
    const double dense = seconds(Kind::all_reduce, 1, 4e6, no_latency, 4, p);
    EXPECT_NEAR(seconds(Kind::all_gather, 1, 4e6 / (p / 2.0), no_latency, 4, p), dense, 1e-12 * dense) << p;
  }
  EXPECT_DOUBLE_EQ(wire(Kind::all_gather, 1000, 4, 16), 15000);
  EXPECT_DOUBLE_EQ(wire(Kind::all_reduce, 4e6, 4, 16), 2 * 15.0 / 16 * 4e6);
  // Small vectors are sent as wholes, four times: the bytes are those of the algorithm that the time is of.
  EXPECT_DOUBLE_EQ(wire(Kind::all_reduce, 1000, 4, 16), 4 * 1000);
}

TEST(CostModel, ExchangesScaleAsAnAllToAll) {
  // Counted on 4 ranks: 3 messages of n/4 each. On 16 there are 15 of n/16.
  EXPECT_NEAR(seconds(Kind::exchange, 3, 750e3, kFlat, 4, 16), 15 * 10e-6 + 15.0 / 16 * 1e6 / 1e9, 1e-12);
  EXPECT_NEAR(seconds(Kind::exchange, 3, 750e3, kFlat, 4, 4), 3 * 10e-6 + 750e3 / 1e9, 1e-12);
  EXPECT_DOUBLE_EQ(wire(Kind::exchange, 750e3, 4, 16), 15.0 / 16 * 1e6);
}

TEST(CostModel, TwoLevelsCombineInsideFirst) {
  Network two = Network::parse("lab:alpha=10us,beta=1GBps,node=4,inner=nvlink");
  two.inner = {1e-6, 100e9};
  // 1 GB on 2 machines of 4: reduce-scatter and all-gather inside, 3/4 of it each, then an exchange of two.
  const double inside = 2 * (2 * 1e-6 + 0.75 * 1e9 / 100e9);
  EXPECT_NEAR(seconds(Kind::all_reduce, 1, 1e9, two, 4, 8), inside + 10e-6 + 1.0, 1e-9);
  // Parts of 1 MB on 2 machines of 4: 4 MB cross the link, 3 x 2 MB move inside.
  EXPECT_NEAR(seconds(Kind::all_gather, 1, 1e6, two, 4, 8), 10e-6 + 4e-3 + 2 * 1e-6 + 6e6 / 100e9, 1e-12);
  // 100 bytes in whole vectors: two doublings inside, and one across, where the four of a machine share the link.
  EXPECT_NEAR(seconds(Kind::all_reduce, 1, 100, two, 4, 8), 2 * (1e-6 + 1e-9) + 10e-6 + 0.4e-6, 1e-12);
  // One machine uses no link.
  EXPECT_NEAR(seconds(Kind::all_reduce, 1, 1e9, two, 4, 4), inside, 1e-9);
}

TEST(Network, ReadsProfilesAndOnesOfYourOwn) {
  EXPECT_NEAR(Network::parse("10gbe").link.beta, 1.175e9, 1e3);
  const Network lab = Network::parse("lab:alpha=5us,beta=100Gbps");
  EXPECT_DOUBLE_EQ(lab.link.alpha, 5e-6);
  EXPECT_DOUBLE_EQ(lab.link.beta, 12.5e9);
  EXPECT_EQ(lab.name, "lab:alpha=5us,beta=100Gbps");
  EXPECT_DOUBLE_EQ(Network::parse("10gbe:alpha=1ms").link.alpha, 1e-3);
  EXPECT_EQ(Network::parse("100gbe:node=8").node, 8);
  for (const char* wrong : {"", "10gb", "lab", "lab:alpha=5us", "lab:beta=1GBps", "lab:alpha=5,beta=1GBps",
                            "10gbe:beta=0GBps", "10gbe:beta=fast", "10gbe:node=0", "10gbe:node=2.5", "10gbe:inner=x",
                            "10gbe:speed=1", "10gbe:alpha", "10gbe:", "10gbe:node=2,", "100gbe:inner=nvlink"}) {
    try {
      static_cast<void>(Network::parse(wrong));
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::usage);
      EXPECT_NE(std::string{error.what()}.find("25gbe"), std::string::npos) << error.what();
    }
  }
}

TEST(Network, ReadsNodeCounts) {
  EXPECT_EQ(parse_node_counts("2,4,8"), (std::vector<int>{2, 4, 8}));
  EXPECT_EQ(parse_node_counts("2,...,16"), (std::vector<int>{2, 4, 8, 16}));
  EXPECT_EQ(parse_node_counts("3,...,20"), (std::vector<int>{3, 6, 12, 20}));
  for (const char* wrong : {"", "0", "4,2", "...", "2,...", "two", "2,2", "-4", "2,", "2,...,...,8"})
    EXPECT_THROW(static_cast<void>(parse_node_counts(wrong)), Error) << wrong;
}

}  // namespace
}  // namespace gradtool::test
