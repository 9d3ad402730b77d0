# What `make install`, `make dist` and `make wheel` take (scripts/install, dist, wheel), as components:
#   program  bin/tessera (a script that finds LibTorch), libexec/tessera/tessera, recipes, man page, completions
#   library  headers, libtessera_*.a and lib/cmake/tessera, for find_package(tessera)
#   wheel    the package folder tessera_dit/ of a Python wheel, but for the libraries that scripts/wheel adds
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# --- program
# The script is the same everywhere but for one line: an installed one knows the torch it was built with, as a last
# resort; the archive's knows none.
if(EXISTS ${TORCH_DIR}/version.py)
  file(STRINGS ${TORCH_DIR}/version.py line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+" TORCH_SERIES "${line}")
endif()
get_filename_component(BUILT_WITH "${TORCH_DIR}" ABSOLUTE)
configure_file(${CMAKE_SOURCE_DIR}/cmake/tessera.sh.in ${CMAKE_BINARY_DIR}/package/installed/tessera @ONLY
  FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(BUILT_WITH)
configure_file(${CMAKE_SOURCE_DIR}/cmake/tessera.sh.in ${CMAKE_BINARY_DIR}/package/archive/tessera @ONLY
  FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(TESSERA_LIBEXEC libexec/tessera)
install(PROGRAMS ${CMAKE_BINARY_DIR}/package/installed/tessera DESTINATION bin COMPONENT program)
# tessera_forgets_torch(COMPONENT FILE): an installed file has no RUNPATH; that of the build names folders of this machine.
function(tessera_forgets_torch component file)
  install(CODE "file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${file}\")" COMPONENT ${component} ${ARGN})
endfunction()
install(TARGETS tessera RUNTIME DESTINATION ${TESSERA_LIBEXEC} COMPONENT program)
tessera_forgets_torch(program ${TESSERA_LIBEXEC}/tessera)
if(TARGET tessera_cuda)
  install(TARGETS tessera_cuda LIBRARY DESTINATION ${TESSERA_LIBEXEC} COMPONENT program)  # looked for beside the program
  tessera_forgets_torch(program ${TESSERA_LIBEXEC}/libtessera_cuda.so)
endif()
if(TARGET tessera_parquet)
  install(TARGETS tessera_parquet LIBRARY DESTINATION ${TESSERA_LIBEXEC} COMPONENT program)  # likewise
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/recipes DESTINATION share/tessera COMPONENT program)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs/ DESTINATION share/doc/tessera COMPONENT program)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/NOTICE DESTINATION share/doc/tessera COMPONENT program)
# The program writes its own man page and completions.
foreach(page "man:share/man/man1/tessera.1" "completion bash:share/bash-completion/completions/tessera"
             "completion zsh:share/zsh/site-functions/_tessera"
             "completion fish:share/fish/vendor_completions.d/tessera.fish")
  string(REPLACE ":" ";" page "${page}")
  list(GET page 0 command)
  list(GET page 1 file)
  string(REPLACE " " ";" command "${command}")
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(name ${file} NAME)
  install(CODE "
    execute_process(COMMAND \"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/tessera\" ${command}
      OUTPUT_FILE \"${CMAKE_BINARY_DIR}/package/${name}\" RESULT_VARIABLE code)
    if(code)
      message(FATAL_ERROR \"'tessera ${command}' failed with code \${code}; build the program first: make build\")
    endif()
    file(INSTALL \"${CMAKE_BINARY_DIR}/package/${name}\" DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${folder}\")"
    COMPONENT program)
endforeach()

# --- library
get_property(rooms GLOBAL PROPERTY TESSERA_ROOMS)
set_property(TARGET tessera_torch PROPERTY EXPORT_NAME torch)
install(TARGETS ${rooms} tessera_torch EXPORT tessera ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
  INCLUDES DESTINATION include)
install(EXPORT tessera NAMESPACE tessera:: FILE tessera-targets.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera COMPONENT library)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/tessera-config.cmake.in
  ${CMAKE_BINARY_DIR}/package/tessera-config.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/tessera-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/tessera-config.cmake ${CMAKE_BINARY_DIR}/package/tessera-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tessera COMPONENT library)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/src/tessera DESTINATION include COMPONENT library
  FILES_MATCHING PATTERN "*.h" PATTERN "cuda" EXCLUDE)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples DESTINATION share/doc/tessera COMPONENT library)

# --- wheel
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" TORCH_VERSION "${line}")
configure_file(${CMAKE_SOURCE_DIR}/cmake/wheel/__init__.py.in ${CMAKE_BINARY_DIR}/package/wheel/__init__.py @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/wheel/__init__.py ${CMAKE_SOURCE_DIR}/cmake/wheel/__main__.py
  DESTINATION tessera_dit COMPONENT wheel EXCLUDE_FROM_ALL)
install(TARGETS tessera_wheel RUNTIME DESTINATION tessera_dit/bin COMPONENT wheel EXCLUDE_FROM_ALL)
if(TARGET tessera_cuda)
  install(TARGETS tessera_cuda LIBRARY DESTINATION tessera_dit/bin COMPONENT wheel EXCLUDE_FROM_ALL)
  tessera_forgets_torch(wheel tessera_dit/bin/libtessera_cuda.so EXCLUDE_FROM_ALL)
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/recipes DESTINATION tessera_dit COMPONENT wheel EXCLUDE_FROM_ALL)
install(PROGRAMS ${CMAKE_SOURCE_DIR}/scripts/demo ${CMAKE_SOURCE_DIR}/scripts/fetch-demo-clip
  DESTINATION tessera_dit/scripts COMPONENT wheel EXCLUDE_FROM_ALL)

# what scripts/install, scripts/dist and scripts/wheel need built, and no test
add_custom_target(tessera_package DEPENDS tessera tessera_wheel ${rooms})
foreach(opened tessera_cuda tessera_parquet)
  if(TARGET ${opened})
    add_dependencies(tessera_package ${opened})
  endif()
endforeach()
