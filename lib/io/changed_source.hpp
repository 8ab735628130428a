#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/io/gradient_file.hpp"

namespace gradtool {

/// Another source with something changed: all is the source's but what a class overrides.
class ChangedSource : public GradientSource {
 public:
  [[nodiscard]] const std::string& path() const override { return source_->path(); }
  [[nodiscard]] const FileInfo& info() const override { return source_->info(); }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const override { return source_->tensors(); }
  [[nodiscard]] const std::vector<StepInfo>& steps() const override { return source_->steps(); }
  void read(const ArrayPart& part, std::span<float> out) const override { source_->read(part, out); }

 protected:
  explicit ChangedSource(std::unique_ptr<GradientSource> source) : owned_{std::move(source)}, source_{owned_.get()} {}
  /// The source must outlive this.
  explicit ChangedSource(const GradientSource& source) : source_{&source} {}

  [[nodiscard]] const GradientSource& source() const { return *source_; }

 private:
  std::unique_ptr<GradientSource> owned_;
  const GradientSource* source_;
};

/// Some of the steps of another source.
class ChosenSteps : public ChangedSource {
 public:
  [[nodiscard]] const std::vector<StepInfo>& steps() const override { return steps_; }
  void read(const ArrayPart& part, std::span<float> out) const override { source().read(there(part), out); }
  [[nodiscard]] bool only_copies(const ArrayPart& part) const override { return source().only_copies(there(part)); }

 protected:
  using ChangedSource::ChangedSource;
  /// Adds the source's step at `place` behind those that were chosen before, and returns what is known of it.
  StepInfo& choose(std::size_t place) {
    places_.push_back(place);
    return steps_.emplace_back(source().steps()[place]);
  }

 private:
  [[nodiscard]] ArrayPart there(ArrayPart part) const {
    part.step = places_[part.step];
    return part;
  }

  std::vector<StepInfo> steps_;
  std::vector<std::size_t> places_;  ///< of each step, its position in the source
};

}  // namespace gradtool
