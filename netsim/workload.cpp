#include "netsim/workload.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/throw_error.hpp"
#include "lib/model/cost_model.hpp"
#include "netsim/transport.hpp"

namespace gradtool::netsim {
namespace {

constexpr double kBack = 2.0 / 3.0;  // where the last third of the model begins

std::vector<std::uint8_t> important_packets(std::span<const float> gradient, std::size_t elements_each, bool back) {
  std::vector<float> means;
  means.reserve(gradient.size() / elements_each + 1);
  for (std::size_t first = 0; first < gradient.size(); first += elements_each) {
    const auto part = gradient.subspan(first, std::min(elements_each, gradient.size() - first));
    const double sum =
        std::accumulate(part.begin(), part.end(), 0.0, [](double all, float g) { return all + std::abs(g); });
    means.push_back(static_cast<float>(sum / static_cast<double>(part.size())));
  }
  std::vector<float> reordered = means;
  const auto median = reordered.begin() + static_cast<std::ptrdiff_t>(reordered.size() / 2);
  std::nth_element(reordered.begin(), median, reordered.end());
  std::vector<std::uint8_t> flags(means.size());
  for (std::size_t i = 0; i < means.size(); ++i) flags[i] = back || means[i] >= *median ? 1 : 0;
  return flags;
}

}  // namespace

Workload read_workload(const GradientSource& source, const WorkloadOptions& options) {
  if (options.step >= source.steps().size()) {
    throw_error(Fault::usage, "--step {} is not in {}, which has the steps 0 to {}", options.step, source.path(),
                source.steps().size() - 1);
  }
  const auto& tensors = source.tensors();
  std::vector<std::size_t> chosen(tensors.size());
  std::iota(chosen.begin(), chosen.end(), std::size_t{0});
  std::erase_if(chosen, [&](std::size_t t) { return tensors[t].elements == 0; });
  const std::vector<gradtool::Unit> units = make_units(tensors, chosen, options.granularity);
  const std::vector<double> ready = ready_shares(units, tensors);
  const auto all = static_cast<double>(source.elements());
  const auto elements_each = static_cast<std::size_t>(std::max(1.0, options.payload / (4.0 * options.scale)));
  std::vector<double> depth(tensors.size());  // share of elements before each tensor
  double before = 0.0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    depth[t] = before / all;
    before += static_cast<double>(tensors[t].elements);
  }

  Workload work{.model = source.info().model, .units = {}, .bytes = 0};
  std::vector<float> gradient;
  work.units.reserve(units.size());
  for (std::size_t u = 0; u < units.size(); ++u) {
    WorkUnit unit;
    std::size_t first = tensors.size();
    for (const auto& piece : units[u].pieces) first = std::min(first, piece.tensor);
    unit.depth = depth[first];
    unit.layer = std::min(kLayerClasses - 1, static_cast<int>(kLayerClasses * unit.depth));
    unit.ready = ready[u];
    unit.share = static_cast<double>(units[u].elements) / all;
    unit.bytes = static_cast<std::uint64_t>(
        std::max(4.0, std::round(4.0 * options.scale * static_cast<double>(units[u].elements))));
    unit.important.resize(source.workers());
    for (std::size_t w = 0; w < source.workers(); ++w) {
      for (const auto& piece : units[u].pieces) {
        gradient.resize(piece.elements);
        source.read_gradient(piece.tensor, options.step, w, gradient);
        const auto flags = important_packets(gradient, elements_each, depth[piece.tensor] >= kBack);
        unit.important[w].insert(unit.important[w].end(), flags.begin(), flags.end());
      }
    }
    work.bytes += unit.bytes;
    work.units.push_back(std::move(unit));
  }
  std::stable_sort(work.units.begin(), work.units.end(),
                   [](const WorkUnit& a, const WorkUnit& b) { return a.depth < b.depth; });
  return work;
}

}  // namespace gradtool::netsim
