#include "lib/io/mapping.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "lib/core/text.hpp"
#include "lib/core/utf8.hpp"

namespace gradtool::hdf5 {
namespace {

/// The longest name of a file or data set in a mapping; Linux allows no longer file names.
constexpr std::size_t kMostName = 255;

struct Box {
  std::vector<hsize_t> start, count;
};

/// The extent of a space; nothing when it has another rank or is damaged.
std::optional<std::vector<hsize_t>> extent_of(hid_t space, int rank) {
  if (H5Sget_simple_extent_ndims(space) != rank) return std::nullopt;
  std::vector<hsize_t> dims(static_cast<std::size_t>(rank));
  if (H5Sget_simple_extent_dims(space, dims.data(), nullptr) != rank) return std::nullopt;
  return dims;
}

/// The selection in `space`; nothing when it is not one box of limited size.
std::optional<Box> box_of(hid_t space, int rank) {
  const auto dims = extent_of(space, rank);
  if (!dims) return std::nullopt;
  if (H5Sget_select_type(space) == H5S_SEL_ALL) return Box{std::vector<hsize_t>(dims->size()), *dims};
  if (H5Sget_select_type(space) != H5S_SEL_HYPERSLABS) return std::nullopt;
  const hssize_t points = H5Sget_select_npoints(space);
  Box box{*dims, *dims};
  std::vector<hsize_t> end(dims->size());
  if (points <= 0 || H5Sget_select_bounds(space, box.start.data(), end.data()) < 0) return std::nullopt;
  hsize_t volume = 1;
  for (std::size_t i = 0; i < end.size(); ++i) {
    if (end[i] < box.start[i]) return std::nullopt;
    box.count[i] = end[i] - box.start[i] + 1;
    if (__builtin_mul_overflow(volume, box.count[i], &volume)) return std::nullopt;
  }
  if (volume != static_cast<hsize_t>(points)) return std::nullopt;
  return box;
}

/// The text that `get(out, size)` writes; empty when it is damaged or too long.
template <class Get>
std::string text_of(Get get) {
  const ssize_t length = get(nullptr, 0);
  if (length <= 0 || static_cast<std::size_t>(length) > kMostName) return {};
  std::string text(static_cast<std::size_t>(length) + 1, '\0');
  if (get(text.data(), text.size()) != length) return {};
  text.resize(static_cast<std::size_t>(length));
  return text;
}

Mapping read_mapping(hid_t creation, std::size_t i, const Place& place, int rank) {
  Mapping mapping;
  mapping.file = text_of([&](char* out, std::size_t size) { return H5Pget_virtual_filename(creation, i, out, size); });
  mapping.object =
      text_of([&](char* out, std::size_t size) { return H5Pget_virtual_dsetname(creation, i, out, size); });
  if (!is_plain_name(mapping.file)) {
    place.fail(
        fmt::format("maps values to the file '{}'; must be the name of a file in the same folder, without / and %",
                    printable(mapping.file)));
  }
  if (mapping.object.empty() || !is_utf8(mapping.object)) place.fail("maps values to a data set without a usable name");
  if (!mapping.object.starts_with('/')) mapping.object.insert(0, 1, '/');
  const auto not_a_block = [&] {
    place.fail(fmt::format("maps values to '{}' that are not one block of whole steps and workers of it",
                           printable(mapping.file)));
  };
  const Dataspace own{H5Pget_virtual_vspace(creation, i)}, other{H5Pget_virtual_srcspace(creation, i)};
  if (!own || !other) not_a_block();
  const auto extent = extent_of(own.get(), rank);
  const auto to = box_of(own.get(), rank);
  if (!extent || !to) not_a_block();
  // A source that is selected as a whole may not know its extent: only HDF5 knows, once it has opened the file. The
  // reader checks later that the block lies in it.
  const bool whole = H5Sget_select_type(other.get()) == H5S_SEL_ALL;
  const auto from =
      whole ? std::optional{Box{std::vector<hsize_t>(to->count.size()), to->count}} : box_of(other.get(), rank);
  if (!from || from->count != to->count || from->start.back() != 0 || to->start.back() != 0 ||
      to->count.back() != extent->back()) {
    not_a_block();
  }
  mapping.step = to->start.front(), mapping.steps = to->count.front(), mapping.source_step = from->start.front();
  mapping.workers = 1;
  if (rank == 3) mapping.worker = to->start[1], mapping.workers = to->count[1], mapping.source_worker = from->start[1];
  return mapping;
}

}  // namespace

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= kMostName && name != "." && name != ".." &&
         name.find_first_of("/%") == std::string::npos && is_utf8(name) && !has_control(name);
}

std::vector<Mapping> read_mappings(hid_t creation, const Place& place, int rank) {
  std::size_t count = 0;
  readable(H5Pget_virtual_count(creation, &count), place, "has a damaged layout");
  std::vector<Mapping> mappings;
  for (std::size_t i = 0; i < count; ++i) mappings.push_back(read_mapping(creation, i, place, rank));
  std::sort(mappings.begin(), mappings.end(), [](const Mapping& a, const Mapping& b) {
    return std::pair{a.worker, a.step} < std::pair{b.worker, b.step};
  });
  return mappings;
}

void expect_covered(const std::vector<Mapping>& mappings, const Place& place, const std::vector<hsize_t>& dims) {
  const hsize_t steps = dims.front(), workers = dims.size() == 3 ? dims[1] : 1;
  const auto fail = [&] {
    place.fail(
        fmt::format("does not map each of its values, of the extent [{}], to exactly one file", joined(dims, ", ")));
  };
  hsize_t worker = 0;
  for (std::size_t i = 0; i < mappings.size();) {
    const Mapping& first = mappings[i];
    if (first.worker != worker || first.workers > workers - worker) fail();
    hsize_t step = 0;
    for (; i < mappings.size() && mappings[i].worker == worker; ++i) {
      if (mappings[i].workers != first.workers || mappings[i].step != step || mappings[i].steps > steps - step) fail();
      step += mappings[i].steps;
    }
    if (step != steps) fail();
    worker += first.workers;
  }
  if (worker != workers) fail();
}

std::size_t mapping_of(const std::vector<Mapping>& mappings, hsize_t step, hsize_t worker) {
  const auto after = std::upper_bound(mappings.begin(), mappings.end(), worker,
                                      [](hsize_t wanted, const Mapping& m) { return wanted < m.worker; });
  const hsize_t first_worker = std::prev(after)->worker;
  const auto next = std::upper_bound(mappings.begin(), after, std::pair{first_worker, step},
                                     [](const auto& wanted, const Mapping& m) {
                                       return wanted < std::pair{m.worker, m.step};
                                     });
  return static_cast<std::size_t>(std::prev(next) - mappings.begin());
}

}  // namespace gradtool::hdf5
