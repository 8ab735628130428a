#include "lib/analysis/study.hpp"

#include <algorithm>
#include <memory>

#include "lib/analysis/gpu.hpp"
#include "lib/core/error.hpp"
#include "lib/core/task_pool.hpp"

namespace gradtool {
namespace {

/// Reads slices into the host's memory.
class HostFeed final : public SliceFeed {
 public:
  HostFeed(std::size_t elements, bool second_moment, bool weight)
      : gradient_(elements), second_moment_(second_moment ? elements : 0), weight_(weight ? elements : 0) {}
  [[nodiscard]] std::span<float> gradient() override { return gradient_; }
  [[nodiscard]] std::span<float> second_moment() override { return second_moment_; }
  [[nodiscard]] std::span<float> weight() override { return weight_; }
  [[nodiscard]] Slice slice(std::size_t step, std::size_t worker, std::uint64_t first) override {
    return {step, worker, first, gradient_, second_moment_, weight_, {}};
  }

 private:
  std::vector<float> gradient_, second_moment_, weight_;
};

/// A part that is open: its accumulators, one for each analysis, and the memory that its slices are read into.
struct Lane {
  Part part;
  std::vector<std::unique_ptr<Accumulator>> accumulators;
  std::unique_ptr<SliceFeed> feed;
  std::size_t slices_done = 0;
};

/// One pass over the file for the analyses that share a unit.
class Pass {
 public:
  Pass(const GradientSource& reader, std::span<const std::size_t> tensors, std::vector<Analysis*> analyses,
       const StudyOptions& options, TaskPool& pool)
      : reader_{reader}, tensors_{tensors}, analyses_{std::move(analyses)}, options_{options}, pool_{pool} {}

  /// `done` counts the values read, over all passes.
  bool run(std::uint64_t& done, std::uint64_t total) {
    const auto parts = cut();
    const auto lanes = static_cast<std::size_t>(pool_.threads());
    for (std::size_t first = 0; first < parts.size(); first += lanes) {
      std::vector<Lane> open;
      for (std::size_t i = first; i < std::min(parts.size(), first + lanes); ++i) open.push_back(start(parts[i]));
      while (read_slices(open, done)) {
        if (!options_.progress(done, total)) return false;
        each(open, &Pass::observe);
      }
      each(open, &Pass::close);
      for (auto& lane : open) collect(lane);
    }
    return true;
  }

 private:
  [[nodiscard]] const Scope& scope() const { return analyses_.front()->scope(); }

  /// Cuts all tensors into parts, in order. The cuts must not depend on the number of threads.
  [[nodiscard]] std::vector<Part> cut() const {
    std::vector<Part> parts;
    std::size_t bytes = (options_.gpu ? scope().workers + 1 : 2) * sizeof(float);
    for (const auto* analysis : analyses_) bytes += analysis->bytes_per_element();
    const std::uint64_t longest = std::max<std::uint64_t>(1024, options_.part_bytes / bytes);
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const std::uint64_t n = scope().tensors[t].elements;
      if (analyses_.front()->unit() == Analysis::Unit::slices) {
        for (std::size_t step = 0; step < scope().steps(); ++step) parts.push_back({t, 0, n, step, 1});
      } else {
        const std::uint64_t pieces = (n + longest - 1) / longest;
        for (std::uint64_t i = 0; i < pieces; ++i) {
          const std::uint64_t from = n * i / pieces, to = n * (i + 1) / pieces;
          parts.push_back({t, from, to - from, 0, scope().steps()});
        }
      }
    }
    return parts;
  }

  [[nodiscard]] Lane start(const Part& part) const {
    Lane lane{part, {}, {}, 0};
    for (auto* analysis : analyses_) lane.accumulators.push_back(analysis->start(part));
    const bool moments = std::any_of(analyses_.begin(), analyses_.end(),
                                     [&](auto* analysis) { return analysis->needs_second_moment(part.tensor); });
    const auto elements = static_cast<std::size_t>(part.count);
    const bool whole_steps = analyses_.front()->unit() == Analysis::Unit::elements;
    if (options_.gpu) {
      lane.feed = make_gpu_feed(options_.gpu, elements, whole_steps ? scope().workers : 1, moments);
    } else {
      const bool weights = std::any_of(analyses_.begin(), analyses_.end(),
                                       [&](auto* analysis) { return analysis->needs_weight(part.tensor); });
      lane.feed = std::make_unique<HostFeed>(elements, moments, weights);
    }
    return lane;
  }

