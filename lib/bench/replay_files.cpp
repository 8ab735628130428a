#include "lib/bench/replay_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "lib/core/error.hpp"
#include "lib/report/csv.hpp"

namespace gradtool {
namespace {

WriterOptions writer_options(const BenchOptions& options, const GradientSource& source,
                             const std::vector<std::size_t>& tensors, const CodecSpec& spec) {
  WriterOptions out;
  out.info = source.info();
  const std::string params = spec.params_text();
  out.info.producer = fmt::format("gradtool bench {}{}{}", spec.name(), params.empty() ? "" : ":", params);
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

PayloadLog::PayloadLog(const ReplayPlan& plan, int rank)
    : plan_{plan},
      rank_{rank},
      stem_{(std::filesystem::path{plan.options.payloads} / fmt::format("rank{}", rank)).string()},
      out_{stem_ + ".bin"},
      table_{"payloads",
             {{"codec", "its name"},
              {"params", "all its parameters"},
              {"rank", "who put it in"},
              {"step", "captured step, from 0"},
              {"iteration", "training iteration of the step"},
              {"unit", "what is reduced in one piece, from 0"},
              {"tensors", "names of the unit's tensors, joined by +"},
              {"elements", "of the unit"},
              {"call", "collective"},
              {"level", "whole: among all ranks; inside machines or across them, where a codec works in two levels"},
              {"offset", "of the message in the .bin file beside this table"},
              {"bytes", "of the message"}}} {}

void PayloadLog::put(std::size_t step, std::size_t unit, std::string_view call, Level level,
                     HostView<const std::byte> bytes, const Parts& parts) {
  std::string tensors;
  for (const auto& piece : plan_.units[unit].pieces) {
    tensors += (tensors.empty() ? "" : "+") + plan_.reader.tensors()[piece.tensor].name;
  }
  std::size_t written = 0;
  const auto write = [&](HostView<const std::byte> piece) {
    out_.write({reinterpret_cast<const char*>(piece.data()), piece.size()});
    written += piece.size();
  };
  if (parts.sizes.empty()) write(bytes);
  for (std::size_t r = 0; r < parts.sizes.size(); ++r) write(bytes.part(parts.offsets[r], parts.sizes[r]));
  const auto number = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  table_.add({plan_.codec.name(), plan_.codec.params_text(), number(static_cast<std::uint64_t>(rank_)), number(step),
              plan_.reader.steps()[step].iteration, number(unit), tensors, number(plan_.units[unit].elements),
              std::string{call}, std::string{name_of(level)}, number(offset_), number(written)});
  offset_ += written;
}

void PayloadLog::close() {
  out_.commit();
  save_csv(stem_ + ".csv", table_);
}

Reconstruction::Reconstruction(const BenchOptions& options, const GradientSource& source,
                               std::vector<std::size_t> tensors, const CodecSpec& spec)
    : source_{source},
      tensors_{std::move(tensors)},
      writer_{std::in_place, options.reconstruction, writer_options(options, source, tensors_, spec)} {}

void Reconstruction::put(std::size_t step, const Unit& unit, std::span<const float> result) {
  if (put_ == 0) {
    StepInfo info = source_.steps()[step];
    info.loss.clear();
    info.compute_seconds.clear();
    info.batch_weight.clear();  // the mean has them in it
    writer_->begin_step(info);
  }
  for (const auto& piece : unit.pieces) {
    const auto position = std::find(tensors_.begin(), tensors_.end(), piece.tensor) - tensors_.begin();
    writer_->put_gradient(static_cast<std::size_t>(position), 0, result.subspan(piece.first, piece.elements));
    ++put_;
  }
  if (put_ == tensors_.size()) {
    writer_->end_step();
    put_ = 0;
  }
}

bool Reconstruction::close() {
  const bool whole = writer_->steps() == source_.steps().size();
  if (whole) writer_->close();
  writer_.reset();
  return whole;
}

}  // namespace gradtool
