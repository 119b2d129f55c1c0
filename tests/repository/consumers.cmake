# Projects that use muster, built from an installed copy of this build (or from its sources) and run.
include(GNUInstallDirs)
set(stage ${CMAKE_BINARY_DIR}/tests/stage)  # where it is installed
set(consumers ${PROJECT_SOURCE_DIR}/tests/consumers)
set(consumers_build ${CMAKE_BINARY_DIR}/tests/consumers)
set(deep_stage ${consumers_build}/deep_stage)
set(deep_libraries ${deep_stage}/lib/x86_64-linux-gnu)

# What each consumer is configured with: this build's tools, and its own strict warnings (see consumers/strict.cmake).
set(consumer_options -G ${CMAKE_GENERATOR} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_BUILD_TYPE=Debug
  -DCMAKE_CXX_FLAGS_DEBUG=-O0)  # they run for a moment: what counts is how long they compile
if(CMAKE_CXX_COMPILER_LAUNCHER)
  list(APPEND consumer_options -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
# Where all of muster is compiled once more each layer is one unit, which takes a quarter of the time, and of which any unity
# build is a part: no two files of a layer have the same name for different things.
set(unity -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=200)
set(strict -DCMAKE_PROJECT_INCLUDE=${consumers}/strict.cmake)

add_test(NAME "repository: install" COMMAND ${CMAKE_COMMAND} -D build=${CMAKE_BINARY_DIR} -D stage=${stage}
  -P ${CMAKE_CURRENT_SOURCE_DIR}/install.cmake)
set_tests_properties("repository: install" PROPERTIES TIMEOUT 60 COST 100 FIXTURES_SETUP stage)

add_test(NAME "repository: the package exports no flag of ours" COMMAND ${CMAKE_COMMAND} -D stage=${stage}
  -D source=${PROJECT_SOURCE_DIR} -P ${CMAKE_CURRENT_SOURCE_DIR}/exported_flags.cmake)
set_tests_properties("repository: the package exports no flag of ours" PROPERTIES TIMEOUT 60 FIXTURES_REQUIRED stage)

# muster_add_consumer(<name> SOURCE <folder> [OPTIONS <for cmake>...] [TARGETS <to build>...] [NEEDS <fixture>])
# A test that configures and builds the project in <folder>; those that run it require the fixture consumer_<name>.
function(muster_add_consumer name)
  cmake_parse_arguments(PARSE_ARGV 1 consumer "" "SOURCE;NEEDS" "OPTIONS;TARGETS")
  set(test "repository: build ${name}")
  add_test(NAME ${test} COMMAND ${CMAKE_COMMAND} -D "source=${consumer_SOURCE}" -D "build=${consumers_build}/${name}"
    -D "options=${consumer_options};${consumer_OPTIONS}" -D "targets=${consumer_TARGETS}"
    -P ${CMAKE_CURRENT_SOURCE_DIR}/build_consumer.cmake)
  set_tests_properties(${test} PROPERTIES TIMEOUT 900 PROCESSORS 2 ${compiles} FIXTURES_REQUIRED "${consumer_NEEDS}"
    FIXTURES_SETUP consumer_${name})
endfunction()

# muster_run_consumer(<name> COMMAND <words>...): runs what was built.
function(muster_run_consumer name)
  cmake_parse_arguments(PARSE_ARGV 1 consumer "" "FIXTURE" "COMMAND")
  set(test "repository: run ${name}")
  add_test(NAME ${test} COMMAND ${consumer_COMMAND})
  set_tests_properties(${test} PROPERTIES TIMEOUT 60 PROCESSORS 2 FIXTURES_REQUIRED consumer_${consumer_FIXTURE}
    ENVIRONMENT "${MUSTER_MPIRUN_ENVIRONMENT}")
endfunction()

# muster_check_parts(<name> FIXTURE <consumer> <names>...): a program that uses none of the linked parts has their plug-ins.
function(muster_check_parts name fixture)
  list(JOIN ARGN " " names)
  muster_run_consumer("${name} parts" FIXTURE ${fixture} COMMAND ${CMAKE_COMMAND} -E env
    LD_LIBRARY_PATH=${deep_libraries} ${consumers_build}/${name}/parts)
  set_tests_properties("repository: run ${name} parts" PROPERTIES PASS_REGULAR_EXPRESSION "^${names} are linked\n$")
endfunction()
set(all_plugins)
foreach(part IN LISTS muster_parts)
  if(TARGET muster_${part}_plugin)
    list(APPEND all_plugins ${part})
  endif()
endforeach()
list(SORT all_plugins)

set(two_ranks)  # how a consumer is started on two ranks: by mpirun, or as threads
set(two_threads --ranks 2)
if(TARGET muster::mpi)
  set(two_ranks ${MUSTER_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} 2)
  set(two_threads)
endif()

muster_add_consumer(find_package SOURCE ${consumers}/find_package NEEDS stage
  OPTIONS ${strict} -DCMAKE_PREFIX_PATH=${stage})
muster_run_consumer(find_package FIXTURE find_package
  COMMAND ${two_ranks} ${consumers_build}/find_package/consumer ${two_threads})

muster_add_consumer(find_package_comm SOURCE ${consumers}/find_package_comm NEEDS stage
  OPTIONS ${strict} -DCMAKE_PREFIX_PATH=${stage})
muster_run_consumer(find_package_comm FIXTURE find_package_comm
  COMMAND ${consumers_build}/find_package_comm/consumer --ranks 2)

muster_check_parts(find_package find_package ${all_plugins})
muster_check_parts(find_package_comm find_package_comm comm)

set(test "repository: a program that links comm alone knows no setting of training")
add_test(NAME ${test} COMMAND ${consumers_build}/find_package_comm/consumer --ranks 2)
set_tests_properties(${test} PROPERTIES TIMEOUT 60 FIXTURES_REQUIRED consumer_find_package_comm
  ENVIRONMENT MUSTER_OPTIMIZER=sgd PASS_REGULAR_EXPRESSION "unknown variable MUSTER_OPTIMIZER is ignored")

# The smallest program, optimised and static: what muster::comm adds to it. Conan tests its package by the same program.
muster_add_consumer(hello SOURCE ${PROJECT_SOURCE_DIR}/packaging/test_package NEEDS stage
  OPTIONS -DCMAKE_PREFIX_PATH=${stage} -DCMAKE_CXX_FLAGS_DEBUG=-O2)
muster_run_consumer(hello FIXTURE hello COMMAND ${consumers_build}/hello/consumer --ranks 2)
if(CMAKE_STRIP AND NOT BUILD_SHARED_LIBS AND CMAKE_BUILD_TYPE STREQUAL "Release")
  add_test(NAME "repository: size of hello" COMMAND ${CMAKE_COMMAND} -D program=${consumers_build}/hello/consumer -D strip=${CMAKE_STRIP}
    -D most=1500000 -P ${CMAKE_CURRENT_SOURCE_DIR}/size.cmake)
  set_tests_properties("repository: size of hello" PROPERTIES TIMEOUT 60 FIXTURES_REQUIRED consumer_hello)
endif()

# Without a library of muster's: the installed headers and threads are enough, for ranks as threads and as processes.
set(strict_flags -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor -Werror)  # as many projects compile
add_test(NAME "repository: build headers" COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -O0 ${strict_flags} -I${stage}/${CMAKE_INSTALL_INCLUDEDIR}
  ${consumers}/headers.cpp -pthread -o ${CMAKE_BINARY_DIR}/tests/consumer_headers)
set_tests_properties("repository: build headers" PROPERTIES TIMEOUT 900 FIXTURES_REQUIRED stage FIXTURES_SETUP consumer_headers)
# docs/building.md lists these as what trains so.
foreach(how "--ranks 1" "--ranks 3" "--ranks 2 --optimizer adam" "--ranks 2 --compress topk:0.5" "--ranks 2 --mode local-sgd:2"
    "--ranks 3 --mode gossip:ring" "--ranks 2 --virtual-shards 4" "--ranks 3 --mode ps")
  separate_arguments(words UNIX_COMMAND "${how}")
  muster_run_consumer("headers ${how}" FIXTURE headers COMMAND ${CMAKE_BINARY_DIR}/tests/consumer_headers ${words})
  set_tests_properties("repository: run headers ${how}" PROPERTIES PASS_REGULAR_EXPRESSION "have learnt the line")
endforeach()
add_test(NAME "repository: run headers over shm" COMMAND Python3::Interpreter ${consumers}/headers.py
  ${CMAKE_BINARY_DIR}/tests/consumer_headers $<$<TARGET_EXISTS:muster_launch>:$<TARGET_FILE:muster_launch>>)
set_tests_properties("repository: run headers over shm" PROPERTIES TIMEOUT 120 PROCESSORS 2 FIXTURES_REQUIRED consumer_headers)
set(headers_programs ${CMAKE_BINARY_DIR}/tests/consumer_headers)
if(MUSTER_CLANG)
  add_test(NAME "repository: build headers by clang" COMMAND ${MUSTER_CLANG} -std=c++20 -O0 -I${stage}/${CMAKE_INSTALL_INCLUDEDIR}
    ${consumers}/headers.cpp -pthread -o ${CMAKE_BINARY_DIR}/tests/consumer_headers_clang)
  set_tests_properties("repository: build headers by clang" PROPERTIES TIMEOUT 900 FIXTURES_REQUIRED stage FIXTURES_SETUP consumer_headers)
  list(APPEND headers_programs ${CMAKE_BINARY_DIR}/tests/consumer_headers_clang)
endif()
add_test(NAME "repository: arm64 in qemu" COMMAND Python3::Interpreter ${consumers}/other_processors.py
  arm64 ${PROJECT_SOURCE_DIR} ${Catch2_VERSION_MAJOR})
add_test(NAME "repository: x86-64 without AVX in qemu" COMMAND Python3::Interpreter ${consumers}/other_processors.py
  x86-64 $<TARGET_FILE:test_codecs> $<TARGET_FILE:test_codecs_portable>)
foreach(name "arm64" "x86-64 without AVX")
  set_tests_properties("repository: ${name} in qemu" PROPERTIES TIMEOUT 3600 PROCESSORS 2 SKIP_REGULAR_EXPRESSION "SKIPPED: ")
  muster_tier(long "repository: ${name} in qemu")
endforeach()
foreach(program IN LISTS headers_programs)
  get_filename_component(name ${program} NAME)
  add_test(NAME "repository: run headers on two hosts, ${name}" COMMAND Python3::Interpreter ${consumers}/headers_hosts.py ${program})
  set_tests_properties("repository: run headers on two hosts, ${name}" PROPERTIES TIMEOUT 300 PROCESSORS 2 FIXTURES_REQUIRED consumer_headers
    RESOURCE_LOCK headers_hosts SKIP_REGULAR_EXPRESSION "SKIPPED: ")
endforeach()
if(NOT BUILD_SHARED_LIBS)
  add_test(NAME "repository: headers compute the library's bits" COMMAND Python3::Interpreter ${consumers}/digests.py
    ${stage}/${CMAKE_INSTALL_INCLUDEDIR} ${stage}/${CMAKE_INSTALL_LIBDIR} ${consumers}/digests.cpp ${CMAKE_CXX_COMPILER} ${MUSTER_CLANG})
  set_tests_properties("repository: headers compute the library's bits" PROPERTIES TIMEOUT 900 PROCESSORS 2 ${compiles} FIXTURES_REQUIRED stage)
endif()

# In a project of a user nothing that developers need is on.
add_test(NAME "repository: configure add_subdirectory" COMMAND ${CMAKE_COMMAND} -S ${consumers}/add_subdirectory
  -B ${consumers_build}/add_subdirectory_defaults -DMUSTER_SOURCE=${PROJECT_SOURCE_DIR})
set_tests_properties("repository: configure add_subdirectory" PROPERTIES TIMEOUT 120)

# A project with its own copies of muster's packages, and with targets, options and variables of common names.
get_target_property(json_headers nlohmann_json::nlohmann_json INTERFACE_INCLUDE_DIRECTORIES)
set(embedded -DMUSTER_SOURCE=${PROJECT_SOURCE_DIR} -DOWN_JSON=${json_headers})
foreach(how IN ITEMS cpm subdirectory)
  add_test(NAME "repository: configure embedded by ${how}" COMMAND ${CMAKE_COMMAND} -S ${consumers}/embedded
    -B ${consumers_build}/embedded_${how} -DHOW=${how} ${embedded} -DCMAKE_DISABLE_FIND_PACKAGE_ZSTD=ON)
  set_tests_properties("repository: configure embedded by ${how}" PROPERTIES TIMEOUT 120)
endforeach()
set_tests_properties("repository: configure embedded by subdirectory" PROPERTIES FAIL_REGULAR_EXPRESSION "CMake Error"
  PASS_REGULAR_EXPRESSION "ZSTD +no +ZSTD was not found; Debian has it in libzstd-dev.*Build files have been written")
muster_add_consumer(embedded SOURCE ${consumers}/embedded OPTIONS -DHOW=fetch ${embedded} ${unity} TARGETS consumer)
muster_run_consumer(embedded FIXTURE embedded COMMAND ${consumers_build}/embedded/consumer --ranks 2)
muster_tier(all "repository: build embedded" "repository: run embedded")

find_program(make_program NAMES gmake make)
find_program(pkgconfig_program NAMES pkgconf pkg-config)
if(make_program AND pkgconfig_program)
  # muster_add_make_consumer(<name> PC <folder of the .pc files> PACKAGE <its name> NEEDS <fixture>)
  function(muster_add_make_consumer name)
    cmake_parse_arguments(PARSE_ARGV 1 consumer "" "PC;PACKAGE;NEEDS" "")
    set(test "repository: build ${name}")
    add_test(NAME ${test} COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG=${pkgconfig_program}
      PKG_CONFIG_PATH=${consumer_PC} ${make_program} -B -C ${consumers}/pkg_config OUT=${consumers_build}/${name}
      CXX=${CMAKE_CXX_COMPILER} PACKAGE=${consumer_PACKAGE})
    set_tests_properties(${test} PROPERTIES TIMEOUT 120 FIXTURES_REQUIRED ${consumer_NEEDS}
      FIXTURES_SETUP consumer_${name})
  endfunction()
  muster_add_make_consumer(pkg_config PC ${stage}/${CMAKE_INSTALL_LIBDIR}/pkgconfig PACKAGE muster NEEDS stage)
  muster_run_consumer(pkg_config FIXTURE pkg_config
    COMMAND ${two_ranks} ${consumers_build}/pkg_config/consumer ${two_threads})
endif()

if(TEST "repository: build pkg_config")
  muster_check_parts(pkg_config pkg_config ${all_plugins})
endif()

# The examples are a project of their own, which builds against an installed muster as any other.
if(MUSTER_BUILD_EXAMPLES)
  file(GLOB numbered CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/examples ${PROJECT_SOURCE_DIR}/examples/[0-9][0-9]_*.cpp)
  list(TRANSFORM numbered REPLACE "[.]cpp$" "")
  set(example_targets mnist)
  foreach(name IN LISTS numbered ITEMS logistic_regression cnn)
    if(TARGET ${name})  # a library that the example needs may be missing
      list(APPEND example_targets ${name})
    endif()
  endforeach()
  set(installed NEEDS stage OPTIONS -Dmuster_DIR=${stage}/${CMAKE_INSTALL_LIBDIR}/cmake/muster -DMUSTER_NATIVE=OFF)
  muster_add_consumer(examples SOURCE ${PROJECT_SOURCE_DIR}/examples TARGETS mnist 01_allreduce ${installed})
  muster_add_consumer(all_examples SOURCE ${PROJECT_SOURCE_DIR}/examples TARGETS ${example_targets} ${installed})
  muster_tier(long "repository: build all_examples")
  list(JOIN MUSTER_MPIRUN " " mpirun_words)
  muster_run_consumer(examples FIXTURE examples
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/examples/numbered.py ${PROJECT_SOURCE_DIR}/examples/01_allreduce.cpp
    --programs ${consumers_build}/examples "--mpirun=$<$<TARGET_EXISTS:muster::mpi>:${mpirun_words}>")
endif()

# One build of muster as a part of another project, where no optional package can be found and the required one is the
# project's own, as shared libraries, by clang where there is one: all layers and programs compile, install into a library
# folder as deep as Debian's, and are used through CMake and pkg-config from another place than they were configured for.
set(nothing_found -DCMAKE_INSTALL_LIBDIR=lib/x86_64-linux-gnu -DBUILD_SHARED_LIBS=ON -DOWN_JSON=${json_headers})
foreach(package IN ITEMS nlohmann_json MPI OpenSSL ZLIB ZSTD JPEG PNG LIBPQ LibParquet CURL NCCL Boost simdjson LibTorch Eigen3 TBB CLI11 benchmark Catch2)
  list(APPEND nothing_found -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
set(by_clang)
if(MUSTER_CLANG)
  set(by_clang -DCMAKE_CXX_COMPILER=${MUSTER_CLANG})
endif()
muster_add_consumer(add_subdirectory SOURCE ${consumers}/add_subdirectory OPTIONS ${nothing_found} ${by_clang} ${unity} -DWITH_MUSTER=ON
  -DMUSTER_SOURCE=${PROJECT_SOURCE_DIR} -DMUSTER_BUILD_PROGRAMS=ON -DMUSTER_INSTALL=ON)
muster_run_consumer(add_subdirectory FIXTURE add_subdirectory
  COMMAND ${consumers_build}/add_subdirectory/consumer --ranks 2)
add_test(NAME "repository: install add_subdirectory" COMMAND ${CMAKE_COMMAND} -D build=${consumers_build}/add_subdirectory
  -D stage=${deep_stage} -P ${CMAKE_CURRENT_SOURCE_DIR}/install.cmake)
set_tests_properties("repository: install add_subdirectory" PROPERTIES TIMEOUT 60 FIXTURES_REQUIRED consumer_add_subdirectory
  FIXTURES_SETUP deep_stage)
muster_add_consumer(shared SOURCE ${consumers}/shared NEEDS deep_stage
  OPTIONS ${strict} ${by_clang} -Dmuster_DIR=${deep_libraries}/cmake/muster)
muster_check_parts(shared shared comm elastic ps train)
muster_run_consumer(shared FIXTURE shared COMMAND ${consumers_build}/shared/host ${consumers_build}/shared/libplugin.so)
set(test "repository: shared libraries export what is muster's, and bring no library of the user's")
add_test(NAME ${test} COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/exported.py ${deep_libraries}
  ${consumers_build}/shared/empty)
set_tests_properties(${test} PROPERTIES TIMEOUT 60 FIXTURES_REQUIRED consumer_shared)
if(make_program AND pkgconfig_program)
  muster_add_make_consumer(pkg_config_comm PC ${deep_libraries}/pkgconfig PACKAGE muster-comm NEEDS deep_stage)
  muster_run_consumer(pkg_config_comm FIXTURE pkg_config_comm COMMAND ${CMAKE_COMMAND} -E env
    LD_LIBRARY_PATH=${deep_libraries} ${consumers_build}/pkg_config_comm/consumer --ranks 2)
  muster_check_parts(pkg_config_comm pkg_config_comm comm)
endif()
add_test(NAME "repository: configure the preset core-only" COMMAND ${CMAKE_COMMAND} --preset core-only
  -B ${consumers_build}/core_only)
set_tests_properties("repository: configure the preset core-only" PROPERTIES TIMEOUT 120 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  PASS_REGULAR_EXPRESSION "JPEG +no +MUSTER_WITH_JPEG is OFF.*tests +yes.*Build files have been written" FAIL_REGULAR_EXPRESSION "CMake Error")

# Debian's packages, of a build with less optimisation, in a root that has nothing of this machine.
muster_add_consumer(debian SOURCE ${PROJECT_SOURCE_DIR} OPTIONS --preset debian -DCMAKE_CXX_FLAGS_DEBUG=-O1 ${unity})
add_test(NAME "repository: packages of Debian in a bare root" COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/packages.py
  ${PROJECT_SOURCE_DIR} ${consumers_build}/packages --build ${consumers_build}/debian)
set_tests_properties("repository: packages of Debian in a bare root" PROPERTIES TIMEOUT 1800 PROCESSORS 2 FIXTURES_REQUIRED consumer_debian
  SKIP_REGULAR_EXPRESSION "SKIPPED: ")
set_property(TEST "repository: build debian" PROPERTY TIMEOUT 3600)
muster_tier(long "repository: build debian" "repository: packages of Debian in a bare root")
