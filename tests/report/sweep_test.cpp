// Tests the page of `gradtool report` on what it models by itself: latencies of links of every speed, and the unit of
// its times.
#include "lib/page/sweep.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace gradtool::test {
namespace {

std::vector<Network> networks_of(const std::vector<std::string>& texts) {
  std::vector<Network> networks;
  networks.reserve(texts.size());
  for (const auto& text : texts) networks.push_back(Network::parse(text));
  return networks;
}

TEST(Sweep, LatenciesGoThroughTheProfiles) {
  const auto networks = networks_of({"10gbe"});
  const LatencyCurve curve{networks};
  for (const char* name : {"1gbe", "10gbe", "25gbe", "100gbe"}) {
    const Link link = Network::parse(name).link;
    EXPECT_NEAR(curve.at(link.beta * 8e-9), link.alpha, 1e-12) << name;
  }
  EXPECT_DOUBLE_EQ(curve.at(0.1), 50e-6);
  EXPECT_DOUBLE_EQ(curve.at(1000.0), 5e-6);
  EXPECT_EQ(curve.words().find("the Ethernet that gradtool knows: 50 us at 0.94 Gbit/s, "), 0U) << curve.words();
}

TEST(Sweep, LatenciesOfOnesOwnNetworkAreItsOwn) {
  const auto one = networks_of({"lab:alpha=7us,beta=10Gbps"});
  for (const double speed : {0.1, 10.0, 1000.0}) EXPECT_DOUBLE_EQ(LatencyCurve{one}.at(speed), 7e-6) << speed;
  EXPECT_EQ(LatencyCurve{one}.words(), "the networks of this record: 7 us at 10 Gbit/s");

  const auto two = networks_of({"lab:alpha=1us,beta=100Gbps", "1gbe", "late:alpha=100us,beta=1Gbps"});
  const LatencyCurve curve{two};
  EXPECT_DOUBLE_EQ(curve.at(0.5), 50e-6);
  EXPECT_NEAR(curve.at(10.0), 1e-6 * std::sqrt(100.0), 1e-12) << "halfway from 100 us to 1 us, in logarithms";
  EXPECT_DOUBLE_EQ(curve.at(500.0), 1e-6);
}

TEST(Sweep, ALatencyOfZeroIsInterpolatedToo) {
  const auto networks = networks_of({"a:alpha=0us,beta=1Gbps", "b:alpha=10us,beta=100Gbps"});
  EXPECT_NEAR(LatencyCurve{networks}.at(10.0), 5e-6, 1e-12);
}

TEST(Sweep, TheUnitSuitsTheTime) {
  EXPECT_EQ(time_unit_for(40e-6).name, "us");
  EXPECT_EQ(time_unit_for(1e-3).name, "ms");
  EXPECT_EQ(time_unit_for(0.9).name, "ms");
  EXPECT_EQ(time_unit_for(3.0).name, "s");
  for (const double seconds : {1e-5, 1e-2, 10.0}) {
    const TimeUnit unit = time_unit_for(seconds);
    EXPECT_DOUBLE_EQ(unit.per_us * 1e6, unit.per_second);
  }
}

}  // namespace
}  // namespace gradtool::test
