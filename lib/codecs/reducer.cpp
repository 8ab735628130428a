#include "lib/codecs/reducer.hpp"

#include <algorithm>

#include "lib/codecs/build_reducer.hpp"
#include "lib/codecs/levelled_reducer.hpp"
#include "lib/core/throw_error.hpp"

namespace gradtool {

void detail::throw_no_cuda(std::string_view codec) {
  throw_error(Fault::unavailable, "codec {} has no CUDA version in this build; use --device cpu", codec);
}

namespace {

/// The way of a plain codec where nobody asked for one.
Scheme scheme_of(const CodecDescriptor& codec, Collective op) {
  switch (op) {
    case Collective::all_reduce:
      return codec.aggregation == Aggregation::sum ? Scheme::sum : Scheme::gather;
    case Collective::reduce_scatter:
      return codec.aggregation == Aggregation::sum ? Scheme::sum : Scheme::alltoall;
    case Collective::all_gather:
      return Scheme::gather;
    case Collective::all_to_all:
      return Scheme::alltoall;
  }
  return Scheme::gather;
}

/// Refuses a codec that cannot work on shards, for `what`, a scheme or a collective.
void expect_shards(const CodecDescriptor& codec, std::string_view what, std::string_view instead) {
  if (!codec.memory && !codec.by_layout) return;
  throw_error(Fault::usage, "codec {} works on {}, which has no meaning for the {} of {}{}", codec.name,
              codec.memory ? "what it keeps of earlier steps" : "whole tensors", what == "hop" ? "segments" : "shards",
              what, instead);
}

/// Refuses what a collective other than all-reduce cannot carry.
void expect_carries(Collective op, Scheme scheme, const CodecSpec& spec) {
  const CodecDescriptor& codec = *spec.descriptor;
  if (codec.aggregation == Aggregation::own)
    throw_error(Fault::usage, "codec {} is a way of its own to all-reduce; it has no {}", codec.name, name_of(op));
  expect_shards(codec, name_of(op), "");
  const bool carries = op == Collective::reduce_scatter ? scheme != Scheme::gather : scheme == scheme_of(codec, op);
  if (!carries) {
    throw_error(Fault::usage, "--reduce {} does not go with --op {}; leave it at auto{}", name_of(scheme), name_of(op),
                op == Collective::reduce_scatter ? ", or take hop or alltoall" : "");
  }
  if (op == Collective::all_to_all && spec.error_feedback) {
    throw_error(Fault::usage,
                "codec {} keeps a residual, which has no meaning where every step sends "
                "other values to other ranks; add ef=off to the codec",
                codec.name);
  }
}

}  // namespace

Scheme resolve(Scheme scheme, const CodecSpec& spec, Collective op) {
  const CodecDescriptor& codec = *spec.descriptor;
  if (codec.aggregation == Aggregation::none) return Scheme::gather;
  if (spec.way != Scheme::automatic && (op == Collective::all_reduce || op == Collective::reduce_scatter)) {
    if (scheme != Scheme::automatic && scheme != Scheme::own && scheme != spec.way) {
      throw_error(Fault::usage, "codec {} says reduce={}, and --reduce says {}; leave one of them out", codec.name,
                  name_of(spec.way), name_of(scheme));
    }
    scheme = spec.way;
  }
  if (op != Collective::all_reduce) {
    if (scheme == Scheme::automatic || scheme == Scheme::own) scheme = scheme_of(codec, op);
    expect_carries(op, scheme, spec);
  } else if (scheme == Scheme::automatic || scheme == Scheme::own) {
    return codec.aggregation == Aggregation::own ? Scheme::own : scheme_of(codec, op);
  } else if (codec.aggregation == Aggregation::own) {
    throw_error(Fault::usage, "codec {} is a reducer of its own; leave --reduce at auto", codec.name);
  }
  if (scheme == Scheme::sum && codec.aggregation != Aggregation::sum) {
    const bool shards = !codec.memory && !codec.by_layout;
    throw_error(Fault::usage, "codec {} cannot ride on a sum: its payloads do not add; use {}{}", codec.name,
                op == Collective::all_reduce ? "gather" : "alltoall",
                shards && spec.feedback() == Feedback::off ? " or hop" : "");
  }
  if (scheme == Scheme::hop || scheme == Scheme::alltoall) expect_shards(codec, name_of(scheme), "; use gather");
  if (spec.ef21 && (op != Collective::all_reduce || scheme == Scheme::hop || scheme == Scheme::alltoall)) {
    throw_error(Fault::usage,
                "codec {} keeps what it has sent, which has no meaning for {}; add ef=off to "
                "the codec, or use gather in an all-reduce",
                codec.name,
                op != Collective::all_reduce ? "shards"
                : scheme == Scheme::hop      ? "hops that encode again"
                                             : "owners that encode again");
  }
  if (scheme == Scheme::hop && spec.error_feedback) {
    throw_error(Fault::usage,
                "codec {} keeps a residual, which has no meaning when every hop encodes again; add ef=off "
                "to the codec, or use {}",
                codec.name, op == Collective::all_reduce ? "gather or alltoall" : "alltoall");
  }
  return scheme;
}

Scheme resolve_levels(const CodecSpec& between, const CodecSpec& inside, Scheme scheme) {
  const CodecDescriptor& codec = *between.descriptor;
  if (std::any_of(codec.params.begin(), codec.params.end(), [](const ParamInfo& p) { return p.name == "node"; })) {
    throw_error(Fault::usage, "codec {0} has two levels of its own: leave --levels out and write {0}:node=8",
                codec.name);
  }
  if (codec.aggregation == Aggregation::own || codec.by_layout || !codec.target.empty()) {
    throw_error(Fault::usage,
                "codec {} {}, which has no meaning for the shards between machines; take another one with --levels",
                codec.name,
                codec.aggregation == Aggregation::own ? "is a way of its own to all-reduce"
                : codec.by_layout                     ? "works on whole tensors"
                                                      : "averages something else than gradients");
  }
  try {
    if (inside.descriptor->aggregation == Aggregation::none)
      throw_error(Fault::usage, "codec {} sends nothing", inside.name());
    for (const Collective op : {Collective::reduce_scatter, Collective::all_gather})
      static_cast<void>(resolve(Scheme::automatic, inside, op));
  } catch (const Error& error) {
    throw_error(Fault::usage, "--codec-inner: {}", error.what());
  }
  return resolve(scheme, between);
}

template <>
std::unique_ptr<Reducer<Space::host>> make_levelled_reducer(const CodecSpec& between, const CodecSpec& inside,
                                                            Scheme scheme, std::size_t n, Dtype dtype, int ranks,
                                                            int node, Queue<Space::host> queue) {
  return std::make_unique<LevelledReducer<Space::host>>(between, inside, scheme, n, dtype, ranks, node, queue);
}

template <>
std::shared_ptr<const Codec<Space::host>> make_codec(const CodecSpec& spec, const Layout& layout) {
  if (!has_codec(*spec.descriptor)) return nullptr;
  return spec.descriptor->make_host(spec.params, layout);
}

template <>
std::unique_ptr<Reducer<Space::host>> make_reducer(const CodecSpec& spec,
                                                   std::shared_ptr<const Codec<Space::host>> codec, Scheme scheme,
                                                   const Layout& layout, int ranks, Queue<Space::host> queue,
                                                   Collective op) {
  return detail::build_reducer<Space::host>(spec, std::move(codec), scheme, layout, ranks, queue, op);
}

}  // namespace gradtool
