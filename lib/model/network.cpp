#include "lib/model/network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/core/files.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/report/json.hpp"

namespace gradtool {
namespace {

// Ethernet carries 1448 bytes of data in 1538 on the wire (MTU 1500, TCP with time stamps): 94 % of its rate. Latencies
// are those of TCP through a kernel up to 25 Gbit/s, of RDMA beyond.
constexpr double ethernet(double gbit) {
  return gbit * 1e9 / 8.0 * 0.94;
}
constexpr std::array<NetworkProfile, 9> kProfiles{
    {{"wan", {20e-3, ethernet(1)}, "1 Gbit/s over a long distance: 20 ms, 94 % of the rate"},
     {"1gbe", {50e-6, ethernet(1)}, "1 Gbit/s Ethernet, TCP: 50 us, 94 % of the rate"},
     {"10gbe", {30e-6, ethernet(10)}, "10 Gbit/s Ethernet, TCP: 30 us, 94 %"},
     {"25gbe", {20e-6, ethernet(25)}, "25 Gbit/s Ethernet, TCP: 20 us, 94 %"},
     {"100gbe", {5e-6, ethernet(100)}, "100 Gbit/s Ethernet, RoCE: 5 us, 94 %"},
     {"200gbe", {5e-6, ethernet(200)}, "200 Gbit/s Ethernet, RoCE: 5 us, 94 %"},
     {"400gbe", {5e-6, ethernet(400)}, "400 Gbit/s Ethernet, RoCE: 5 us, 94 %"},
     {"ndr", {2e-6, 48e9}, "InfiniBand NDR, 400 Gbit/s: 2 us, 48 GB/s"},
     {"nvlink", {2e-6, 360e9}, "NVLink 4 through a switch, one GPU: 2 us, 360 of 450 GB/s each way"}}};

[[noreturn]] void bad(const std::string& text, const std::string& why) {
  std::string names;
  for (const auto& profile : kProfiles) names += fmt::format("{}{}", names.empty() ? "" : ", ", profile.name);
  throw_error(Fault::usage,
              "--network '{}': {}; write one of {}, or NAME:alpha=5us,beta=12.5GBps, or the "
              "file of gradtool probe; give --network once for each",
              text, why, names);
}

/// In any case: people write 10GbE and NVLink.
const NetworkProfile* find_profile(std::string_view name) {
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  for (const auto& profile : kProfiles) {
    if (std::equal(name.begin(), name.end(), profile.name.begin(), profile.name.end(),
                   [&lower](char a, char b) { return lower(static_cast<unsigned char>(a)) == b; }))
      return &profile;
  }
  return nullptr;
}

/// A number and what stands behind it; NaN when there is no number.
std::pair<double, std::string> split_unit(std::string_view text) {
  double value = std::numeric_limits<double>::quiet_NaN();
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return {value, std::string{result.ptr, text.data() + text.size()}};
}

double seconds_in(const std::string& network, std::string_view text) {
  const auto [value, unit] = split_unit(text);
  const double scale = unit == "ns" ? 1e-9 : unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : unit == "s" ? 1.0 : 0.0;
  constexpr double kMost = 1e3;  // seconds, as in a file that probe wrote
  if (!(value >= 0.0 && value * scale <= kMost) || scale == 0.0)
    bad(network, fmt::format("'{}' is no latency from 0 to 1000 s, such as 5us or 0.2ms", text));
  return value * scale;
}

double bytes_per_second_in(const std::string& network, std::string_view text) {
  const auto [value, unit] = split_unit(text);
  const double scale = unit == "MBps"   ? 1e6
                       : unit == "GBps" ? 1e9
                       : unit == "Mbps" ? 1e6 / 8.0
                       : unit == "Gbps" ? 1e9 / 8.0
                                        : 0.0;
  constexpr double kLeast = 1.0, kMost = 1e18;  // bytes a second
  if (!(value * scale >= kLeast && value * scale <= kMost) || scale == 0.0)
    bad(network,
        fmt::format("'{}' is no rate from 1 byte a second to 1e9 GB/s, such as 12.5GBps (bytes) or 100Gbps (bits)",
                    text));
  return value * scale;
}

/// Refuses a key that stands twice behind the first colon from `from` on.
void expect_each_once(const std::string& text, std::size_t from) {
  std::set<std::string_view> keys;
  for (auto at = text.find(':', from); at < text.size(); at = text.find(',', at + 1)) {
    const std::string_view key = std::string_view{text}.substr(at + 1, text.find('=', at) - at - 1);
    if (!keys.insert(key).second) bad(text, fmt::format("{} is given twice", key));
  }
}

/// The network file as the text that parse() takes.
class NetworkFile {
 public:
  explicit NetworkFile(const std::string& path) : path_{path} {
    constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;
    json_ = parse_json(read_file(path, kMostBytes, "--network " + path));
    if (json_.is_discarded()) fail("is no valid JSON; it may have been cut off");
    if (!json_.is_object() || !json_.contains("format") || json_["format"] != kNetworkFormat)
      fail("is no network file, which gradtool probe -o writes");
    if (!json_.contains("schema_version") || json_["schema_version"] != kNetworkSchema) {
      fail(
          fmt::format("has a schema_version other than {}, which is the one that this gradtool reads", kNetworkSchema));
    }
  }

