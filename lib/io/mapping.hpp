#pragma once

#include <string>
#include <vector>

#include "lib/io/hdf5.hpp"

namespace gradtool::hdf5 {

/// One block of a virtual data set [S, W, n] or [S, n]: for some steps of some workers, the values lie in a data set of
/// another file. A block spans the whole element axis. A data set without worker axis counts as one with one worker.
struct Mapping {
  std::string file;    ///< the name of a file in the same folder
  std::string object;  ///< the data set in it, "/tensors/0003/gradient"
  hsize_t step = 0, steps = 0, worker = 0, workers = 0;
  hsize_t source_step = 0, source_worker = 0;  ///< where the block begins in `object`
};

/// The blocks of a virtual data set with `rank` dimensions and these creation properties, sorted by worker and then by
/// step. Throws Fault::data where a file is not named by a plain name, or a selection is no such block. Opens no file,
/// and needs no call to HDF5 that would open one.
[[nodiscard]] std::vector<Mapping> read_mappings(hid_t creation, const Place& place, int rank);

/// Throws Fault::data unless every value of the extent `dims` lies in exactly one block, and the workers of a block are
/// those of all blocks that share one of them: for what no block covers, HDF5 would make up zeros.
void expect_covered(const std::vector<Mapping>& mappings, const Place& place, const std::vector<hsize_t>& dims);

/// The block with this step and worker, of blocks for which the above holds.
[[nodiscard]] std::size_t mapping_of(const std::vector<Mapping>& mappings, hsize_t step, hsize_t worker);

/// True for a name that may stand in a mapping: of a file in the same folder, and with nothing that HDF5 would replace.
[[nodiscard]] bool is_plain_name(const std::string& name);

}  // namespace gradtool::hdf5
