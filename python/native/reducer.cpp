#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lib/codecs/reducer.hpp"
#include "lib/comm/host_sum.hpp"
#include "lib/comm/ring.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"
#include "python/native/arrays.hpp"
#if GT_HAS_CUDA
#include "kernels/cuda/runtime.hpp"
#include "kernels/vector.hpp"
#endif

namespace gradtool::python {

Scheme scheme_named(const std::string& name) {
  if (const auto scheme = named<Scheme>(name); scheme && scheme != Scheme::own) return *scheme;
  throw Error{Fault::usage,
              "there is no way to reduce called '" + name + "'; valid is auto, sum, gather, hop or alltoall"};
}

namespace {

/// The collective of this name, as bench's --op. All-gathers and all-to-alls have no use in a hook.
Collective collective_named(const std::string& name) {
  const auto op = named<Collective>(name);
  if (op == Collective::all_reduce || op == Collective::reduce_scatter) return *op;
  throw Error{Fault::usage, "there is no collective called '" + name + "'; valid is all-reduce or reduce-scatter"};
}

/// How all-reduces of payloads are made of messages, as bench's --all-reduce.
AllReduce all_reduce_named(const std::string& name) {
  if (name == "auto") return AllReduce::automatic;
  if (name == "ring") return AllReduce::ring;
  if (name == "doubling") return AllReduce::doubling;
  throw Error{Fault::usage, "there is no all-reduce called '" + name + "'; valid is auto, ring or doubling"};
}

/// Bytes of Python in memory that this call lends it. The array must not outlive the call.
template <Space S>
nb::object lent(View<const std::byte, S> view) {
  if (view.empty()) return nb::none();
  using Framework = std::conditional_t<S == Space::host, nb::numpy, nb::pytorch>;
  auto* const data = reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(view.data()));
  return nb::cast(nb::ndarray<Framework, std::uint8_t, nb::ndim<1>, Device<S>>{data, {view.size()}, nb::none()},
                  nb::rv_policy::reference);
}

/// The ranks of a torch.distributed process group, or of anything else that can exchange bytes: `exchange(to, out,
/// from, in)` sends the bytes `out` to rank `to` while it receives into `in` from rank `from`, where None stands for
/// nothing; `all_reduce(values)` adds float32 in place over ranks, by the library's own all-reduce. Every collective
/// of the reducers is made of these, so that the counted bytes are those that were sent.
template <Space S>
class CallbackCommunicator final : public RingCommunicator<S> {
 public:
  using Bytes = View<std::byte, S>;
  using ConstBytes = View<const std::byte, S>;

  CallbackCommunicator(int rank, int size, nb::object exchange, nb::object all_reduce)
      : RingCommunicator<S>{rank, size}, exchange_{std::move(exchange)}, all_reduce_{std::move(all_reduce)} {}

  [[nodiscard]] std::string_view name() const noexcept override { return "python"; }

  /// The library's all-reduce for float32; it is counted by the ring's formula, whatever the library does.
  void all_reduce_native(Queue<S> queue, Bytes inout, Dtype dtype, Bytes scratch) override {
    if (dtype != Dtype::f32) return RingCommunicator<S>::all_reduce_native(queue, inout, dtype, scratch);
    const auto bytes = ring_all_reduce_bytes(inout.size() / sizeof(float), sizeof(float), this->rank(), this->size());
    ++this->traffic_.collectives;
    this->traffic_.bytes_sent += bytes;
    this->traffic_.messages_sent += bytes > 0 ? 1 : 0;
    EmulatedCallEnds::wait();
    const nb::gil_scoped_acquire python;
    all_reduce_(lent<S>(inout));
  }

  /// Reducers do not use these two; they serve the harness of bench, which has communicators of its own.
  void barrier(Queue<S> /*queue*/) override { expects(false, "a reducer waited at a barrier"); }
  void agree_max(std::span<double> /*values*/) override { expects(false, "a reducer asked for a maximum"); }

 protected:
  void transfer(Queue<S> /*queue*/, int to, ConstBytes out, int from, Bytes in) override {
    EmulatedCallEnds::wait();
    const nb::gil_scoped_acquire python;
    exchange_(to, lent<S>(out), from, lent<S>(in));
  }
  void transfer_sum(Queue<S> queue, int to, ConstBytes out, int from, Bytes inout, Dtype dtype,
                    Bytes scratch) override {
    const Bytes arrived = scratch.first(inout.size());
    transfer(queue, to, out, from, arrived);
    sum_local(queue, inout, arrived, dtype);
  }
  /// One ring segment, which holds what arrives until it is added.
  [[nodiscard]] std::size_t ring_scratch(std::size_t bytes) const override {
    return std::min(bytes, bytes / static_cast<std::size_t>(this->size()) + sizeof(float));
  }
  void copy_local(Queue<S> queue, Bytes to, ConstBytes from) override {
    if (to.empty() || to.data() == from.data()) return;
    if constexpr (S == Space::host) copy_into(queue, to, from);
#if GT_HAS_CUDA
    else
      cuda::copy(queue, to, from);
#endif
  }
  void sum_local(Queue<S> queue, Bytes sum, ConstBytes addend, Dtype dtype) override {
    if constexpr (S == Space::host) sum_into(queue, sum, addend, dtype);
#if GT_HAS_CUDA
    else
      cuda::sum_into(queue, sum, addend, dtype);
#endif
  }

