#include "lib/io/readiness.hpp"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <vector>

#include "lib/io/data_set.hpp"
#include "lib/io/layout.hpp"

namespace gradtool::hdf5 {
namespace {

constexpr const char* kReadinessGroup = "readiness";

void expect_axis(const DataSet& set, std::size_t axis, std::uint64_t extent, const char* whose) {
  if (set.dims()[axis] == extent) return;
  set.place().fail(
      fmt::format("has the extent {}, but {} is {} (dimension {})", set.dims_text(), whose, extent, axis + 1));
}

void expect_shares(const DataSet& set, const std::vector<double>& values) {
  for (const double value : values) {
    // NaN, which compares as false, means that a share is not known.
    if (value < 0.0 || value > 1.0) set.place().fail(fmt::format("has the value {}; must be 0 to 1, or NaN", value));
  }
}

Dataset create_shares(hid_t group, const char* name, hid_t type, const std::vector<hsize_t>& dims) {
  const std::string doing = std::string{"create the data set '"} + name + "'";
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  const Properties creation{checked_id(H5Pcreate(H5P_DATASET_CREATE), doing)};
  checked(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), doing);
  checked(H5Pset_fill_value(creation.get(), H5T_NATIVE_DOUBLE, &kUnknown), doing);
  const Dataspace space{checked_id(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), doing)};
  return Dataset{
      checked_id(H5Dcreate2(group, name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), doing)};
}

}  // namespace

std::optional<Readiness> load_readiness(hid_t file, const Place& root, std::uint64_t workers, std::uint64_t tensors,
                                        std::uint64_t file_bytes, bool complete) {
  if (!has_child(file, root, kReadinessGroup)) return std::nullopt;
  const Group group = open_group(file, root, kReadinessGroup);
  const Place place = root.at(kReadinessGroup);
  const DataSet ready{group.get(), place, "ready", 2}, backward{group.get(), place, "backward_share", 1};
  for (const DataSet* set : {&ready, &backward}) {
    set->expect_floats();
    expect_axis(*set, 0, workers, "the file's attribute 'workers'");
  }
  expect_axis(ready, 1, tensors, "the number of tensors");
  for (const DataSet* set : {&ready, &backward}) set->expect_stored(file_bytes, complete);
  Readiness readiness{.ready = std::vector<double>(workers * tensors), .backward_share = std::vector<double>(workers)};
  ready.read({0, 0}, {workers, tensors}, H5T_NATIVE_DOUBLE, readiness.ready.data());
  backward.read({0}, {workers}, H5T_NATIVE_DOUBLE, readiness.backward_share.data());
  expect_shares(ready, readiness.ready);
  expect_shares(backward, readiness.backward_share);
  return readiness;
}

ReadinessSets::ReadinessSets(hid_t file, std::uint64_t workers, std::uint64_t tensors)
    : workers_{workers}, tensors_{tensors} {
  const auto group = make_group(file, kReadinessGroup);
  ready_ = create_shares(group.get(), "ready", H5T_IEEE_F32LE, {workers, tensors});
  backward_share_ = create_shares(group.get(), "backward_share", H5T_IEEE_F64LE, {workers});
}

void ReadinessSets::write(const Readiness& readiness) {
  expects(readiness.ready.size() == workers_ * tensors_ && readiness.backward_share.size() == workers_,
          "readiness has another size than the file's workers and tensors");
  const auto write_all = [](const Dataset& set, const std::vector<double>& values) {
    checked(H5Dwrite(set.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()),
            "write when gradients are ready");
  };
  write_all(ready_, readiness.ready);
  write_all(backward_share_, readiness.backward_share);
}

}  // namespace gradtool::hdf5
