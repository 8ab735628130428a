#pragma once

#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

/// File access properties for a file that any HDF5 reader can open at every moment of its writing.
///
/// HDF5's single-writer mode (SWMR) orders its writes so that after each of them the file is consistent. But it also
/// marks the superblock as "being written", and a process that is killed leaves the mark, after which a plain open
/// (that of h5py, of h5dump) refuses the file until `h5clear` has removed it. Nor does its order cover the length that
/// the superblock states, which a plain open trusts: it is written last, after what lies beyond the old one. This
/// virtual file driver is HDF5's own POSIX driver with three differences: superblocks go to the disk without the mark,
/// not before the file is as long as they say, and before any metadata that may point past the old end.
///
/// `error` becomes the errno of the first write that the system refuses (a full disk), and the file stays as it was
/// before it: all later writes are dropped. HDF5 itself is told nothing, because it can neither go on nor close a file
/// of which a write has failed; whoever writes looks at `error` after each flush. It must outlive the file.
[[nodiscard]] Properties kill_safe_access(int& error);

}  // namespace gradtool::hdf5
