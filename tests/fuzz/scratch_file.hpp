#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace gradtool::fuzz {

/// One file name for each process, in memory where the system has such a folder. Removed at the end.
class ScratchFile {
 public:
  ScratchFile() {
    std::error_code error;
    const bool memory = std::filesystem::is_directory("/dev/shm", error);
    const auto folder = memory ? std::filesystem::path{"/dev/shm"} : std::filesystem::temp_directory_path();
    path_ = (folder / ("gradtool_fuzz_" + std::to_string(::getpid()) + ".h5")).string();
  }
  ~ScratchFile() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace gradtool::fuzz
