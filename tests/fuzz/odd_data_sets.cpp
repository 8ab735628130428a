#include "tests/fuzz/odd_data_sets.hpp"

#include <algorithm>
#include <array>

#include "tests/fuzz/odd_attributes.hpp"

namespace gradtool::fuzz {
namespace {

constexpr std::uint64_t kMostValues = 1 << 12;

hdf5::Datatype type_of(Values values) {
  switch (values) {
    case Values::float16:
      return hdf5::half_type();
    case Values::bfloat16:
      return hdf5::Datatype{H5Tcopy(H5T_STD_U16LE)};
    case Values::int64:
      return hdf5::Datatype{H5Tcopy(H5T_STD_I64LE)};
    case Values::float64:
      return hdf5::Datatype{H5Tcopy(H5T_IEEE_F64LE)};
    case Values::float32:
      break;
  }
  return hdf5::Datatype{H5Tcopy(H5T_IEEE_F32LE)};
}

hdf5::Datatype odd_type(Choices& choices) {
  const std::array<hid_t, 7> types{H5T_STD_I8LE,    H5T_IEEE_F64BE, H5T_STD_U16BE, H5T_IEEE_F32BE,
                                   H5T_STD_REF_OBJ, H5T_C_S1,       H5T_STD_U64LE};
  const unsigned choice = choices.any(10);
  if (choice < types.size()) return hdf5::Datatype{H5Tcopy(types[choice])};
  if (choice == 7) return hdf5::half_type(H5T_ORDER_BE);
  if (choice == 8) return hdf5::Datatype{H5Tcreate(H5T_OPAQUE, 4)};
  hdf5::Datatype wide{H5Tcopy(H5T_IEEE_F64LE)};  // a float of unusual fields
  H5Tset_ebias(wide.get(), 77);
  return wide;
}

void change_dims(std::vector<hsize_t>& dims, Choices& choices) {
  constexpr std::array<hsize_t, 7> kExtents{0, 1, 3, 5, 1ULL << 20, 1ULL << 40, 1ULL << 62};
  switch (choices.odd(3)) {
    case 1:
      dims[choices.any(static_cast<unsigned>(dims.size()))] = kExtents[choices.any(kExtents.size())];
      break;
    case 2:
      dims.push_back(1 + choices.any(3));
      break;
    case 3:
      dims.pop_back();
      break;
    default:
      break;
  }
}

/// Creation properties; false when this data set is to keep its values elsewhere.
void choose_layout(hid_t creation, const std::vector<hsize_t>& dims, Choices& choices) {
  const unsigned layout = choices.odd(5);
  if (layout == 0 || dims.empty()) return;  // contiguous
  if (layout == 1) {
    H5Pset_layout(creation, H5D_COMPACT);
    return;
  }
  if (layout == 2) {
    H5Pset_external(creation, "/dev/null", 0, H5F_UNLIMITED);
    return;
  }
  std::vector<hsize_t> chunk(dims.size());
  std::transform(dims.begin(), dims.end(), chunk.begin(), [&](hsize_t extent) {
    return std::clamp<hsize_t>(extent / (1 + choices.any(3)), 1, hsize_t{1} << (choices.odd(1) == 0 ? 12 : 29));
  });
  H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
  if (layout == 3) return;
  switch (choices.any(4)) {
    case 0:
      H5Pset_deflate(creation, 1);
      break;
    case 1:
      H5Pset_shuffle(creation);
      break;
    case 2:
      H5Pset_fletcher32(creation);
      break;
    default:
      H5Pset_filter(creation, 32000 + choices.next(), H5Z_FLAG_OPTIONAL, 0, nullptr);
      break;
  }
}

/// Values of the right size, if there are few; the bits come from the input, so NaN and infinities do too.
void fill(hid_t set, hid_t type, const std::vector<hsize_t>& dims, Choices& choices) {
  std::uint64_t count = 1;
  for (const hsize_t extent : dims) count = extent > kMostValues ? kMostValues + 1 : count * extent;
  if (count > kMostValues || choices.odd(1) != 0 || H5Tget_class(type) == H5T_REFERENCE) return;
  std::vector<std::uint8_t> bytes(count * H5Tget_size(type));
  const std::uint8_t pattern = choices.next();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(pattern * (i % 7));
  H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data());
}

}  // namespace

bool put_odd_link(hid_t parent, const char* name, Choices& choices) {
  switch (choices.odd(6)) {
    case 0:
      return false;
    case 1:
      return true;  // nothing at all
    case 2:
      H5Lcreate_soft("/tensors", parent, name, H5P_DEFAULT, H5P_DEFAULT);
      break;
    case 3:
      H5Lcreate_soft(name, parent, name, H5P_DEFAULT, H5P_DEFAULT);
      break;
    case 4:
      H5Lcreate_external("/etc/passwd", "/", parent, name, H5P_DEFAULT, H5P_DEFAULT);
      break;
    case 5:
      H5Lcreate_hard(parent, "/", parent, name, H5P_DEFAULT, H5P_DEFAULT);
      break;
    default: {
      const hdf5::Datatype type{H5Tcopy(H5T_NATIVE_INT)};
      H5Tcommit2(parent, name, type.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    }
  }
  return true;
}

void put_data_set(hid_t parent, const char* name, Values values, std::vector<hsize_t> dims, Choices& choices) {
  if (put_odd_link(parent, name, choices)) return;
  if (choices.odd(1) != 0) {
    const hdf5::Group group{H5Gcreate2(parent, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)};
    return;
  }
  const auto type = choices.odd(1) == 0 ? type_of(values) : odd_type(choices);
  change_dims(dims, choices);
  const hdf5::Properties creation{H5Pcreate(H5P_DATASET_CREATE)};
  choose_layout(creation.get(), dims, choices);
  const bool chunked = H5Pget_layout(creation.get()) == H5D_CHUNKED;
  const std::vector<hsize_t> most(dims.size(), H5S_UNLIMITED);
  const int rank = static_cast<int>(dims.size());
  const hdf5::Dataspace space{choices.odd(1) == 0 ? H5Screate_simple(rank, dims.data(), chunked ? most.data() : nullptr)
                                                  : H5Screate(H5S_NULL)};
  const hdf5::Dataset set{H5Dcreate2(parent, name, type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT)};
  if (!set) return;
  if (values == Values::bfloat16) put_text(set.get(), "dtype", "bfloat16", choices);
  fill(set.get(), type.get(), dims, choices);
}

}  // namespace gradtool::fuzz
