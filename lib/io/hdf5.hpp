#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

#include "lib/core/error.hpp"

// HDF5's C interface with owning handles and checked calls. It is the only place that includes hdf5.h.
namespace gradtool::hdf5 {

/// Owns one HDF5 identifier and closes it with `Close`. A negative identifier means that it owns nothing.
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
  /// Closes the identifier and returns the status. For a file that was written the status matters, because a full disk
  /// may become apparent only here.
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

/// A place in a gradient file for use in messages, for example "runs/a.h5: /tensors/0003".
struct Place {
  std::string file;
  std::string object;

  [[nodiscard]] Place at(const std::string& child) const { return {file, (object == "/" ? "" : object) + "/" + child}; }
  /// Throws Fault::data with the place and the problem.
  [[noreturn]] void fail(const std::string& problem) const;
};

/// Stops HDF5 from printing its error stack to stderr. The setting is per thread, so every public function calls this;
/// it costs nothing after the first call.
void be_quiet();

/// The innermost reason on HDF5's error stack, for example "No space left on device", or empty. Does not clear the
/// stack.
[[nodiscard]] std::string last_reason();

/// Check the result of a call that fails only for reasons of the system: throw Fault::backend with "cannot <doing>" and
/// HDF5's reason when it is negative.
hid_t checked_id(hid_t id, const std::string& doing);
void checked(herr_t status, const std::string& doing);

/// Check the result of a call that fails when the file is damaged: throw Fault::data with the place and the problem
/// when it is negative.
hid_t readable_id(hid_t id, const Place& place, const char* problem);
void readable(herr_t status, const Place& place, const char* problem);

/// IEEE binary16 as NumPy and h5py declare it; HDF5 1.10 has no name for it.
[[nodiscard]] Datatype half_type(H5T_order_t order = H5T_ORDER_LE);

}  // namespace gradtool::hdf5
