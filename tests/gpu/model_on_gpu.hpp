#pragma once

#include <gtest/gtest.h>

#include "kernels/cuda/runtime.hpp"
#include "tests/reduce/model_run.hpp"

namespace gradtool::test {

/// run_model on one GPU, its ranks over loopback. Without messages and counts of allocations.
inline ModelOutcome run_model_on_gpu(const ModelSetup& setup) {
  ModelOutcome out{setup.ranks};
  const std::size_t n = setup.layout.elements;
  const auto spec = parse_codec(setup.codec);
  run_loopback(setup.ranks, 0, [&](Communicator<Space::cuda>& comm, Queue<Space::cuda> queue) {
    comm.set_all_reduce(setup.all_reduce);
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto on_device = [&](const std::vector<float>& values) {
      cuda::DeviceBuffer buffer{4 * values.size()};
      cuda::copy_elements(queue, buffer.as<float>(), HostView<const float>{values.data(), values.size()});
      return buffer;
    };
    const auto read = [&](View<const float, Space::cuda> view) {
      std::vector<float> values(view.size());
      cuda::copy_elements(queue, HostView<float>{values.data(), values.size()}, view);
      cuda::synchronize(queue);
      return values;
    };
    auto reducer = make_model_reducer<Space::cuda>(setup, queue);
    reducer->prepare(comm);
    Arena<Space::cuda> arena{reducer->workspace_bytes()};
    const auto workspace = arena.take_bytes(reducer->workspace_bytes());
    cuda::fill(queue, workspace, 0xA5);
    NoClock<Space::cuda> clock;
    const auto weight = on_device(model_weight(n));
    for (int step = 0; step < setup.steps; ++step) {
      if (step == setup.resets_at) reducer->reset(queue);
      const int number = setup.numbered(step);
      auto x = setup.gradient ? setup.gradient(comm.rank(), number) : model_gradient(n, comm.rank(), number);
      out.inputs[me].push_back(x);
      const auto gradient = on_device(x);
      const auto moment =
          on_device(model_second_moment(x, 9000U + static_cast<std::uint32_t>(10 * number + comm.rank())));
      SideInputs<Space::cuda> side;
      if (setup.side_inputs) side = {.weight = weight.as<float>(), .second_moment = moment.as<float>()};
      const EncodeContext context{
          .key = {.seed = 9, .step = static_cast<std::uint32_t>(number), .rank = static_cast<std::uint32_t>(me)},
          .iteration = number};
      if (setup.settles) reducer->settle(queue);
      comm.reset_traffic();
      reducer->reduce(comm, queue, gradient.as<float>(), side, context, workspace, clock);
      out.results[me].push_back(read(reducer->result(gradient.as<float>())));
      if (!spec.descriptor->target.empty()) out.inputs[me].back() = read(reducer->target(queue));
      out.payload[me].push_back(reducer->payload_bytes());
      out.wire[me].push_back(comm.traffic().bytes_sent);
    }
    reducer->settle(queue);
    out.residuals[me] = read(reducer->residual());
    if (me == 0) out.note = reducer->note();
  });
  return out;
}

}  // namespace gradtool::test
