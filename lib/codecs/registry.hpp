#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/memory_passes.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/dtype.hpp"
#include "lib/core/words.hpp"

namespace gradtool {

/// How the payloads of several ranks become one result. It decides the collective that a codec rides on.
enum class Aggregation : std::uint8_t {
  sum,     ///< payloads are arrays of `sum_dtype` that a ring may add on the way
  gather,  ///< all-gather the payloads, decode each
  own,     ///< several collectives or an agreement between ranks: a reducer of its own
  none,    ///< nothing is sent
};
constexpr auto spellings(Aggregation) {
  return words("sum", "gather", "own", "none");
}

/// How far equal input gives equal bytes.
enum class Determinism : std::uint8_t {
  not_guaranteed,  ///< may differ from run to run
  run_to_run,      ///< same machine, same build: same bytes
  cross_backend,   ///< CPU and GPU, any thread count: same bytes
};
constexpr auto spellings(Determinism) {
  return words("not_guaranteed", "run_to_run", "cross_backend");
}

template <Space S>
class Reducer;
template <Space S>
struct ReducerSetup;

/// The GPU side of a method: lib/methods/<name>/<name>.cu defines `<name>_gpu`. Null where there is no CUDA version.
struct GpuFactories {
  std::unique_ptr<Codec<Space::cuda>> (*codec)(const Params&, const Layout&) = nullptr;
  std::unique_ptr<Reducer<Space::cuda>> (*reducer)(const ReducerSetup<Space::cuda>&) = nullptr;
};

/// One row of the registry: all that `gradtool list`, --help, docs/codecs.md and the factories need.
struct CodecDescriptor {
  std::string_view name;
  std::string_view summary;    ///< one line
  std::string_view reference;  ///< paper, section
  /// Some five sentences of the method's README, which the build puts here: how it works, what we decided where the
  /// paper is silent, when it pays.
  std::string_view description = {};
  std::span<const ParamInfo> params;
  Aggregation aggregation = Aggregation::gather;
  Dtype sum_dtype = Dtype::f32;  ///< for Aggregation::sum
  bool unbiased = false;         ///< E[decode(encode(x))] = x over keys
  bool error_feedback = false;   ///< by default the reducer keeps what was not sent and adds it to the next step
  /// The parameter that, switched on, makes it send more than there is, so that its mean over draws is the gradient
  /// ("scale"). Error feedback would diverge: it is then off by default, and refused. Empty: it has none.
  std::string_view amplifier = {};
  bool memory = false;        ///< the method decides what is kept from step to step, if anything; `ef` does not apply
  bool delays = false;        ///< that memory holds back parts of the gradient for later steps
  bool by_layout = false;     ///< tensors' shapes matter: it works on whole units only, not on segments of them
  bool knows_layout = false;  ///< it is told the layout of each unit, though it works on segments as well
  bool needs_weight = false;  ///< uses captured weights where the file has them
  bool needs_second_moment = false;  ///< uses captured second moments where the file has them
  /// The quantity that the result is the mean of, where that is not the gradient ("the momentum"): errors are then
  /// those against it, see Reducer::target(), and rows say so.
  std::string_view target = {};
  /// The parameter that is momentum of the method's own, in the place of an optimiser's ("mu"); empty: it has none.
  std::string_view momentum = {};
  Determinism determinism = Determinism::cross_backend;
  std::string_view payload;      ///< payload formula, for the docs
  std::string_view caveat = {};  ///< a clause that every row of it has as a note
  /// The values that it must read and write beside the payload. Null: it reads every element of the gradient once, and
  /// one value an element that it keeps where it `delays` or has a `target`; see memory_passes().
  MemoryPasses (*passes)(const Params&) = nullptr;
  /// The codec for units of a layout; most look at neither. Null for methods that only exist between ranks
  /// (Aggregation::own).
  std::unique_ptr<Codec<Space::host>> (*make_host)(const Params&, const Layout&) = nullptr;
  /// The reducer of a method that is several collectives, or an agreement between ranks (Aggregation::own).
  std::unique_ptr<Reducer<Space::host>> (*make_host_reducer)(const ReducerSetup<Space::host>&) = nullptr;
  /// Filled in by the generated table; a method's own descriptor leaves it empty.
  GpuFactories gpu = {};
};

/// For CodecDescriptor::make_host and GpuFactories::codec: makes a `Method` from parameters and layout, or from as many
/// of them as its constructor takes.
template <Space S, class Method>
[[nodiscard]] std::unique_ptr<Codec<S>> make_method_codec(const Params& params, const Layout& layout) {
  if constexpr (std::is_constructible_v<Method, const Params&, const Layout&>) {
    return std::make_unique<Method>(params, layout);
  } else if constexpr (std::is_constructible_v<Method, const Params&>) {
    return std::make_unique<Method>(params);
  } else {
    return std::make_unique<Method>();
  }
}

/// For CodecDescriptor::make_host_reducer and GpuFactories::reducer.
template <Space S, class Method>
[[nodiscard]] std::unique_ptr<Reducer<S>> make_method_reducer(const ReducerSetup<S>& setup) {
  return std::make_unique<Method>(setup);
}

/// All codecs, sorted by name. A table that CMake generates from the folders in lib/methods.
[[nodiscard]] std::span<const CodecDescriptor* const> codecs();

/// A codec of gradtool that this build lacks, because it was built without a library.
struct CodecLeftOut {
  std::string_view name;
  std::string_view part;     ///< of the build that it needs: FFTW for -DGRADTOOL_FFTW=ON
  std::string_view package;  ///< Debian package that has the library
};
/// Sorted by name; from the same generated table.
[[nodiscard]] std::span<const CodecLeftOut> codecs_left_out();
/// "codec fft is not in this build, which lacks FFTW; install ..., configure with ... and build again".
[[nodiscard]] std::string how_to_get(const CodecLeftOut& codec);

/// Throws Fault::usage naming the nearest codec when there is none of that name, and Fault::unavailable for one that
/// was left out of this build.
[[nodiscard]] const CodecDescriptor& find_codec(std::string_view name);

/// Which way a plain codec takes.
enum class Scheme : std::uint8_t {
  automatic,  ///< what the codec's descriptor says, and the collective needs
  sum,        ///< add the payloads on a ring
  gather,     ///< all-gather the payloads, decode each
  hop,        ///< ring reduce-scatter that decodes, adds and encodes again at every hop, then all-gather
  alltoall,   ///< all-to-all of encoded shards, decoded and added by their owner, who encodes the mean; all-gather
  own,        ///< the codec's own reducer; not to be asked for
};
constexpr auto spellings(Scheme) {
  return words("auto", "sum", "gather", "hop", "alltoall", "own");
}

/// A rank's treatment of what a payload does not say. For codecs without a memory of their own.
struct Feedback {
  enum class Kind : std::uint8_t {
    off,       ///< nothing: it is lost
    residual,  ///< keeps it and adds it to the next step's gradient (ef=on)
    ef21,      ///< sends the difference to what the earlier payloads have said (Richtarik et al. 2021)
  };
  Kind kind = Kind::off;
  /// EF21: how far what is sent moves to the gradient in a step. 1 is EF21; below 1 it is an average over steps, EF21
  /// with momentum (Fatkhullin, Tyurin and Richtarik 2023).
  float eta = 1.0F;