 private:
  nb::object exchange_, all_reduce_;
};

/// The ranks, and this rank's threads.
template <Space S>
struct Ranks {
  Ranks(int rank, int size, int threads, nb::object exchange, nb::object all_reduce, const std::string& algorithm)
      : comm{rank, size, std::move(exchange), std::move(all_reduce)}, pool{threads} {
    comm.set_all_reduce(all_reduce_named(algorithm));
    if (size < 1 || rank < 0 || rank >= size) throw Error{Fault::internal, "there is no such rank"};
  }
  [[nodiscard]] std::uint64_t bytes_sent() const { return comm.traffic().bytes_sent; }
  [[nodiscard]] std::uint64_t messages_sent() const { return comm.traffic().messages_sent; }

  CallbackCommunicator<S> comm;
  TaskPool pool;
};

/// One rank's reducer of one unit (a tensor, or a bucket of DDP), with the memory that it works in.
template <Space S>
class UnitReducer {
 public:
  UnitReducer(Ranks<S>& ranks, const std::string& spec, const std::vector<TensorTuple>& tensors,
              const std::string& scheme, std::uintptr_t stream, const std::string& op)
      : ranks_{ranks} {
    const CodecSpec codec = parse_codec(spec);
    const Layout layout = layout_of(tensors);
    n_ = layout.elements;
    const auto queue = queue_of<S>(&ranks.pool, stream);
    reducer_ = make_reducer<S>(codec, make_codec<S>(codec, layout), scheme_named(scheme), layout, ranks.comm.size(),
                               queue, collective_named(op));
    reducer_->prepare(ranks.comm);
    workspace_ = std::make_unique<Arena<S>>(Arena<S>::padded_size(reducer_->workspace_bytes()));
    view_ = workspace_->take_bytes(reducer_->workspace_bytes());
  }

  /// values := their mean over ranks, up to the method's error; of a reduce-scatter, this rank's part of them alone.
  /// Every rank calls it with the same step and tensor.
  void reduce(const Array<float, S>& values, const std::optional<Array<const float, S>>& weight,
              const std::optional<Array<const float, S>>& second_moment, std::uint64_t seed, std::uint32_t step,
              std::uint32_t tensor, std::int64_t iteration, double ratio, std::uintptr_t stream) {
    if (values.size() != n_) throw Error{Fault::internal, "the values are not those of the unit"};
    NoClock<S> clock;
    reducer_->reduce(ranks_.comm, queue_of<S>(&ranks_.pool, stream), view_of<float, S>(values),
                     {.weight = optional_view<S>(weight), .second_moment = optional_view<S>(second_moment)},
                     context_of(seed, step, static_cast<std::uint32_t>(ranks_.comm.rank()), tensor, iteration, ratio),
                     view_, clock);
  }

  [[nodiscard]] std::uint64_t payload_bytes() const { return reducer_->payload_bytes(); }
  [[nodiscard]] std::string note() const { return reducer_->note(); }
  [[nodiscard]] bool reached() const { return reducer_->reached(); }
  void reset(std::uintptr_t stream) { reducer_->reset(queue_of<S>(&ranks_.pool, stream)); }

  [[nodiscard]] nb::bytes save() { return saved_state(*reducer_); }
  void restore(const nb::bytes& saved) { restore_saved(*reducer_, saved); }

 private:
  Ranks<S>& ranks_;
  std::size_t n_ = 0;
  std::unique_ptr<Reducer<S>> reducer_;
  std::unique_ptr<Arena<S>> workspace_;
  View<std::byte, S> view_;
};

template <Space S>
void add_reducer(nb::module_& module, const char* ranks, const char* reducer) {
  using nb::literals::operator""_a;
  nb::class_<Ranks<S>>(module, ranks)
      .def(nb::init<int, int, int, nb::object, nb::object, const std::string&>(), "rank"_a, "size"_a, "threads"_a,
           "exchange"_a, "all_reduce"_a, "algorithm"_a)
      .def_prop_ro("bytes_sent", &Ranks<S>::bytes_sent)
      .def_prop_ro("messages_sent", &Ranks<S>::messages_sent);
  using Class = UnitReducer<S>;
  nb::class_<Class>(module, reducer)
      .def(nb::init<Ranks<S>&, const std::string&, const std::vector<TensorTuple>&, const std::string&, std::uintptr_t,
                    const std::string&>(),
           "ranks"_a, "spec"_a, "tensors"_a, "scheme"_a, "stream"_a = 0, "op"_a = "all-reduce", nb::keep_alive<1, 2>())
      .def("reduce", &Class::reduce, "values"_a, "weight"_a.none(), "second_moment"_a.none(), "seed"_a, "step"_a,
           "tensor"_a, "iteration"_a, "learning_rate_ratio"_a, "stream"_a = 0,
           nb::call_guard<nb::gil_scoped_release, EmulatedCallEnds>())
      .def_prop_ro("payload_bytes", &Class::payload_bytes)
      .def_prop_ro("note", &Class::note)
      .def_prop_ro("reached", &Class::reached)
      .def("reset", &Class::reset, "stream"_a = 0)
      .def("save", &Class::save)
      .def("restore", &Class::restore, "saved"_a);
}

}  // namespace

void add_reducers(nb::module_& module) {
  add_reducer<Space::host>(module, "HostRanks", "HostReducer");
#if GT_HAS_CUDA
  add_reducer<Space::cuda>(module, "CudaRanks", "CudaReducer");
#endif
}

}  // namespace gradtool::python
