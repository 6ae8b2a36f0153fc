# SPDX-License-Identifier: Apache-2.0
# Run by install(): copies the public headers and all headers that they include into
# PREFIX/INCLUDE_FOLDER/driftless. The list follows the sources: a header becomes public only by being
# included from a public one. Programs and installed headers include <driftless/FOLDER/...>, so the
# include path needs only PREFIX/INCLUDE_FOLDER.
#
# SOURCE: the sources of driftless. INCLUDE_FOLDER: below the prefix.
cmake_policy(VERSION 3.25)
set(public
  plugin/publish/publisher.h plugin/publish/weight_source.h   # publishing
  plugin/receive/receiver.h plugin/*/*_target.h               # receiving
  plugin/job/config.h plugin/job/roads.h                      # jobs from a configuration
  collectives/*/*_road.h collectives/shared_fs/hdf5_container.h)

set(waiting "")
foreach(pattern ${public})
  file(GLOB found RELATIVE ${SOURCE} ${SOURCE}/${pattern})
  if(NOT found)
    message(FATAL_ERROR "${pattern} matches no file: if it was renamed, change cmake/DriftlessPublicHeaders.cmake")
  endif()
  list(APPEND waiting ${found})
endforeach()

set(headers "")
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST headers OR NOT EXISTS ${SOURCE}/${header})
    continue()
  endif()
  list(APPEND headers ${header})
  file(STRINGS ${SOURCE}/${header} lines REGEX "^#include \"")
  list(TRANSFORM lines REPLACE "^#include \"([^\"]+)\".*" "\\1")
  list(APPEND waiting ${lines})
endwhile()

foreach(header ${headers})
  get_filename_component(folder ${header} DIRECTORY)
  file(INSTALL ${SOURCE}/${header} TYPE FILE
       DESTINATION ${CMAKE_INSTALL_PREFIX}/${INCLUDE_FOLDER}/driftless/${folder})
  set(installed $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${INCLUDE_FOLDER}/driftless/${header})
  file(READ ${installed} text)
  string(REGEX REPLACE "\n#include \"([^\"]+)\"" "\n#include <driftless/\\1>" text "${text}")
  file(WRITE ${installed} "${text}")
endforeach()
