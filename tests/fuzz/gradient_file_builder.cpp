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

/// The first gradient as a view of another file, or almost one. The file is not there, or is none that may be named;
/// what happens to views of sound files is for tests/io/merge_test.py.
void put_view(hid_t root, hsize_t workers, Choices& choices) {
  const hdf5::Group group{H5Gopen2(root, "tensors/0000", H5P_DEFAULT)};
  if (!group) return;
  H5Ldelete(group.get(), "gradient", H5P_DEFAULT);
  constexpr std::array kFiles{"absent.h5", ".", "/etc/passwd", "../a.h5", "a%%b.h5", "", "a\nb"};
  constexpr std::array kSets{"/tensors/0000/gradient", "tensors/0000/gradient", "/", "/steps/iteration", ""};
  const std::array<hsize_t, 3> dims{kSteps, workers, 6};
  const hdf5::Properties creation{H5Pcreate(H5P_DATASET_CREATE)};
  const unsigned blocks = 1 + choices.any(3);
  for (unsigned i = 0; i < blocks; ++i) {
    const std::array<hsize_t, 3> start{choices.any(2), choices.any(3), choices.odd(5)};
    const std::array<hsize_t, 3> count{1 + choices.any(2), 1 + choices.any(3), 6 - choices.odd(5)};
    const std::array<hsize_t, 3> stride{4, 4, 4};
    const hdf5::Dataspace own{H5Screate_simple(3, dims.data(), nullptr)};
    const hdf5::Dataspace other{H5Screate_simple(3, dims.data(), nullptr)};
    H5Sselect_hyperslab(own.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr);
    H5Sselect_hyperslab(other.get(), H5S_SELECT_SET, start.data(), choices.odd(1) == 0 ? nullptr : stride.data(),
                        count.data(), nullptr);
    const unsigned file = choices.odd(static_cast<unsigned>(kFiles.size() - 1));
    const unsigned set = choices.odd(static_cast<unsigned>(kSets.size() - 1));
    H5Pset_virtual(creation.get(), own.get(), kFiles[file], kSets[set], other.get());
  }
  const hdf5::Dataspace space{H5Screate_simple(3, dims.data(), nullptr)};
  const hdf5::Dataset set{
      H5Dcreate2(group.get(), "gradient", H5T_IEEE_F32LE, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT)};
}

/// Puts the parts that came to the schema later. They are drawn last, so that the bytes of older inputs still mean what
/// they meant.
void put_later_parts(hid_t root, hsize_t workers, Choices& choices) {
  if (choices.any(2) == 1) put_text(root, "quantity", choices.any(2) == 0 ? "gradient" : "pseudo_gradient", choices);
  if (choices.any(2) == 1) put_integer(root, "inner_steps", 4, choices);
  if (choices.any(2) == 1) put_integer(root, "averaged", choices.any(2), choices);
  if (choices.any(2) == 1) put_integer(root, "rank", choices.any(3), choices);
  if (choices.any(2) == 1) put_integer(root, "ranks", 2, choices);
  if (choices.any(4) == 1) put_view(root, workers, choices);
  if (choices.any(2) == 0) return;
  const hdf5::Group steps{H5Gopen2(root, "steps", H5P_DEFAULT)};
  if (steps) put_data_set(steps.get(), "overflow", Values::int64, {length(choices), workers}, choices);
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
  put_later_parts(file.get(), workers, choices);
}

}  // namespace gradtool::fuzz