  [[nodiscard]] bool ef21() const { return kind == Kind::ef21; }
  [[nodiscard]] bool averages() const { return ef21() && eta < 1.0F; }
  bool operator==(const Feedback&) const = default;

  static const Feedback off, residual;
};
inline constexpr Feedback Feedback::off{Feedback::Kind::off};
inline constexpr Feedback Feedback::residual{Feedback::Kind::residual};

/// A codec as written on the command line, `name:key=value,...`, checked and with defaults filled in.
/// Besides the codec's own parameters, `ef=on|off|ef21|ef21m` overrides its default for error feedback; ef21m takes
/// `eta`. `reduce=` fixes the way, `own=exact` and `segment=` belong to reduce=alltoall, and `gate=` leaves small units
/// uncompressed.
struct CodecSpec {
  const CodecDescriptor* descriptor;
  Params params;
  bool error_feedback;             ///< what was not sent is kept and added to the next step
  std::string given = {};          ///< the parameters as they were written, without defaults
  bool ef21 = false;               ///< payloads are differences to what was sent before; error_feedback is false then
  double eta = 1.0;                ///< with ef21: Feedback::eta, below 1 for ef=ef21m
  Scheme way = Scheme::automatic;  ///< of an all-reduce; automatic: the caller's
  bool own_exact = false;          ///< with alltoall: an owner adds its own shard as it is
  std::size_t segment = 1;         ///< with alltoall: elements of which each shard but the last holds a multiple
  std::uint64_t gate = 0;          ///< units of fewer raw bytes go as `none` sends them

