# Run after a GoogleTest program is linked: writes ${OUT}, from which CTest learns one test for each suite of the program. One for each
# case, as gtest_discover_tests() makes them, starts thousands of processes, which takes longer than what most of them test.
# -DPROGRAM= -DNAME= -DOUT= -DPROPERTIES= as set_tests_properties() takes them
execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listing RESULT_VARIABLE status ERROR_VARIABLE complaint)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} --gtest_list_tests: ${status}\n${listing}${complaint}")
endif()
if(listing MATCHES "-byte object <")
  # GoogleTest prints the bytes of such a parameter, padding and addresses too, which differ from run to run.
  message(FATAL_ERROR "${PROGRAM}: a parameter's type needs a function PrintTo():\n${listing}")
endif()
string(REGEX MATCHALL "(^|\n)[^ \n][^ \n]*\\.[^\n]*" lines "${listing}")  # cases are indented
set(text "")
foreach(line IN LISTS lines)
  string(STRIP "${line}" suite)
  string(REGEX REPLACE "\\.( .*)?$" "" suite "${suite}")
  string(APPEND text "add_test([=[${NAME}.${suite}]=] [=[${PROGRAM}]=] [=[--gtest_filter=${suite}.*]=])\n"
    "set_tests_properties([=[${NAME}.${suite}]=] PROPERTIES ${PROPERTIES})\n")
endforeach()
if(NOT text)
  message(FATAL_ERROR "${PROGRAM} has no tests")
endif()
file(WRITE ${OUT} "${text}")
