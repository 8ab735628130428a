#include "lib/io/open_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/core/files.hpp"
#include "lib/core/utf8.hpp"
#include "lib/io/readiness.hpp"

namespace gradtool::hdf5 {
namespace {

constexpr std::array<char, 8> kSignature{'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};

/// True when the file has HDF5's signature, which is at byte 0 or, behind a user block, at byte 512, 1024, 2048 and so
/// on (HDF5 file format specification 3.0, section II.A).
bool has_signature(std::ifstream& in, std::uintmax_t size) {
  for (std::uintmax_t offset = 0; offset + kSignature.size() <= size; offset = offset == 0 ? 512 : offset * 2) {
    std::array<char, kSignature.size()> bytes{};
    in.clear();
    in.seekg(static_cast<std::streamoff>(offset));
    if (in.read(bytes.data(), bytes.size()) && bytes == kSignature) return true;
  }
  return false;
}

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw Error{Fault::data, path + ": " + problem};
}

void check_regular(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail(path, "there is no such file");
  if (error) fail(path, "cannot be read (" + error.message() + ")");
  if (std::filesystem::is_directory(status)) fail(path, "is a folder, not a gradient file");
  // A pipe would block, and HDF5 needs to seek.
  if (!std::filesystem::is_regular_file(status)) fail(path, "is not a regular file");
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream in{path, std::ios::binary};
  if (error || !in) fail(path, "cannot be read (is it readable for you?)");
  if (size == 0) fail(path, "is empty");
  if (has_signature(in, size)) return;
  std::string begin(kLfsPointer.size(), '\0');
  in.clear();
  in.seekg(0);
  in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  fail(path,
       begin == kLfsPointer ? kLfsPointerProblem : "is not an HDF5 file; gradtool import makes one of other gradients");
}

/// Opens the file; when that fails, returns an empty File and stores HDF5's reason in `reason`.
File try_open(const std::string& path, unsigned flags, std::string& reason) {
  const Properties access{checked_id(H5Pcreate(H5P_FILE_ACCESS), "prepare HDF5")};
  // Objects of this file that are still open are closed together with it.
  checked(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "prepare HDF5");
  // In SWMR mode HDF5 reads a block with a bad checksum again, by default a hundred times with pauses that double each
  // time, which takes practically for ever.
  checked(H5Pset_metadata_read_attempts(access.get(), 10), "prepare HDF5");
  File file{H5Fopen(path.c_str(), flags, access.get())};
  // The reason is fetched at once, because the next call of HDF5, such as closing `access`, clears the error stack.
  if (!file) reason = last_reason();
  return file;
}

/// Opens `path` read-only, also while a single-writer (SWMR) program has it open or after one was killed. Throws
/// Fault::data when it is not a regular file, not HDF5, truncated, damaged, or open elsewhere for plain writing.
File open_for_reading(const std::string& path) {
  be_quiet();
  check_regular(path);
  std::string reason;
  if (File file = try_open(path, H5F_ACC_RDONLY, reason)) return file;
  if (reason.find("already open for") != std::string::npos) {
    // A program that writes in SWMR mode marks the file while it runs; the mark remains when the program is killed.
    if (File file = try_open(path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, reason)) return file;
    fail(path, "is marked as being written; if no program writes it any more, 'h5clear -s' removes the mark");
  }
  if (reason.find("unable to lock file") != std::string::npos) fail(path, "is being written by another program");
  if (reason.find("truncated file") != std::string::npos) {
    fail(path, "is truncated: it is shorter than its own header says");
  }
  fail(path, "is a damaged HDF5 file" + (reason.empty() ? "" : " (" + reason + ")"));
}

OpenedFile open_checked(std::string path) {
  const Place root{path, "/"};
  OpenedFile opened;
  opened.path = std::move(path);
  opened.file = open_for_reading(opened.path);
  const hid_t file = opened.file.get();
  opened.info = load_root(file, root);
  const StoredSteps steps = open_steps(file, root, opened.info.workers);
  opened.raw = std::make_unique<RawFile>(file);
  opened.tensors = open_tensors(file, root, opened.info.workers, *opened.raw);
  const std::size_t count = settle_steps(steps, opened.tensors, opened.info.complete);
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(opened.path, error);
  expect_stored(steps, opened.tensors, error ? 0 : bytes, opened.info.complete);
  opened.steps = load_steps(steps, count, static_cast<std::size_t>(opened.info.workers));
  opened.readiness = load_readiness(file, root, static_cast<std::uint64_t>(opened.info.workers), opened.tensors.size(),
                                    error ? 0 : bytes, opened.info.complete);
  return opened;
}

/// The data sets of a tensor by their names in its group.
std::array<std::pair<const char*, DataSet*>, 3> sets_of(StoredTensor& tensor) {
  return {{{"gradient", &tensor.gradient},
           {"second_moment", tensor.second_moment ? &*tensor.second_moment : nullptr},
           {"weight", tensor.weight ? &*tensor.weight : nullptr}}};
}

/// The source files of a merged view, each opened once.
class Sources {
 public:
  explicit Sources(OpenedFile& view) : view_{view} {
    std::error_code error;
    // Links are followed, as HDF5 does it, so that the view of a link is that of the file itself.
    const auto real = std::filesystem::canonical(view.path, error);
    folder_ = (error ? std::filesystem::path{view.path} : real).parent_path();
  }

