# `cmake --install`: the program, the libraries, the headers, and a package for find_package(gradtool).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY GRADTOOL_LIBRARIES)
if(GRADTOOL_HAS_FFTW)
  list(APPEND libraries gradtool_fftw)
endif()
foreach(library zstd zfp)
  if(TARGET gradtool_${library})
    list(APPEND libraries gradtool_${library})
  endif()
endforeach()
install(TARGETS gradtool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS ${libraries} EXPORT gradtool ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT gradtool NAMESPACE gradtool:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtool FILE gradtool-targets.cmake)
# Headers keep their folders, so that an include reads the same inside and outside.
install(DIRECTORY lib kernels DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradtool FILES_MATCHING PATTERN "*.hpp")
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(cmake/gradtool-config.cmake.in ${PROJECT_BINARY_DIR}/gradtool-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtool)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/gradtool-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/gradtool-config.cmake ${PROJECT_BINARY_DIR}/gradtool-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtool)
