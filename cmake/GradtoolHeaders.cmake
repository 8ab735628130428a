# Headers that nearly every source reads are parsed once. A source still includes what it uses: builds with
# -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON (the tidy preset) find out. Headers that define variables or long inline functions (CLI11,
# nlohmann-json, <regex>) are not among them: every source would compile these again, which costs more than parsing.

# gradtool_precompiled(<name> LIBS <targets> HEADERS <headers>): a target to whose headers `gradtool_reuse` points.
function(gradtool_precompiled name)
  cmake_parse_arguments(arg "" "" "LIBS;HEADERS" ${ARGN})
  set(source ${PROJECT_BINARY_DIR}/generated/${name}.cpp)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "// A precompiled header needs a source of its own to belong to.\n")
  endif()
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PRIVATE gradtool_options ${arg_LIBS})
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()

# fmt's definitions change its headers, so every source has them, whether or not its target links fmt; and its headers may lie elsewhere
# than the system's.
target_compile_definitions(gradtool_options INTERFACE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_COMPILE_DEFINITIONS>)
target_include_directories(gradtool_options SYSTEM INTERFACE $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
if(GRADTOOL_CCACHE)  # which otherwise gives up at a precompiled header
  target_compile_options(gradtool_options INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fpch-preprocess>
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:SHELL:-Xclang -fno-pch-timestamp>")
endif()

set(GRADTOOL_COMMON_HEADERS <algorithm> <array> <atomic> <bit> <charconv> <chrono> <cmath> <cstddef> <cstdint> <cstdlib> <cstring>
  <filesystem> <fstream> <functional> <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view>
  <thread> <tuple> <type_traits> <utility> <variant> <vector> <fmt/format.h>)
gradtool_precompiled(gradtool_headers HEADERS ${GRADTOOL_COMMON_HEADERS})
