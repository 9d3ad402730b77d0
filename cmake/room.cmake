# A source file costs 2 s before its first line is read, by the templates of LibTorch's or nlohmann's headers: files are
# compiled by eights. (Names in the unnamed namespaces of neighbours must differ.)
option(TESSERA_UNITY "compile source files together" ON)
function(tessera_unity target)
  if(TESSERA_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  endif()
endfunction()

# For executables whose files see LibTorch: 14 s a file without the rooms' precompiled header, 3 with it. It fits only what
# is compiled as the rooms are. tessera_precompiled(TARGET HEADERS) takes those of another target.
function(tessera_precompiled target)
  set(headers tessera_pch ${ARGN})
  list(GET headers -1 headers)
  target_precompile_headers(${target} REUSE_FROM ${headers})
  target_compile_options(${target} PRIVATE -fPIC)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
endfunction()

# Rooms whose own code takes time when it runs. What begins, checks and reports a run, and models, which call operators, are
# compiled in three quarters of the time with -O1.
set(TESSERA_BUSY_ROOMS base plan device comm ops net checkpoint data data_files engine optim)

# tessera_room(FOLDER [TORCH] [DEPS room...] [LIBS lib...] [EXCLUDE regex...] [ALONE file...])
# One static library a room, from every .cpp below its folder; the link graph repeats the floors of docs/rooms.md. A nested
# room whose needs differ from its parent's (tools/import sees no LibTorch) is a library of its own, tessera_tools_import;
# others belong to their parent's. ALONE are files that are not compiled together with others. An installed room is the target
# tessera::NAME (cmake/install.cmake).
function(tessera_room folder)
  cmake_parse_arguments(R "TORCH" "" "DEPS;LIBS;EXCLUDE;ALONE" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/tessera/${folder}/*.cpp)
  foreach(pattern ${R_EXCLUDE})
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  if(NOT sources)
    add_library(tessera_${name} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(tessera_${name} STATIC ${sources})
    set(scope PUBLIC)
    target_compile_options(tessera_${name} PRIVATE -Wall -Wextra -Wno-unused-parameter)
    if(NOT name IN_LIST TESSERA_BUSY_ROOMS)
      target_compile_options(tessera_${name} PRIVATE -O1 -Wno-array-bounds)  # GCC 12 warns of its own strings there
    endif()
    if(R_TORCH)
      target_precompile_headers(tessera_${name} REUSE_FROM tessera_pch)
    else()
      target_precompile_headers(tessera_${name} REUSE_FROM tessera_pch_without_torch)
    endif()
    tessera_unity(tessera_${name})
    foreach(file ${R_ALONE})
      set_source_files_properties(${CMAKE_SOURCE_DIR}/src/tessera/${folder}/${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
  endif()
  target_include_directories(tessera_${name} ${scope} $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>)
  foreach(dep ${R_DEPS})
    target_link_libraries(tessera_${name} ${scope} tessera_${dep})
  endforeach()
  if(R_TORCH)
    target_link_libraries(tessera_${name} ${scope} tessera_torch)
  endif()
  target_link_libraries(tessera_${name} ${scope} ${R_LIBS} Threads::Threads)
  set_property(GLOBAL APPEND PROPERTY TESSERA_ROOMS tessera_${name})
  set_property(TARGET tessera_${name} PROPERTY EXPORT_NAME ${name})
endfunction()
