#include "tests/fuzz/odd_attributes.hpp"

#include <array>

namespace gradtool::fuzz {
namespace {

/// An attribute of this type and space; what HDF5 refuses to make is simply not there.
void put(hid_t object, const char* name, hid_t file_type, hid_t space, hid_t memory_type, const void* values) {
  const hdf5::Attribute attribute{H5Acreate2(object, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT)};
  if (attribute) H5Awrite(attribute.get(), memory_type, values);
}

hdf5::Dataspace list_space(hsize_t count) {
  return hdf5::Dataspace{H5Screate_simple(1, &count, nullptr)};
}

hdf5::Datatype text_type(std::size_t size, H5T_str_t padding, H5T_cset_t characters) {
  hdf5::Datatype type{H5Tcopy(H5T_C_S1)};
  H5Tset_size(type.get(), size);
  if (size != H5T_VARIABLE) H5Tset_strpad(type.get(), padding);
  H5Tset_cset(type.get(), characters);
  return type;
}

/// Puts an attribute that is neither a text nor an integer.
void put_foreign(hid_t object, const char* name, Choices& choices) {
  const hdf5::Dataspace scalar{H5Screate(H5S_SCALAR)};
  const std::array<double, 16> zeros{};
  switch (choices.any(7)) {
    case 0:
      return put(object, name, H5T_IEEE_F64LE, scalar.get(), H5T_NATIVE_DOUBLE, zeros.data());
    case 1: {
      const hdf5::Dataspace null{H5Screate(H5S_NULL)};
      return put(object, name, H5T_STD_I64LE, null.get(), H5T_NATIVE_INT64, zeros.data());
    }
    case 2: {
      const hdf5::Datatype pair{H5Tcreate(H5T_COMPOUND, 16)};
      H5Tinsert(pair.get(), "a", 0, H5T_NATIVE_INT64);
      H5Tinsert(pair.get(), "b", 8, H5T_NATIVE_DOUBLE);
      return put(object, name, pair.get(), scalar.get(), pair.get(), zeros.data());
    }
    case 3: {
      const hdf5::Datatype list{H5Tvlen_create(H5T_NATIVE_INT)};
      const hvl_t none{0, nullptr};
      return put(object, name, list.get(), scalar.get(), list.get(), &none);
    }
    case 4:
      return put(object, name, H5T_STD_REF_OBJ, scalar.get(), H5T_STD_REF_OBJ, zeros.data());
    case 5: {
      const hdf5::Datatype opaque{H5Tcreate(H5T_OPAQUE, 8)};
      return put(object, name, opaque.get(), scalar.get(), opaque.get(), zeros.data());
    }
    default: {
      const hsize_t two = 2;
      const hdf5::Datatype array{H5Tarray_create2(H5T_NATIVE_INT64, 1, &two)};
      return put(object, name, array.get(), scalar.get(), array.get(), zeros.data());
    }
  }
}

std::string odd_text(Choices& choices) {
  switch (choices.any(6)) {
    case 0:
      return "";
    case 1:
      return std::string(5000, 'x');
    case 2:
      return "line\nend \x1b[31m";
    case 3:
      return "\xff\xfe\x80";
    case 4:
      return std::string(3, static_cast<char>(choices.next()));
    default:
      return "bfloat16";
  }
}

std::int64_t odd_number(Choices& choices) {
  constexpr std::array<std::int64_t, 10> kNumbers{0,         -1,        2,         3,         255,
                                                  INT64_MAX, INT64_MIN, 1LL << 32, 1LL << 62, 0x1'0000'0001};
  return kNumbers[choices.any(kNumbers.size())];
}

}  // namespace

void put_text(hid_t object, const char* name, std::string value, Choices& choices) {
  const hdf5::Dataspace scalar{H5Screate(H5S_SCALAR)};
  const unsigned way = choices.odd(6);
  if (way == 1) return;
  if (way == 2) return put_foreign(object, name, choices);
  if (way == 3) return put_integer(object, name, 7, choices);
  if (way == 4) value = odd_text(choices);
  if (way == 5 || way == 0) {
    const auto type = text_type(H5T_VARIABLE, H5T_STR_NULLTERM, way == 0 ? H5T_CSET_UTF8 : H5T_CSET_ASCII);
    const char* const text = value.c_str();
    return put(object, name, type.get(), scalar.get(), type.get(), &text);
  }
  constexpr std::array<H5T_str_t, 3> kPaddings{H5T_STR_NULLTERM, H5T_STR_NULLPAD, H5T_STR_SPACEPAD};
  const auto type = text_type(value.empty() ? 1 : value.size(), kPaddings[choices.any(3)], H5T_CSET_UTF8);
  const auto list = list_space(1);
  put(object, name, type.get(), choices.any(2) == 0 ? scalar.get() : list.get(), type.get(), value.c_str());
}

void put_integer(hid_t object, const char* name, std::int64_t value, Choices& choices) {
  const unsigned way = choices.odd(6);
  if (way == 1) return;
  if (way == 2) return put_foreign(object, name, choices);
  if (way == 3) return put_text(object, name, "1", choices);
  if (way == 4) value = odd_number(choices);
  const std::array<hid_t, 6> types{H5T_STD_I64LE, H5T_STD_U8LE,  H5T_STD_I16BE,
                                   H5T_STD_U64LE, H5T_STD_I32LE, H5T_STD_U64BE};
  const hid_t type = types[choices.odd(5)];
  const auto space = way == 5 ? list_space(choices.any(4)) : hdf5::Dataspace{H5Screate(H5S_SCALAR)};
  const std::array<std::int64_t, 4> values{value, value, value, value};
  // Integers beyond 63 bits exist only as unsigned ones: the same bits, read so.
  put(object, name, type, space.get(), way == 6 ? H5T_NATIVE_UINT64 : H5T_NATIVE_INT64, values.data());
}

void put_integers(hid_t object, const char* name, std::vector<std::int64_t> values, Choices& choices) {
  const unsigned way = choices.odd(6);
  if (way == 1) return;
  if (way == 2) return put_foreign(object, name, choices);
  if (way == 3) return put_text(object, name, "8", choices);
  if (way == 4) values.assign(choices.any(40), 1);
  if (way == 5) values.push_back(odd_number(choices));
  if (way == 6) {
    const std::array<hsize_t, 2> dims{1, values.size()};
    const hdf5::Dataspace space{H5Screate_simple(2, dims.data(), nullptr)};
    return put(object, name, H5T_STD_I64LE, space.get(), H5T_NATIVE_INT64, values.data());
  }
  const auto space = list_space(values.size());
  put(object, name, choices.odd(1) == 0 ? H5T_STD_I64LE : H5T_STD_U16BE, space.get(), H5T_NATIVE_INT64, values.data());
}

}  // namespace gradtool::fuzz
