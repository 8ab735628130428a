// libFuzzer target: a file of arrays, of which the first byte says how it is read: safetensors, .npy, .npz, or a list
// of shapes. The reader accepts it and gives every value that it promised, or refuses it with one sentence. Bytes that
// are hardly ever right, such as a checksum, are not mended: the corpus has whole files to start from.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <vector>

#include "lib/import/array_file.hpp"
#include "tests/fuzz/scratch_file.hpp"

namespace {

void require(bool condition, const char* what, const std::string& detail) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

std::unique_ptr<gradtool::ArrayFile> open(unsigned format, const std::string& path) {
  switch (format) {
    case 0:
      return gradtool::open_safetensors(path);
    case 1:
      return gradtool::open_npy(path, "array");
    case 2:
      return gradtool::open_npz(path);
    default:
      return gradtool::open_raw(path, gradtool::read_shapes(path, gradtool::Element::bf16));
  }
}

void read_all(gradtool::ArrayFile& file) {
  constexpr std::uint64_t kPart = 1000;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < file.arrays().size(); ++i) {
    const auto& info = file.arrays()[i];
    if (!info.foreign_type.empty()) continue;
    // Files of a megabyte cannot hold more, but for what deflate makes of them.
    require(info.elements <= (std::uint64_t{1} << 32), "accepted with more values than it can have", info.name);
    for (std::uint64_t first = 0; first < info.elements; first += kPart) {
      bytes.resize(std::min(kPart, info.elements - first) * size_of(info.element));
      file.read(i, first, bytes);
    }
    if (info.elements > 0) file.read(i, 0, std::span{bytes}.first(size_of(info.element)));  // back to the beginning
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const gradtool::fuzz::ScratchFile file;
  std::ofstream{file.path(), std::ios::binary | std::ios::trunc}.write(reinterpret_cast<const char*>(data + 1),
                                                                       static_cast<std::streamsize>(size - 1));
  try {
    read_all(*open(data[0] % 4, file.path()));
  } catch (const gradtool::Error& error) {
    const std::string text = error.what();
    require(error.fault() == gradtool::Fault::data, "refused with another fault than data", text);
    require(text.starts_with(file.path()) && text.find('\n') == std::string::npos, "refused without naming the file",
            text);
  } catch (const std::exception& error) {
    require(false, "an exception of another type", error.what());
  }
  return 0;
}