  [[nodiscard]] std::string text() const {
    std::string name;
    if (json_.contains("name") && json_["name"].is_string()) name = json_["name"].get<std::string>();
    if (!valid_network_name(name)) fail("has no name of letters, digits, dots, hyphens and underscores, 64 at most");
    const double alpha = number("alpha_us"), beta = number("beta_gbit_s");
    if (!(alpha >= 0.0 && alpha <= 1e9)) fail("has a link.alpha_us that is no latency in microseconds, 0 or more");
    if (!(beta > 0.0 && beta <= 1e9)) fail("has a link.beta_gbit_s that is no rate in Gbit/s, above 0");
    const double contention = number("contention");
    if (!(contention > 0.0 && contention <= 1e6)) fail("has a link.contention that is no number above 0");
    return fmt::format("{}:alpha={}us,beta={}Gbps,contention={}{}", name, alpha, beta, contention, misfit());
  }

 private:
  using Json = nlohmann::ordered_json;

  [[noreturn]] void fail(const std::string& why) const { throw_error(Fault::data, "--network {}: {}", path_, why); }
  /// ",misfit=..." where the fit that the link is from is there and does not fit.
  [[nodiscard]] std::string misfit() const {
    const auto of = [](const Json& object, const char* key) {
      return object.is_object() ? object.value(key, Json{}) : Json{};
    };
    const Json fits = of(json_, "fits"), from = of(json_["link"], "from");
    for (const Json& fit : fits) {
      const Json misfit = of(fit, "misfit");
      if (from.is_string() && of(fit, "collective") == from && of(fit, "fits") == false && misfit.is_number() &&
          misfit.get<double>() > 0.0)
        return fmt::format(",misfit={:.3g}", std::min(misfit.get<double>(), 1e6));
    }
    return {};
  }
  /// NaN where there is none.
  [[nodiscard]] double number(const char* key) const {
    if (!json_.contains("link") || !json_["link"].is_object() || !json_["link"].contains(key) ||
        !json_["link"][key].is_number())
      return std::numeric_limits<double>::quiet_NaN();
    return json_["link"][key].get<double>();
  }

