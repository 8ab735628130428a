#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "lib/codecs/reducer.hpp"
#include "lib/comm/launch.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"
#include "python/native/arrays.hpp"

namespace gradtool::python {
namespace {

/// The reducers of all workers of a training in one process, where micro-batches stand for ranks. They reduce as
/// threads with a communicator of threads, so that every worker encodes, sends and keeps what a rank of a job would.
class WorkersReducer {
 public:
  using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

  WorkersReducer(const std::string& spec, const std::vector<TensorTuple>& tensors, const std::string& scheme,
                 int workers)
      : workers_(static_cast<std::size_t>(workers)) {
    const CodecSpec codec = parse_codec(spec);
    const Layout layout = layout_of(tensors);
    n_ = layout.elements;
    for (auto& worker : workers_) {
      const Queue<Space::host> queue{&worker.pool};
      worker.reducer = make_reducer<Space::host>(codec, make_codec<Space::host>(codec, layout), scheme_named(scheme),
                                                 layout, workers, queue);
      worker.memory =
          std::make_unique<Arena<Space::host>>(Arena<Space::host>::padded_size(worker.reducer->workspace_bytes()));
      worker.workspace = worker.memory->take_bytes(worker.reducer->workspace_bytes());
    }
  }

  WorkersReducer(const WorkersReducer&) = delete;
  WorkersReducer& operator=(const WorkersReducer&) = delete;

  /// Row w of `values`, the gradient of worker w, becomes what rank w of a job would have after its all-reduce.
  void reduce(const Matrix& values, const std::optional<Array<const float, Space::host>>& weight, std::uint64_t seed,
              std::uint32_t step, std::uint32_t tensor, double ratio) {
    if (values.shape(0) != workers_.size() || values.shape(1) != n_)
      throw Error{Fault::internal, "the values are not those of the unit"};
    const SideInputs<Space::host> side{.weight = optional_view<Space::host>(weight), .second_moment = {}};
    // Many workers share few cores: one may have to wait for the encoders of all others.
    constexpr double kTimeoutSeconds = 3600.0;
    const auto body = [&](Communicator<Space::host>& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      Worker& worker = workers_[rank];
      worker.reducer->prepare(comm);
      NoClock<Space::host> clock;
      worker.reducer->reduce(comm, {&worker.pool}, {values.data() + rank * n_, n_}, side,
                             context_of(seed, step, static_cast<std::uint32_t>(rank), tensor, step, ratio),
                             worker.workspace, clock);
      worker.bytes_sent += comm.traffic().bytes_sent;
    };
    run_threads(static_cast<int>(workers_.size()), body, kTimeoutSeconds);
  }

  /// Bytes that the worker that sent most has sent so far, as bench's `wire_bytes` counts them.
  [[nodiscard]] std::uint64_t bytes_sent() const {
    return std::max_element(workers_.begin(), workers_.end(),
                            [](const Worker& a, const Worker& b) { return a.bytes_sent < b.bytes_sent; })
        ->bytes_sent;
  }
  [[nodiscard]] std::string note() const { return workers_.front().reducer->note(); }
  [[nodiscard]] bool reached() const { return workers_.front().reducer->reached(); }

 private:
  struct Worker {
    TaskPool pool{1};
    std::unique_ptr<Reducer<Space::host>> reducer;
    std::unique_ptr<Arena<Space::host>> memory;
    View<std::byte, Space::host> workspace;
    std::uint64_t bytes_sent = 0;
  };
  std::size_t n_ = 0;
  std::vector<Worker> workers_;
};

}  // namespace

void add_workers(nb::module_& module) {
  using nb::literals::operator""_a;
  nb::class_<WorkersReducer>(module, "WorkersReducer")
      .def(nb::init<const std::string&, const std::vector<TensorTuple>&, const std::string&, int>(), "spec"_a,
           "tensors"_a, "scheme"_a, "workers"_a)
      .def("reduce", &WorkersReducer::reduce, "values"_a, "weight"_a.none(), "seed"_a, "step"_a, "tensor"_a,
           "learning_rate_ratio"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("bytes_sent", &WorkersReducer::bytes_sent)
      .def_prop_ro("note", &WorkersReducer::note)
      .def_prop_ro("reached", &WorkersReducer::reached);
}

}  // namespace gradtool::python
