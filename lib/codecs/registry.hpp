#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/layout.hpp"
#include "lib/codecs/memory_passes.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/dtype.hpp"

namespace gradtool {

/// How the payloads of several ranks become one result. It decides the collective that a codec rides on.
enum class Aggregation : std::uint8_t {
  sum,     ///< payloads are arrays of `sum_dtype` that a ring may add on the way
  gather,  ///< all-gather the payloads, decode each
  own,     ///< several collectives or an agreement between ranks: a reducer of its own
  none,    ///< nothing is sent
};

/// How far equal input gives equal bytes.
enum class Determinism : std::uint8_t {
  not_guaranteed,  ///< may differ from run to run
  run_to_run,      ///< same machine, same build: same bytes
  cross_backend,   ///< CPU and GPU, any thread count: same bytes
};

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
  /// Some five sentences for docs/codecs.md: how it works, what we decided where the paper is silent, when it pays.
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
  bool needs_weight = false;  ///< uses captured weights where the file has them
  bool needs_second_moment = false;  ///< uses captured second moments where the file has them
  /// What the result is the mean of, where that is not the gradient ("the momentum"): errors are then those against it,
  /// see Reducer::target(), and rows say so.
  std::string_view target = {};
  /// The parameter that is momentum of the method's own, in the place of an optimiser's ("mu"); empty: it has none.
  std::string_view momentum = {};
  Determinism determinism = Determinism::cross_backend;
  std::string_view payload;  ///< payload formula, for the docs
  /// What it must read and write beside the payload. Null: it reads every element of the gradient once, and one value
  /// an element that it keeps where it `delays` or has a `target`; see memory_passes().
  MemoryPasses (*passes)(const Params&) = nullptr;
  /// The codec for units of a layout; most look at neither. Null for methods that only exist between ranks
  /// (Aggregation::own).
  std::unique_ptr<Codec<Space::host>> (*make_host)(const Params&, const Layout&) = nullptr;
  /// The reducer of a method that is several collectives, or an agreement between ranks (Aggregation::own).
  std::unique_ptr<Reducer<Space::host>> (*make_host_reducer)(const ReducerSetup<Space::host>&) = nullptr;
  /// Filled in by the generated table; a method's own descriptor leaves it empty.
  GpuFactories gpu = {};
};

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

/// What a rank does about what a payload does not say. For codecs without a memory of their own.
enum class Feedback : std::uint8_t {
  off,       ///< nothing: it is lost
  residual,  ///< keeps it and adds it to the next step's gradient (ef=on)
  ef21,      ///< sends the difference to what the earlier payloads have said (Richtarik et al. 2021)
};

/// A codec as written on the command line, `name:key=value,...`, checked and with defaults filled in.
/// Besides the codec's own parameters, `ef=on|off|ef21` overrides its default for error feedback.
struct CodecSpec {
  const CodecDescriptor* descriptor;
  Params params;
  bool error_feedback;     ///< what was not sent is kept and added to the next step
  std::string given = {};  ///< the parameters as they were written, without defaults
  bool ef21 = false;       ///< payloads are differences to what was sent before; error_feedback is false then

  /// Whether the method brings momentum of its own, so that an optimiser behind it has none.
  [[nodiscard]] bool own_momentum() const {
    return !descriptor->momentum.empty() && params.real(descriptor->momentum) > 0.0;
  }
  [[nodiscard]] Feedback feedback() const {
    return ef21 ? Feedback::ef21 : error_feedback ? Feedback::residual : Feedback::off;
  }

  [[nodiscard]] std::string name() const { return std::string{descriptor->name}; }
  /// params.text(), with ef=... at the end where it is not the codec's default.
  [[nodiscard]] std::string params_text() const;
};
[[nodiscard]] CodecSpec parse_codec(std::string_view text);
/// The codecs that a list names, each as parse_codec takes it: "topk,qsgd:bits=4" is two, and "topk:ratio=[0.001,0.01]"
/// is one for each value in brackets; several brackets make every combination. What follows a comma belongs to the
/// codec before it where it is key=value. Throws Fault::usage for brackets that do not close, and for over 1000 codecs.
[[nodiscard]] std::vector<std::string> expand_codec_list(std::string_view text);
/// True when this build can run the method on a GPU: its codec, or its own reducer where it has one.
[[nodiscard]] inline bool on_cuda(const CodecDescriptor& codec) {
  return codec.aggregation == Aggregation::own ? codec.gpu.reducer != nullptr : codec.gpu.codec != nullptr;
}
/// True when some build of it can be made for one rank alone: encode, decode_add.
[[nodiscard]] inline bool has_codec(const CodecDescriptor& codec) {
  return codec.make_host != nullptr;
}
/// The passes over memory that the codec declares, with these parameters.
[[nodiscard]] MemoryPasses memory_passes(const CodecDescriptor& codec, const Params& params);
/// Every registered codec with its default parameters.
[[nodiscard]] std::vector<CodecSpec> all_codecs();

[[nodiscard]] std::string_view name_of(Aggregation aggregation);
[[nodiscard]] std::string_view name_of(Determinism determinism);
/// "host" or "host,cuda".
[[nodiscard]] std::string spaces_of(const CodecDescriptor& codec);

}  // namespace gradtool
