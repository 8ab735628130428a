#include "lib/import/import.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "kernels/float_bits.hpp"
#include "lib/core/interrupt.hpp"
#include "lib/core/text.hpp"
#include "lib/core/throw_error.hpp"
#include "lib/core/utf8.hpp"
#include "lib/import/path_pattern.hpp"
#include "lib/io/gradient_file.hpp"
#include "lib/io/schema.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;

/// Values that are held at once: 8 MiB of doubles.
constexpr std::uint64_t kPart = std::uint64_t{1} << 20;

std::string lower_extension(const std::string& path) {
  std::string extension = fs::path{path}.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return extension;
}

/// Opens files in the one way that the options say, or that their names do.
class Opener {
 public:
  explicit Opener(const ImportOptions& options) : options_{options} {
    if (options.raw) shapes_ = read_shapes(options.shapes, *options.raw);
  }

  /// Keeps the file that it opened last: a header may name 200,000 arrays, and a single file is asked for three times.
  [[nodiscard]] std::shared_ptr<ArrayFile> open(const std::string& path) {
    if (last_ == nullptr || last_->path() != path) last_ = opened(path);
    return last_;
  }

 private:
  [[nodiscard]] std::unique_ptr<ArrayFile> opened(const std::string& path) const {
    if (options_.raw) return open_raw(path, shapes_);
    const std::string extension = lower_extension(path);
    if (extension == ".safetensors") return open_safetensors(path);
    if (extension == ".npz") return open_npz(path);
    // The one array of a .npy file has no name but the file's, which may hold the numbers of step and worker.
    if (extension == ".npy") return open_npy(path, "array");
    if (std::error_code error; fs::is_regular_file(path, error))
      static_cast<void>(InputFile{path});  // says of an LFS pointer that it is one
    if (std::error_code error; extension == ".distcp" || fs::exists(fs::path{path} / ".metadata", error)) {
      throw_error(Fault::usage,
                  "{}: belongs to a checkpoint of torch.distributed.checkpoint; make one file of its "
                  "folder with 'python3 -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER "
                  "FILE.pt', and use the Python package's gradtool.import_checkpoint()",
                  path);
    }
    if (extension == ".pt" || extension == ".pth" || extension == ".bin" || extension == ".ckpt") {
      throw_error(Fault::usage,
                  "{}: is a checkpoint of PyTorch by its name, which is a pickle, and reading a pickle "
                  "runs the code in it; use the Python package's gradtool.import_checkpoint(), or --raw",
                  path);
    }
    throw_error(Fault::usage,
                "{}: has a name of no known kind; must end with .safetensors, .npz or .npy, "
                "or be read with --raw and --shapes",
                path);
  }

  const ImportOptions& options_;
  std::vector<ArrayInfo> shapes_;
  std::shared_ptr<ArrayFile> last_;
};

/// An array that is taken, and its tensor.
struct Taken {
  ArrayInfo info;
  TensorInfo tensor;
};

std::string text_of(const ArrayInfo& info) {
  return info.foreign_type.empty()
             ? fmt::format("of type {} and shape [{}]", name_of(info.element), joined(info.shape, ", "))
             : "of type " + info.foreign_type;
}

