#include "lib/comm/udp/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

[[noreturn]] void refuse(std::string_view key, std::string_view value, const char* valid) {
  throw_error(Fault::usage, "--comm udp:{}={} is not valid; write {}", key, value, valid);
}

/// The number at the beginning of `text` and what follows it. No number: NaN.
std::pair<double, std::string_view> number_and_unit(std::string_view text) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number)) return {std::nan(""), text};
  return {number, text.substr(static_cast<std::size_t>(end - text.data()))};
}

double share(std::string_view key, std::string_view value) {
  const auto [number, unit] = number_and_unit(value);
  if (!(number >= 0.0 && number <= 1.0) || !unit.empty()) refuse(key, value, "a share from 0 to 1, such as 0.01");
  return number;
}

/// Bytes a second.
double rate(std::string_view key, std::string_view value) {
  const auto [number, unit] = number_and_unit(value);
  const double bits = unit == "Gbps" ? 1e9 : unit == "Mbps" ? 1e6 : 0.0;
  const double rate = number * bits / 8.0;
  if (!(rate >= 62.5e3 && rate <= 1.25e11)) refuse(key, value, "a rate from 0.5Mbps to 1000Gbps, such as 1Gbps");
  return rate;
}

double seconds(std::string_view key, std::string_view value) {
  const auto [number, unit] = number_and_unit(value);
  const double scale = unit == "us" ? 1e-6 : unit == "ms" ? 1e-3 : unit == "s" ? 1.0 : 0.0;
  const double time = number * scale;
  if (!(time >= 10e-6 && time <= 10.0)) refuse(key, value, "a time from 10us to 10s, such as 5ms");
  return time;
}

std::size_t packet(std::string_view key, std::string_view value) {
  const auto [number, unit] = number_and_unit(value);
  if (!unit.empty() || !(number >= 64.0 && number <= 65432.0) || std::fmod(number, 4.0) != 0.0)
    refuse(key, value, "bytes from 64 to 65432, a multiple of 4: 1424 for Ethernet's 1500, 8924 for jumbo frames");
  return static_cast<std::size_t>(number);
}

bool on_or_off(std::string_view key, std::string_view value) {
  if (value != "on" && value != "off") refuse(key, value, "on or off");
  return value == "on";
}

/// The keys, and what each sets.
struct Key {
  std::string_view name;
  void (*set)(UdpOptions& options, std::string_view key, std::string_view value);
};
constexpr Key kKeys[] = {
    {"loss", [](auto& options, auto key, auto value) { options.loss = share(key, value); }},
    {"back", [](auto& options, auto key, auto value) { options.loss_back = share(key, value); }},
    {"important", [](auto& options, auto key, auto value) { options.loss_important = share(key, value); }},
    {"sums", [](auto& options, auto key, auto value) { options.loss_sums = share(key, value); }},
    {"mark",
     [](auto& options, auto key, auto value) { options.mark = on_or_off(key, value), options.mark_given = true; }},
    {"packet", [](auto& options, auto key, auto value) { options.packet = packet(key, value); }},
    {"rate", [](auto& options, auto key, auto value) { options.rate = rate(key, value); }},
    {"first", [](auto& options, auto key, auto value) { options.first_rate = rate(key, value); }},
    {"delay", [](auto& options, auto key, auto value) { options.delay = seconds(key, value); }},
};

[[noreturn]] void throw_unknown(std::string_view key) {
  std::vector<std::string> keys;
  for (const Key& one : kKeys) keys.emplace_back(one.name);
  const std::string meant = nearest(key, keys);
  throw_error(Fault::usage, "--comm udp has no {}{}; it has {}", key,
              meant.empty() ? "" : fmt::format(" (did you mean {}?)", meant), joined(keys, ", "));
}

}  // namespace

UdpOptions parse_udp_options(std::string_view text) {
  UdpOptions options;
  options.text = text;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view pair = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos)
      throw_error(Fault::usage, "--comm udp:{} is not valid; write key=value,..., such as loss=0.01", pair);
    const std::string_view name = pair.substr(0, equals);
    const auto* const found =
        std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& key) { return key.name == name; });
    if (found == std::end(kKeys)) throw_unknown(name);
    found->set(options, name, pair.substr(equals + 1));
  }
  return options;
}

}  // namespace gradtool