  /// Whether the method brings momentum of its own, so that an optimiser behind it has none.
  [[nodiscard]] bool own_momentum() const {
    return !descriptor->momentum.empty() && params.real(descriptor->momentum) > 0.0;
  }
  /// Whether a unit of so many bytes, in the type in which the job reduces it, goes as `none` sends it.
  [[nodiscard]] bool gates(std::uint64_t raw_bytes) const { return raw_bytes < gate; }
  [[nodiscard]] Feedback feedback() const {
    if (ef21) return {Feedback::Kind::ef21, static_cast<float>(eta)};
    return error_feedback ? Feedback::residual : Feedback::off;
  }
  /// The value of `ef`: "ef21m" with its eta, and "on", "off" or "ef21".
  [[nodiscard]] std::string_view feedback_name() const {
    return !ef21 ? error_feedback ? "on" : "off" : eta < 1.0 ? "ef21m" : "ef21";
  }

  [[nodiscard]] std::string name() const { return std::string{descriptor->name}; }
  /// params.text(), with ef=..., reduce=..., own=..., segment=... and gate=... at the end where they are not the
  /// codec's default.
  [[nodiscard]] std::string params_text() const;
};
[[nodiscard]] CodecSpec parse_codec(std::string_view text);

/// A wire format that something deployed sends, as a name for a codec with parameters. parse_codec takes the name where
/// it takes a codec's, and parameters behind it that the specification leaves open, or another gate; the result is that
/// of the specification, which records therefore hold in full.
struct Preset {
  std::string_view name;
  std::string_view spec;     ///< a gate stands last
  std::string_view meaning;  ///< who sends it, and what of it is not in the specification
};
/// Sorted by name.
[[nodiscard]] std::span<const Preset> presets();
/// Null where there is none of that name.
[[nodiscard]] const Preset* find_preset(std::string_view name);

/// parse_codec for a codec that a record names, which need not be able to run: the file of a prototype is not read.
[[nodiscard]] CodecSpec parse_recorded_codec(std::string_view text);
/// The codecs that a list names, each as parse_codec takes it: "topk,qsgd:bits=4" is two, and "topk:ratio=[0.001,0.01]"
/// is one for each value in brackets; several brackets make every combination. What follows a comma belongs to the
/// codec before it where it is key=value. Throws Fault::usage for brackets that do not close, and for over 1000 codecs.
[[nodiscard]] std::vector<std::string> expand_codec_list(std::string_view text);
/// True when this build can run the method on a GPU: its codec, or its own reducer where it has one.
[[nodiscard]] inline bool on_cuda(const CodecDescriptor& codec) {
  return codec.aggregation == Aggregation::own ? codec.gpu.reducer != nullptr : codec.gpu.codec != nullptr;
}
/// True when each unit needs a codec of its own: make_codec is given the unit's layout.
[[nodiscard]] inline bool made_for_layout(const CodecDescriptor& codec) {
  return codec.by_layout || codec.knows_layout;
}
/// True when some build of it can be made for one rank alone: encode, decode_add.
[[nodiscard]] inline bool has_codec(const CodecDescriptor& codec) {
  return codec.make_host != nullptr;
}
/// The passes over memory that the codec declares, with these parameters.
[[nodiscard]] MemoryPasses memory_passes(const CodecDescriptor& codec, const Params& params);
/// Every registered codec with its default parameters.
[[nodiscard]] std::vector<CodecSpec> all_codecs();

/// "host" or "host,cuda".
[[nodiscard]] std::string spaces_of(const CodecDescriptor& codec);

}  // namespace gradtool
