#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

void Place::fail(const std::string& problem) const {
  throw Error{Fault::data, file + ": " + object + ": " + problem};
}

void be_quiet() {
  thread_local const herr_t status = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  static_cast<void>(status);
}

std::string last_reason() {
  std::string reason;
  // Walking upward starts at the innermost call, which failed first; its text is the most specific.
  const auto visit = [](unsigned position, const H5E_error2_t* error, void* out) -> herr_t {
    if (position == 0 && error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, visit, &reason);
  return reason;
}

hid_t checked_id(hid_t id, const std::string& doing) {
  if (id >= 0) return id;
  const std::string reason = last_reason();
  throw Error{Fault::backend, "cannot " + doing + (reason.empty() ? "" : ": " + reason)};
}

void checked(herr_t status, const std::string& doing) {
  checked_id(status, doing);
}

hid_t readable_id(hid_t id, const Place& place, const char* problem) {
  if (id < 0) place.fail(problem);
  return id;
}

void readable(herr_t status, const Place& place, const char* problem) {
  readable_id(status, place, problem);
}

Datatype half_type(H5T_order_t order) {
  Datatype type{checked_id(H5Tcopy(order == H5T_ORDER_BE ? H5T_IEEE_F32BE : H5T_IEEE_F32LE), "make a type")};
  // The sign is bit 15, then follow five bits of exponent with bias 15 and ten bits of mantissa. The fields are set
  // before the size, because HDF5 does not accept a size that would cut fields off.
  checked(H5Tset_fields(type.get(), 15, 10, 5, 0, 10), "make a type");
  checked(H5Tset_size(type.get(), 2), "make a type");
  checked(H5Tset_ebias(type.get(), 15), "make a type");
  return type;
}

}  // namespace gradtool::hdf5
