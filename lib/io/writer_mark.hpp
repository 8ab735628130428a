#pragma once

#include <string>

namespace gradtool {

/// How a GradientWriter keeps others from replacing its file. It holds a lock for reading on the whole file from the
/// moment at which the file is laid out; who wants to replace the file must get the lock for writing. It belongs to the
/// open file (fcntl(2), "open file description locks"), so it ends with the process, however that ends. HDF5's own
/// locks are of another kind (flock(2)): programs that read the file while it is written are not kept out. Where the
/// file system has no locks, nothing is held and nothing refused.
///
/// Marks the file behind `descriptor`, which is `path`. Throws Fault::usage when another process is replacing that file
/// or has replaced it.
void mark_as_being_written(int descriptor, const std::string& path);

/// True when `path` is still the file behind `descriptor`.
[[nodiscard]] bool is_file_at(int descriptor, const std::string& path);

}  // namespace gradtool
