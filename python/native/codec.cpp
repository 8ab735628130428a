#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "lib/codecs/reducer.hpp"
#include "lib/codecs/sending_side.hpp"
#include "lib/core/arena.hpp"
#include "lib/core/task_pool.hpp"
#include "python/native/arrays.hpp"

namespace gradtool::python {

Layout layout_of(const std::vector<TensorTuple>& tensors) {
  Layout layout;
  layout.tensors.reserve(tensors.size());
  for (const auto& [name, shape, kind, order, depth] : tensors) {
    TensorShape tensor{.name = name,
                       .shape = shape,
                       .kind = kind,
                       .layout = order,
                       .first = layout.elements,
                       .elements = 1,
                       .depth = depth};
    for (const auto extent : shape) {
      if (extent < 1) throw Error{Fault::usage, "tensor " + name + " has no elements"};
      tensor.elements *= static_cast<std::size_t>(extent);
    }
    layout.elements += tensor.elements;
    layout.tensors.push_back(std::move(tensor));
  }
  return layout;
}

namespace {

/// One rank's codec for one tensor: the codec, what error feedback or the method itself keeps from step to step, and
/// the memory to work in. Payloads have the bytes that `gradtool bench` sends.
template <Space S>
class TensorCodec {
 public:
  TensorCodec(const std::string& spec, const std::vector<TensorTuple>& tensors, int ranks, int threads,
              std::uintptr_t stream)
      : TensorCodec{parse_codec(spec), layout_of(tensors), ranks, threads, stream} {}

  [[nodiscard]] std::size_t payload_bytes() const { return sender_.footprint().payload_bytes; }

  /// Returns the size of the payload, of which `payload` holds that many bytes.
  std::size_t encode(const Array<const float, S>& values, const Array<std::uint8_t, S>& payload,
                     const std::optional<Array<const float, S>>& weight,
                     const std::optional<Array<const float, S>>& second_moment, std::uint64_t seed, std::uint32_t step,
                     std::uint32_t rank, std::uint32_t tensor, std::int64_t iteration, double ratio,
                     std::uintptr_t stream) {
    check_size(values.size(), "the values");
    for (const auto* side : {&weight, &second_moment}) {
      if (*side) check_size((*side)->size(), side == &weight ? "weight" : "second_moment");
    }
    const auto queue = queue_of<S>(&pool_, stream);
    const auto bytes = bytes_of<S>(payload);
    if (bytes.size() < payload_bytes()) throw Error{Fault::internal, "the array for the payload is too short"};
    const auto room = bytes.first(payload_bytes());
    sender_.encode(queue, view_of<const float, S>(values),
                   {.weight = optional_view<S>(weight), .second_moment = optional_view<S>(second_moment)},
                   context_of(seed, step, rank, tensor, iteration, ratio), room, scratch_);
    if (sender_.footprint().exact) return room.size();
    std::uint64_t stated = 0;
    read_back(queue, room.first(sizeof stated), &stated);
    return static_cast<std::size_t>(stated);
  }

  /// out += factor * what the payload says.
  void decode_add(const Array<const std::uint8_t, S>& payload, float factor, const Array<float, S>& out,
                  std::uintptr_t stream) {
    check_size(out.size(), "the result");
    sender_.codec().decode_add(queue_of<S>(&pool_, stream), bytes_of<S>(payload), factor, view_of<float, S>(out),
                               scratch_);
  }

  /// out := what the payload says.
  void decode(const Array<const std::uint8_t, S>& payload, const Array<float, S>& out, std::uintptr_t stream) {
    check_size(out.size(), "the result");
    sender_.codec().decode(queue_of<S>(&pool_, stream), bytes_of<S>(payload), view_of<float, S>(out), scratch_);
  }

  void reset(std::uintptr_t stream) { sender_.reset(queue_of<S>(&pool_, stream)); }

  [[nodiscard]] nb::bytes save() { return saved_state(sender_); }
  void restore(const nb::bytes& saved) { restore_saved(sender_, saved); }

