#include "lib/report/outputs.hpp"

#include <sstream>

#include "lib/core/files.hpp"
#include "lib/report/csv.hpp"

namespace gradtool {

template <class Save>
void Outputs::attempt(const std::string& path, const Save& save) {
  try {
    save();
    if (path != "-") written_.push_back(path);
  } catch (const Error& error) {
    if (!failure_) failure_.emplace(error);
  }
}

void Outputs::csv(const std::string& path, const Table& table) {
  if (path.empty()) return;
  if (!is_stream(path)) return attempt(path, [&] { save_csv(path, table); });
  std::ostringstream out;
  write_csv(out, table);
  streams_.emplace_back(path, std::move(out).str());
}

void Outputs::text(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  if (!is_stream(path)) return attempt(path, [&] { save_text(path, text); });
  streams_.emplace_back(path, text);
}

void Outputs::finish() {
  for (const auto& [path, text] : streams_) attempt(path, [&] { save_text(path, text); });
  streams_.clear();
  if (failure_) throw Error{*failure_};
}

}  // namespace gradtool
