set(cuda "")
if(GRADTOOL_CUDA_EMULATED)
  set(cuda emulated)
elseif(GRADTOOL_HAS_CUDA)
  set(cuda ${CMAKE_CUDA_COMPILER_VERSION})
endif()
# build/generated/gradtool_version.hpp: what reports embed, and the commit for the Python package. The commit is read again at every build.
set(GRADTOOL_VERSION_DIR ${PROJECT_BINARY_DIR}/generated)
add_custom_target(gradtool_version
  BYPRODUCTS ${GRADTOOL_VERSION_DIR}/gradtool_version.hpp ${GRADTOOL_VERSION_DIR}/_commit.py
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUT=${GRADTOOL_VERSION_DIR}/gradtool_version.hpp
    -DPYTHON=${GRADTOOL_VERSION_DIR}/_commit.py -DVERSION=${PROJECT_VERSION} -DTYPE=${CMAKE_BUILD_TYPE}
    "-DCOMPILER=${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    "-DCUDA=${cuda}"
    -P ${PROJECT_SOURCE_DIR}/cmake/WriteVersion.cmake
  VERBATIM)
