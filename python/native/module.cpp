#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "lib/codecs/registry.hpp"
#include "lib/core/error.hpp"
#include "python/native/arrays.hpp"

namespace gradtool::python {
namespace {

/// One row of the registry, with the names that `gradtool list codecs --json -` has.
nb::dict described(const CodecDescriptor& codec) {
  nb::dict row;
  const auto text = [](std::string_view value) { return nb::str{value.data(), value.size()}; };
  row["name"] = text(codec.name);
  row["summary"] = text(codec.summary);
  row["reference"] = text(codec.reference);
  row["description"] = text(codec.description);
  row["aggregation"] = text(name_of(codec.aggregation));
  row["determinism"] = text(name_of(codec.determinism));
  row["unbiased"] = codec.unbiased;
  row["error_feedback"] = codec.error_feedback;
  row["memory"] = codec.memory;
  row["by_layout"] = codec.by_layout;
  row["needs_weight"] = codec.needs_weight;
  row["needs_second_moment"] = codec.needs_second_moment;
  nb::list spaces;
  spaces.append("host");
  if (on_cuda(codec)) spaces.append("cuda");
  row["spaces"] = spaces;
  nb::list parameters;
  for (const auto& info : codec.params) {
    nb::dict parameter;
    parameter["name"] = text(info.name);
    parameter["default"] = text(info.default_value);
    parameter["meaning"] = text(info.meaning);
    if (info.kind != ParamInfo::Kind::choice) {
      parameter["min"] = info.min;
      parameter["max"] = info.max;
    }
    if (!info.choices.empty()) parameter["choices"] = text(info.choices);
    parameters.append(parameter);
  }
  row["parameters"] = parameters;
  return row;
}

/// Raises the exception of gradtool._errors that stands for the fault, with the same sentence.
void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    const char* name = "Error";
    switch (error.fault()) {
      case Fault::usage:
        name = "UsageError";
        break;
      case Fault::data:
        name = "DataError";
        break;
      case Fault::unavailable:
        name = "UnavailableError";
        break;
      case Fault::check:
      case Fault::backend:
      case Fault::internal:
        break;
    }
    PyErr_SetString(nb::module_::import_("gradtool._errors").attr(name).ptr(), error.what());
  }
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "Codecs and reducers of gradtool, for the package around it. Not to be used directly.";
  // DistributedDataParallel keeps its hook until the process ends, which is no leak of ours.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  module.attr("has_cuda") = GT_HAS_CUDA != 0;
  module.attr("emulated_cuda") = kEmulatedCuda;
  module.def(
      "codecs",
      [] {
        nb::list rows;
        for (const auto* codec : codecs()) rows.append(described(*codec));
        return rows;
      },
      "All codecs of this build, sorted by name.");
  add_codecs(module);
  add_reducers(module);
  add_workers(module);
}

}  // namespace gradtool::python
