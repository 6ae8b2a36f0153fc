# SPDX-License-Identifier: Apache-2.0
# install(): libraries, the public headers, the command, and a package for find_package(driftless); the C library
# also by pkg-config.
include(CMakePackageConfigHelpers)

get_property(driftless_rooms GLOBAL PROPERTY DRIFTLESS_ROOMS)
foreach(room ${driftless_rooms})
  install(TARGETS driftless_${room} EXPORT driftlessTargets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
install(CODE "
  set(SOURCE \"${CMAKE_SOURCE_DIR}\")
  set(INCLUDE_FOLDER \"${CMAKE_INSTALL_INCLUDEDIR}\")")
install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/DriftlessPublicHeaders.cmake)
get_property(driftless_road_libraries GLOBAL PROPERTY DRIFTLESS_ROAD_LIBRARIES)
if(DRIFTLESS_HAS_MPI)
  list(APPEND driftless_road_libraries driftless_mpi)
endif()
install(TARGETS driftless_roads ${driftless_road_libraries} EXPORT driftlessTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET driftless)
  install(TARGETS driftless RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # Pages that the command itself prints.
  function(driftless_page file destination)
    set(page ${CMAKE_BINARY_DIR}/pages/${file})
    add_custom_command(OUTPUT ${page} COMMAND driftless ${ARGN} > ${page} DEPENDS driftless VERBATIM)
    set_property(GLOBAL APPEND PROPERTY DRIFTLESS_PAGES ${page})
    install(FILES ${page} DESTINATION ${destination})
  endfunction()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/pages/bash)
  driftless_page(driftless.1 ${CMAKE_INSTALL_MANDIR}/man1 man)
  driftless_page(bash/driftless ${CMAKE_INSTALL_DATADIR}/bash-completion/completions completion bash)
  driftless_page(_driftless ${CMAKE_INSTALL_DATADIR}/zsh/site-functions completion zsh)
  driftless_page(driftless.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d completion fish)
  get_property(driftless_pages GLOBAL PROPERTY DRIFTLESS_PAGES)
  add_custom_target(driftless_pages ALL DEPENDS ${driftless_pages})
endif()
install(EXPORT driftlessTargets NAMESPACE driftless::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/driftless)

# The C library is an export of its own: who asks for it alone needs none of what the others link.
install(TARGETS driftless_c EXPORT driftlessCTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_SOURCE_DIR}/plugin/c_abi/driftless.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT driftlessCTargets NAMESPACE driftless::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/driftless)
file(RELATIVE_PATH DRIFTLESS_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_SOURCE_DIR}/cmake/driftless.pc.in ${CMAKE_BINARY_DIR}/driftless.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/driftless.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/driftlessConfig.cmake.in
  ${CMAKE_BINARY_DIR}/driftlessConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/driftless)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/driftlessConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/driftlessConfig.cmake
              ${CMAKE_BINARY_DIR}/driftlessConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/driftless)
