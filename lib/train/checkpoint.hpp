#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gradtool {

/// A file with what a run needs in order to go on: a line that says what it is, the number of its parts (8 bytes, of
/// this machine's order), for each its size (8 bytes) and its bytes, and the SHA-256 of everything before as 64
/// hexadecimal digits. It is written under another name, brought to the disk and then renamed, so that a kill at any
/// moment leaves the one before.
using CheckpointParts = std::vector<std::vector<std::byte>>;

/// Throws Fault::backend where it cannot be written.
void save_checkpoint(const std::string& path, const CheckpointParts& parts);
/// Throws Fault::data, naming the file, when it is damaged, or none of ours.
[[nodiscard]] CheckpointParts load_checkpoint(const std::string& path);

}  // namespace gradtool
