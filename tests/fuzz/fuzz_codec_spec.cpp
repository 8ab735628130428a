// libFuzzer target: arbitrary text as a codec specification. It parses and reads back the same, or is refused as usage.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lib/codecs/prototype.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text{reinterpret_cast<const char*>(data), size};
  if (gradtool::is_prototype(text)) return 0;  // it would run a program of that name
  try {
    const auto spec = gradtool::parse_codec(text);
    const std::string params = spec.params_text();
    const auto again = gradtool::parse_codec(spec.name() + (params.empty() ? "" : ":" + params));
    if (again.params_text() != spec.params_text() || again.feedback() != spec.feedback()) std::abort();
    if (has_codec(*spec.descriptor))
      static_cast<void>(spec.descriptor->make_host(spec.params, gradtool::Layout::flat(100))->plan(100));
  } catch (const gradtool::Error& error) {
    if (error.fault() != gradtool::Fault::usage || std::string{error.what()}.empty()) std::abort();
  }
  return 0;
}
