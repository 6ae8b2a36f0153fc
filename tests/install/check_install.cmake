# Installs BUILD into WORK/prefix, then configures, builds and runs the projects in SOURCE and SOURCE/c
# against it, and compiles the examples by pkg-config. HAS_MPI: whether the build has it.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
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
