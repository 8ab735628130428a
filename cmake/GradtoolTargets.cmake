# gradtool_library(<name> [SOURCES ...] [PUBLIC targets...] [PRIVATE targets...])
# A static library gradtool_<name>, alias gradtool::<name>, for the folder that calls it.
function(gradtool_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(gradtool_${name} STATIC ${arg_SOURCES})
  add_library(gradtool::${name} ALIAS gradtool_${name})
  set_target_properties(gradtool_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(gradtool_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/gradtool>)
  target_link_libraries(gradtool_${name} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE} $<BUILD_INTERFACE:gradtool_options>)
  target_compile_features(gradtool_${name} PUBLIC cxx_std_20)
  set_property(GLOBAL APPEND PROPERTY GRADTOOL_LIBRARIES gradtool_${name})
endfunction()

# gradtool_codecs(<target> <name>...)
# Codec <name> is lib/codecs/<name>.cpp with its descriptor `<name>_codec`. The registry is generated: a static registrar
# would vanish from a static library.
function(gradtool_codecs target)
  set(names ${ARGN})
  list(SORT names)
  foreach(name IN LISTS names)
    target_sources(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/${name}.cpp)
    string(APPEND GT_CODEC_EXTERNS "extern const CodecDescriptor ${name}_codec;\n")
    list(APPEND table "&${name}_codec")
  endforeach()
  list(JOIN table ", " GT_CODEC_TABLE)
  configure_file(${PROJECT_SOURCE_DIR}/lib/codecs/codec_table.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/codec_table.cpp @ONLY)
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/codec_table.cpp)
endfunction()
