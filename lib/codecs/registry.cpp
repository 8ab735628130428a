#include "lib/codecs/registry.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lib/codecs/prototype.hpp"
#include "lib/codecs/reducer.hpp"
#include "lib/core/parse.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {
namespace {

constexpr ParamInfo kGeneral[] = {
    choice_param("ef", "default", "default|on|off|ef21|ef21m",
                 "on: keep what was not sent and add it to the next step; ef21: send the difference to what was sent "
                 "before; ef21m: the same of an average over steps"),
    real_param("eta", "0.1", {1e-6, 0.999999}, "weight of a step's gradient in the average of ef=ef21m"),
    choice_param("reduce", "auto", "auto|sum|gather|hop|alltoall", "the way of the payloads in an all-reduce"),
    choice_param("own", "coded", "coded|exact", "how an owner of reduce=alltoall adds its own shard"),
    integer_param("segment", "1", {1, 1 << 20}, "elements of which shards of reduce=alltoall hold a multiple"),
    integer_param("gate", "0", {0.0, 0x1p40}, "units of fewer raw bytes are reduced uncompressed")};

/// Whether `word`, "key=value", belongs to the parameters above. A codec's own parameter of such a name is its own.
bool is_general(std::string_view word, std::span<const ParamInfo> own) {
  const auto names = [word](const ParamInfo& p) {
    return word.starts_with(p.name) && (word.size() == p.name.size() || word[p.name.size()] == '=');
  };
  return std::any_of(std::begin(kGeneral), std::end(kGeneral), names) && std::none_of(own.begin(), own.end(), names);
}

/// Throws Fault::usage for codecs with which the differences of EF21 need not shrink. What decides is the codec's
/// promise for a matrix of 1024 x 1024: an error whose energy, or whose largest element, is smaller than the
/// gradient's. Biased codecs may promise an energy as large, as those do that leave elements out or shrink them
/// (promises are rounded up a little); with an unbiased one the differences would grow.
void expect_contractive(const CodecDescriptor& codec, const Params& params) {
  if (codec.aggregation == Aggregation::own) {
    throw_error(Fault::usage,
                "codec {} is a reducer of its own, which decides what it sends; ef=ef21 and "
                "ef21m do not apply, use ef=on or ef=off",
                codec.name);
  }
  constexpr double kRounding = 1e-5;
  const ErrorBound bound = codec.make_host(params, Layout::matrix(1024, 1024))->bound(1024 * 1024);
  const bool contractive =
      bound.nmse < 1.0 || bound.of_largest < 1.0 || (!codec.unbiased && bound.nmse <= 1.0 + kRounding);
  if (codec.aggregation == Aggregation::none || !contractive) {
    throw_error(Fault::usage,
                "codec {} does not promise an error smaller than its gradient, without which "
                "ef21 need not converge; use ef=on, ef=off or other parameters",
                codec.name);
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
  if (name == kPrototype) throw Error{Fault::usage, "codec python is a class in a file of yours: write python:mine.py"};
  std::vector<std::string> names;
  for (const auto* codec : codecs()) {
    if (codec->name == name) return *codec;
    names.emplace_back(codec->name);
  }
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  for (const CodecLeftOut& codec : codecs_left_out()) {
    if (codec.name == name) throw Error{Fault::unavailable, how_to_get(codec)};
    names.emplace_back(codec.name);
  }
  const std::string near = nearest(name, names);
  throw Error{Fault::usage, near.empty() ? fmt::format("unknown codec '{}'; there are {}", name, joined(names, ", "))
                                         : fmt::format("unknown codec '{}'; did you mean '{}'?", name, near)};
}

namespace {

CodecSpec parse(std::string_view text, PrototypeText (*read)(std::string_view)) {
  const auto colon = text.find(':');
  if (const Preset* preset = find_preset(text.substr(0, colon))) {
    std::string whole{preset->spec};
    if (colon != std::string_view::npos) {
      const auto own_gate = whole.find(",gate=");
      if (own_gate != std::string::npos &&
          fmt::format(",{}", text.substr(colon + 1)).find(",gate=") != std::string::npos)
        whole.resize(own_gate);
      whole += fmt::format(",{}", text.substr(colon + 1));
    }
    return parse(whole, read);
  }
  std::string_view rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  PrototypeText prototype;
  if (is_prototype(text)) {
    prototype = read(rest);
    rest = prototype.params;
  }
  const CodecDescriptor& descriptor =
      prototype.descriptor != nullptr ? *prototype.descriptor : find_codec(text.substr(0, colon));
  std::string own;     // the codec's own parameters
  std::string of_any;  // those that every codec takes
  if (colon != std::string_view::npos &&
      (rest.empty() || rest.starts_with(',') || rest.ends_with(',') || rest.find(",,") != std::string_view::npos)) {
    throw_error(Fault::usage, "codec '{}' has an empty parameter; write {} or {}:key=value,...", text, descriptor.name,
                descriptor.name);
  }
  for (const std::string_view one : split(rest, ',')) {
    auto& target = is_general(one, descriptor.params) ? of_any : own;
    target += fmt::format("{}{}", target.empty() ? "" : ",", one);
  }
  const Params general{descriptor.name, kGeneral, of_any};
  const bool averages = general.is("ef", "ef21m");
  if (!averages && fmt::format(",{}", of_any).find(",eta=") != std::string::npos) {
    throw_error(Fault::usage, "codec {}: eta is the momentum of ef=ef21m; add ef=ef21m or leave eta out",
                descriptor.name);
  }
  if (descriptor.memory && !general.is("ef", "default")) {
    throw_error(Fault::usage, "codec {} decides itself what is kept from step to step; ef does not apply, leave it out",
                descriptor.name);
  }
  Params params{descriptor.name, descriptor.params, own};
  const bool amplified = !descriptor.amplifier.empty() && params.is(descriptor.amplifier, "on");
  if (amplified && general.is("ef", "on")) {
    throw_error(
        Fault::usage,
        "codec {} sends more than there is with {}=on, with which error feedback diverges; use {}=off or ef=off",
        descriptor.name, descriptor.amplifier, descriptor.amplifier);
  }
  CodecSpec spec{&descriptor,
                 std::move(params),
                 general.is("ef", "default") ? descriptor.error_feedback && !amplified : general.is("ef", "on"),
                 std::string{colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1)},
                 general.is("ef", "ef21") || averages,
                 averages ? general.real("eta") : 1.0,
                 named<Scheme>(general.word("reduce")).value(),
                 general.is("own", "exact"),
                 static_cast<std::size_t>(general.integer("segment")),
                 static_cast<std::uint64_t>(general.integer("gate"))};
  if (spec.ef21) expect_contractive(descriptor, spec.params);
  if (spec.way != Scheme::automatic) static_cast<void>(resolve(Scheme::automatic, spec));
  if ((spec.way != Scheme::automatic || spec.gate > 0) && (descriptor.name == "none" || descriptor.name == "noop"))
    throw_error(Fault::usage, "codec {} is a baseline, which has no other way; leave reduce= and gate= out",
                descriptor.name);
  if (spec.gate > 0 && (spec.own_momentum() || !descriptor.target.empty())) {
    throw_error(Fault::usage,
                "codec {} has a momentum or an update of its own, which units below a gate would go without; leave "
                "gate= out{}",
                descriptor.name, spec.own_momentum() ? fmt::format(", or set {}=0", descriptor.momentum) : "");
  }
  if (spec.segment > 1 && spec.way != Scheme::alltoall) {
    throw_error(Fault::usage,
                "codec {}: segment= is for the shards of reduce=alltoall; add reduce=alltoall, or leave it out",
                descriptor.name);
  }
  if (spec.own_exact && (spec.way != Scheme::alltoall || spec.error_feedback)) {
    throw_error(Fault::usage,
                "codec {}: own=exact is for the owners of reduce=alltoall, whose own shards "
                "have no residual; add reduce=alltoall and ef=off, or leave it out",
                descriptor.name);
  }
  return spec;
}

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
  if (inside)
    throw_error(Fault::usage, "--codec '{}': the brackets do not match; write values as ratio=[0.001,0.01]", list);
  return parts;
}

}  // namespace