  std::string path_;
  Json json_;
};

}  // namespace

bool valid_network_name(std::string_view name) {
  constexpr std::size_t kLongest = 64;
  return !name.empty() && name.size() <= kLongest && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
}

std::string network_file(const std::string& text) {
  constexpr std::string_view kEnding = ".json";
  for (auto at = text.find(kEnding); at != std::string::npos; at = text.find(kEnding, at + 1)) {
    const std::size_t end = at + kEnding.size();
    if (end == text.size() || text[end] == ':') return text.substr(0, end);
  }
  std::error_code unknown;
  const bool there = find_profile(text) == nullptr && std::filesystem::is_regular_file(text, unknown);
  return there ? text : std::string{};
}

Network Network::from_option(const std::string& text) {
  const std::string path = network_file(text);
  expect_each_once(text, path.size());
  if (path.empty()) return parse(text);
  std::string more = text.substr(path.size());
  if (!more.empty()) more.front() = ',';  // was the colon
  return parse(NetworkFile{path}.text() + more);
}

std::span<const NetworkProfile> network_profiles() {
  return kProfiles;
}

Network Network::parse(const std::string& text) {
  Network network;
  const auto colon = text.find(':');
  network.name = text.substr(0, colon);
  const auto* profile = find_profile(network.name);
  if (profile != nullptr) network.link = profile->link;
  bool alpha = profile != nullptr;
  bool beta = profile != nullptr;
  bool node = false;
  bool inner = false;
  double contention = 1.0;
  const auto items = colon == std::string::npos ? std::string_view{} : std::string_view{text}.substr(colon + 1);
  if (colon != std::string::npos && (items.empty() || items.back() == ','))
    bad(text, "a key=value is missing at its end");
  for (const std::string_view item : split(items, ',')) {
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) bad(text, fmt::format("'{}' is not key=value", item));
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    if (key == "alpha") {
      network.link.alpha = seconds_in(text, value);
      alpha = true;
    } else if (key == "beta") {
      network.link.beta = bytes_per_second_in(text, value);
      beta = true;
    } else if (key == "contention") {
      const auto [number, unit] = split_unit(value);
      if (!(number > 0.0 && number <= 1e6) || !unit.empty())
        bad(text, "contention is how many times longer a byte takes when all ranks send at once, such as 1.2");
      contention = number;
    } else if (key == "misfit") {
      const auto [number, unit] = split_unit(value);
      if (!(number > 0.0 && number <= 1e6) || !unit.empty())
        bad(text, "misfit is by how much measured times lie off the link's line, such as 0.4");
      network.misfit = number;
    } else if (key == "node") {
      const auto [number, unit] = split_unit(value);
      if (!(number >= 1.0 && number <= 1024.0) || number != std::floor(number) || !unit.empty())
        bad(text, "node is the ranks of one machine, 1 to 1024");
      network.node = static_cast<int>(number);
      node = true;
    } else if (key == "inner") {
      const auto* known = find_profile(value);
      if (known == nullptr) bad(text, fmt::format("inner '{}' is no profile", value));
      network.inner = known->link;
      inner = true;
    } else {
      bad(text, fmt::format("unknown key '{}'; there are alpha, beta, contention, misfit, node, inner", key));
    }
  }
  if (network.name.empty() || !alpha || !beta) bad(text, "no such profile, and alpha and beta are not both given");
  if (inner && !node) bad(text, "inner is the network inside a machine: give its ranks too, such as node=8");
  network.link.beta /= contention;
  if (network.node > 1 && !inner) network.inner = find_profile("nvlink")->link;
  network.name = (profile != nullptr ? std::string{profile->name} : network.name) +
                 (colon == std::string::npos ? "" : text.substr(colon));
  return network;
}

std::vector<int> parse_node_counts(const std::string& text) {
  const auto fail = [&](std::string_view why) {
    throw_error(Fault::usage, "--nodes '{}': {}; write 2,4,8 or 2,4,...,4096", text, why);
  };
  std::vector<int> counts;
  bool doubling = false;
  if (text.empty()) fail("'' is no number from 1 to 1048576");
  if (text.ends_with(',')) fail("a number is missing at its end");
  for (const std::string_view item : split(text, ',')) {
    if (item == "...") {
      if (counts.empty()) fail("it cannot begin with ...");
      if (doubling) fail("a number must follow ...");
      doubling = true;
      continue;
    }
    const int count = number_of<int>(item).value_or(0);
    if (count < 1 || count > (1 << 20)) fail(fmt::format("'{}' is no number from 1 to 1048576", item));
    if (doubling) {
      for (int next = counts.back() * 2; next < count; next *= 2) counts.push_back(next);
      doubling = false;
    }
    if (!counts.empty() && count <= counts.back()) fail("the numbers must ascend");
    counts.push_back(count);
  }
  if (doubling) fail("a number must follow ...");
  return counts;
}

}  // namespace gradtool
