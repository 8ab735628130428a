# How everything of ours is compiled. Linked PRIVATE, so nothing of it reaches a consumer.
include(CheckCXXCompilerFlag)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(THREADS_PREFER_PTHREAD_FLAG ON)

option(GRADTOOL_TESTS "Build the tests" ON)
option(GRADTOOL_WERROR "Treat warnings as errors" OFF)
option(GRADTOOL_CHECKS "Count allocations in timed regions and fail on one" OFF)
option(GRADTOOL_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(GRADTOOL_COVERAGE "Instrument for coverage" OFF)
set(GRADTOOL_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=")

# Sources of one target instantiate the same templates of the standard library, of GoogleTest and of nlohmann-json, which takes longer than
# the rest of them; compiled several at once they share these. Sources that include CLI11 or LibTorch spend most of their time on parsing
# it, so these targets compile theirs as one. Batches are small enough that an edit of one source is compiled in seconds.
option(GRADTOOL_UNITY "Compile several sources of a target at once" ON)
set(GRADTOOL_UNITY_BATCH 8)

find_program(GRADTOOL_CCACHE ccache)
if(GRADTOOL_CCACHE)
  # Without this ccache does not keep what was compiled with a precompiled header.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${GRADTOOL_CCACHE})
  foreach(language C CXX CUDA)
    set(CMAKE_${language}_COMPILER_LAUNCHER "${launcher}" CACHE STRING "")
  endforeach()
endif()

find_package(Threads REQUIRED)

add_library(gradtool_options INTERFACE)
target_link_libraries(gradtool_options INTERFACE Threads::Threads)
# Instrumented code confuses GCC 12's flow warnings (overflow, maybe uninitialised): only plain builds are held to them.
set(errors ${GRADTOOL_WERROR})
if(GRADTOOL_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(errors OFF)
endif()

# No contraction: a law must give the same bits on the CPU and, with -fmad=false, on the GPU. Without trapping math GCC
# vectorises selects between computed floats (8 times on the binary16 conversion); the values do not change.
target_compile_options(gradtool_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Wold-style-cast -ffp-contract=off -fno-trapping-math>
  $<$<COMPILE_LANGUAGE:CXX>:$<$<BOOL:${errors}>:-Werror>>
  # CMake 3.25 drops CMAKE_CUDA_STANDARD 20 without a word, hence the flag by hand.
  $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -fmad=false --expt-relaxed-constexpr -Wno-deprecated-gpu-targets --no-compress>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:$<$<BOOL:${GRADTOOL_WERROR}>:-Werror=all-warnings>>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: std::string's operator+ with a literal is reported as an overlapping or endless memcpy.
  target_compile_options(gradtool_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict -Wno-stringop-overflow -Wno-array-bounds>)
endif()
if(GRADTOOL_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC takes a source that is included into another one for a header, in which a class must not have a part of an anonymous namespace.
  target_compile_options(gradtool_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
target_compile_definitions(gradtool_options INTERFACE $<$<BOOL:${GRADTOOL_CHECKS}>:GRADTOOL_CHECKS=1>)
if(GRADTOOL_SANITIZE)
  set(sanitize -fsanitize=${GRADTOOL_SANITIZE} -fno-omit-frame-pointer)
  target_compile_options(gradtool_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${sanitize};-fno-sanitize-recover=all>")
  target_link_options(gradtool_options INTERFACE ${sanitize})
  target_compile_definitions(gradtool_options INTERFACE GRADTOOL_SANITIZED=1)
endif()
if(GRADTOOL_FUZZ)
  # Instrument the libraries too; only the fuzz targets bring libFuzzer's main.
  target_compile_options(gradtool_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()
if(GRADTOOL_COVERAGE)
  target_compile_options(gradtool_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--coverage>)
  target_link_options(gradtool_options INTERFACE --coverage)
endif()