/// Chooses the arrays of the first file. Those without elements have no place in a gradient file.
std::vector<Taken> choose(const ArrayFile& file, const ImportOptions& options, std::vector<std::string>& notes) {
  std::vector<Taken> chosen;
  std::vector<std::string> empty;
  std::size_t wide = 0;
  for (const ArrayInfo& info : file.arrays()) {
    if (!options.layers.empty() && !matches(options.layers, info.name)) continue;
    if (!options.skip.empty() && matches(options.skip, info.name)) continue;
    const std::string what = fmt::format("{}: the array '{}'", file.path(), printable(info.name.substr(0, 100)));
    if (!info.foreign_type.empty()) {
      // NumPy forgets the name of ml_dtypes' bfloat16 on writing, and of other types of two bytes as well.
      throw_error(Fault::data,
                  "{} is of type {}; must be float32, float16, bfloat16 or float64; leave it out with --skip{}", what,
                  info.foreign_type,
                  info.foreign_type.ends_with("V2")
                      ? ", or, if it is bfloat16, write array.astype('float32') or a safetensors file"
                      : "");
    }
    if (info.name.empty() || info.name.size() > schema::kMaxName || !is_utf8(info.name) || has_control(info.name)) {
      throw Error{Fault::data, what + " has a name that is not 1 to 1024 bytes of UTF-8 without control characters"};
    }
    if (info.elements == 0) {
      empty.push_back(info.name);
      continue;
    }
    const auto [kind, layout] = kind_of(info.name, info.shape, options.kinds);
    const Dtype dtype = options.difference              ? Dtype::f32
                        : info.element == Element::f16  ? Dtype::f16
                        : info.element == Element::bf16 ? Dtype::bf16
                                                        : Dtype::f32;
    if (info.element == Element::f64) ++wide;
    chosen.push_back({info, {.name = info.name, .shape = info.shape, .kind = kind, .layout = layout, .dtype = dtype}});
  }
  if (chosen.empty()) {
    throw_error(Fault::data, "{}: has no array of values{}", file.path(),
                options.layers.empty() && options.skip.empty() ? "" : " whose name --layers and --skip let through");
  }
  if (chosen.size() > schema::kMaxTensors) throw Error{Fault::data, file.path() + ": has more than 1048576 arrays"};
  if (!empty.empty()) {
    notes.push_back(fmt::format("{} array{} without elements left out, such as '{}'", empty.size(),
                                empty.size() == 1 ? "" : "s", empty.front()));
  }
  if (wide > 0) {
    notes.push_back(
        fmt::format("{} array{} of type f64 stored as f32, rounded to nearest", wide, wide == 1 ? "" : "s"));
  }
  return chosen;
}

/// For each of the chosen arrays its position in `file`. Throws Fault::data where `file` differs from the first one.
std::vector<std::size_t> places_in(const ArrayFile& file, const std::vector<Taken>& chosen, const std::string& first) {
  std::map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < file.arrays().size(); ++i) by_name.emplace(file.arrays()[i].name, i);
  std::vector<std::size_t> places;
  places.reserve(chosen.size());
  for (const Taken& taken : chosen) {
    const auto found = by_name.find(taken.info.name);
    if (found == by_name.end()) {
      throw_error(Fault::data, "{}: lacks the array '{}', which {} has; all files must have the same arrays",
                  file.path(), taken.info.name, first);
    }
    const ArrayInfo& info = file.arrays()[found->second];
    if (text_of(info) != text_of(taken.info)) {
      throw_error(Fault::data, "{}: the array '{}' is {}, but in {} it is {}; all files must have the same arrays",
                  file.path(), taken.info.name, text_of(info), first, text_of(taken.info));
    }
    places.push_back(found->second);
  }
  return places;
}

/// A file and the places of the chosen arrays in it.
struct Opened {
  std::shared_ptr<ArrayFile> file;
  std::vector<std::size_t> places;
};

std::vector<double> widened(std::span<const std::byte> bits, Element element) {
  std::vector<double> values(bits.size() / size_of(element));
  const auto convert = [&]<class Stored>(Stored, auto to_double) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      Stored stored{};
      std::memcpy(&stored, bits.data() + i * sizeof(Stored), sizeof(Stored));
      values[i] = to_double(stored);
    }
  };
  switch (element) {
    case Element::f64:
      convert(double{}, [](double x) { return x; });
      break;
    case Element::f32:
      convert(float{}, [](float x) { return double{x}; });
      break;
    case Element::f16:
      convert(std::uint16_t{}, [](std::uint16_t x) { return double{format::f32_from_f16(x)}; });
      break;
    case Element::bf16:
      convert(std::uint16_t{}, [](std::uint16_t x) { return double{format::f32_from_bf16(x)}; });
      break;
  }
  return values;
}

