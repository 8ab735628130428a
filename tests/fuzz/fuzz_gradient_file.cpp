// libFuzzer target: the input decides which almost-conforming file is built, and the reader must accept or refuse it.
#include "tests/fuzz/gradient_file_builder.hpp"
#include "tests/fuzz/read_anything.hpp"
#include "tests/fuzz/scratch_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const gradtool::fuzz::ScratchFile file;
  gradtool::fuzz::Choices choices{{data, size}};
  gradtool::fuzz::build_gradient_file(file.path(), choices);
  gradtool::fuzz::read_anything(file.path());
  return 0;
}
