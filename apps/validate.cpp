#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "apps/subcommands.hpp"
#include "lib/core/error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/report/color.hpp"
#include "lib/report/progress.hpp"

namespace gradtool::app {
namespace {

struct ValidateArguments {
  std::string file;
  bool strict = false;
};

std::vector<NonFinite> scan(const GradientReader& reader) {
  Progress progress{"reading", reader.elements() * reader.workers() * reader.steps().size()};
  return find_non_finite(reader, [&](std::uint64_t done, std::uint64_t) { progress.update(done); });
}

/// Warnings about a file that conforms, but has something worth knowing before it is used. Reads every value.
std::vector<std::string> warnings(const GradientReader& reader) {
  std::vector<std::string> found;
  if (!reader.info().complete) {
    found.push_back("not complete: " + why_incomplete(reader));
  }
  if (std::string averaged =
          averaged_warning(worker_likeness(reader, static_cast<int>(reader.workers())), reader.info().averaged);
      !averaged.empty()) {
    found.push_back(std::move(averaged));
  }
  const auto& steps = reader.steps();
  if (const auto count = std::count_if(steps.begin(), steps.end(), [](const StepInfo& s) { return s.overflowed(); });
      count > 0) {
    found.push_back(
        fmt::format("the gradients of {} of {} steps overflowed; bench leaves these steps out", count, steps.size()));
  }
  for (const NonFinite& entry : scan(reader)) {
    found.push_back(
        fmt::format("tensor {} ({}): {} gradient values are NaN or infinite, first at iteration {}, worker {}",
                    entry.tensor, reader.tensors()[entry.tensor].name, entry.count,
                    reader.steps()[entry.first_step].iteration, entry.first_worker));
  }
  if (const std::uint64_t count = count_non_finite_state(reader); count > 0) {
    found.push_back(fmt::format("{} values of second moments or weights are NaN or infinite", count));
  }
  return found;
}

int run(const ValidateArguments& options) {
  const GradientReader reader{options.file};
  const auto found = warnings(reader);
  fmt::print("{}: conforms to gradient file schema {}: steps {}, workers {}, tensors {}, elements {}\n",
             printable(reader.path()), reader.info().schema_version, reader.steps().size(), reader.workers(),
             reader.tensors().size(), reader.elements());
  for (const auto& warning : found)
    fmt::print("{}: {} {}\n", printable(reader.path()), inked("warning:", Ink::warning, color_on(stdout)), warning);
  return options.strict && !found.empty() ? static_cast<int>(Fault::check) : 0;
}

}  // namespace

Subcommand add_validate(CLI::App& root) {
  auto* app = root.add_subcommand("validate", "Checks a gradient file against the schema, reading every value");
  const auto options = std::make_shared<ValidateArguments>();
  app->add_option("FILE", options->file, "Gradient file (HDF5)")->required()->type_name("FILE");
  app->add_flag("--strict", options->strict,
                "Exit with 1 on a warning: an incomplete file, averaged gradients, non-finite values");
  app->footer(
      "Exit status: 0 the file conforms, perhaps with warnings; 1 it does, but there are warnings and --strict is "
      "given; 3 it does not conform, and one sentence says where and why.\n"
      "Examples:\n"
      "  gradtool validate lenet5.h5\n"
      "  gradtool validate --strict lenet5.h5 && gradtool bench lenet5.h5");
  return {app, [options] { return run(*options); }};
}

}  // namespace gradtool::app
