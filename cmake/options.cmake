# Every option of the build in one place. Developer options are on only when muster is the top-level project.
set(MUSTER_WITH_MPI AUTO CACHE STRING "Build muster::mpi: AUTO (if found), ON (or fail), OFF")
set(MUSTER_WITH_NCCL AUTO CACHE STRING "Build muster::nccl: AUTO (if CUDA is found), ON (or fail), OFF")
set(MUSTER_WITH_TBB AUTO CACHE STRING "muster::data runs tasks on oneTBB, else serially: AUTO (if found), ON, OFF")
set(MUSTER_WITH_ZLIB AUTO CACHE STRING "Build muster::zlib, which reads .gz: AUTO (if found), ON (or fail), OFF")
set(MUSTER_WITH_TCP AUTO CACHE STRING "Build muster::tcp: AUTO (if OpenSSL is found), ON (or fail), OFF")
set(MUSTER_WITH_ZSTD AUTO CACHE STRING "Build muster::zstd, which reads .zst and compressed records: AUTO, ON, OFF")
set(MUSTER_WITH_JPEG AUTO CACHE STRING "Build muster::jpeg, which decodes JPEG: AUTO (if found), ON (or fail), OFF")
set(MUSTER_WITH_LIBPQ AUTO CACHE STRING "Build muster::postgres, which reads from PostgreSQL: AUTO, ON, OFF")
set(MUSTER_WITH_PARQUET AUTO CACHE STRING "Build muster::parquet, which reads Parquet: AUTO (if found, see MUSTER_PYARROW), ON, OFF")
set(MUSTER_WITH_ETCD AUTO CACHE STRING "Build muster::etcd, a store that an etcd keeps: AUTO (if libcurl is found), ON, OFF")
set(MUSTER_WITH_HTTP AUTO CACHE STRING "Build muster::http, which reads from servers of HTTP and S3: AUTO (if libcurl is found), ON, OFF")
set(MUSTER_WITH_SERVE AUTO CACHE STRING "Build muster::serve, which serves models: AUTO (if Boost and simdjson are found), ON, OFF")
set(MUSTER_WITH_TORCH AUTO CACHE STRING "Build muster::torch, for models in LibTorch: AUTO (if it is found, see Torch_ROOT), ON, OFF")
foreach(part IN ITEMS MPI NCCL TBB ZLIB TCP ZSTD JPEG LIBPQ PARQUET ETCD HTTP SERVE TORCH)
  set_property(CACHE MUSTER_WITH_${part} PROPERTY STRINGS AUTO ON OFF)
endforeach()
option(MUSTER_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(MUSTER_BUILD_FUZZERS "Build the fuzzers of the readers; needs clang" OFF)
option(MUSTER_BUILD_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(MUSTER_BUILD_BENCHMARKS "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(MUSTER_BUILD_PROGRAMS "Build the programs that are installed: muster-info, muster-launch, muster-store, muster-data" ${PROJECT_IS_TOP_LEVEL})
option(MUSTER_INSTALL "Make the install target" ${PROJECT_IS_TOP_LEVEL})
option(MUSTER_DEBIAN "Install as packages of Debian require, and make them by cpack (the preset debian)" OFF)
option(BUILD_SHARED_LIBS "Build shared libraries" OFF)
option(MUSTER_WERROR "Warnings are errors" OFF)
option(MUSTER_NATIVE "Examples and benchmarks use every instruction of this machine (-march=native)" ${PROJECT_IS_TOP_LEVEL})
set(MUSTER_SANITIZE "" CACHE STRING "Sanitizers to build with, as -fsanitize takes them: address,undefined or thread")

if(MUSTER_BUILD_TESTS)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # tests/repository and clang-tidy read them
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Warnings and sanitizers for muster's own code; linked PRIVATE everywhere and never exported.
add_library(muster_build_flags INTERFACE)
target_compile_features(muster_build_flags INTERFACE cxx_std_20)
target_compile_options(muster_build_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor
  $<$<BOOL:${MUSTER_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>  # GCC's -Wconversion has none
  # GCC 12 warns of its own std::string (https://gcc.gnu.org/PR105651).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>
  # GCC 12 says of its own intrinsics for AVX-512, which Eigen uses, that they are uninitialised; without -O3 it is sure
  # (https://gcc.gnu.org/PR105593).
  "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>,$<BOOL:${MUSTER_NATIVE}>>:-Wno-maybe-uninitialized;-Wno-uninitialized>"
  # GCC takes a coroutine's own operator new for another's (https://gcc.gnu.org/PR109224).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-mismatched-new-delete>)
if(CMAKE_UNITY_BUILD)  # what one file calls private, another may use as a name, and is not the file that is compiled
  target_compile_options(muster_build_flags INTERFACE -Wno-shadow $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endif()
if(MUSTER_SANITIZE)
  # The instrumentation makes GCC see uninitialised values where there are none.
  target_compile_options(muster_build_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  # ThreadSanitizer does not see fences. Those of muster order one atomic behind another; no plain data counts on them.
  if(MUSTER_SANITIZE MATCHES "thread")
    target_compile_options(muster_build_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
  target_compile_options(muster_build_flags INTERFACE -fsanitize=${MUSTER_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)  # a finding ends the program, so that the test fails
  target_link_options(muster_build_flags INTERFACE -fsanitize=${MUSTER_SANITIZE})
endif()
# Examples, tests and benchmarks may use the machine they are built on; the library itself never does.
add_library(muster_native_flags INTERFACE)
if(MUSTER_NATIVE)
  target_compile_options(muster_native_flags INTERFACE -march=native)
endif()
