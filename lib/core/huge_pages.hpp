#pragma once

#include <cstddef>
#include <vector>

namespace gradtool {

/// Asks the system to back a block of memory that nobody has touched yet by huge pages: its first touch then takes one
/// page fault for 2 MiB instead of one for 4 KiB. A request that may be refused; blocks below 4 MiB are left alone.
void prefer_huge_pages(void* block, std::size_t bytes) noexcept;
/// Gives the memory of a block's whole pages back to the system. What stood there is lost.
void return_pages(void* block, std::size_t bytes) noexcept;

/// A vector of n zeros, on huge pages where it is large.
template <class T>
[[nodiscard]] std::vector<T> large_vector(std::size_t n) {
  std::vector<T> values;
  values.reserve(n);
  prefer_huge_pages(values.data(), n * sizeof(T));
  values.resize(n);
  return values;
}

}  // namespace gradtool
