#include "lib/reduce/reducer.hpp"

#include <fmt/format.h>

#include "lib/reduce/make_reducer.hpp"

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
  }
  return "";
}

Scheme resolve(Scheme scheme, const CodecSpec& spec) {
  const CodecDescriptor& codec = *spec.descriptor;
  if (scheme == Scheme::automatic || codec.aggregation == Aggregation::none) {
    return codec.aggregation == Aggregation::sum ? Scheme::sum : Scheme::gather;
  }
  if (scheme == Scheme::sum && codec.aggregation != Aggregation::sum) {
    throw Error{Fault::usage,
                fmt::format("codec {} cannot ride on a sum: its payloads do not add; use gather or hop", codec.name)};
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
std::shared_ptr<const Codec<Space::host>> make_codec(const CodecSpec& spec) {
  return spec.descriptor->make_host(spec.params);
}

template <>
std::unique_ptr<Reducer<Space::host>> make_reducer(const CodecSpec& spec,
                                                   std::shared_ptr<const Codec<Space::host>> codec, Scheme scheme,
                                                   std::size_t n, int ranks, Queue<Space::host> queue) {
  return detail::build_reducer<Space::host>(spec, std::move(codec), scheme, n, ranks, queue);
}

}  // namespace gradtool
