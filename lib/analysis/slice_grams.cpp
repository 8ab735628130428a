#include "lib/analysis/slice_grams.hpp"

#include <algorithm>
#include <functional>

#include "lib/analysis/gram.hpp"
#include "lib/core/error.hpp"

namespace gradtool {

SliceGrams::SliceGrams(const Slicing& slicing, std::size_t samples, std::uint64_t first, std::size_t count)
    : samples_{samples}, count_{count}, column_(count), values_(samples * count) {
  std::map<std::size_t, std::size_t> sizes;
  for (std::size_t i = 0; i < count; ++i) ++sizes[slicing.slice_of(first + i)];
  std::map<std::size_t, std::size_t> next;
  std::size_t start = 0;
  for (const auto& [slice, size] : sizes) {
    runs_.push_back({slice, start, size});
    next[slice] = start;
    start += size;
  }
  for (std::size_t i = 0; i < count; ++i) column_[i] = static_cast<std::uint32_t>(next[slicing.slice_of(first + i)]++);
}

void SliceGrams::add_sample(std::span<const double> values) {
  if (next_ == samples_) return;
  expects(values.size() == count_, "a sample has another size than its part");
  double* row = values_.data() + next_ * count_;
  for (std::size_t i = 0; i < count_; ++i) row[column_[i]] = values[i];
  ++next_;
}

void SliceGrams::close() {
  expects(next_ == samples_, "a part was closed before its last sample");
  for (const auto& run : runs_) {
    Slice& slice = slices_[run.slice];
    slice.gram.resize(samples_ * samples_);
    slice.square_norms.resize(samples_);
    for (std::size_t s = 0; s < samples_; ++s) {
      const double* row = &values_[s * count_ + run.first];
      slice.square_norms[s] = dot(row, row, run.count);
    }
  }
  std::vector<double> mean(count_);
  for (std::size_t s = 0; s < samples_; ++s) {
    for (std::size_t i = 0; i < count_; ++i) mean[i] += values_[s * count_ + i];
  }
  for (double& x : mean) x /= static_cast<double>(samples_);
  for (std::size_t s = 0; s < samples_; ++s) {
    for (std::size_t i = 0; i < count_; ++i) values_[s * count_ + i] -= mean[i];
  }
  for (const auto& run : runs_) {
    add_gram({values_.data() + run.first, samples_, run.count, count_}, slices_[run.slice].gram);
  }
  column_ = {};
  values_ = {};
}

void SliceGrams::merge(const SliceGrams& other) {
  const auto add = [](std::vector<double>& mine, const std::vector<double>& theirs) {
    mine.resize(theirs.size());
    std::transform(mine.begin(), mine.end(), theirs.begin(), mine.begin(), std::plus<>{});
  };
  for (const auto& [number, theirs] : other.slices_) {
    add(slices_[number].gram, theirs.gram);
    add(slices_[number].square_norms, theirs.square_norms);
  }
}

}  // namespace gradtool
