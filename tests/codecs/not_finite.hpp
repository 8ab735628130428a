#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "kernels/float_bits.hpp"
#include "tests/codecs/inputs.hpp"

namespace gradtool::test {

/// Gradients of which arithmetic makes NaNs. An operation on these NaNs gives 0x7fffffff on a GPU, and on an emulated
/// one: two are signalling, and the third is that pattern. x86 keeps the bits of an operand, and makes 0xffc00000 out
/// of infinities.
inline std::vector<std::pair<std::string, std::vector<float>>> not_finite_gradients(std::size_t n) {
  std::vector<std::pair<std::string, std::vector<float>>> all;
  const auto add = [&](const char* name, std::size_t first, std::size_t step, const std::vector<float>& values) {
    auto x = gradient_like(n);
    for (std::size_t i = first, k = 0; i < n; i += step, ++k) x[i] = values[k % values.size()];
    all.emplace_back(name, std::move(x));
  };
  const float of_gpu = format::float_of(0x7fffffffU);
  const float signalling = format::float_of(0x7fa12345U);
  const float negative = format::float_of(0xffa12345U);
  add("the GPU's NaN", n / 3, n, {of_gpu});
  add("a negative NaN", n / 3, n, {negative});
  add("NaNs all over", 5, 37, {of_gpu, negative, signalling});
  add("NaNs only", 0, 1, {negative, of_gpu, signalling});
  add("one infinity", n / 3, n, {INFINITY});
  add("one negative infinity", n / 3, n, {-INFINITY});
  add("infinities of both signs", 3, 41, {INFINITY, -INFINITY, -INFINITY});
  add("infinities next to each other", 0, 1, {INFINITY, -INFINITY});
  add("infinities only", 0, 1, {-INFINITY});
  add("sums that overflow", 0, 1, {3e38F, 3e38F, -3e38F, 3e38F, -3e38F, -3e38F});
  add("infinities among zeros", 0, 1, {0.0F, -0.0F, 0.0F, 0.0F, INFINITY, 0.0F, -INFINITY, 0.0F, 0.0F, 0.0F, 0.0F});
  add("everything", 2, 7, {INFINITY, negative, 0.0F, 3e38F, of_gpu, -INFINITY, 1e-40F, -3e38F, signalling});
  return all;
}

}  // namespace gradtool::test
