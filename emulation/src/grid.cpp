#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "emulation/api.hpp"
#include "src/block.hpp"
#include "src/device.hpp"
#include "src/races.hpp"

extern "C" char __data_start, _end;  // NOLINT(bugprone-reserved-identifier): the linker's

namespace emulation {
namespace {

/// True when GRADTOOL_EMULATION_RACES=blocks, with which ThreadSanitizer looks for races between blocks in global
/// memory. Shared memory is excluded then, because all blocks use the same static variables for it.
bool blocks_race() {
  const char* text = std::getenv("GRADTOOL_EMULATION_RACES");
  if (text == nullptr || std::strcmp(text, "blocks") != 0) return false;
#if defined(GT_EMULATION_RACES)
  races::expect(&__data_start, static_cast<unsigned long>(&_end - &__data_start));
#endif
  return true;
}

// Only the GPU's thread (device.cpp) runs grids.
BlockPlayer& player() {
  static auto* const instance =
      new BlockPlayer{blocks_race()};  // never destroyed, because fibers hold frames of kernels
  return *instance;
}

std::byte* shared_memory = nullptr;

/// The dynamic shared memory. It has exactly as many bytes as the launch asked for, so that the address sanitizer finds
/// accesses beyond them.
std::byte* shared_room([[maybe_unused]] std::size_t bytes) {
#if defined(GT_EMULATION_RACES)
  alignas(256) static std::byte room[kSharedBytes];
  return room;
#else
  return static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
#endif
}

std::uint32_t mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

}  // namespace

int refuse(const dim3& grid, const dim3& block, std::size_t shared_bytes) {
  const bool fine = grid.x > 0 && grid.y > 0 && grid.y < 65536 && grid.z == 1 && block.x > 0 && block.x <= 1024 &&
                    block.y == 1 && block.z == 1 && grid.x < 0x80000000u && shared_bytes <= kSharedBytes;
  return fine ? cudaSuccess : cudaErrorInvalidConfiguration;
}

void run_grid(const char* name, const dim3& grid, const dim3& block, std::size_t shared_bytes,
              void (*kernel)(const void*), const void* arguments) {
  static const std::uint32_t seed = order_seed();
  static std::uint32_t grids = 0;
  const GridCall call{name, grid, block, kernel, arguments};
  gridDim = grid;
  blockDim = block;
  shared_memory = shared_bytes == 0 ? nullptr : shared_room(shared_bytes);
  ++grids;
  // Runs every block once, in an order that changes from grid to grid, because CUDA does not define any order.
  const std::uint64_t count = std::uint64_t{grid.x} * grid.y;
  std::uint64_t stride = mixed(seed ^ mixed(grids)) % count;
  while (std::gcd(stride, count) != 1) ++stride;
  std::uint64_t block_index = mixed(grids) % count;
  for (std::uint64_t i = 0; i < count; ++i, block_index = (block_index + stride) % count) {
    for (std::size_t k = 0; k < shared_bytes; ++k)
      shared_memory[k] = std::byte{0xA7};  // a GPU does not clear shared memory either
    const uint3 index{static_cast<unsigned>(block_index % grid.x), static_cast<unsigned>(block_index / grid.x), 0};
    player().play(call, index, mixed(seed + mixed(grids) + static_cast<std::uint32_t>(block_index)));
  }
  player().end_grid();
#if !defined(GT_EMULATION_RACES)
  std::free(shared_memory);
#endif
  shared_memory = nullptr;
}

std::byte* dynamic_shared() {
  return shared_memory;
}
const Lanes& meet(unsigned mask, std::uint64_t value, bool in_order) {
  return player().meet(mask, value, in_order);
}
int meet_block(bool vote) {
  return player().meet_block(vote);
}
void fence() {
  player().fence();
}

}  // namespace emulation
