#include "lib/codecs/registry.hpp"

#include <fmt/format.h>

#include "lib/core/error.hpp"
#include "lib/core/text.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kErrorFeedback{.name = "ef",
                                   .kind = ParamInfo::Kind::choice,
                                   .default_value = "default",
                                   .choices = "default|on|off|ef21",
                                   .meaning =
                                       "on: keep what was not sent and add it to the next step; ef21: send the "
                                       "difference to what was sent before"};

/// Throws Fault::usage for codecs with which the differences of EF21 need not shrink. What decides is the codec's
/// promise for a matrix of 1024 x 1024: an error whose energy, or whose largest element, is smaller than the
/// gradient's. Biased codecs may promise an energy as large, as those do that leave elements out or shrink them
/// (promises are rounded up a little); with an unbiased one the differences would grow.
void expect_contractive(const CodecDescriptor& codec, const Params& params) {
  if (codec.aggregation == Aggregation::own) {
    throw Error{
        Fault::usage,
        fmt::format("codec {} is a reducer of its own, which decides what it sends; ef=ef21 does not apply, use "
                    "ef=on or ef=off",
                    codec.name)};
  }
  constexpr double kRounding = 1e-5;
  const ErrorBound bound = codec.make_host(params, Layout::matrix(1024, 1024))->bound(1024 * 1024);
  const bool contractive =
      bound.nmse < 1.0 || bound.of_largest < 1.0 || (!codec.unbiased && bound.nmse <= 1.0 + kRounding);
  if (codec.aggregation == Aggregation::none || !contractive) {
    throw Error{Fault::usage,
                fmt::format("codec {} does not promise an error smaller than its gradient, without which ef=ef21 need "
                            "not converge; use ef=on, ef=off or other parameters",
                            codec.name)};
  }
}

}  // namespace

std::string how_to_get(const CodecLeftOut& codec) {
  return fmt::format(
      "codec {} is not in this build, which lacks {}; install it (Debian, Ubuntu: apt install {}), configure with "
      "-DGRADTOOL_{}=ON and build again",
      codec.name, codec.part, codec.package, codec.part);
}

const CodecDescriptor& find_codec(std::string_view name) {
  std::vector<std::string> names;
  for (const auto* codec : codecs()) {
    if (codec->name == name) return *codec;
    names.emplace_back(codec->name);
  }
  for (const CodecLeftOut& codec : codecs_left_out()) {
    if (codec.name == name) throw Error{Fault::unavailable, how_to_get(codec)};
    names.emplace_back(codec.name);
  }
  const std::string near = nearest(name, names);
  throw Error{Fault::usage, near.empty() ? fmt::format("unknown codec '{}'; there are {}", name, joined(names, ", "))
                                         : fmt::format("unknown codec '{}'; did you mean '{}'?", name, near)};
}

