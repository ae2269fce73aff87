# What every target of ours is compiled with: one INTERFACE target, no global flags.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(TOKENBUTLER_CCACHE ccache)
if(TOKENBUTLER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TOKENBUTLER_CCACHE})
endif()

find_program(TOKENBUTLER_MOLD mold)  # links several times faster than GNU ld

add_library(tokenbutler_options INTERFACE)
target_compile_features(tokenbutler_options INTERFACE cxx_std_20)
target_include_directories(tokenbutler_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(tokenbutler_options INTERFACE
  -Wall -Wextra -Werror -Wno-sign-compare -fno-math-errno -ffp-contract=off
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
if(TOKENBUTLER_MOLD)
  target_link_options(tokenbutler_options INTERFACE -fuse-ld=mold)
endif()
if(TOKENBUTLER_SANITIZE)
  target_compile_options(tokenbutler_options INTERFACE
    -fsanitize=${TOKENBUTLER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tokenbutler_options INTERFACE -fsanitize=${TOKENBUTLER_SANITIZE})
  # g++ 12 takes the moved-from members of a std::variant for uninitialised once the code is
  # instrumented; the optimised build keeps the warning.
  target_compile_options(tokenbutler_options INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()

# tokenbutler_library(NAME SOURCES ... [DEPS ...]): a static library of one folder.
function(tokenbutler_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC tokenbutler_options ${ARG_DEPS})
endfunction()

# tokenbutler_test(NAME SOURCES ... [DEPS ...] [LABELS ...] [TIMEOUT s] [SINGLE_THREADED] [TSAN_FILTER f]): a GoogleTest
# program registered with CTest as one test. Data files are read relative to TOKENBUTLER_TEST_DATA (tests/data).
# ThreadSanitizer makes code ten to fifty times slower, so its builds leave out what is SINGLE_THREADED and run
# only the test cases that match TSAN_FILTER.
function(tokenbutler_test name)
  cmake_parse_arguments(ARG "SINGLE_THREADED" "TIMEOUT;TSAN_FILTER" "SOURCES;DEPS;LABELS" ${ARGN})
  if(ARG_SINGLE_THREADED AND TOKENBUTLER_SANITIZE STREQUAL "thread")
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tokenbutler_options ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE TOKENBUTLER_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(TOKENBUTLER_SANITIZE)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(ARG_TSAN_FILTER AND TOKENBUTLER_SANITIZE STREQUAL "thread")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "GTEST_FILTER=${ARG_TSAN_FILTER}")
  endif()
endfunction()

# tokenbutler_fuzzer(NAME SOURCES ... DEPS ... CORPUS dir): a libFuzzer program; only in the fuzz preset, whose
# sanitizers make the libraries count coverage too. `fuzzers` builds them all; scripts/lib/fuzz.sh reads the two
# lines (program, corpus) of build/fuzz/fuzzers/NAME.txt.
function(tokenbutler_fuzzer name)
  cmake_parse_arguments(ARG "" "CORPUS" "SOURCES;DEPS" ${ARGN})
  if(NOT TOKENBUTLER_SANITIZE MATCHES "fuzzer-no-link")
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tokenbutler_options ${ARG_DEPS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  get_filename_component(corpus "${ARG_CORPUS}" ABSOLUTE BASE_DIR ${CMAKE_CURRENT_SOURCE_DIR})
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/fuzzers/${name}.txt CONTENT "$<TARGET_FILE:${name}>\n${corpus}\n")
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers ${name})
endfunction()
