#include "lib/core/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "lib/core/error.hpp"

namespace gradtool {
namespace {

namespace fs = std::filesystem;

/// The identity of a path, equal for two paths of the same file: the nearest file or folder that exists, and what the
/// path has below it.
struct Identity {
  dev_t device = 0;
  ino_t inode = 0;
  std::string below;  ///< empty when the path itself exists

  friend bool operator==(const Identity&, const Identity&) = default;
};

bool is_shareable(mode_t mode) {
  return !S_ISREG(mode) && !S_ISDIR(mode);
}

/// Nothing for devices and pipes.
std::optional<Identity> identity_of(const std::string& path) {
  fs::path place = follow_links(path);
  fs::path below;
  struct stat found {};
  while (stat(place.empty() ? "." : place.c_str(), &found) != 0) {
    if (place.empty() || place == place.root_path()) return std::nullopt;  // not even a working directory
    below = below.empty() ? place.filename() : place.filename() / below;
    place = follow_links(place.parent_path().string());
  }
  if (is_shareable(found.st_mode)) return std::nullopt;
  // "new/../x" is "x", which may exist although "new" does not yet.
  const fs::path direct = below.lexically_normal();
  if (direct != below) return identity_of((place / direct).string());
  return Identity{found.st_dev, found.st_ino, below.string()};
}

struct KnownFile {
  NamedPath name;
  Identity identity;
  bool standard = false;  ///< standard output or error: these two may be one file
};

void add(std::vector<KnownFile>& files, std::span<const NamedPath> paths) {
  for (const auto& name : paths) {
    if (name.path.empty() || name.path == "-") continue;
    if (auto identity = identity_of(name.path)) files.push_back({name, std::move(*identity)});
  }
}

std::vector<NamedPath>& remembered() {
  static std::vector<NamedPath> inputs;
  return inputs;
}

std::string described(const KnownFile& file) {
  return file.standard ? file.name.option : file.name.option + " '" + file.name.path + "'";
}

}  // namespace

void remember_input(const NamedPath& input) {
  remembered().push_back(input);
}

std::string random_name() {
  std::random_device entropy;
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), ".gradtool-%08x%08x%08x", entropy(), entropy(), entropy());
  return name.data();
}

void expect_same_kind(const NamedPath& output, OutputKind kind) {
  if (output.path.empty() || is_stream(output.path)) return;
  std::array<char, 4096> room{};
  std::ifstream file{output.path, std::ios::binary};
  file.read(room.data(), room.size());
  const std::string_view begin{room.data(), static_cast<std::size_t>(file.gcount())};
  if (begin.empty()) return;
  const char first = begin[std::min(begin.find_first_not_of(" \t\r\n"), begin.size() - 1)];
  constexpr std::string_view kHeader =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,-%\"\r";  // of our tables, which have no blanks
  const std::string_view line = begin.substr(0, begin.find('\n'));
  const char* wanted = nullptr;
  switch (kind) {
    case OutputKind::csv:
      if (line.find_first_not_of(kHeader) != line.npos || line.find(',') == line.npos) wanted = "table";
      break;
    case OutputKind::json:
      if (first != '{' && first != '[') wanted = "record in JSON";
      break;
    case OutputKind::page:
      if (first != '<') wanted = "page";
      break;
  }
  if (wanted == nullptr) return;
  throw Error{Fault::usage, described({output, {}, false}) + " exists and is no " + wanted +
                                ", so it is kept; write to another file, or remove it"};
}

