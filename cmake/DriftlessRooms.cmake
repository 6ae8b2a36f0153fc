# SPDX-License-Identifier: Apache-2.0
# One library per folder ("room"). Each may include only the rooms that it lists under SEES.
#
# The include path has a link for each room that may be included, <build>/rooms/<room>/<room>. An
# include of any other room does not compile.

# driftless_room(NAME SOURCES ... SEES <rooms> LINKS <public libraries> PRIVATE_LINKS <libraries>
#                BUILD_LINKS <libraries that only the room's own build needs> [NOT_INSTALLED])
function(driftless_room name)
  cmake_parse_arguments(ROOM "NOT_INSTALLED" "" "SOURCES;SEES;LINKS;PRIVATE_LINKS;BUILD_LINKS" ${ARGN})
  set(target driftless_${name})
  set(links ${CMAKE_BINARY_DIR}/rooms/${name})
  file(MAKE_DIRECTORY ${links})
  if(NOT EXISTS ${links}/${name})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${name} ${links}/${name} SYMBOLIC)
  endif()
  add_library(${target} STATIC ${ROOM_SOURCES})
  add_library(driftless::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${links}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  foreach(room ${ROOM_SEES})
    target_link_libraries(${target} PUBLIC driftless_${room})
  endforeach()
  target_link_libraries(${target} PUBLIC ${ROOM_LINKS})
  foreach(library ${ROOM_BUILD_LINKS} driftless_compile_options)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${library}>)
  endforeach()
  foreach(library ${ROOM_PRIVATE_LINKS})
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:${library}>)
    target_link_libraries(${target} INTERFACE $<INSTALL_INTERFACE:$<LINK_ONLY:${library}>>)
  endforeach()
  if(NOT ROOM_NOT_INSTALLED)
    set_property(GLOBAL APPEND PROPERTY DRIFTLESS_ROOMS ${name})
  endif()
endfunction()