CodecSpec parse_codec(std::string_view text) {
  const auto colon = text.find(':');
  const CodecDescriptor& descriptor = find_codec(text.substr(0, colon));
  std::string own;  // everything but ef=
  std::string feedback;
  std::string_view rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  if (colon != std::string_view::npos &&
      (rest.empty() || rest.starts_with(',') || rest.ends_with(',') || rest.find(",,") != std::string_view::npos)) {
    throw Error{Fault::usage, fmt::format("codec '{}' has an empty parameter; write {} or {}:key=value,...", text,
                                          descriptor.name, descriptor.name)};
  }
  while (!rest.empty()) {
    const auto end = std::min(rest.find(','), rest.size());
    auto& target = rest.substr(0, end).starts_with("ef=") || rest.substr(0, end) == "ef" ? feedback : own;
    target += fmt::format("{}{}", target.empty() ? "" : ",", rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const Params general{descriptor.name, std::span{&kErrorFeedback, 1}, feedback};
  if (descriptor.memory && !general.is("ef", "default")) {
    throw Error{Fault::usage,
                fmt::format("codec {} decides itself what is kept from step to step; ef does not apply, leave it out",
                            descriptor.name)};
  }
  Params params{descriptor.name, descriptor.params, own};
  const bool amplified = !descriptor.amplifier.empty() && params.is(descriptor.amplifier, "on");
  if (amplified && general.is("ef", "on")) {
    throw Error{
        Fault::usage,
        fmt::format("codec {} sends more than there is with {}=on, with which error feedback diverges; use {}=off "
                    "or ef=off",
                    descriptor.name, descriptor.amplifier, descriptor.amplifier)};
  }
  CodecSpec spec{&descriptor, std::move(params),
                 general.is("ef", "default") ? descriptor.error_feedback && !amplified : general.is("ef", "on"),
                 std::string{colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1)},
                 general.is("ef", "ef21")};
  if (spec.ef21) expect_contractive(descriptor, spec.params);
  return spec;
}

namespace {

/// `text` cut at commas outside of brackets.
std::vector<std::string> cut_at_commas(std::string_view text, std::string_view list) {
  std::vector<std::string> parts{{}};
  bool inside = false;
  for (const char c : text) {
    if ((c == '[' && inside) || (c == ']' && !inside)) {
      inside = true;
      break;
    }
    if (c == '[' || c == ']') inside = c == '[';
    if (c == ',' && !inside)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  if (inside) {
    throw Error{Fault::usage,
                fmt::format("--codec '{}': the brackets do not match; write values as ratio=[0.001,0.01]", list)};
  }
  return parts;
}

}  // namespace

std::vector<std::string> expand_codec_list(std::string_view text) {
  constexpr std::size_t kMost = 1000;
  std::vector<std::string> codecs;
  for (std::string& part : cut_at_commas(text, text)) {
    const auto equals = part.find('=');
    const bool parameter = part.empty() || (equals != std::string::npos && part.find(':') > equals);
    if (parameter && !codecs.empty())
      codecs.back() += "," + part;
    else
      codecs.push_back(std::move(part));
  }
  for (std::size_t i = 0; i < codecs.size();) {
    const auto open = codecs[i].find('[');
    if (open == std::string::npos) {
      ++i;
      continue;
    }
    const std::string codec = codecs[i];
    const auto close = codec.find(']', open);
    std::vector<std::string> each;
    for (const auto& value : cut_at_commas(std::string_view{codec}.substr(open + 1, close - open - 1), text))
      each.push_back(codec.substr(0, open) + value + codec.substr(close + 1));
    codecs.erase(codecs.begin() + static_cast<std::ptrdiff_t>(i));
    codecs.insert(codecs.begin() + static_cast<std::ptrdiff_t>(i), each.begin(), each.end());
    if (codecs.size() > kMost) {
      throw Error{Fault::usage, fmt::format("--codec '{}' names more than {} codecs; name fewer values", text, kMost)};
    }
  }
  return codecs;
}

std::string CodecSpec::params_text() const {
  std::string text = params.text();
  if (ef21 || error_feedback != descriptor->error_feedback) {
    text += fmt::format("{}ef={}", text.empty() ? "" : ",", ef21 ? "ef21" : error_feedback ? "on" : "off");
  }
  return text;
}

MemoryPasses memory_passes(const CodecDescriptor& codec, const Params& params) {
  if (codec.passes != nullptr) return codec.passes(params);
  return {.kept = codec.delays || !codec.target.empty() ? 1 : 0};
}

std::vector<CodecSpec> all_codecs() {
  std::vector<CodecSpec> specs;
  for (const auto* codec : codecs()) specs.push_back(parse_codec(codec->name));
  return specs;
}

std::string_view name_of(Aggregation aggregation) {
  switch (aggregation) {
    case Aggregation::sum:
      return "sum";
    case Aggregation::gather:
      return "gather";
    case Aggregation::own:
      return "own";
    case Aggregation::none:
      return "none";
  }
  return "";
}

std::string_view name_of(Determinism determinism) {
  switch (determinism) {
    case Determinism::not_guaranteed:
      return "not_guaranteed";
    case Determinism::run_to_run:
      return "run_to_run";
    case Determinism::cross_backend:
      return "cross_backend";
  }
  return "";
}

std::string spaces_of(const CodecDescriptor& codec) {
  return on_cuda(codec) ? "host,cuda" : "host";
}

}  // namespace gradtool
