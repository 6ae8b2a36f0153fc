# SPDX-License-Identifier: Apache-2.0
# The house: one library per folder ("room"), each seeing only the rooms it may see.
#
# A room's headers are reached through a link made for it alone, <build>/rooms/<room>/<room>, so that an
# include against the arrows does not compile: the header is not on the include path.

# driftless_room(NAME SOURCES ... SEES <rooms> LINKS <public libraries> PRIVATE_LINKS <libraries>
#                BUILD_LINKS <what only the build of the room needs> [NOT_INSTALLED])
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
