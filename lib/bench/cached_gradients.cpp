#include "lib/bench/cached_gradients.hpp"

#include <algorithm>
#include <utility>

#include "lib/core/error.hpp"
#include "lib/core/huge_pages.hpp"

namespace gradtool {
namespace {

constexpr std::uint64_t kLeastCopied = 16'384;  // values; for fewer the call of the system takes longer than the copy

}  // namespace

CachedGradients::CachedGradients(std::unique_ptr<GradientSource> source, std::uint64_t most_bytes, bool system_keeps)
    : ChangedSource{std::move(source)}, system_keeps_{system_keeps}, left_{most_bytes} {
  for (auto& array : kept_) array.resize(tensors().size() * steps().size() * workers());
}

void CachedGradients::read(const ArrayPart& part, std::span<float> out) const {
  expects(part.tensor < tensors().size() && part.step < steps().size() && part.worker < workers(),
          "there is no such tensor, step or worker in the gradient file");
  const std::uint64_t elements = tensors()[part.tensor].elements;
  expects(part.first <= elements && out.size() <= elements - part.first, "a part of a tensor reaches past its end");
  const std::size_t place = (part.tensor * steps().size() + part.step) * workers() + part.worker;
  Values& values = kept_[static_cast<std::size_t>(part.of)][place];
  if (values.empty() && sizeof(float) * elements <= left_ &&
      (elements < kLeastCopied || !system_keeps_ || !source().only_copies(part))) {
    Values whole = large_vector<float>(elements);
    ArrayPart all = part;
    all.first = 0;
    source().read(all, std::span<float>{whole});
    left_ -= sizeof(float) * elements;
    values = std::move(whole);
  }
  if (values.empty())
    source().read(part, out);
  else
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(part.first), out.size(), out.begin());
}

}  // namespace gradtool
