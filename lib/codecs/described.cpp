#include "lib/codecs/described.hpp"

#include <nlohmann/json.hpp>

namespace gradtool {
namespace {

using Json = nlohmann::ordered_json;

Json described(const ParamInfo& info) {
  Json parameter{{"name", info.name}, {"default", info.default_value}, {"meaning", info.meaning}};
  if (info.kind != ParamInfo::Kind::choice) parameter["min"] = info.min, parameter["max"] = info.max;
  if (!info.choices.empty()) parameter["choices"] = info.choices;
  if (!info.search.empty()) parameter["search"] = info.search;
  return parameter;
}

Json described(const CodecDescriptor& codec) {
  auto parameters = Json::array();
  for (const ParamInfo& info : codec.params) parameters.push_back(described(info));
  auto spaces = Json::array({"host"});
  if (on_cuda(codec)) spaces.push_back("cuda");
  const MemoryPasses passes = memory_passes(codec, Params{codec.name, codec.params, ""});
  const char* const again = passes.again == ReadAgain::unit     ? "unit"
                            : passes.again == ReadAgain::tensor ? "tensor"
                                                                : "never";
  return {{"name", codec.name},
          {"parameters", parameters},
          {"aggregation", name_of(codec.aggregation)},
          {"unbiased", codec.unbiased},
          {"error_feedback", codec.error_feedback},
          {"determinism", name_of(codec.determinism)},
          {"spaces", spaces},
          {"payload", codec.payload},
          {"summary", codec.summary},
          {"reference", codec.reference},
          {"description", codec.description},
          {"memory", codec.memory},
          {"by_layout", codec.by_layout},
          {"needs_weight", codec.needs_weight},
          {"needs_second_moment", codec.needs_second_moment},
          {"memory_floor",
           {{"reads", passes.reads},
            {"reads_again", again},
            {"why", passes.why},
            {"kept", passes.kept},
            {"side", passes.side},
            {"scatters", passes.scatters}}}};
}

}  // namespace

std::string described(std::span<const CodecDescriptor* const> codecs) {
  auto all = Json::array();
  for (const CodecDescriptor* codec : codecs) all.push_back(described(*codec));
  return all.dump();
}

}  // namespace gradtool
