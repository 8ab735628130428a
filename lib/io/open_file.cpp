#include "lib/io/open_file.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace gradtool::hdf5 {
namespace {

constexpr std::array<char, 8> kSignature{'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};

/// The signature stands at 0 or, behind a user block, at 512, 1024, 2048, ... (HDF5 file format, section II.A).
bool has_signature(std::ifstream& in, std::uintmax_t size) {
  for (std::uintmax_t at = 0; at + kSignature.size() <= size; at = at == 0 ? 512 : at * 2) {
    std::array<char, kSignature.size()> bytes{};
    in.clear();
    in.seekg(static_cast<std::streamoff>(at));
    if (in.read(bytes.data(), bytes.size()) && bytes == kSignature) return true;
  }
  return false;
}

[[noreturn]] void fail(const std::string& path, const std::string& problem) {
  throw Error{Fault::data, path + ": " + problem};
}

void check_regular(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail(path, "there is no such file");
  if (error) fail(path, "cannot be read (" + error.message() + ")");
  if (std::filesystem::is_directory(status)) fail(path, "is a folder, not a gradient file");
  // A pipe would block, and HDF5 needs to seek.
  if (!std::filesystem::is_regular_file(status)) fail(path, "is not a regular file");
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream in{path, std::ios::binary};
  if (error || !in) fail(path, "cannot be read (is it readable for you?)");
  if (size == 0) fail(path, "is empty");
  if (!has_signature(in, size)) fail(path, "is not an HDF5 file");
}

/// The file, or an empty File and HDF5's reason in `reason`.
File try_open(const std::string& path, unsigned flags, std::string& reason) {
  const Properties access{checked_id(H5Pcreate(H5P_FILE_ACCESS), "prepare HDF5")};
  // Whatever is still open of this file is closed with it.
  checked(H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG), "prepare HDF5");
  // In SWMR mode a bad checksum is read again, by default a hundred times with pauses that double: for ever.
  checked(H5Pset_metadata_read_attempts(access.get(), 10), "prepare HDF5");
  File file{H5Fopen(path.c_str(), flags, access.get())};
  // Here and not later: the next call, be it the closing of `access`, clears the error stack.
  if (!file) reason = last_reason();
  return file;
}

}  // namespace

File open_for_reading(const std::string& path) {
  be_quiet();
  check_regular(path);
  std::string reason;
  if (File file = try_open(path, H5F_ACC_RDONLY, reason)) return file;
  if (reason.find("already open for") != std::string::npos) {
    // A program that writes the SWMR way leaves its mark in the file while it lives, and when it is killed.
    if (File file = try_open(path, H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, reason)) return file;
    fail(path, "is marked as being written; if no program writes it any more, 'h5clear -s' removes the mark");
  }
  if (reason.find("unable to lock file") != std::string::npos) fail(path, "is being written by another program");
  if (reason.find("truncated file") != std::string::npos) {
    fail(path, "is truncated: it is shorter than its own header says");
  }
  fail(path, "is a damaged HDF5 file" + (reason.empty() ? "" : " (" + reason + ")"));
}

}  // namespace gradtool::hdf5
