#include "lib/bench/cached_gradients.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/error.hpp"
#include "lib/core/huge_pages.hpp"

namespace gradtool {

CachedGradients::CachedGradients(std::unique_ptr<GradientSource> source, std::uint64_t most_bytes)
    : source_{std::move(source)}, left_{most_bytes} {
  const std::size_t places = tensors().size() * steps().size();
  gradients_.resize(places * workers());
  second_moments_.resize(places * workers());
  weights_.resize(places);
}

std::size_t CachedGradients::place(std::size_t tensor, std::size_t step, std::size_t worker) const {
  expects(tensor < tensors().size() && step < steps().size() && worker < workers(),
          "there is no such tensor, step or worker in the gradient file");
  return (tensor * steps().size() + step) * workers() + worker;
}

template <class Read>
void CachedGradients::serve(Values& values, std::size_t tensor, std::uint64_t first, std::span<float> out,
                            Read read) const {
  const std::uint64_t elements = tensors()[tensor].elements;
  expects(first <= elements && out.size() <= elements - first, "a part of a tensor reaches past its end");
  if (values.empty() && sizeof(float) * elements <= left_) {
    Values whole = large_vector<float>(elements);
    read(0, std::span<float>{whole});
    left_ -= sizeof(float) * elements;
    values = std::move(whole);
  }
  if (values.empty())
    read(first, out);
  else
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(first), out.size(), out.begin());
}

void CachedGradients::read_gradient_part(std::size_t tensor, std::size_t step, std::size_t worker, std::uint64_t first,
                                         std::span<float> out) const {
  serve(gradients_[place(tensor, step, worker)], tensor, first, out,
        [&](std::uint64_t from, std::span<float> to) { source_->read_gradient_part(tensor, step, worker, from, to); });
}

void CachedGradients::read_second_moment_part(std::size_t tensor, std::size_t step, std::size_t worker,
                                              std::uint64_t first, std::span<float> out) const {
  serve(second_moments_[place(tensor, step, worker)], tensor, first, out, [&](std::uint64_t from, std::span<float> to) {
    source_->read_second_moment_part(tensor, step, worker, from, to);
  });
}

void CachedGradients::read_weight_part(std::size_t tensor, std::size_t step, std::uint64_t first,
                                       std::span<float> out) const {
  serve(weights_[place(tensor, step, 0) / workers()], tensor, first, out,
        [&](std::uint64_t from, std::span<float> to) { source_->read_weight_part(tensor, step, from, to); });
}

}  // namespace gradtool
