// `golden_table FOLDER` writes FOLDER/<name>/golden.txt of every method anew; FOLDER is lib/methods.
#include <cstdio>
#include <fstream>
#include <map>

#include "lib/core/sha256.hpp"
#include "tests/codecs/codec_run.hpp"
#include "tests/codecs/golden_inputs.hpp"

int main(int count, char** arguments) {
  using namespace gradtool;
  using namespace gradtool::test;
  if (count != 2) {
    std::fputs("usage: golden_table FOLDER\n", stderr);
    return 2;
  }
  std::map<std::string, std::string> tables;
  const auto add = [&](const std::string& spec, const std::string& input) {
    const auto x = golden_input(input);
    CodecRun run{spec, x.size()};
    Sha256 hash;
    hash.update(run.encode(x, kGoldenContext));
    tables[spec.substr(0, spec.find(':'))] += spec + " " + input + " " + hash.hex() + "\n";
  };
  for (const auto& spec : specs_to_test()) {
    // Libraries round differently, so a transform codec is held to an input whose payload does not depend on that
    // (which a scale taken from the spectrum mostly would), and factorisations are not held to bytes at all.
    if (parse_codec(spec).descriptor->determinism != Determinism::cross_backend) continue;
    for (const char* input : {"seven", "gradient1025", "gradient100003", "specials"}) add(spec, input);
  }
  for (const char* spec : {"fft:theta=0.952,range=2", "fft:theta=0.952,range=2,rounding=nearest",
                           "fft:theta=0.952,range=2,bits=8,mantissa=3"})
    add(spec, "tones");
  for (const char* spec : {"fft:theta=0", "fft:theta=0.5,bits=8"}) add(spec, "impulse");
  add("fft", "one");
  for (const auto& [method, lines] : tables)
    std::ofstream{std::string{arguments[1]} + "/" + method + "/golden.txt"} << lines;
  return 0;
}
