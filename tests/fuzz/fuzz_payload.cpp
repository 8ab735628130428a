// libFuzzer target: arbitrary bytes as a payload. The first byte picks codec and size; decoding must throw Fault::data
// or stay inside its views, whatever the rest says.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lib/core/error.hpp"
#include "tests/codecs/codec_run.hpp"

namespace {

struct Target {
  std::string spec;
  std::size_t n;
};

std::vector<Target> targets() {
  std::vector<Target> all;
  for (const auto& spec : gradtool::test::specs_to_test()) {
    // The last one is more than one chunk of most methods that cut into chunks, and is still fast.
    for (const std::size_t n : {1U, 7U, 33U, 513U, 9'001U}) all.push_back({spec, n});
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<Target> kTargets = targets();
  if (size < 2) return 0;
  const Target& target = kTargets[(data[0] * 256U + data[1]) % kTargets.size()];
  gradtool::test::CodecRun run{target.spec, target.n};
  std::vector<float> out(target.n, 0.0F);
  // Half of the inputs damage a real payload, so that checks behind the length are reached too.
  std::vector<std::byte> payload;
  if (data[0] % 2 == 0) {
    std::vector<float> x(target.n);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.25F * static_cast<float>(data[i % size]) - 30.0F;
    payload = run.encode(x);
    for (std::size_t i = 2; i + 1 < size && !payload.empty(); i += 2) {
      payload[data[i] * 7U % payload.size()] ^= static_cast<std::byte>(data[i + 1]);
    }
  } else {
    payload.resize(size - 2);
    if (size > 2) std::memcpy(payload.data(), data + 2, size - 2);
  }
  try {
    run.decode_add(payload, 1.0F, out);
  } catch (const gradtool::Error& error) {
    if (error.fault() != gradtool::Fault::data) std::abort();
  }
  return 0;
}
