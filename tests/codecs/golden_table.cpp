// Prints tests/golden/payloads.txt: `golden_table > tests/golden/payloads.txt`.
#include <cstdio>

#include "lib/core/sha256.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/golden_inputs.hpp"

int main() {
  using namespace gradtool;
  using namespace gradtool::test;
  std::puts(
      "# SHA-256 of payloads: specification, input (tests/codecs/golden_inputs.hpp), hash. One table for CPU and GPU.");
  const auto print = [](const std::string& spec, const std::string& input) {
    const auto x = golden_input(input);
    CodecRun run{spec, x.size()};
    Sha256 hash;
    hash.update(run.encode(x, kGoldenContext));
    std::printf("%s %s %s\n", spec.c_str(), input.c_str(), hash.hex().c_str());
  };
  for (const auto& spec : specs_to_test()) {
    // Libraries round differently, so a transform codec is held to an input whose payload does not depend on that
    // (which a scale taken from the spectrum would), and factorisations are not held to bytes at all.
    if (parse_codec(spec).descriptor->determinism != Determinism::cross_backend) continue;
    for (const char* input : {"seven", "gradient1025", "gradient100003", "specials"}) print(spec, input);
  }
  for (const char* spec : {"fft:theta=0.952,range=2", "fft:theta=0.952,range=2,rounding=nearest",
                           "fft:theta=0.952,range=2,bits=8,mantissa=3"})
    print(spec, "tones");
  print("fft", "one");
  return 0;
}
