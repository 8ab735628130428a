// libFuzzer target: the input is the file. Not for continuous integration: it searches HDF5 as much as the reader, and
// after a hundred thousand inputs finds that HDF5 1.10 reads past the end of a damaged attribute message. HDF5 also
// asks for memory of any size that a file names and copes with a refusal, hence run it with -rss_limit_mb=0, which
// lifts libFuzzer's limit on a single allocation too.
#include <fstream>

#include "tests/fuzz/read_anything.hpp"
#include "tests/fuzz/scratch_file.hpp"

/// HDF5 1.10 forgets memory when it gives up on a damaged file. The other target, whose files are sound to HDF5, sees
/// leaks.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libhdf5\n";
}

extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const gradtool::fuzz::ScratchFile file;
  std::ofstream{file.path(), std::ios::binary | std::ios::trunc}.write(reinterpret_cast<const char*>(data),
                                                                       static_cast<std::streamsize>(size));
  gradtool::fuzz::read_anything(file.path());
  return 0;
}