/// Makes the steps, part by part.
class Import {
 public:
  Import(const ImportOptions& options, const std::function<void(std::uint64_t, std::uint64_t)>& progress)
      : options_{options}, progress_{progress}, opener_{options}, files_{match_files(options.pattern)} {
    if (options.difference && files_.steps.size() < 2) {
      throw_error(Fault::usage,
                  "--difference needs two steps at least; '{}' names {}: write {{step}} where their numbers stand",
                  options.pattern, files_.steps.size());
    }
    const std::string& first = files_.by_worker.front().front();
    chosen_ = choose(*opener_.open(first), options, report_.notes);
    // Every header is looked at before anything is written.
    for (const auto& paths : files_.by_worker) {
      for (const auto& path : paths) {
        static_cast<void>(places_in(*opener_.open(path), chosen_, first));
        ++report_.files;
      }
    }
    report_.workers = files_.by_worker.front().size();
    report_.tensors = chosen_.size();
    for (const Taken& taken : chosen_) report_.elements += taken.info.elements;
    steps_ = files_.steps.size() - (options.difference ? 1 : 0);
  }

  [[nodiscard]] const MatchedFiles& files() const { return files_; }
  [[nodiscard]] bool started() const { return started_; }  ///< run() has created the file

  /// Writes the file `out`.
  ImportReport run(const std::string& out) {
    GradientWriter writer{out, layout()};
    started_ = true;
    for (std::size_t s = 0; s < steps_ && write_step(writer, s); ++s) continue;
    report_.steps = writer.steps();
    report_.interrupted = report_.steps < steps_;
    if (report_.interrupted) {
      writer.close_early();
    } else {
      writer.close();
    }
    std::error_code error;
    const auto bytes = fs::file_size(out, error);
    report_.bytes = error ? 0 : bytes;
    return std::move(report_);
  }

 private:
  [[nodiscard]] WriterOptions layout() const {
    WriterOptions layout{
        .info = {}, .tensors = {}, .with_epoch = false, .with_learning_rate = false, .with_loss = false};
    layout.all_or_nothing = true;
    layout.one_step = steps_ == 1;
    layout.info.workers = static_cast<std::int64_t>(report_.workers);
    layout.info.model = options_.model;
    layout.info.command = options_.command;
    layout.info.inner_steps = options_.inner_steps;
    layout.info.averaged = options_.averaged;
    layout.info.quantity = !options_.quantity.empty() ? options_.quantity
                           : !options_.difference     ? "gradient"
                           : options_.negate          ? "pseudo_gradient"
                                                      : "weight_delta";
    layout.tensors.reserve(chosen_.size());
    for (const Taken& taken : chosen_) layout.tensors.push_back(taken.tensor);
    return layout;
  }

  [[nodiscard]] Opened open(const std::string& path) {
    auto file = opener_.open(path);
    auto places = places_in(*file, chosen_, files_.by_worker.front().front());
    return {std::move(file), std::move(places)};
  }

  /// False where the user stopped it before the step was whole: one may be hundreds of gigabytes.
  bool write_step(GradientWriter& writer, std::size_t s) {
    writer.begin_step({.iteration = files_.steps[s]});
    for (std::size_t w = 0; w < report_.workers; ++w) {
      const Opened now = open(files_.by_worker[s][w]);
      const Opened next = options_.difference ? open(files_.by_worker[s + 1][w]) : Opened{};
      for (std::size_t t = 0; t < chosen_.size(); ++t) {
        for (std::uint64_t first = 0; first < chosen_[t].info.elements; first += kPart) {
          if (interrupted()) return false;
          write_part(writer, t, w, first, now, next);
        }
      }
    }
    writer.end_step();
    return true;
  }