void expect_separate_files(std::span<const NamedPath> inputs, std::span<const NamedPath> outputs) {
  const NamedPath* on_standard_output = nullptr;
  for (const auto& output : outputs) {
    if (output.path != "-") continue;
    if (on_standard_output != nullptr) {
      throw Error{Fault::usage, on_standard_output->option + " and " + output.option +
                                    " cannot both go to standard output; give one of them a file"};
    }
    on_standard_output = &output;
  }
  std::vector<KnownFile> written;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat found {};
    if (fstat(stream, &found) != 0 || !S_ISREG(found.st_mode)) continue;
    const char* const name = stream == STDOUT_FILENO ? "standard output" : "standard error";
    written.push_back({{name, ""}, {found.st_dev, found.st_ino, ""}, true});
  }
  add(written, outputs);
  std::vector<KnownFile> read;
  add(read, inputs);
  add(read, remembered());
  for (std::size_t i = 0; i < written.size(); ++i) {
    const KnownFile& output = written[i];
    for (const KnownFile& input : read) {
      if (input.identity != output.identity) continue;
      throw Error{Fault::usage, described(output) + " is the same file as the input " + described(input) +
                                    ", which it would destroy; write to another file"};
    }
    for (std::size_t j = 0; j < i; ++j) {
      const KnownFile& other = written[j];
      if (other.identity != output.identity || other.name.option == output.name.option) continue;
      if (other.standard && output.standard) continue;
      throw Error{Fault::usage,
                  described(other) + " and " + described(output) + " are the same file; give each a file of its own"};
    }
  }
  for (const auto& output : outputs) {
    if (output.option.ends_with("csv")) expect_same_kind(output, OutputKind::csv);
    if (output.option.ends_with("json")) expect_same_kind(output, OutputKind::json);
  }
}

std::string follow_links(const std::string& path) {
  fs::path place{path};
  for (int links = 0; links < 40; ++links) {  // as many as Linux follows
    std::error_code no_link;
    const fs::path next = fs::read_symlink(place, no_link);
    if (no_link) break;
    place = next.is_absolute() ? next : place.parent_path() / next;
  }
  return place.string();
}

bool is_stream(const std::string& path) {
  struct stat found {};
  return path == "-" || (stat(path.c_str(), &found) == 0 && is_shareable(found.st_mode));
}

ParentFolders::ParentFolders(const std::string& path) {
  std::vector<fs::path> missing;
  for (fs::path folder = fs::path{path}.parent_path(); !folder.empty() && !fs::exists(folder);
       folder = folder.parent_path())
    missing.push_back(folder);
  std::reverse(missing.begin(), missing.end());
  try {
    for (const auto& folder : missing) {
      if (fs::create_directory(folder)) made_.push_back(folder.string());  // not where "a/.." or another rank made it
    }
  } catch (const fs::filesystem_error& error) {
    remove();
    throw Error{Fault::backend, path + ": cannot be written: " + error.code().message()};
  }
  const fs::path parent = fs::path{path}.parent_path();
  if (!parent.empty() && !fs::is_directory(parent)) {
    throw Error{Fault::backend, path + ": cannot be written: " + std::strerror(ENOTDIR)};
  }
}

ParentFolders::~ParentFolders() {
  remove();
}

void ParentFolders::remove() {
  for (; !made_.empty(); made_.pop_back()) rmdir(made_.back().c_str());  // fails if not empty
}

std::string read_file(const std::string& path, std::uint64_t most_bytes, const std::string& label) {
  const auto fail = [&](const std::string& why) {
    throw Error{Fault::data, (label.empty() ? path : label) + ": " + why};
  };
  // Without O_NONBLOCK the opening of a pipe waits for its other end.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) fail(std::string{"cannot be opened ("} + std::strerror(errno) + ")");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{fdopen(descriptor, "rb"), std::fclose};
  struct stat found {};
  if (!file || fstat(descriptor, &found) != 0) fail(std::string{"cannot be read ("} + std::strerror(errno) + ")");
  if (S_ISDIR(found.st_mode)) fail("is a folder, not a file");
  if (!S_ISREG(found.st_mode)) fail("is not a regular file");
  // Files of /proc say that they have 0 bytes, so that the size alone does not tell.
  std::string bytes;
  std::array<char, 1 << 16> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), file.get())) {
    if (bytes.size() + count > most_bytes) {
      fail("has more than " + std::to_string(most_bytes) + " bytes, more than any file of its kind");
    }
    bytes.append(part.data(), count);
  }
  if (std::ferror(file.get()) != 0) fail(std::string{"cannot be read ("} + std::strerror(errno) + ")");
  if (bytes.starts_with(kLfsPointer)) fail(kLfsPointerProblem);
  return bytes;
}

