# Imported targets for the LibTorch inside the torch wheel. find_package(Torch) is not used: it fails on
# every machine without a CUDA toolkit. The headers come by -idirafter, because the wheel's include
# folder shadows fmt, google/protobuf, dnnl and pybind11.
if(TESSERA_TORCH)
  set(TORCH_DIR ${TESSERA_TORCH})
else()
  file(GLOB TORCH_DIR ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
endif()
if(NOT EXISTS "${TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch not found (looked in '${TORCH_DIR}'): run 'make setup', or pass -DTESSERA_TORCH=DIR")
endif()
get_filename_component(SITE_PACKAGES ${TORCH_DIR} DIRECTORY)

add_library(tessera_torch INTERFACE)
target_compile_options(tessera_torch INTERFACE
  "$<BUILD_INTERFACE:SHELL:-idirafter ${TORCH_DIR}/include>"
  "$<BUILD_INTERFACE:SHELL:-idirafter ${TORCH_DIR}/include/torch/csrc/api/include>")
target_link_options(tessera_torch INTERFACE -Wl,--no-as-needed -Wl,--allow-shlib-undefined)
target_link_libraries(tessera_torch INTERFACE
  $<BUILD_INTERFACE:${TORCH_DIR}/lib/libtorch_cpu.so> $<BUILD_INTERFACE:${TORCH_DIR}/lib/libc10.so>
  $<INSTALL_INTERFACE:tessera::libtorch>)  # whatever torch the other machine has: cmake/tessera-config.cmake.in
file(GLOB NVIDIA_LIBS ${SITE_PACKAGES}/nvidia/*/lib)
list(APPEND CMAKE_BUILD_RPATH ${TORCH_DIR}/lib ${NVIDIA_LIBS})

# tessera_finds_torch(TARGET [folder...]): of what is built here and installed too. CMake would end the RUNPATH of such a file with empty
# entries, as room for the one that it writes at the installation; the loader takes an empty entry for the current folder, which
# may be a stranger's data set with libraries of their own (scripts/check-rpaths). Installed files have no RUNPATH.
function(tessera_finds_torch target)
  list(JOIN CMAKE_BUILD_RPATH ":" folders)
  list(JOIN ARGN ":" more)
  if(more)
    string(APPEND folders ":${more}")
  endif()
  set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)
  target_link_options(${target} PRIVATE "-Wl,-rpath,${folders}")
endfunction()
