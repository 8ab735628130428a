#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

namespace gradtool::fuzz {

/// A path that no other process uses, in memory where the system has such a folder.
inline std::string scratch_path(const char* ending) {
  std::error_code error;
  const bool memory = std::filesystem::is_directory("/dev/shm", error);
  const auto folder = memory ? std::filesystem::path{"/dev/shm"} : std::filesystem::temp_directory_path();
  return (folder / ("gradtool_fuzz_" + std::to_string(::getpid()) + ending)).string();
}

/// One file name for each process. Removed at the end.
class ScratchFile {
 public:
  ScratchFile() = default;
  ~ScratchFile() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = scratch_path(".h5");
};

/// A folder for each process. Removed at the end, with what it holds.
class ScratchFolder {
 public:
  ScratchFolder() { clear(); }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  /// Makes it empty.
  void clear() const {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directory(path_);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = scratch_path("");
};

}  // namespace gradtool::fuzz
