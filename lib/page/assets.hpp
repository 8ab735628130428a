#pragma once

#include <string_view>

namespace gradtool {

/// The text of a file that was built into the program: "page.html", "page.css", "page.js", "theme.json", "render.py",
/// "vega.js" (the libraries), or "<chart>.vl.json". An unknown name is an internal error.
[[nodiscard]] std::string_view asset(std::string_view name);

/// True where the charts' libraries were there when the program was built. Without them asset("vega.js") throws
/// Fault::unavailable with a sentence that says what to install.
[[nodiscard]] bool charts_available();

}  // namespace gradtool
