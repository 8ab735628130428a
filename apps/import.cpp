#include "lib/import/import.hpp"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "apps/options.hpp"
#include "apps/subcommands.hpp"
#include "lib/core/files.hpp"
#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/schema.hpp"
#include "lib/report/progress.hpp"

namespace gradtool::app {
namespace {

struct ImportArguments {
  ImportOptions import;
  std::string raw;
  std::vector<std::string> kinds;
};

int run(ImportArguments& o) {
  ImportOptions& options = o.import;
  expect_separate_files(std::vector<NamedPath>{{"PATTERN", options.pattern}, {"--shapes", options.shapes}},
                        std::vector<NamedPath>{{"--out", options.out}});
  if (is_stream(options.out)) {
    throw Error{Fault::usage, "--out " + options.out + ": a gradient file cannot be written to a device or a pipe"};
  }
  if (!o.raw.empty()) options.raw = o.raw == "f32" ? Element::f32 : o.raw == "f16" ? Element::f16 : Element::bf16;
  for (const auto& text : o.kinds) options.kinds.push_back(parse_kind_rule(text));
  options.command = command_line();
  std::optional<Progress> bar;
  const ImportReport report = import_arrays(options, [&bar](std::uint64_t done, std::uint64_t all) {
    if (!bar) bar.emplace("importing", all);
    bar->update(done);
  });
  bar.reset();
  for (const auto& note : report.notes) fmt::print(stderr, "{}\n", note);
  if (report.interrupted && report.steps == 0) {
    fmt::print(stderr, "interrupted: nothing written\n");
    return kInterrupted;
  }
  fmt::print("Wrote {}: {} file{}, {} step{}{}, {} worker{}, {} tensor{} with {} elements, {}\n",
             printable(options.out), report.files, report.files == 1 ? "" : "s", report.steps,
             report.steps == 1 ? "" : "s", report.interrupted ? " (stopped early: not complete)" : "", report.workers,
             report.workers == 1 ? "" : "s", report.tensors, report.tensors == 1 ? "" : "s", report.elements,
             human_bytes(static_cast<double>(report.bytes)));
  return report.interrupted ? kInterrupted : 0;
}

}  // namespace

Subcommand add_import(CLI::App& root) {
  auto* app = root.add_subcommand("import", "Make a gradient file of safetensors, NumPy or raw files");
  const auto o = std::make_shared<ImportArguments>();
  ImportOptions& import = o->import;
  app->add_option("PATTERN", import.pattern,
                  "A file, or files: {step} and {worker} stand for their numbers, as in "
                  "'run/step{step}/rank{worker}.safetensors'")
      ->required()
      ->type_name("FILE");
  app->add_option("-o,--out", import.out, "Gradient file to write (HDF5)")->required()->type_name("FILE");
  app->add_flag("--force", import.force, "Replace the file if it exists");
  app->add_option("--raw", o->raw, "The files are nothing but values of this type, little-endian: f32, f16 or bf16")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  app->add_option("--shapes", import.shapes,
                  "Of --raw: a list of the arrays, one in a line, such as: conv1.weight 64,3,7,7")
      ->type_name("FILE");
  app->add_option("--layers", import.layers, "Only arrays whose name this regular expression matches");
  app->add_option("--skip", import.skip, "Leave out arrays whose name this regular expression matches");
  app->add_option("--kind", o->kinds,
                  "'PATTERN=KIND': what the tensors are whose names match, where the guess is wrong; repeatable, the "
                  "last that matches counts")
      ->expected(1)
      ->take_all()
      ->type_name("PATTERN=KIND");
  app->add_flag("--difference", import.difference,
                "Each step's values are the next file's minus its own: a weight_delta, of checkpoints");
  app->add_flag("--negate", import.negate, "With --difference: its own minus the next file's, a pseudo_gradient");
  app->add_option("--quantity", import.quantity, "What the values are [gradient, or what --difference makes]")
      ->check(CLI::IsMember(std::vector<std::string>(schema::kQuantities.begin(), schema::kQuantities.end())));
  app->add_option("--inner-steps", import.inner_steps, "Local steps between two exchanges, of pseudo-gradients");
  app->add_flag("--averaged", import.averaged, "The values had been averaged over the workers when they were dumped");
  app->add_option("--model", import.model, "The name of the model, as text");
  set_groups(*app, {{"What is read", {"--raw", "--shapes", "--layers", "--skip"}},
                    {"What it is",
                     {"--difference", "--negate", "--quantity", "--inner-steps", "--averaged", "--kind", "--model"}},
                    {"Output", {"--out", "--force"}}});
  app->footer(
      "Reads .safetensors, .npz and .npy; float32, float16 and bfloat16 stay as they are, float64 becomes float32. "
      "Nothing in a file is executed: for PyTorch's .pt there is gradtool.import_checkpoint() in the Python package.\n"
      "Examples:\n"
      "  gradtool import 'run/step{step}/rank{worker}.safetensors' -o run.h5\n"
      "  gradtool import grads.npz -o one.h5\n"
      "  gradtool import 'ckpt/{step}.safetensors' --difference -o delta.h5\n"
      "  gradtool import 'w{worker}/{step}.npz' --difference --negate \\\n"
      "      --inner-steps 500 -o diloco.h5\n"
      "  gradtool import 'dump{step}.bin' --raw bf16 --shapes shapes.txt -o raw.h5");
  return {app, [o] { return run(*o); }};
}

}  // namespace gradtool::app
