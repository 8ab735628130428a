#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradtool {

/// A path of the command line and the option that it was given to, for messages: "--csv", or "FILE" without option.
struct NamedPath {
  std::string option;
  std::string path;
};

/// Makes a file an input of this process for expect_separate_files and every OutputFile: a configuration, a program or
/// the source of a prototype, which is read where no command lists its inputs. Not thread-safe.
void remember_input(const NamedPath& input);

/// Throws Fault::usage when an output is the same file as an input or as another option's output, however the two are
/// spelled: through links, hard links or "..", and also where the file is not there yet. Opens nothing. Standard output
/// and standard error count as outputs where they are files. Ignored are empty paths, and devices and pipes, which
/// several may share; "-" is standard output, which only one may have. Outputs whose options end with csv or json are
/// held to expect_same_kind, too.
void expect_separate_files(std::span<const NamedPath> inputs, std::span<const NamedPath> outputs);

/// The outputs that replace what is there without --force, because a command that is run again has the same one.
enum class OutputKind { csv, json, page };
/// Throws Fault::usage where the output exists and does not begin as `kind` does: somebody's program, capture or notes
/// are no older version of it. Reads 4 KiB at most. What is empty may be replaced, and so may devices and pipes.
void expect_same_kind(const NamedPath& output, OutputKind kind);

/// `path` with the symbolic link that it names, if it names one, replaced by what that points to, which need not exist.
[[nodiscard]] std::string follow_links(const std::string& path);

/// True for what is written as it comes and cannot be replaced: "-" (standard output), a device, a pipe, a socket.
[[nodiscard]] bool is_stream(const std::string& path);

/// All bytes of a file that somebody else may have made. Throws Fault::data, with a sentence that begins with `label`
/// or, where that is empty, with the path, when there is no such file, it is no regular file (a folder, a pipe, a
/// device), it cannot be read, it is a pointer of Git LFS, or it has more than `most_bytes`. It never waits for a
/// writer and never reads more than that.
[[nodiscard]] std::string read_file(const std::string& path, std::uint64_t most_bytes, const std::string& label = {});
/// How the file begins that Git LFS leaves in place of one that was not fetched, and what to say of it.
inline constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/spec/v1";
inline constexpr const char* kLfsPointerProblem = "is a Git LFS pointer, not the file itself; run 'git lfs pull'";
/// Bytes that a record of this program, a table or a settings file has at most: a gibibyte.
inline constexpr std::uint64_t kMostRecordBytes = std::uint64_t{1} << 30;

/// The folders above a file that is to be written. Those that are not there are made, and removed again at the end
/// where nothing is in them: what fails leaves no empty folder behind.
class ParentFolders {
 public:
  /// Throws Fault::backend, naming `path`, when a folder cannot be made.
  explicit ParentFolders(const std::string& path);
  ~ParentFolders();
  ParentFolders(const ParentFolders&) = delete;
  ParentFolders& operator=(const ParentFolders&) = delete;

 private:
  void remove();
  std::vector<std::string> made_;  ///< outermost first
};

/// ".gradtool-" and random digits: the name of what is written beside a file until it is whole.
[[nodiscard]] std::string random_name();

/// A file that is whole or not there. It is written without a name, or with one that nobody can guess where the file
/// system wants a name, in the folder of `path`; commit() gives it its name in the place of a file that was there. A
/// device or a pipe is written as it is. A symbolic link is followed. An HDF5 file is never replaced, because captures
/// cost hours and none of these files is one: Fault::usage. Every other failure throws Fault::backend. Both have a
/// sentence that names the path.
class OutputFile {
 public:
  /// Makes the parent folders.
  explicit OutputFile(std::string path);
  ~OutputFile();  ///< removes everything, the folders that it made too, when commit() was not called
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);
  /// Waits until the disk has what was written: what has its name then outlives a failure of the machine too.
  void sync();
  /// No call may follow.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& reason) const;
  void close();

  std::string path_;       ///< as given, for messages
  std::string target_;     ///< the name that it gets; empty for a device or a pipe
  std::string temporary_;  ///< its name until then, empty while it has none
  int descriptor_ = -1;
  std::optional<ParentFolders> folders_;
};

}  // namespace gradtool
