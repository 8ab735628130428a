#include "lib/bench/reconstruction.hpp"

#include <algorithm>

namespace gradtool {
namespace {

WriterOptions writer_options(const BenchOptions& options, const GradientReader& source,
                             const std::vector<std::size_t>& tensors, const CodecSpec& spec) {
  WriterOptions out;
  out.info = source.info();
  out.info.producer = "gradtool bench " + spec.name() + (spec.params_text().empty() ? "" : ":" + spec.params_text());
  out.info.created.clear();
  out.info.command = options.command;
  out.info.workers = 1;
  out.info.micro_batches = 1;
  out.info.batch_size = source.info().batch_size;
  for (const std::size_t tensor : tensors) {
    TensorInfo info = source.tensors()[tensor];
    info.dtype = Dtype::f32;
    info.has_second_moment = info.has_weight = false;
    out.tensors.push_back(info);
  }
  const StepInfo& first = source.steps().front();
  out.with_epoch = first.epoch.has_value();
  out.with_learning_rate = first.learning_rate.has_value();
  out.with_loss = false;
  return out;
}

}  // namespace

Reconstruction::Reconstruction(const BenchOptions& options, const GradientReader& source,
                               std::vector<std::size_t> tensors, const CodecSpec& spec)
    : source_{source},
      tensors_{std::move(tensors)},
      writer_{options.reconstruction, writer_options(options, source, tensors_, spec)} {}

void Reconstruction::put(std::size_t step, const Unit& unit, std::span<const float> result) {
  if (put_ == 0) {
    StepInfo info = source_.steps()[step];
    info.loss.clear();
    info.compute_seconds.clear();
    writer_.begin_step(info);
  }
  for (const auto& piece : unit.pieces) {
    const auto position = std::find(tensors_.begin(), tensors_.end(), piece.tensor) - tensors_.begin();
    writer_.put_gradient(static_cast<std::size_t>(position), 0, result.subspan(piece.first, piece.elements));
    ++put_;
  }
  if (put_ == tensors_.size()) {
    writer_.end_step();
    put_ = 0;
  }
}

void Reconstruction::close() {
  writer_.close();
}

}  // namespace gradtool