  /// The data set that a block of `own`, one of tensor `position`, lies in; checks that the block does.
  const DataSet* find(std::size_t position, const DataSet& own, const char* name, const Mapping& mapping) {
    OpenedFile& source = open(mapping.file);
    const auto lacks = [&](const std::string& what) {
      own.place().fail(fmt::format("maps steps {} to {} of workers {} to {} to '{}' of '{}', {}", mapping.source_step,
                                   mapping.source_step + mapping.steps - 1, mapping.source_worker,
                                   mapping.source_worker + mapping.workers - 1, printable(mapping.object), mapping.file,
                                   what));
    };
    // It is mostly in the same place, so that is where the search begins.
    for (std::size_t i = 0; i < source.tensors.size(); ++i) {
      StoredTensor& tensor = source.tensors[(position + i) % source.tensors.size()];
      if (mapping.object != fmt::format("/tensors/{}/{}", tensor.number, name)) continue;
      for (const auto& [found, set] : sets_of(tensor)) {
        if (set == nullptr || std::string_view{found} != name) continue;
        if (set->dims().back() != own.dims().back()) {
          lacks(fmt::format("whose extent is {}, not {} elements", set->dims_text(), own.dims().back()));
        }
        if (set->value_dtype() != own.value_dtype()) lacks("whose values are of another type");
        const hsize_t steps = source.steps.size(), workers = set->dims().size() == 3 ? set->dims()[1] : 1;
        if (mapping.source_step > steps || mapping.steps > steps - mapping.source_step ||
            mapping.source_worker > workers || mapping.workers > workers - mapping.source_worker) {
          lacks(fmt::format("which has {} whole steps of {} workers", steps, workers));
        }
        return set;
      }
    }
    lacks(fmt::format("where there is no such data set; must be the {} of a tensor", name));
    return nullptr;
  }

 private:
  OpenedFile& open(const std::string& name) {
    if (const auto found = by_name_.find(name); found != by_name_.end()) return *found->second;
    const std::string path = (folder_ / name).string();
    try {
      auto source = std::make_unique<OpenedFile>(open_checked(path));
      for (StoredTensor& tensor : source->tensors) {
        for (const auto& [unused, set] : sets_of(tensor)) {
          if (set != nullptr && set->is_virtual()) {
            set->place().fail("is virtual; must keep its values itself, because a merged view is made of plain files");
          }
        }
      }
      view_.sources.push_back(std::move(source));
    } catch (const Error& error) {
      throw Error{error.fault(),
                  fmt::format("{}: is a merged view, and a file of it cannot be used: {}; move the files of a view "
                              "together, or make one file of them: gradtool merge --copy",
                              view_.path, error.what())};
    }
    return *by_name_.emplace(name, view_.sources.back().get()).first->second;
  }

  OpenedFile& view_;
  std::filesystem::path folder_;
  std::map<std::string, OpenedFile*> by_name_;
};

}  // namespace

OpenedFile open_gradient_file(std::string path) {
  OpenedFile opened = open_checked(std::move(path));
  Sources sources{opened};
  for (std::size_t position = 0; position < opened.tensors.size(); ++position) {
    for (const auto& [name, set] : sets_of(opened.tensors[position])) {
      if (set == nullptr || !set->is_virtual()) continue;
      std::vector<const DataSet*> found;
      found.reserve(set->mappings().size());
      for (const Mapping& mapping : set->mappings()) found.push_back(sources.find(position, *set, name, mapping));
      set->attach(std::move(found));
    }
  }
  return opened;
}

}  // namespace gradtool::hdf5
