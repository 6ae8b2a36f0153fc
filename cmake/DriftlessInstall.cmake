# SPDX-License-Identifier: Apache-2.0
# install(): libraries, public headers, the command, and a package for find_package(driftless); the C
# library also for pkg-config. Components are those of the packages (DriftlessPackages.cmake).
include(CMakePackageConfigHelpers)
set(share ${CMAKE_INSTALL_DATADIR}/driftless)

get_property(driftless_rooms GLOBAL PROPERTY DRIFTLESS_ROOMS)
foreach(room ${driftless_rooms})
  install(TARGETS driftless_${room} EXPORT driftlessTargets
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
endforeach()
install(CODE "
  set(SOURCE \"${CMAKE_SOURCE_DIR}\")
  set(INCLUDE_FOLDER \"${CMAKE_INSTALL_INCLUDEDIR}\")" COMPONENT development)
install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/DriftlessPublicHeaders.cmake COMPONENT development)
get_property(driftless_road_libraries GLOBAL PROPERTY DRIFTLESS_ROAD_LIBRARIES)
if(DRIFTLESS_HAS_MPI)
  list(APPEND driftless_road_libraries driftless_mpi)
endif()
install(TARGETS driftless_roads ${driftless_road_libraries} EXPORT driftlessTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
if(TARGET driftless)
  install(TARGETS driftless RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
  # The command prints pages (manual, completions), which are installed in share/driftless. Links lead
  # to them from the usual places. driftless_page(FILE LINK_FOLDER LINK_NAME ARGUMENTS...)
  function(driftless_page file link_folder link_name)
    set(page ${CMAKE_BINARY_DIR}/pages/${file})
    add_custom_command(OUTPUT ${page} COMMAND driftless ${ARGN} > ${page} DEPENDS driftless VERBATIM)
    set_property(GLOBAL APPEND PROPERTY DRIFTLESS_PAGES ${page})
    install(FILES ${page} DESTINATION ${share} COMPONENT tools)
    file(RELATIVE_PATH target /${link_folder} /${share}/${file})
    set(link ${CMAKE_BINARY_DIR}/pages/links/${link_folder}/${link_name})
    cmake_path(GET link PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    file(CREATE_LINK ${target} ${link} SYMBOLIC)
    install(FILES ${link} DESTINATION ${link_folder} COMPONENT tools)
  endfunction()
  driftless_page(driftless.1 ${CMAKE_INSTALL_MANDIR}/man1 driftless.1 man)
  driftless_page(completion.bash ${CMAKE_INSTALL_DATADIR}/bash-completion/completions driftless completion bash)
  driftless_page(completion.zsh ${CMAKE_INSTALL_DATADIR}/zsh/site-functions _driftless completion zsh)
  driftless_page(completion.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d driftless.fish completion fish)
  get_property(driftless_pages GLOBAL PROPERTY DRIFTLESS_PAGES)
  add_custom_target(driftless_pages ALL DEPENDS ${driftless_pages})
endif()
install(DIRECTORY ${CMAKE_SOURCE_DIR}/configs ${CMAKE_SOURCE_DIR}/examples DESTINATION ${share}
        COMPONENT tools PATTERN CMakeLists.txt EXCLUDE PATTERN __pycache__ EXCLUDE)
install(EXPORT driftlessTargets NAMESPACE driftless::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/driftless COMPONENT development)

# The C library has its own export: its users need no library that only the C++ libraries link.
install(TARGETS driftless_c EXPORT driftlessCTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(FILES ${CMAKE_SOURCE_DIR}/plugin/c_abi/driftless.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/driftless COMPONENT development)
install(EXPORT driftlessCTargets NAMESPACE driftless::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/driftless COMPONENT development)
file(RELATIVE_PATH DRIFTLESS_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_SOURCE_DIR}/cmake/driftless.pc.in ${CMAKE_BINARY_DIR}/driftless.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/driftless.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT development)

configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/driftlessConfig.cmake.in
  ${CMAKE_BINARY_DIR}/driftlessConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/driftless)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/driftlessConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/driftlessConfig.cmake
              ${CMAKE_BINARY_DIR}/driftlessConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/driftless COMPONENT development)
