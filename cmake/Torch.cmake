# LibTorch from the PyPI wheel, without find_package(Torch): the wheel's headers include copies of
# protobuf and fmt that would shadow the system's, so they are searched last (-idirafter).
#
# TOKENBUTLER_TORCH_ROOT is the folder that `scripts/setup` filled: it holds torch/ and nvidia/.
set(_cache_dir $ENV{TOKENBUTLER_CACHE})
if(NOT _cache_dir)
  set(_cache_dir $ENV{HOME}/.cache/tokenbutler)
endif()
set(TOKENBUTLER_TORCH_ROOT ${_cache_dir}/torch-2.11.0 CACHE PATH "Folder with the unpacked torch wheel (torch/ and nvidia/)")
set(_lib ${TOKENBUTLER_TORCH_ROOT}/torch/lib)
if(NOT EXISTS ${_lib}/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found in ${TOKENBUTLER_TORCH_ROOT}: run scripts/setup, or pass -DTOKENBUTLER_TORCH_ROOT=<folder that holds torch/>.")
endif()

# Installed programs find it where they were linked, too.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

add_library(torch::c10 SHARED IMPORTED)
set_target_properties(torch::c10 PROPERTIES IMPORTED_LOCATION ${_lib}/libc10.so)
add_library(torch::cpu SHARED IMPORTED)
set_target_properties(torch::cpu PROPERTIES IMPORTED_LOCATION ${_lib}/libtorch_cpu.so)
set(_inc ${TOKENBUTLER_TORCH_ROOT}/torch/include)
# The wheel's libtorch_cpu needs libcudart and libcupti even where there is no GPU; its own RUNPATH finds them.
target_compile_options(torch::cpu INTERFACE
  "SHELL:-idirafter ${_inc}" "SHELL:-idirafter ${_inc}/torch/csrc/api/include")
target_compile_definitions(torch::cpu INTERFACE AT_PER_OPERATOR_HEADERS)
target_link_libraries(torch::cpu INTERFACE torch::c10)
target_link_options(torch::cpu INTERFACE
  -Wl,-rpath,${_lib} -Wl,-rpath-link,${_lib}:${TOKENBUTLER_TORCH_ROOT}/nvidia/cu13/lib)
