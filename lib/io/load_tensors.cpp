#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "lib/io/attributes.hpp"
#include "lib/io/load.hpp"
#include "lib/io/schema.hpp"
#include "lib/io/utf8.hpp"

namespace gradtool::hdf5 {
namespace {

/// Members of /tensors by number. The number orders them; "0010" follows "0009" and "10" alike.
std::map<std::uint64_t, std::string> numbered_members(hid_t group, const Place& place) {
  struct Visit {
    std::map<std::uint64_t, std::string> members;
    std::string bad, twice;
    bool too_many = false;
  } visit;
  const auto note = [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
    auto& seen = *static_cast<Visit*>(out);
    const std::string text{name};
    std::uint64_t number = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (status != std::errc{} || end != text.data() + text.size()) return seen.bad = text, 1;
    if (!seen.members.emplace(number, text).second) return seen.twice = text, 1;
    return (seen.too_many = seen.members.size() > schema::kMaxTensors) ? 1 : 0;
  };
  hsize_t position = 0;
  readable(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &position, note, &visit), place,
           "is damaged: its members cannot be listed");
  if (!visit.bad.empty()) place.fail(fmt::format("has a member '{}'; members must be numbers", printable(visit.bad)));
  if (!visit.twice.empty()) place.fail(fmt::format("has two members with the number of '{}'", visit.twice));
  if (visit.too_many) place.fail(fmt::format("has more than {} members", schema::kMaxTensors));
  if (visit.members.empty()) place.fail("has no tensors; must have at least one");
  return std::move(visit.members);
}

/// Attributes of the group. `elements` is the product of the shape, which may not overflow.
TensorInfo load_info(hid_t group, const Place& place) {
  TensorInfo info;
  info.name = required(read_text(group, place, "name"), place, "name");
  if (info.name.empty() || info.name.size() > schema::kMaxName || has_control(info.name)) {
    place.fail(fmt::format("the attribute 'name' must be 1 to {} bytes without control characters", schema::kMaxName));
  }
  info.shape = required(read_integers(group, place, "shape", schema::kMaxRank), place, "shape");
  info.elements = 1;
  for (const std::int64_t extent : info.shape) {
    if (extent < 1) place.fail(fmt::format("the attribute 'shape' has the extent {}; must be at least 1", extent));
    if (__builtin_mul_overflow(info.elements, static_cast<std::uint64_t>(extent), &info.elements)) {
      place.fail("the attribute 'shape' has a product beyond 2^64");
    }
  }
  info.kind = required(read_text(group, place, "kind"), place, "kind");
  if (std::find(schema::kKinds.begin(), schema::kKinds.end(), info.kind) == schema::kKinds.end()) {
    place.fail(fmt::format("the attribute 'kind' is '{}'; must be one of {}", printable(info.kind),
                           fmt::join(schema::kKinds, ", ")));
  }
  info.layout = read_text(group, place, "layout").value_or("");
  return info;
}

void expect_extent(const DataSet& set, std::size_t axis, std::uint64_t extent, const char* whose) {
  if (set.dims()[axis] == extent) return;
  set.place().fail(
      fmt::format("has the extent {}, but {} is {} (dimension {})", set.dims_text(), whose, extent, axis + 1));
}

StoredTensor open_tensor(hid_t tensors, const Place& place, const std::string& number, std::uint64_t workers) {
  const Group group = open_group(tensors, place, number);
  const Place here = place.at(number);
  TensorInfo info = load_info(group.get(), here);
  DataSet gradient{group.get(), here, "gradient", 3};
  info.dtype = gradient.value_dtype();
  info.has_second_moment = has_child(group.get(), here, "second_moment");
  info.has_weight = has_child(group.get(), here, "weight");
  StoredTensor tensor{std::move(info), std::move(gradient), Dtype::f32, std::nullopt, std::nullopt};
  tensor.gradient_dtype = tensor.info.dtype;
  constexpr const char* kShape = "the product of the attribute 'shape'";
  expect_extent(tensor.gradient, 1, workers, "the file's attribute 'workers'");
  expect_extent(tensor.gradient, 2, tensor.info.elements, kShape);
  if (tensor.info.has_second_moment) {
    tensor.second_moment.emplace(group.get(), here, "second_moment", 3);
    tensor.second_moment_dtype = tensor.second_moment->value_dtype();
    expect_extent(*tensor.second_moment, 1, workers, "the file's attribute 'workers'");
    expect_extent(*tensor.second_moment, 2, tensor.info.elements, kShape);
  }
  if (tensor.info.has_weight) {
    tensor.weight.emplace(group.get(), here, "weight", 2);
    tensor.weight_dtype = tensor.weight->value_dtype();
    expect_extent(*tensor.weight, 1, tensor.info.elements, kShape);
  }
  return tensor;
}

}  // namespace

std::vector<StoredTensor> open_tensors(hid_t file, const Place& root, std::int64_t workers) {
  const Group group = open_group(file, root, "tensors");
  const Place place = root.at("tensors");
  std::vector<StoredTensor> tensors;
  std::set<std::string> names;
  std::uint64_t total = 0;
  for (const auto& [number, name] : numbered_members(group.get(), place)) {
    tensors.push_back(open_tensor(group.get(), place, name, static_cast<std::uint64_t>(workers)));
    const TensorInfo& info = tensors.back().info;
    if (!names.insert(info.name).second)
      place.at(name).fail("has the name '" + info.name + "', which another tensor has");
    if (__builtin_add_overflow(total, info.elements, &total)) place.fail("has more than 2^64 elements in all");
  }
  return tensors;
}

}  // namespace gradtool::hdf5
