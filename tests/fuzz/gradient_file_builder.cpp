#include "tests/fuzz/gradient_file_builder.hpp"

#include <array>

#include "tests/fuzz/odd_attributes.hpp"
#include "tests/fuzz/odd_data_sets.hpp"

namespace gradtool::fuzz {
namespace {

constexpr hsize_t kSteps = 2;

hdf5::Group make_group(hid_t parent, const char* name) {
  return hdf5::Group{H5Gcreate2(parent, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)};
}

void put_root(hid_t root, std::int64_t workers, Choices& choices) {
  put_text(root, "format", "gradtool.gradients", choices);
  put_integer(root, "schema_version", 1, choices);
  put_integer(root, "complete", choices.odd(1) == 0 ? 1 : 0, choices);
  put_integer(root, "workers", workers, choices);
  put_integer(root, "seed", 5, choices);
  put_integer(root, "batch_size", 16, choices);
  put_integer(root, "micro_batches", 2, choices);
  for (const char* name : {"producer", "created", "model", "dataset", "optimizer", "command"}) {
    put_text(root, name, "text", choices);
  }
}

/// The length of one more data set: the file's, or one more, as an unfinished step leaves it.
hsize_t length(Choices& choices) {
  return kSteps + choices.odd(1);
}

void put_steps(hid_t root, hsize_t workers, Choices& choices) {
  if (put_odd_link(root, "steps", choices)) return;
  const auto group = make_group(root, "steps");
  put_data_set(group.get(), "iteration", Values::int64, {kSteps}, choices);
  if (choices.odd(1) == 0) put_data_set(group.get(), "epoch", Values::float64, {length(choices)}, choices);
  if (choices.odd(1) == 0) put_data_set(group.get(), "learning_rate", Values::float64, {length(choices)}, choices);
  if (choices.odd(1) == 0) put_data_set(group.get(), "loss", Values::float32, {length(choices), workers}, choices);
}

void put_tensor(hid_t tensors, unsigned number, hsize_t workers, Choices& choices) {
  constexpr std::array kOddNames{"1", "0001", "00000000000000000000000001", "99999999999999999999999", "x", "-1", "1 "};
  const std::string ordinary = "000" + std::to_string(number);
  const unsigned odd = choices.odd(kOddNames.size());
  const char* name = odd == 0 ? ordinary.c_str() : kOddNames[odd - 1];
  if (put_odd_link(tensors, name, choices)) return;
  const auto group = make_group(tensors, name);
  if (!group) return;
  constexpr std::array kKinds{"other", "conv", "linear", "embedding", "recurrent", "norm", "bias"};
  put_text(group.get(), "name", "tensor" + std::to_string(choices.odd(1) == 0 ? number : 0), choices);
  put_text(group.get(), "kind", kKinds[choices.any(kKinds.size())], choices);
  put_text(group.get(), "layout", "OI", choices);
  put_integers(group.get(), "shape", {2, 3}, choices);
  constexpr std::array kTypes{Values::float32, Values::float16, Values::bfloat16};
  put_data_set(group.get(), "gradient", kTypes[choices.any(3)], {length(choices), workers, 6}, choices);
  if (choices.any(2) == 1) {
    put_data_set(group.get(), "second_moment", kTypes[choices.any(3)], {length(choices), workers, 6}, choices);
  }
  if (choices.any(2) == 1) {
    put_data_set(group.get(), "weight", kTypes[choices.any(3)], {length(choices), 6}, choices);
  }
}

}  // namespace

void build_gradient_file(const std::string& path, Choices& choices) {
  hdf5::be_quiet();
  const hdf5::Properties creation{H5Pcreate(H5P_FILE_CREATE)};
  if (choices.odd(1) != 0) H5Pset_userblock(creation.get(), 512);
  const hdf5::Properties access{H5Pcreate(H5P_FILE_ACCESS)};
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  if (choices.any(2) == 1) H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  const hdf5::File file{H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get())};
  if (!file) return;
  const unsigned workers = 1 + choices.any(3);
  put_root(file.get(), workers, choices);
  put_steps(file.get(), workers, choices);
  if (put_odd_link(file.get(), "tensors", choices)) return;
  const auto tensors = make_group(file.get(), "tensors");
  const unsigned count = choices.odd(1) == 0 ? 1 + choices.any(3) : 0;
  for (unsigned number = 0; number < count; ++number) put_tensor(tensors.get(), number, workers, choices);
}

}  // namespace gradtool::fuzz
