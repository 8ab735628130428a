#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/error.hpp"
#include "lib/report/table.hpp"

namespace gradtool {

/// The files that a command writes of what took it long. Where one cannot be written, the others still are, and so is
/// what the command has for the terminal: nothing measured is lost to a full disk. An empty path is no output.
class Outputs {
 public:
  void csv(const std::string& path, const Table& table);
  void text(const std::string& path, const std::string& text);

  /// Paths that were written, without standard output.
  [[nodiscard]] const std::vector<std::string>& written() const { return written_; }
  /// Writes what goes to standard output, which may end the program where nobody reads it. Then throws the first
  /// failure of all.
  void finish();

 private:
  template <class Save>
  void attempt(const std::string& path, const Save& save);

  std::vector<std::string> written_;
  std::vector<std::pair<std::string, std::string>> streams_;  ///< path and text of what waits for finish()
  std::optional<Error> failure_;
};

}  // namespace gradtool