namespace {

/// HDF5's signature stands at byte 0, or behind a user block of 512 bytes or a power of two times as many.
bool is_hdf5(const std::string& path) {
  constexpr std::string_view kSignature{"\x89HDF\r\n\x1a\n", 8};
  std::array<char, kSignature.size()> head{};
  std::ifstream file{path, std::ios::binary};
  for (std::streamoff at = 0; file.seekg(at) && file.read(head.data(), head.size()); at = at == 0 ? 512 : 2 * at) {
    if (std::string_view{head.data(), head.size()} == kSignature) return true;
  }
  return false;
}

/// Throws Fault::usage where `path` is an input that remember_input was told of.
void expect_no_input(const std::string& path) {
  const auto identity = identity_of(path);
  for (const NamedPath& input : remembered()) {
    if (!identity || identity_of(input.path) != identity) continue;
    throw Error{Fault::usage, "'" + path + "' is the same file as the input " + input.option + " '" + input.path +
                                  "', which it would destroy; write to another file"};
  }
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_{std::move(path)} {
  struct stat found {};
  const bool exists = stat(path_.c_str(), &found) == 0;
  if (!exists && errno == ENAMETOOLONG) fail(std::strerror(errno));  // now, and not at commit()
  if (exists && S_ISDIR(found.st_mode)) fail("it is a folder");
  if (exists && is_shareable(found.st_mode)) {
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) fail(std::strerror(errno));
    return;
  }
  if (exists && access(path_.c_str(), W_OK) != 0) fail(std::strerror(errno));  // renaming would replace it all the same
  if (exists) expect_no_input(path_);
  if (exists && is_hdf5(path_)) {
    throw Error{
        Fault::usage,
        path_ +
            ": is an HDF5 file, whose gradients would be lost; give the output another name or remove the file first"};
  }
  target_ = follow_links(path_);
  const fs::path folder = fs::path{target_}.has_parent_path() ? fs::path{target_}.parent_path() : fs::path{"."};
  folders_.emplace(target_);
  const bool can_be_named = access("/proc/self/fd", X_OK) == 0;  // commit() does it through /proc
  if (can_be_named) descriptor_ = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {  // the file system has no nameless files, or cannot be written; the next call tells
    const std::string name = (folder / random_name()).string();
    descriptor_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(std::strerror(errno));  // the folders go, because they are a member
    temporary_ = name;
  }
  if (exists) static_cast<void>(fchmod(descriptor_, found.st_mode & 0777));  // what was kept from others stays so
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail(std::strerror(errno));
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
}

void OutputFile::sync() {
  if (fsync(descriptor_) != 0 && errno != EINVAL) fail(std::strerror(errno));  // EINVAL: a device or a pipe
}

void OutputFile::commit() {
  if (!target_.empty() && temporary_.empty()) {
    const std::string nameless = "/proc/self/fd/" + std::to_string(descriptor_);
    const fs::path name = fs::path{target_}.parent_path() / random_name();
    if (linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) fail(std::strerror(errno));
    temporary_ = name.string();
  }
  close();
  if (target_.empty()) return;
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) fail(std::strerror(errno));
  temporary_.clear();
}

/// Closing is where some file systems say that the disk is full.
void OutputFile::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0 && errno != EINTR) fail(std::strerror(errno));
}

void OutputFile::fail(const std::string& reason) const {
  throw Error{Fault::backend, path_ + ": cannot be written: " + reason};
}

}  // namespace gradtool
