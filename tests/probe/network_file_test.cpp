// Tests that --network reads what probe writes, and refuses in one sentence what is no network file.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lib/core/error.hpp"
#include "lib/model/network.hpp"
#include "lib/probe/probe.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;

class NetworkFiles : public testing::Test {
 protected:
  NetworkFiles() : folder_{fs::path{testing::TempDir()} / fmt::format("network_file_{}", getpid())} {
    fs::create_directories(folder_);
  }
  ~NetworkFiles() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream{folder_ / name} << text;
    return (folder_ / name).string();
  }
  fs::path folder_;
};

/// A probe whose samples are the model's own times.
ProbeReport planted(const Link& alone, const Link& together) {
  ProbeReport report;
  report.ranks = 4;
  report.hosts = 4;
  for (const Pattern pattern : {Pattern::pair, Pattern::sendrecv}) {
    std::vector<SizeTimes> sizes;
    for (double bytes = 8.0; bytes <= 1 << 20; bytes *= 8.0) {
      const double seconds = modelled_seconds(pattern, bytes, 4, pattern == Pattern::pair ? alone : together);
      sizes.push_back({.bytes = bytes, .seconds = std::vector<double>(6, seconds), .rounds = {3, 3}});
      report.rows.push_back(
          {.pattern = pattern, .bytes = static_cast<std::uint64_t>(bytes), .repeats = 1, .times = sizes.back()});
    }
    report.patterns.push_back(pattern);
    report.fits.push_back(fit_link(pattern, sizes, 4));
  }
  return report;
}

TEST_F(NetworkFiles, HaveWhatWasMeasured) {
  const Link alone{40e-6, 0.118e9}, together{55e-6, 0.1e9};
  const std::string path = write("rack.json", record({}, planted(alone, together), "rack-7").dump());
  const Network network = Network::from_option(path);
  EXPECT_NEAR(network.link.alpha, together.alpha, 1e-3 * together.alpha);
  EXPECT_NEAR(network.link.beta, together.beta, 1e-3 * together.beta);
  EXPECT_TRUE(network.name.starts_with("rack-7:alpha=")) << network.name;
  const Network again = Network::parse(network.name);  // as report reads it from bench's record
  EXPECT_EQ(again.name, network.name);
  EXPECT_EQ(again.link.alpha, network.link.alpha);
  EXPECT_EQ(again.link.beta, network.link.beta);
  EXPECT_EQ(Network::from_option(path + ":node=8,inner=nvlink").node, 8);
  EXPECT_EQ(Network::from_option("10GbE").link.beta, Network::parse("10gbe").link.beta);
}

TEST_F(NetworkFiles, AreToldFromProfiles) {
  EXPECT_EQ(network_file("10gbe"), "");
  EXPECT_EQ(network_file("lab:alpha=5us,beta=1GBps"), "");
  EXPECT_EQ(network_file("net.json"), "net.json");
  EXPECT_EQ(network_file("a/net.json:node=8"), "a/net.json");
  EXPECT_EQ(network_file("net.jsonx"), "");
  const std::string there = write("net", "{}");
  EXPECT_EQ(network_file(there), there);
  EXPECT_DOUBLE_EQ(Network::parse("lab:alpha=1us,beta=1GBps,contention=2").link.beta, 0.5e9);
  EXPECT_THROW(static_cast<void>(Network::parse("lab:alpha=1us,beta=1GBps,contention=0")), Error);
}

TEST_F(NetworkFiles, SayHowFarTheirLineIsOff) {
  const auto file = [&](const std::string& fits, const std::string& from = "sendrecv") {
    return Network::from_option(write(
        "net.json",
        R"({"format":"gradtool.network","schema_version":1,"name":"n","link":{"alpha_us":5,"beta_gbit_s":1,"contention":1,"from":")" +
            from + "\"},\"fits\":" + fits + "}"));
  };
  const std::string fits =
      R"([{"collective":"pair","misfit":3,"fits":false},{"collective":"sendrecv","misfit":0.4,"fits":false}])";
  EXPECT_DOUBLE_EQ(file(fits).misfit, 0.4);
  EXPECT_EQ(file(fits).name, "n:alpha=5us,beta=1Gbps,contention=1,misfit=0.4");
  EXPECT_DOUBLE_EQ(Network::parse(file(fits).name).misfit, 0.4);
  EXPECT_EQ(file(fits).link.beta, 0.125e9);
  EXPECT_DOUBLE_EQ(file(fits, "pair").misfit, 3.0);
  // A line that fits, another collective's, and files of other programs say nothing.
  for (const char* none :
       {R"([{"collective":"sendrecv","misfit":0.4,"fits":true}])", R"([{"collective":"pair","misfit":3,"fits":false}])",
        R"([{"collective":"sendrecv","misfit":"much","fits":false}])", "[7]", "{}", "null", R"("no")"}) {
    EXPECT_EQ(file(none).misfit, 0.0) << none;
  }
  EXPECT_THROW(static_cast<void>(Network::parse("lab:alpha=1us,beta=1GBps,misfit=-1")), Error);
}

TEST_F(NetworkFiles, ThatAreNoneAreRefused) {
  const std::string good =
      R"({"format":"gradtool.network","schema_version":1,"name":"n","link":{"alpha_us":5,"beta_gbit_s":1,"contention":1}})";
  EXPECT_DOUBLE_EQ(Network::from_option(write("good.json", good)).link.beta, 0.125e9);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "no valid JSON"},
      {"{", "no valid JSON"},
      {good.substr(0, good.size() / 2), "cut off"},
      {"[]", "no network file"},
      {"{}", "no network file"},
      {R"({"format":"gradtool.bench","schema_version":2})", "no network file"},
      {with(":1,", ":2,"), "schema_version"},
      {with("\"n\"", "\"a b\""), "name"},
      {with("\"n\"", "7"), "name"},
      {with("\"n\"", "\"x:alpha=1us\""), "name"},
      {with(":5", ":-5"), "alpha_us"},
      {with(":5", ":\"5\""), "alpha_us"},
      {with("\"beta_gbit_s\":1", "\"beta_gbit_s\":0"), "beta_gbit_s"},
      {with("\"beta_gbit_s\":1", "\"beta_gbit_s\":1e999"), "JSON"},
      {with("\"beta_gbit_s\":1", "\"beta\":1"), "beta_gbit_s"},
      {with("\"contention\":1", "\"contention\":null"), "contention"},
      {with("{\"alpha_us\":5,\"beta_gbit_s\":1,\"contention\":1}", "[1]"), "alpha_us"}};
  for (const auto& [text, word] : cases) {
    const std::string path = write("bad.json", text);
    try {
      static_cast<void>(Network::from_option(path));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::data) << text;
      const std::string what = error.what();
      EXPECT_NE(what.find(word), std::string::npos) << what;
      EXPECT_NE(what.find("bad.json"), std::string::npos) << what;
    }
  }
  EXPECT_THROW(static_cast<void>(Network::from_option((folder_ / "gone.json").string())), Error);
  EXPECT_THROW(static_cast<void>(Network::from_option(folder_.string() + ".json")), Error);
}

}  // namespace
}  // namespace gradtool
