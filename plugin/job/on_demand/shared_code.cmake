# SPDX-License-Identifier: Apache-2.0
# In a wheel (DRIFTLESS_STATIC): the code that the module, the command and the loaded libraries have in
# common, and the libraries that it uses, as one library beside them. Included by plugin/CMakeLists.txt.
#
# Its name has the version: another one's is never taken for it. It offers names of our namespace alone.
# Roads that need nothing of the host, and the status server, are in it and not in libraries of their own.
set(DRIFTLESS_WITHIN "")
if(DRIFTLESS_STATIC)
  set(DRIFTLESS_WITHIN OBJECT_STORE OPENSSL HTTPLIB)
endif()

# After the rooms and the roads: for what calls driftless_shares_code().
function(driftless_make_shared_code)
  if(NOT DRIFTLESS_STATIC)
    return()
  endif()
  set(map ${CMAKE_CURRENT_SOURCE_DIR}/job/on_demand/shared_code.map)
  add_library(driftless_shared SHARED)
  set_target_properties(driftless_shared PROPERTIES
    OUTPUT_NAME driftless_shared-${PROJECT_VERSION} LINKER_LANGUAGE CXX LINK_DEPENDS ${map}
    INSTALL_RPATH $ORIGIN LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/driftless)
  # Objects: archives would offer nothing, and leave out what only others use.
  foreach(name core formats kernels collectives plugin hub_tcp peer object_store prometheus monitor)
    if(TARGET driftless_${name})
      target_sources(driftless_shared PRIVATE $<TARGET_OBJECTS:driftless_${name}>)
      target_link_libraries(driftless_shared PRIVATE driftless_${name})
    endif()
  endforeach()
  # Its own table of roads, which it does not offer: each library has another.
  target_link_libraries(driftless_shared PRIVATE driftless_loading_roads driftless_compile_options)
  target_link_options(driftless_shared PRIVATE
    LINKER:-Bsymbolic-functions LINKER:--version-script=${map} LINKER:--no-undefined)
endfunction()

# driftless_shares_code(TARGET): before it links anything. The static libraries that it links then only
# give what is not in the shared one.
function(driftless_shares_code target)
  if(TARGET driftless_shared)
    set(library $<TARGET_FILE:driftless_shared>)
    add_dependencies(${target} driftless_shared)
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${library})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN CXX_VISIBILITY_PRESET default)
    target_link_libraries(${target} PRIVATE
      -Wl,--push-state,--no-as-needed,${library},--pop-state)
  endif()
endfunction()
