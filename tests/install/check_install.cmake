# SPDX-License-Identifier: Apache-2.0
# Installs BUILD into WORK/prefix, then configures, builds and runs the projects in SOURCE and SOURCE/c
# against it, and compiles the examples by pkg-config. HAS_MPI: whether the build has it.
cmake_policy(VERSION 3.25)
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
# Every ELF file that is installed looks for libraries in folders that are named, and not in the build
# folder; nothing else that is installed names that, either.
file(GLOB_RECURSE files ${WORK}/prefix/*)
foreach(file ${files})
  execute_process(COMMAND readelf -d ${file} OUTPUT_VARIABLE dynamic ERROR_QUIET)
  if(dynamic MATCHES "RU?N?PATH\\)[^[]*\\[([^]]*)\\]")
    set(runpath ":${CMAKE_MATCH_1}:")
    string(FIND "${runpath}" "${BUILD}" in_build)
    if(runpath MATCHES "::" OR runpath MATCHES ":[.]" OR NOT in_build EQUAL -1)
      message(FATAL_ERROR "${file} looks for libraries in '${CMAKE_MATCH_1}'")
    endif()
  endif()
  if(file MATCHES "\\.(cmake|pc|h)$")
    file(READ ${file} text)
    string(FIND "${text}" "${BUILD}" in_build)
    if(NOT in_build EQUAL -1)
      message(FATAL_ERROR "${file} names the build folder")
    endif()
  endif()
endforeach()
# The command takes no library from the current directory, and none from the build folder.
if(EXISTS ${WORK}/prefix/bin/driftless)
  file(WRITE ${WORK}/hostile/hostile.c
    "#include <stdlib.h>\n__attribute__((constructor)) static void begin(void) { _Exit(66); }\n")
  run(cc -shared -fPIC ${WORK}/hostile/hostile.c -o ${WORK}/hostile/libpugixml.so.1)
  execute_process(COMMAND readelf -d ${WORK}/prefix/bin/driftless OUTPUT_VARIABLE dynamic)
  string(REGEX MATCHALL "\\[lib[^]]*\\]" needed "${dynamic}")
  foreach(name ${needed})
    string(REGEX REPLACE "[][]" "" name ${name})
    file(COPY_FILE ${WORK}/hostile/libpugixml.so.1 ${WORK}/hostile/${name} ONLY_IF_DIFFERENT)
  endforeach()
  run(${CMAKE_COMMAND} -E chdir ${WORK}/hostile ${WORK}/prefix/bin/driftless --version)
  execute_process(COMMAND ldd ${WORK}/prefix/bin/driftless OUTPUT_VARIABLE resolved)
  string(REPLACE "${WORK}/prefix" "" resolved "${resolved}")
  string(FIND "${resolved}" "${BUILD}" in_build)
  if(NOT in_build EQUAL -1 OR resolved MATCHES "not found")
    message(FATAL_ERROR "the installed command needs the build folder: ${resolved}")
  endif()
endif()
# Nothing private is installed, and what is installed compiles without what is not.
file(GLOB_RECURSE headers RELATIVE ${WORK}/prefix/include/driftless ${WORK}/prefix/include/driftless/*)
foreach(header ${headers})
  if(header MATCHES "^tools/|/(agent|c_abi|checkpoint|on_demand|cpu|cuda|reference)/|_internal|journal|payload|_change\\.h$")
    message(FATAL_ERROR "${header} is private, and was installed: which public header includes it?")
  endif()
endforeach()
set(wanted plugin/publish/publisher.h plugin/receive/receiver.h plugin/targets/weight_target.h
  plugin/job/config.h plugin/job/roads.h collectives/road.h core/status.h)
foreach(header ${wanted})
  if(NOT header IN_LIST headers)
    message(FATAL_ERROR "${header} is public, and was not installed")
  endif()
endforeach()
list(FILTER headers INCLUDE REGEX "^(core|formats|kernels|plugin)/")  # roads' may need MPI's or NCCL's
list(TRANSFORM headers REPLACE "(.+)" "#include \"\\1\"" OUTPUT_VARIABLE lines)
list(JOIN lines "\n" text)
file(WRITE ${WORK}/all_headers.cpp "${text}\n")
run(${COMPILER} -std=c++20 -fsyntax-only -Wall -Werror -I${WORK}/prefix/include/driftless
    ${WORK}/all_headers.cpp)
set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${WORK}/build
    -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS=${flags}
    -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/consumer)
run(${WORK}/build/road_consumer)
# The C library, by CMake and by pkg-config.
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE}/c -B ${WORK}/build_c
    -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS=${flags}
    -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run(${CMAKE_COMMAND} --build ${WORK}/build_c)
run(${WORK}/build_c/c_consumer ${HAS_MPI})
file(GLOB_RECURSE pc ${WORK}/prefix/driftless.pc)
get_filename_component(pc_folder ${pc} DIRECTORY)
execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pc_folder}
  pkg-config --cflags --libs driftless
  OUTPUT_VARIABLE pc_flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(pc_flags UNIX_COMMAND "${pc_flags}")
set(strict -Wall -Wextra -Werror -pedantic ${flags})
run(cc -std=c99 ${strict} ${SOURCE}/../../examples/c/follow.c -o ${WORK}/follow_c ${pc_flags})
run(${COMPILER} -std=c++20 ${strict} ${SOURCE}/../../examples/cpp/follow.cpp -o ${WORK}/follow_cpp
    ${pc_flags})
file(REMOVE_RECURSE ${WORK})