  /// Reads the next slice of every lane that has one. Returns false when none has.
  bool read_slices(std::vector<Lane>& lanes, std::uint64_t& done) const {
    bool any = false;
    for (auto& lane : lanes) {
      if (exhausted(lane)) continue;
      const std::size_t step = scope().first_step + step_of(lane), worker = worker_of(lane);
      const std::size_t tensor = tensors_[lane.part.tensor];
      reader_.read_gradient_part(tensor, step, worker, lane.part.first, lane.feed->gradient());
      const auto moments = lane.feed->second_moment();
      if (!moments.empty()) reader_.read_second_moment_part(tensor, step, worker, lane.part.first, moments);
      const auto weights = lane.feed->weight();
      if (!weights.empty() && worker == 0) reader_.read_weight_part(tensor, step, lane.part.first, weights);
      done += lane.part.count;
      any = true;
    }
    return any;
  }

  [[nodiscard]] bool exhausted(const Lane& lane) const { return lane.slices_done == lane.part.steps * scope().workers; }
  [[nodiscard]] std::size_t step_of(const Lane& lane) const {
    return lane.part.first_step + lane.slices_done / scope().workers;
  }
  [[nodiscard]] std::size_t worker_of(const Lane& lane) const { return lane.slices_done % scope().workers; }

  void observe(Lane& lane) const {
    if (exhausted(lane)) return;
    const Slice slice = lane.feed->slice(step_of(lane), worker_of(lane), lane.part.first);
    for (auto& accumulator : lane.accumulators) accumulator->observe(slice);
    ++lane.slices_done;
  }

  void close(Lane& lane) const {
    for (auto& accumulator : lane.accumulators) accumulator->close();
  }

  void each(std::vector<Lane>& lanes, void (Pass::*step)(Lane&) const) {
    auto task = [&](std::size_t i) { (this->*step)(lanes[i]); };
    using Task = decltype(task);
    pool_.run(
        lanes.size(), [](void* context, std::size_t i) { (*static_cast<Task*>(context))(i); }, &task);
  }

  /// Joins the part of a closed lane to the earlier parts of its tensor; after the last part it finishes the tensor.
  void collect(Lane& lane) {
    if (whole_.empty()) {
      whole_ = std::move(lane.accumulators);
    } else {
      for (std::size_t a = 0; a < whole_.size(); ++a) whole_[a]->merge(*lane.accumulators[a]);
    }
    const Part& part = lane.part;
    if (part.first + part.count < scope().tensors[part.tensor].elements) return;
    if (part.first_step + part.steps < scope().steps()) return;
    for (std::size_t a = 0; a < whole_.size(); ++a) analyses_[a]->finish(part.tensor, *whole_[a]);
    whole_.clear();
  }

  const GradientSource& reader_;
  std::span<const std::size_t> tensors_;
  std::vector<Analysis*> analyses_;
  const StudyOptions& options_;
  TaskPool& pool_;
  std::vector<std::unique_ptr<Accumulator>> whole_;  ///< of the current tensor, joined over its parts so far
};

}  // namespace

bool study(const GradientSource& reader, std::span<const std::size_t> tensors,
           std::span<const std::unique_ptr<Analysis>> analyses, const StudyOptions& options) {
  expects(!analyses.empty() && !tensors.empty(), "a study needs an analysis and a tensor");
  TaskPool pool{options.gpu ? 1 : options.threads};
  std::vector<std::vector<Analysis*>> groups(2);
  for (const auto& analysis : analyses) {
    groups[analysis->unit() == Analysis::Unit::elements ? 0 : 1].push_back(analysis.get());
  }
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  const Scope& scope = analyses.front()->scope();
  std::uint64_t values = 0, done = 0;
  for (const auto& tensor : scope.tensors) values += tensor.elements * scope.steps() * scope.workers;
  for (const auto& group : groups) {
    if (!Pass{reader, tensors, group, options, pool}.run(done, values * groups.size())) return false;
  }
  return true;
}

}  // namespace gradtool
