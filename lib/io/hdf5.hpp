#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

#include "lib/core/error.hpp"

// HDF5's C interface, made safe to use. Only lib/io includes this.
namespace gradtool::hdf5 {

/// Owns one HDF5 identifier and closes it with `Close`. Empty when negative.
template <herr_t (*Close)(hid_t)>
class Id {
 public:
  Id() = default;
  explicit Id(hid_t id) noexcept : id_{id} {}
  Id(Id&& other) noexcept : id_{std::exchange(other.id_, H5I_INVALID_HID)} {}
  Id& operator=(Id&& other) noexcept {
    if (this != &other) reset(), id_ = std::exchange(other.id_, H5I_INVALID_HID);
    return *this;
  }
  ~Id() { reset(); }

  [[nodiscard]] hid_t get() const noexcept { return id_; }
  [[nodiscard]] explicit operator bool() const noexcept { return id_ >= 0; }
  /// Closes it. The status matters for a file that was written: this is where a full disk may show.
  herr_t reset() noexcept {
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return id >= 0 ? Close(id) : 0;
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

using File = Id<H5Fclose>;
using Group = Id<H5Gclose>;
using Dataset = Id<H5Dclose>;
using Dataspace = Id<H5Sclose>;
using Datatype = Id<H5Tclose>;
using Attribute = Id<H5Aclose>;
using Properties = Id<H5Pclose>;

/// A place in a gradient file, for sentences: "runs/a.h5: /tensors/0003: ...".
struct Place {
  std::string file;
  std::string object;

  [[nodiscard]] Place at(const std::string& child) const { return {file, (object == "/" ? "" : object) + "/" + child}; }
  /// Throws Fault::data: what is there is not what a gradient file has there.
  [[noreturn]] void fail(const std::string& problem) const;
};

/// Stops HDF5 from printing its error stack to stderr. Per thread, hence called at every entry; cheap after the first.
void be_quiet();

/// The innermost reason on HDF5's error stack ("No space left on device"), or empty. Clears nothing.
[[nodiscard]] std::string last_reason();

/// `status` (or the identifier) of a call that only the system can make fail, or Fault::backend: "cannot <doing> ...".
hid_t checked_id(hid_t id, const std::string& doing);
void checked(herr_t status, const std::string& doing);

/// `status` or `id` of a call that a damaged file makes fail: Fault::data naming the place.
hid_t readable_id(hid_t id, const Place& place, const char* problem);
void readable(herr_t status, const Place& place, const char* problem);

/// IEEE binary16 as NumPy and h5py declare it; HDF5 1.10 has no name for it.
[[nodiscard]] Datatype half_type(H5T_order_t order = H5T_ORDER_LE);

}  // namespace gradtool::hdf5
