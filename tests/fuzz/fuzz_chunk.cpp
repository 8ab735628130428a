// libFuzzer target: arbitrary bytes as a compressed chunk. The first three bytes choose the filters, those that were
// left out for this chunk, and its size; the rest is what the file holds. Undoing the filters must give one chunk or
// nothing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "lib/io/filters.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using gradtool::hdf5::Filters;
  if (size < 3) return 0;
  std::vector<Filters::Kind> kinds;
  bool deflated = false;
  for (unsigned choice = data[0]; choice > 0; choice /= 4) {
    const auto kind = static_cast<Filters::Kind>(choice % 4 % 3);
    if (kind == Filters::Kind::deflate && deflated) continue;
    deflated = deflated || kind == Filters::Kind::deflate;
    kinds.push_back(kind);
  }
  const std::size_t value_bytes = std::size_t{1} << (data[2] % 4);
  const std::size_t chunk_bytes = value_bytes * (1 + data[2] / 4 * 16U);
  const Filters filters{kinds, value_bytes, chunk_bytes};
  const auto chunk = filters.undo({reinterpret_cast<const std::byte*>(data + 3), size - 3}, data[1]);
  if (!chunk.empty() && chunk.size() != chunk_bytes) std::abort();
  return 0;
}