std::span<const Preset> presets() {
  static constexpr Preset kPresets[] = {
      {.name = "flashinfer-fp8",
       .spec = "fp8:format=e4m3,block=256,reduce=alltoall",
       .meaning = "E4M3 in groups of 256, as flashinfer's all-reduce in two steps sends it"},
      {.name = "quickreduce-int4",
       .spec = "int8:bits=4,scale=f16,block=32,reduce=alltoall,gate=2097152",
       .meaning = "QuickReduce in vLLM: symmetric groups of 32, units below 2 MB uncompressed"},
      {.name = "quickreduce-int6",
       .spec = "int8:bits=6,scale=f16,block=32,reduce=alltoall,gate=2097152",
       .meaning = "the same with 6 bits"},
      {.name = "quickreduce-int8",
       .spec = "int8:bits=8,scale=f16,block=32,reduce=alltoall,gate=2097152",
       .meaning = "the same with 8 bits"},
      {.name = "torchcomms-fp8",
       .spec = "fp8:format=e4m3,block=128,reduce=alltoall,own=exact,segment=512,gate=16777216",
       .meaning = "fp8 of torchcomms and RCCLX: float32 sums at the owners, shards of whole 512 elements, units below "
                  "16 MiB uncompressed"}};
  return kPresets;
}

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : presets()) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

CodecSpec parse_codec(std::string_view text) {
  return parse(text, read_prototype);
}

CodecSpec parse_recorded_codec(std::string_view text) {
  return parse(text, recorded_prototype);
}

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
    if (codecs.size() > kMost)
      throw_error(Fault::usage, "--codec '{}' names more than {} codecs; name fewer values", text, kMost);
  }
  return codecs;
}

std::string CodecSpec::params_text() const {
  std::string text = params.text();
  // The record of a prototype says it always: nobody who reads it knows the class.
  const bool unknown = descriptor->name == kPrototype && error_feedback;
  if (ef21 || error_feedback != descriptor->error_feedback || unknown) {
    text += fmt::format("{}ef={}", text.empty() ? "" : ",", feedback_name());
    if (feedback().averages()) text += fmt::format(",eta={}", eta);
  }
  if (way != Scheme::automatic) text += fmt::format("{}reduce={}", text.empty() ? "" : ",", name_of(way));
  if (own_exact) text += ",own=exact";
  if (segment > 1) text += fmt::format(",segment={}", segment);
  if (gate > 0) text += fmt::format("{}gate={}", text.empty() ? "" : ",", gate);
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

std::string spaces_of(const CodecDescriptor& codec) {
  return on_cuda(codec) ? "host,cuda" : "host";
}

}  // namespace gradtool