 private:
  TensorCodec(const CodecSpec& spec, const Layout& layout, int ranks, int threads, std::uintptr_t stream)
      : n_{layout.elements},
        pool_{threads},
        sender_{made(spec, layout), n_, ranks, spec.feedback(), queue_of<S>(&pool_, stream)},
        arena_{Arena<S>::padded_size(sender_.footprint().scratch_bytes)},
        scratch_{arena_.take_bytes(sender_.footprint().scratch_bytes)} {}

  static std::shared_ptr<const Codec<S>> made(const CodecSpec& spec, const Layout& layout) {
    auto codec = make_codec<S>(spec, layout);
    if (codec != nullptr) return codec;
    throw Error{
        Fault::usage,
        "codec " + spec.name() +
            " exists only between ranks, which agree on what they send; use gradtool.ddp_hook or gradtool.bench"};
  }

  void check_size(std::size_t size, const char* what) const {
    if (size == n_) return;
    throw Error{Fault::usage, std::string{what} + " has " + std::to_string(size) + " elements, but the tensor has " +
                                  std::to_string(n_)};
  }

  std::size_t n_;
  TaskPool pool_;
  SendingSide<S> sender_;
  Arena<S> arena_;
  View<std::byte, S> scratch_;
};

template <Space S>
void add_codec(nb::module_& module, const char* name) {
  using nb::literals::operator""_a;
  using Class = TensorCodec<S>;
  nb::class_<Class>(module, name)
      .def(nb::init<const std::string&, const std::vector<TensorTuple>&, int, int, std::uintptr_t>(), "spec"_a,
           "tensors"_a, "ranks"_a, "threads"_a, "stream"_a = 0)
      .def_prop_ro("payload_bytes", &Class::payload_bytes)
      .def("encode", &Class::encode, "values"_a, "payload"_a, "weight"_a.none(), "second_moment"_a.none(), "seed"_a,
           "step"_a, "rank"_a, "tensor"_a, "iteration"_a, "learning_rate_ratio"_a, "stream"_a = 0,
           nb::call_guard<nb::gil_scoped_release, EmulatedCallEnds>())
      .def("decode_add", &Class::decode_add, "payload"_a, "factor"_a, "out"_a, "stream"_a = 0,
           nb::call_guard<nb::gil_scoped_release, EmulatedCallEnds>())
      .def("decode", &Class::decode, "payload"_a, "out"_a, "stream"_a = 0,
           nb::call_guard<nb::gil_scoped_release, EmulatedCallEnds>())
      .def("reset", &Class::reset, "stream"_a = 0)
      .def("save", &Class::save)
      .def("restore", &Class::restore, "saved"_a);
}

}  // namespace

void add_codecs(nb::module_& module) {
  using nb::literals::operator""_a;
  add_codec<Space::host>(module, "HostCodec");
#if GT_HAS_CUDA
  add_codec<Space::cuda>(module, "CudaCodec");
#endif
  module.def(
      "parse_codec",
      [](const std::string& text) {
        const CodecSpec spec = parse_codec(text);
        nb::dict parsed;
        parsed["name"] = spec.name();
        parsed["params"] = spec.params_text();
        parsed["gate"] = spec.gate;
        parsed["error_feedback"] = spec.error_feedback;
        parsed["needs_weight"] = spec.descriptor->needs_weight;
        parsed["own_momentum"] = spec.own_momentum();
        parsed["target"] = std::string{spec.descriptor->target};
        parsed["needs_second_moment"] = spec.descriptor->needs_second_moment;
        return parsed;
      },
      "spec"_a, "Checks a codec as the command line takes it.");
  module.def(
      "way_of",
      [](const std::string& text, const std::string& scheme) {
        const CodecSpec spec = parse_codec(text);
        const Scheme way = resolve(scheme_named(scheme), spec);
        return std::string{spec.descriptor->aggregation == Aggregation::none ? "none" : name_of(way)};
      },
      "spec"_a, "scheme"_a,
      "The way that the codec takes through an all-reduce: sum, gather, hop, alltoall, own, or none where nothing is "
      "sent. It is what `scheme` says where that is not auto.");
}

}  // namespace gradtool::python
