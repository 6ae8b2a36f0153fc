# SPDX-License-Identifier: Apache-2.0
# Run by install(): puts the public headers, and those that they include, into
# PREFIX/INCLUDE_FOLDER/driftless. Read from the sources each time, so that a header becomes public by being
# included from one that is, and in no other way. Programs include <driftless/FOLDER/...>, and so do the
# installed headers: PREFIX/INCLUDE_FOLDER alone is on the path of includes.
#
# SOURCE: the sources of driftless. INCLUDE_FOLDER: below the prefix.
cmake_policy(VERSION 3.25)
set(public
  plugin/publish/publisher.h plugin/publish/weight_source.h   # publishing
  plugin/receive/receiver.h plugin/*/*_target.h               # receiving
  plugin/job/config.h plugin/job/roads.h                      # jobs by their configuration
  collectives/*/*_road.h collectives/shared_fs/hdf5_container.h)

set(waiting "")
foreach(pattern ${public})
  file(GLOB found RELATIVE ${SOURCE} ${SOURCE}/${pattern})
  if(NOT found)
    message(FATAL_ERROR "there is no ${pattern}: was it renamed? cmake/DriftlessPublicHeaders.cmake lists it")
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
