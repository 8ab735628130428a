#include "lib/capture/recorder.hpp"

#include <chrono>
#include <utility>

#include "lib/core/error.hpp"

namespace gradtool {

Recorder::Recorder(const std::string& path, const WriterOptions& options,
                   std::function<void(const StepInfo&)> on_written)
    : writer_{path, options},
      tensors_{options.tensors},
      workers_{static_cast<std::size_t>(options.info.workers)},
      on_written_{std::move(on_written)} {
  std::size_t gradients = 0, second_moments = 0, weights = 0;
  for (const auto& tensor : tensors_) {
    const auto elements = static_cast<std::size_t>(tensor.elements);
    gradients += workers_ * elements;
    if (tensor.has_second_moment) second_moments += workers_ * elements;
    if (tensor.has_weight) weights += elements;
  }
  for (auto& slot : slots_) {
    slot.gradients.resize(gradients);
    slot.second_moments.resize(second_moments);
    slot.weights.resize(weights);
  }
  thread_ = std::thread{[this] { write_all(); }};
}

Recorder::~Recorder() {
  stop();
}

void Recorder::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    no_more_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

RecordedStep& Recorder::next() {
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return failure_ != nullptr || !free_.empty(); });
  if (failure_) std::rethrow_exception(failure_);
  filling_ = free_.front();
  free_.pop_front();
  return slots_[filling_];
}

void Recorder::submit() {
  {
    const std::lock_guard lock{mutex_};
    full_.push_back(filling_);
  }
  changed_.notify_all();
}

void Recorder::finish(bool complete, const std::optional<Readiness>& readiness) {
  stop();
  if (failure_) std::rethrow_exception(failure_);
  if (readiness) writer_.put_readiness(*readiness);
  if (complete)
    writer_.close();
  else
    writer_.close_early();
}

void Recorder::write_all() {
  while (true) {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return no_more_ || !full_.empty(); });
    if (full_.empty()) return;
    const std::size_t slot = full_.front();
    full_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      write(slots_[slot]);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    free_.push_back(slot);
    failure_ = failure;
    if (failure) full_.clear();
    lock.unlock();
    changed_.notify_all();
    if (failure) return;
  }
}

void Recorder::write(const RecordedStep& step) {
  const auto start = std::chrono::steady_clock::now();
  writer_.begin_step(step.info);
  const float* gradient = step.gradients.data();
  const float* second_moment = step.second_moments.data();
  const float* weight = step.weights.data();
  const auto take = [](const float*& from, std::uint64_t elements) {
    const auto count = static_cast<std::size_t>(elements);
    return std::span{std::exchange(from, from + count), count};
  };
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].has_weight) writer_.put_weight(t, take(weight, tensors_[t].elements));
  }
  for (std::size_t w = 0; w < workers_; ++w) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      writer_.put_gradient(t, w, take(gradient, tensors_[t].elements));
      if (tensors_[t].has_second_moment) writer_.put_second_moment(t, w, take(second_moment, tensors_[t].elements));
    }
  }
  writer_.end_step();
  bytes_ = writer_.bytes_written();
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (on_written_) on_written_(step.info);
}

}  // namespace gradtool
