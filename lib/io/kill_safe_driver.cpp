#include "lib/io/kill_safe_driver.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <new>
#include <span>

#include "lib/io/superblock.hpp"
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

namespace gradtool::hdf5 {
namespace {

/// A file of this driver. HDF5 fills in `base`; `under` is the file of the POSIX driver, which does the work.
struct DriverFile {
  H5FD_t base;
  H5FD_t* under;
  int* error;
  Superblock superblock;  ///< as it is on the disk
};

/// The data that access properties carry to `open`.
struct DriverInfo {
  int* error;
};

H5FD_t* under(H5FD_t* file) {
  return reinterpret_cast<DriverFile*>(file)->under;
}
H5FD_t* under(const H5FD_t* file) {
  return reinterpret_cast<const DriverFile*>(file)->under;
}

H5FD_t* open(const char* name, unsigned flags, hid_t access, haddr_t max_address) {
  const auto* const info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  const Properties posix{H5Pcreate(H5P_FILE_ACCESS)};
  if (info == nullptr || !posix || H5Pset_fapl_sec2(posix.get()) < 0) return nullptr;
  auto* file = new (std::nothrow) DriverFile{};
  if (file == nullptr) return nullptr;
  file->error = info->error;
  file->under = H5FDopen(name, flags, posix.get(), max_address);
  if (file->under != nullptr) return &file->base;
  delete file;
  return nullptr;
}

herr_t close(H5FD_t* file) {
  const herr_t status = H5FDclose(under(file));
  delete reinterpret_cast<DriverFile*>(file);
  return status;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  return H5FDcmp(under(a), under(b));
}

herr_t query(const H5FD_t* file, unsigned long* flags) {
  if (flags == nullptr) return 0;
  // HDF5 asks once without a file, to learn what the driver can do in general.
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_POSIX_COMPAT_HANDLE |
           H5FD_FEAT_SUPPORTS_SWMR_IO | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  if (file == nullptr) return 0;
  if (H5FDquery(under(file), flags) < 0) return -1;
  // Metadata must be written when HDF5 says so and not be gathered, because the order of writes keeps the file
  // consistent.
  *flags &= ~static_cast<unsigned long>(H5FD_FEAT_ACCUMULATE_METADATA);
  return 0;
}

haddr_t get_eoa(const H5FD_t* file, H5FD_mem_t type) {
  return H5FDget_eoa(under(file), type);
}
herr_t set_eoa(H5FD_t* file, H5FD_mem_t type, haddr_t address) {
  return H5FDset_eoa(under(file), type, address);
}
haddr_t get_eof(const H5FD_t* file, H5FD_mem_t type) {
  return H5FDget_eof(under(file), type);
}
herr_t get_handle(H5FD_t* file, hid_t access, void** handle) {
  return H5FDget_vfd_handle(under(file), access, handle);
}

herr_t read(H5FD_t* file, H5FD_mem_t type, hid_t transfer, haddr_t address, std::size_t size, void* buffer) {
  return H5FDread(under(file), type, transfer, address, size, buffer);
}

/// Stores errno when a write has failed. Always returns success; see kill_safe_access.
herr_t settle(DriverFile& file, herr_t status) {
  if (status < 0) *file.error = errno != 0 ? errno : EIO;
  return 0;
}

herr_t write_under(DriverFile& file, H5FD_mem_t type, hid_t transfer, haddr_t address, std::size_t size,
                   const void* buffer) {
  if (*file.error != 0) return 0;
  errno = 0;
  return settle(file, H5FDwrite(file.under, type, transfer, address, size, buffer));
}

herr_t truncate_under(DriverFile& file, hid_t transfer, hbool_t closing) {
  if (*file.error != 0) return 0;
  errno = 0;
  return settle(file, H5FDtruncate(file.under, transfer, closing));
}

/// Makes the file as long as HDF5 has planned it, and then writes the superblock, which states that length.
void write_superblock(DriverFile& file, hid_t transfer) {
  truncate_under(file, transfer, false);
  const auto bytes = file.superblock.bytes();
  write_under(file, H5FD_MEM_SUPER, transfer, 0, bytes.size(), bytes.data());
}

herr_t write(H5FD_t* base, H5FD_mem_t type, hid_t transfer, haddr_t address, std::size_t size, const void* buffer) {
  auto& file = *reinterpret_cast<DriverFile*>(base);
  if (address == 0 && file.superblock.assign({static_cast<const std::byte*>(buffer), size})) {
    file.superblock.clear_flags();
    write_superblock(file, transfer);
    return 0;
  }
  const haddr_t end = H5FDget_eoa(file.under, type);
  if (type != H5FD_MEM_DRAW && file.superblock.end_of_file() != 0 && end > file.superblock.end_of_file()) {
    file.superblock.set_end_of_file(end);
    write_superblock(file, transfer);
  }
  return write_under(file, type, transfer, address, size, buffer);
}

herr_t flush(H5FD_t* file, hid_t transfer, hbool_t closing) {
  return H5FDflush(under(file), transfer, closing);
}
herr_t truncate(H5FD_t* file, hid_t transfer, hbool_t closing) {
  return truncate_under(*reinterpret_cast<DriverFile*>(file), transfer, closing);
}
herr_t lock(H5FD_t* file, hbool_t exclusive) {
  return H5FDlock(under(file), exclusive);
}
herr_t unlock(H5FD_t* file) {
  return H5FDunlock(under(file));
}

H5FD_class_t driver_class() {
  H5FD_class_t driver{};
#if H5_VERSION_GE(1, 13, 0)
  driver.version = H5FD_CLASS_VERSION;
  driver.value = H5_VFD_RESERVED + 1;  // numbers from H5_VFD_RESERVED on are for private drivers
#endif
  driver.name = "gradtool-kill-safe";
  driver.maxaddr = (haddr_t{1} << 62) - 1;
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = open;
  driver.close = close;
  driver.cmp = compare;
  driver.query = query;
  driver.get_eoa = get_eoa;
  driver.set_eoa = set_eoa;
  driver.get_eof = get_eof;
  driver.get_handle = get_handle;
  driver.read = read;
  driver.write = write;
  driver.flush = flush;
  driver.truncate = truncate;
  driver.lock = lock;
  driver.unlock = unlock;
  // One pool of free space is for metadata and one for raw data, as in the POSIX driver.
  std::fill(std::begin(driver.fl_map), std::end(driver.fl_map), H5FD_MEM_SUPER);
  driver.fl_map[H5FD_MEM_DEFAULT] = H5FD_MEM_SUPER;
  driver.fl_map[H5FD_MEM_DRAW] = H5FD_MEM_DRAW;
  driver.fl_map[H5FD_MEM_GHEAP] = H5FD_MEM_DRAW;
  return driver;
}

}  // namespace

Properties kill_safe_access(int& error) {
  be_quiet();
  // HDF5 keeps a pointer to the class for as long as the driver is registered, which is until the process ends.
  static const H5FD_class_t driver = driver_class();
  static const hid_t id = checked_id(H5FDregister(&driver), "register the file driver");
  Properties access{checked_id(H5Pcreate(H5P_FILE_ACCESS), "prepare HDF5")};
  const DriverInfo info{&error};
  checked(H5Pset_driver(access.get(), id, &info), "prepare HDF5");
  return access;
}

}  // namespace gradtool::hdf5
