# SPDX-License-Identifier: Apache-2.0
# In a wheel (DRIFTLESS_STATIC), the code that the module, the command and the loaded libraries have in
# common is in one shared library beside them, with the libraries that this code links. Included by
# plugin/CMakeLists.txt.
#
# The library's name contains the version, so that a process cannot load the library of another
# version by mistake. It exports only names of our namespace. It contains the roads that need no
# library of the host, and the status server; other builds have libraries of their own for these.
set(DRIFTLESS_WITHIN "")
if(DRIFTLESS_STATIC)
  set(DRIFTLESS_WITHIN OBJECT_STORE OPENSSL HTTPLIB)
endif()

# Called after the libraries named here exist, and before the first driftless_shares_code().
function(driftless_make_shared_code)
  if(NOT DRIFTLESS_STATIC)
    return()
  endif()
  set(from ${CMAKE_CURRENT_SOURCE_DIR}/job/on_demand)
  set(map ${from}/shared_code.map)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/shared_code.o)
  set(libraries "")
  set(objects "")
  foreach(name core formats kernels collectives plugin hub_tcp peer object_store prometheus monitor)
    if(TARGET driftless_${name})
      list(APPEND libraries driftless_${name})
      list(APPEND objects $<TARGET_OBJECTS:driftless_${name}>)
    endif()
  endforeach()
  # Objects, not archives: the linker would leave out members of archives that only other libraries
  # use. They are compiled with hidden names, as for every other build, so that ccache has them.
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER} -r -nostdlib -o ${object} ${objects}
    COMMAND ${Python_EXECUTABLE} ${from}/export_names.py ${object}
    DEPENDS ${objects} ${from}/export_names.py COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(driftless_shared SHARED ${object})
  set_target_properties(driftless_shared PROPERTIES
    OUTPUT_NAME driftless_shared-${PROJECT_VERSION} LINKER_LANGUAGE CXX LINK_DEPENDS ${map}
    INSTALL_RPATH $ORIGIN LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/driftless)
  # Its table of roads is hidden, because each library has another one. -Bsymbolic: objects with hidden
  # names refer to their data directly.
  target_link_libraries(driftless_shared PRIVATE
    ${libraries} driftless_loading_roads driftless_compile_options)
  target_link_options(driftless_shared PRIVATE
    LINKER:-Bsymbolic LINKER:--version-script=${map} LINKER:--no-undefined)
endfunction()

# driftless_shares_code(TARGET): call it before TARGET links anything. The linker then takes from static
# libraries only what the shared one does not export.
function(driftless_shares_code target)
  if(TARGET driftless_shared)
    set(library $<TARGET_FILE:driftless_shared>)
    add_dependencies(${target} driftless_shared)
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${library})
    # The build imports the module in the build folder, to write its stub.
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN
                          BUILD_RPATH ${CMAKE_BINARY_DIR}/python/driftless)
    target_link_libraries(${target} PRIVATE
      -Wl,--push-state,--no-as-needed,${library},--pop-state)
  endif()
endfunction()
