#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "lib/codecs/described.hpp"
#include "lib/codecs/registry.hpp"
#include "lib/core/error.hpp"
#include "python/native/arrays.hpp"

namespace gradtool::python {
namespace {

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
      "codecs", [] { return described(codecs()); }, "All codecs of this build, sorted by name, as JSON.");
  add_codecs(module);
  add_reducers(module);
  add_workers(module);
}

}  // namespace gradtool::python
