#pragma once

#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

/// File access properties for a file that any HDF5 reader can open at every moment of its writing.
///
/// HDF5's single-writer mode (SWMR) orders its writes so that the file is consistent after each of them. But it also
/// marks the superblock as "being written". A process that is killed leaves the mark, and then a plain open (as by h5py
/// or h5dump) refuses the file until `h5clear` has removed the mark. Besides, the order of writes does not cover the
/// length of the file that the superblock states, although a plain open trusts it: SWMR writes it after the data that
/// lie beyond the old length. This virtual file driver is HDF5's own POSIX driver with three differences. A superblock
/// is written without the mark; it is written only when the file is as long as the superblock says; and it is written
/// before any metadata that may point past the old end.
///
/// `error` becomes the errno of the first write that the system refuses, for example on a full disk. All later writes
/// are dropped, so that the file stays as it was before that write. HDF5 is not told, because it can neither continue
/// nor close a file after a failed write; the caller looks at `error` after each flush. It must outlive the file.
[[nodiscard]] Properties kill_safe_access(int& error);

}  // namespace gradtool::hdf5
