// A build without the libraries that some codecs need. The generated table of methods is replaced by this one: the
// linker takes codecs() and codecs_left_out() from here and leaves those of the library alone.
#include <gtest/gtest.h>

#include <array>

#include "lib/codecs/registry.hpp"
#include "lib/core/error.hpp"

namespace gradtool {
namespace {
constexpr CodecDescriptor kDct{.name = "dct", .summary = "", .reference = "", .params = {}, .payload = ""};
constexpr std::array<const CodecDescriptor*, 1> kBuilt{&kDct};
constexpr std::array<CodecLeftOut, 1> kLeftOut{{{.name = "fft", .part = "FFTW", .package = "libfftw3-dev"}}};
}  // namespace

std::span<const CodecDescriptor* const> codecs() {
  return kBuilt;
}
std::span<const CodecLeftOut> codecs_left_out() {
  return kLeftOut;
}

namespace test {
namespace {

/// The error of find_codec for a codec that it does not return.
std::pair<Fault, std::string> refusal(const char* codec) {
  try {
    static_cast<void>(find_codec(codec));
  } catch (const Error& error) {
    return {error.fault(), error.what()};
  }
  ADD_FAILURE() << codec << " was found";
  return {};
}

TEST(LeftOut, IsNotUnknownButUnavailableWithTheLibraryToInstall) {
  EXPECT_EQ(find_codec("dct").name, "dct");
  const auto [fault, sentence] = refusal("fft");
  EXPECT_EQ(fault, Fault::unavailable);
  EXPECT_EQ(sentence,
            "codec fft is not in this build, which lacks FFTW; install it (Debian, Ubuntu: apt install libfftw3-dev), "
            "configure with -DGRADTOOL_FFTW=ON and build again");
}

TEST(LeftOut, IsWhatAMisspeltNameMayHaveMeant) {
  const auto [fault, sentence] = refusal("ffft");
  EXPECT_EQ(fault, Fault::usage);
  EXPECT_EQ(sentence, "unknown codec 'ffft'; did you mean 'fft'?");
}

}  // namespace
}  // namespace test
}  // namespace gradtool
