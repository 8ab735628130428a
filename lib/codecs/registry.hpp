#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/codecs/codec.hpp"
#include "lib/codecs/params.hpp"
#include "lib/core/dtype.hpp"

namespace gradtool {

/// How the payloads of several ranks become one result. It decides the collective that a codec rides on.
enum class Aggregation : std::uint8_t {
  sum,     ///< payloads are arrays of `sum_dtype` that a ring may add on the way
  gather,  ///< all-gather the payloads, decode each
  none,    ///< nothing is sent
};

/// How far equal input gives equal bytes.
enum class Determinism : std::uint8_t {
  not_guaranteed,  ///< may differ from run to run
  run_to_run,      ///< same machine, same build: same bytes
  cross_backend,   ///< CPU and GPU, any thread count: same bytes
};

/// One row of the registry: all that `gradtool list`, --help, docs/codecs.md and the factories need.
struct CodecDescriptor {
  std::string_view name;
  std::string_view summary;    ///< one line
  std::string_view reference;  ///< paper, section
  std::span<const ParamInfo> params;
  Aggregation aggregation = Aggregation::gather;
  Dtype sum_dtype = Dtype::f32;  ///< for Aggregation::sum
  bool unbiased = false;         ///< E[decode(encode(x))] = x over keys
  bool error_feedback = false;   ///< by default the reducer keeps what was not sent and adds it to the next step
  bool needs_weight = false;
  bool needs_second_moment = false;
  Determinism determinism = Determinism::cross_backend;
  std::string_view payload;  ///< payload formula, for the docs
  std::unique_ptr<Codec<Space::host>> (*make_host)(const Params&);
  std::unique_ptr<Codec<Space::cuda>> (*make_cuda)(
      const Params&);  ///< null when there is no CUDA version in this build
};

/// All codecs, sorted by name. A constant table that CMake generates from the list in lib/codecs/CMakeLists.txt.
[[nodiscard]] std::span<const CodecDescriptor* const> codecs();
/// Throws Fault::usage naming the nearest codec when there is none of that name.
[[nodiscard]] const CodecDescriptor& find_codec(std::string_view name);

/// A codec as written on the command line, `name:key=value,...`, checked and with defaults filled in.
/// Besides the codec's own parameters, `ef=on|off` overrides its default for error feedback.
struct CodecSpec {
  const CodecDescriptor* descriptor;
  Params params;
  bool error_feedback;

  [[nodiscard]] std::string name() const { return std::string{descriptor->name}; }
  /// params.text(), with ef=... at the end where it is not the codec's default.
  [[nodiscard]] std::string params_text() const;
};
[[nodiscard]] CodecSpec parse_codec(std::string_view text);
/// Every registered codec with its default parameters.
[[nodiscard]] std::vector<CodecSpec> all_codecs();

[[nodiscard]] std::string_view name_of(Aggregation aggregation);
[[nodiscard]] std::string_view name_of(Determinism determinism);
/// "host" or "host,cuda".
[[nodiscard]] std::string spaces_of(const CodecDescriptor& codec);

// In a descriptor: GT_MAKE_CUDA(make_cuda_qsgd) is the factory of lib/codecs/cuda/qsgd.cpp in builds with CUDA, null
// elsewhere. CMake sets GT_HAS_CUDA.
#if GT_HAS_CUDA
#define GT_MAKE_CUDA(factory) &(factory)
#else
#define GT_MAKE_CUDA(factory) nullptr
#endif

}  // namespace gradtool