  void write_part(GradientWriter& writer, std::size_t t, std::size_t w, std::uint64_t first, const Opened& now,
                  const Opened& next) {
    const ArrayInfo& info = chosen_[t].info;
    const std::uint64_t count = std::min(kPart, info.elements - first);
    bits_.resize(static_cast<std::size_t>(count) * size_of(info.element));
    now.file->read(now.places[t], first, bits_);
    if (!options_.difference && info.element != Element::f64) {
      writer.put_gradient_bits(t, w, first, bits_);
    } else {
      std::vector<double> values = widened(bits_, info.element);
      if (options_.difference) {
        next.file->read(next.places[t], first, bits_);
        const std::vector<double> later = widened(bits_, info.element);
        for (std::size_t i = 0; i < values.size(); ++i) {
          values[i] = options_.negate ? values[i] - later[i] : later[i] - values[i];
        }
      }
      const std::vector<float> narrow(values.begin(), values.end());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (std::isfinite(narrow[i]) || !std::isfinite(values[i])) continue;
        throw_error(Fault::data,
                    "{}: the array '{}' has {:g} at element {}, beyond what float32 can hold; leave it out with --skip",
                    now.file->path(), printable(info.name), values[i], first + i);
      }
      writer.put_gradient_bits(t, w, first, std::as_bytes(std::span{narrow}));
    }
    done_ += count;
    if (progress_) progress_(done_, report_.elements * report_.workers * steps_);
  }

  const ImportOptions& options_;
  const std::function<void(std::uint64_t, std::uint64_t)>& progress_;
  Opener opener_;
  MatchedFiles files_;
  std::vector<Taken> chosen_;
  std::size_t steps_ = 0;
  std::uint64_t done_ = 0;
  bool started_ = false;
  std::vector<std::byte> bits_;
  ImportReport report_;
};

void check_options(const ImportOptions& options) {
  const auto fail = [](const std::string& what) { throw Error{Fault::usage, what}; };
  if (!is_utf8(options.model)) fail(fmt::format("--model '{}' is no valid UTF-8", printable(as_utf8(options.model))));
  if (options.raw && options.shapes.empty()) fail("--raw needs --shapes, the list of the files' arrays");
  if (!options.raw && !options.shapes.empty()) fail("--shapes is the list of arrays of raw files: give --raw");
  if (options.negate && !options.difference) fail("--negate turns a difference round: give --difference");
  if (options.inner_steps && *options.inner_steps < 1) fail("--inner-steps must be at least 1");
  if (!options.quantity.empty() && std::find(schema::kQuantities.begin(), schema::kQuantities.end(),
                                             options.quantity) == schema::kQuantities.end()) {
    fail(fmt::format("--quantity '{}' is not valid; must be one of {}", printable(options.quantity),
                     joined(schema::kQuantities, ", ")));
  }
}

}  // namespace

ImportReport import_arrays(const ImportOptions& options,
                           const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  check_options(options);
  std::error_code error;
  if (fs::exists(fs::symlink_status(options.out, error)) && !options.force) {
    throw Error{Fault::usage, "'" + options.out + "' exists already; remove it, choose another name, or use --force"};
  }
  if (options.force) expect_replaceable(options.out);
  Import import{options, progress};
  for (const auto& paths : import.files().by_worker) {
    for (const auto& path : paths) {
      if (fs::equivalent(path, options.out, error))
        throw_error(Fault::usage, "--out {}: is the same file as {}, which is read", options.out, path);
    }
  }
  ReplacingFile file{options.out, options.force};
  ImportReport report;
  try {
    file.write([&](const std::string& path) { report = import.run(path); });
  } catch (...) {
    // A writer leaves a file with whole steps, as after a crash; but what stopped this one will do so again.
    if (import.started()) unlink(file.written_to().c_str());
    throw;
  }
  if (report.interrupted && file.replaces()) {
    report.steps = 0;  // the part of a file does not replace a whole one
  } else {
    file.commit();
  }
  return report;
}

}  // namespace gradtool
