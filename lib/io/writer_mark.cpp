#include "lib/io/writer_mark.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "lib/core/error.hpp"
#include "lib/core/files.hpp"
#include "lib/io/gradient_file.hpp"

namespace gradtool {
namespace {

/// A descriptor that is closed at the end of the scope, and with it ends its lock.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_{number} {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_{std::exchange(other.number_, -1)} {}
  Descriptor& operator=(Descriptor&&) = delete;
  [[nodiscard]] int get() const { return number_; }

 private:
  int number_;
};

/// False when another open file holds a lock that excludes this one; true also where there are no locks.
bool lock(int descriptor, short type) {
  struct flock whole {};
  whole.l_type = type;
  whole.l_whence = SEEK_SET;
  return fcntl(descriptor, F_OFD_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES);
}

[[noreturn]] void refuse(const std::string& path) {
  throw Error{Fault::usage,
              "'" + path + "' is being written by another process; wait for its end, or choose another name"};
}

/// The file that is to be replaced, locked; nothing is open when there is no file.
Descriptor lock_for_replacement(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0 && errno == ENOENT) return Descriptor{-1};
  const bool dangling_link = S_ISLNK(found.st_mode) && stat(path.c_str(), &found) != 0;
  if (dangling_link) return Descriptor{-1};
  if (!S_ISREG(found.st_mode)) {
    throw Error{Fault::usage, "'" + path + "' is not a plain file and is not replaced; choose another name"};
  }
  Descriptor file{open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (file.get() < 0) throw Error{Fault::backend, "'" + path + "' cannot be replaced: " + std::strerror(errno)};
  if (!lock(file.get(), F_WRLCK) || !is_file_at(file.get(), path)) refuse(path);
  return file;
}

}  // namespace

bool is_file_at(int descriptor, const std::string& path) {
  struct stat own {
  }, found{};
  return fstat(descriptor, &own) == 0 && stat(path.c_str(), &found) == 0 && own.st_dev == found.st_dev &&
         own.st_ino == found.st_ino;
}

void mark_as_being_written(int descriptor, const std::string& path) {
  if (!lock(descriptor, F_RDLCK) || !is_file_at(descriptor, path)) refuse(path);
}

void expect_replaceable(const std::string& path) {
  static_cast<void>(lock_for_replacement(path));
}

ReplacingFile::ReplacingFile(const std::string& path, bool replace)
    : path_{path}, target_{follow_links(path)}, written_to_{path}, folders_{target_} {
  struct stat found {};
  if (!replace || (lstat(path.c_str(), &found) != 0 && errno == ENOENT)) return;
  expect_replaceable(path);
  written_to_ = temporary_ = std::filesystem::path{target_}.replace_filename(random_name()).string();
}

ReplacingFile::~ReplacingFile() {
  if (replaces()) unlink(written_to_.c_str());
}

void ReplacingFile::write(const std::function<void(const std::string&)>& write) const try {
  write(written_to_);
} catch (const Error& error) {
  if (temporary_.empty()) throw;
  std::string said = error.what();
  for (std::size_t at = 0; (at = said.find(temporary_, at)) != std::string::npos; at += path_.size())
    said.replace(at, temporary_.size(), path_);
  if (replaces()) said += "; '" + path_ + "' stays as it was";
  throw Error{error.fault(), said, error.file(), error.line()};
}

void ReplacingFile::commit() {
  if (!replaces()) return;
  const Descriptor written{open(written_to_.c_str(), O_RDONLY | O_CLOEXEC)};
  const Descriptor replaced = lock_for_replacement(target_);  // held until the name is the new file's
  if (written.get() < 0 || fsync(written.get()) != 0 || rename(written_to_.c_str(), target_.c_str()) != 0) {
    throw Error{Fault::backend, "'" + path_ + "' cannot be replaced: " + std::strerror(errno)};
  }
  written_to_ = path_;
}

}  // namespace gradtool
