#include "lib/codecs/reducer.hpp"

#include <fmt/format.h>

#include "lib/codecs/generic_reducers.hpp"

namespace gradtool {

std::string_view name_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::automatic:
      return "auto";
    case Scheme::sum:
      return "sum";
    case Scheme::gather:
      return "gather";
    case Scheme::hop:
      return "hop";
    case Scheme::own:
      return "own";
  }
  return "";
}

void detail::throw_no_cuda(std::string_view codec) {
  throw Error{Fault::unavailable, fmt::format("codec {} has no CUDA version in this build; use --device cpu", codec)};
}

Scheme resolve(Scheme scheme, const CodecSpec& spec) {
  const CodecDescriptor& codec = *spec.descriptor;
  if (scheme == Scheme::automatic || scheme == Scheme::own || codec.aggregation == Aggregation::none) {
    if (codec.aggregation == Aggregation::own) return Scheme::own;
    return codec.aggregation == Aggregation::sum ? Scheme::sum : Scheme::gather;
  }
  if (codec.aggregation == Aggregation::own) {
    throw Error{Fault::usage, fmt::format("codec {} is a reducer of its own; leave --reduce at auto", codec.name)};
  }
  const bool hops = !codec.memory && !codec.by_layout;
  if (scheme == Scheme::sum && codec.aggregation != Aggregation::sum) {
    throw Error{Fault::usage, fmt::format("codec {} cannot ride on a sum: its payloads do not add; use gather{}",
                                          codec.name, hops && !spec.error_feedback ? " or hop" : "")};
  }
  if (scheme == Scheme::hop && !hops) {
    throw Error{Fault::usage,
                fmt::format("codec {} works on {}, which has no meaning for the segments of hop; use gather",
                            codec.name, codec.memory ? "what it keeps of earlier steps" : "whole tensors")};
  }
  if (scheme == Scheme::hop && spec.error_feedback) {
    throw Error{Fault::usage,
                fmt::format("codec {} keeps a residual, which has no meaning when every hop encodes again; "
                            "add ef=off to the codec, or use gather",
                            codec.name)};
  }
  return scheme;
}

template <>
std::shared_ptr<const Codec<Space::host>> make_codec(const CodecSpec& spec, const Layout& layout) {
  if (!has_codec(*spec.descriptor)) return nullptr;
  return spec.descriptor->make_host(spec.params, layout);
}

template <>
std::unique_ptr<Reducer<Space::host>> make_reducer(const CodecSpec& spec,
                                                   std::shared_ptr<const Codec<Space::host>> codec, Scheme scheme,
                                                   const Layout& layout, int ranks, Queue<Space::host> queue) {
  return detail::build_reducer<Space::host>(spec, std::move(codec), scheme, layout, ranks, queue);
}

}  // namespace gradtool
