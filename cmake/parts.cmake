# Which optional parts are built: sets MUSTER_HAVE_<PART> of MPI, TBB, ZLIB, TCP, ZSTD, JPEG, LIBPQ, PARQUET, ETCD, HTTP, SERVE, TORCH and NCCL from MUSTER_WITH_*
# and what is installed.

# muster_find_part(<PART> <Debian package> <arguments of find_package>...)
# A macro, so that what find_package sets reaches the caller.
macro(muster_find_part part debian)
  set(MUSTER_HAVE_${part} FALSE)
  set(muster_why_${part} "MUSTER_WITH_${part} is OFF")  # of the summary
  string(TOUPPER "${MUSTER_WITH_${part}}" muster_with)
  if(NOT muster_with MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|YES|NO|1|0)$")
    message(FATAL_ERROR "MUSTER_WITH_${part} cannot be '${MUSTER_WITH_${part}}' (it is AUTO, ON or OFF)")
  endif()
  if(muster_with STREQUAL "AUTO" OR muster_with)
    set(muster_arguments ${ARGN})
    list(GET muster_arguments 0 muster_package)
    find_package(${ARGN} QUIET)
    if(${muster_package}_FOUND)
      set(MUSTER_HAVE_${part} TRUE)
      set(muster_why_${part})
    elseif(muster_with STREQUAL "AUTO")
      set(muster_why_${part} "${muster_package} was not found; Debian has it in ${debian}")
    else()
      message(FATAL_ERROR "MUSTER_WITH_${part} is ${MUSTER_WITH_${part}} but ${muster_package} was not found; install it "
        "(Debian: apt-get install ${debian}) or build without it (-DMUSTER_WITH_${part}=OFF)")
    endif()
  endif()
endmacro()

string(TOUPPER "${MUSTER_WITH_MPI}" muster_with)
if(NOT muster_with MATCHES "^(OFF|FALSE|NO|0)$")
  enable_language(C)  # FindMPI tries MPI_C with the C compiler; muster uses the C interface alone
  set(MPI_DETERMINE_LIBRARY_VERSION TRUE)  # or MPI_C_LIBRARY_VERSION_STRING stays empty
endif()
muster_find_part(MPI "libopenmpi-dev openmpi-bin" MPI COMPONENTS C)
if(MUSTER_HAVE_MPI)
  string(REGEX MATCH "^[^,\n]*" muster_mpi_version "${MPI_C_LIBRARY_VERSION_STRING}")
  # An MPI that can go on when ranks die (User Level Failure Mitigation): Open MPI from 5 on.
  include(CheckSourceCompiles)
  set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
  check_source_compiles(C "
    #include <mpi.h>
    #include <mpi-ext.h>
    int main(void) {
      MPI_Comm made;
      MPI_Group ended;
      int flag = MPIX_FT + MPIX_ERR_PROC_FAILED + MPIX_ERR_REVOKED;
      return MPIX_Comm_revoke(MPI_COMM_WORLD) + MPIX_Comm_agree(MPI_COMM_WORLD, &flag) +
             MPIX_Comm_shrink(MPI_COMM_WORLD, &made) + MPIX_Comm_failure_ack(MPI_COMM_WORLD) +
             MPIX_Comm_failure_get_acked(MPI_COMM_WORLD, &ended);
    }" MUSTER_HAVE_ULFM)
  unset(CMAKE_REQUIRED_LIBRARIES)
  set(muster_mpi_deaths "a death of a rank ends the job")
  if(MUSTER_HAVE_ULFM)
    set(muster_mpi_deaths "with ULFM: the job goes on when ranks die")
  endif()
  set(muster_why_MPI "${muster_mpi_version} (${muster_mpi_deaths})")
endif()
muster_find_part(TBB libtbb-dev TBB)
muster_find_part(ZLIB zlib1g-dev ZLIB)
muster_find_part(TCP libssl-dev OpenSSL COMPONENTS Crypto)  # for the challenges by which ranks prove who they are
set(MUSTER_PMIX_INCLUDE_DIRS)
if(MUSTER_HAVE_TCP)
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(MUSTER_PMIX QUIET pmix)
  endif()
  if(NOT MUSTER_PMIX_INCLUDE_DIRS)
    set(muster_why_TCP "without PMIx (it was not found); Debian has it in libpmix-dev")
  endif()
endif()
list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
muster_find_part(ZSTD libzstd-dev ZSTD)
muster_find_part(JPEG libjpeg-dev JPEG)
set(MUSTER_HAVE_PNG FALSE)
if(MUSTER_HAVE_JPEG)  # a PNG may stand in place of a JPEG
  find_package(PNG QUIET)
  set(MUSTER_HAVE_PNG ${PNG_FOUND})
  if(NOT PNG_FOUND)
    set(muster_why_JPEG "without PNG (libpng was not found); Debian has it in libpng-dev")
  endif()
endif()
muster_find_part(LIBPQ libpq-dev LIBPQ)
if(MUSTER_SANITIZE AND MUSTER_WITH_PARQUET STREQUAL "AUTO")  # libparquet is not instrumented
  set(MUSTER_HAVE_PARQUET FALSE)
  set(muster_why_PARQUET "its library has no sanitizer")
else()
  muster_find_part(PARQUET "no package; Python's package pyarrow has it: -DMUSTER_PYARROW=PYTHON" LibParquet 15)
endif()
if(MUSTER_HAVE_PARQUET)
  set(muster_why_PARQUET "libparquet ${LibParquet_VERSION} (${LibParquet_FROM})")
endif()
muster_find_part(ETCD libcurl4-openssl-dev CURL 7.85)
muster_find_part(HTTP libcurl4-openssl-dev CURL 7.85)
muster_find_part(SERVE libboost-dev Boost 1.74)
if(MUSTER_HAVE_SERVE)
  muster_find_part(SERVE libsimdjson-dev simdjson 3)
endif()
if(MUSTER_SANITIZE AND MUSTER_WITH_TORCH STREQUAL "AUTO")  # LibTorch's libraries are not instrumented
  set(MUSTER_HAVE_TORCH FALSE)
  set(muster_why_TORCH "its library has no sanitizer")
else()
  muster_find_part(TORCH "libtorch-dev, and the Python package torch has it too: -DTorch_ROOT=.../site-packages/torch" LibTorch 1.13)
endif()
if(MUSTER_HAVE_TORCH)
  set(muster_why_TORCH "LibTorch ${LibTorch_VERSION} in ${LibTorch_LIBRARY}")
endif()

# NCCL, for groups of devices. It takes the whole toolkit of CUDA: headers, runtime and compiler. Sanitizers look at its
# logic through the test double; a project that muster is a part of has to want CUDA by itself before AUTO means it.
set(MUSTER_HAVE_NCCL FALSE)
set(muster_why_NCCL "MUSTER_WITH_NCCL is OFF, or not asked for")
string(TOUPPER "${MUSTER_WITH_NCCL}" muster_with)
set(muster_why_not)
if(muster_with STREQUAL "AUTO" AND (MUSTER_SANITIZE OR NOT (PROJECT_IS_TOP_LEVEL OR CMAKE_CUDA_COMPILER_LOADED)))
  set(muster_with OFF)
endif()
if(muster_with STREQUAL "AUTO" OR muster_with)
  find_package(CUDAToolkit QUIET)
  find_package(NCCL QUIET)
  if(NOT CUDAToolkit_FOUND)
    set(muster_why_not "CUDA's toolkit was not found; CUDAToolkit_ROOT says where it is")
  elseif(NOT NCCL_FOUND)
    set(muster_why_not "NCCL was not found; NCCL_ROOT says where it is")
  elseif(NOT CUDAToolkit_NVCC_EXECUTABLE AND NOT CMAKE_CUDA_COMPILER_LOADED)
    set(muster_why_not "nvcc was not found; CUDAToolkit_ROOT says where it is")
  else()
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
      set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE} CACHE FILEPATH "The compiler of CUDA")
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      # Code for the oldest kind of device there is, which drivers translate for all later ones, and for Hopper's, where
      # the toolkit knows it.
      execute_process(COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} --list-gpu-arch OUTPUT_VARIABLE muster_known ERROR_QUIET)
      string(REGEX MATCHALL "[0-9]+" muster_known "${muster_known}")
      list(GET muster_known 0 muster_oldest)
      set(muster_architectures ${muster_oldest}-virtual)
      if("90" IN_LIST muster_known)
        list(APPEND muster_architectures 90-real)
      endif()
      set(CMAKE_CUDA_ARCHITECTURES "${muster_architectures}" CACHE STRING "Kinds of devices that code is made for")
    endif()
    enable_language(CUDA)
    # By name: without it CMake asks nvcc for the older standard of a host compiler such as Clang 14. CMake 3.25 does not
    # know that nvcc has C++20.
    if(NOT CMAKE_CUDA_STANDARD)
      set(CMAKE_CUDA_STANDARD 20)
    endif()
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(MUSTER_HAVE_NCCL TRUE)
    set(muster_why_NCCL "NCCL ${NCCL_VERSION} and CUDA ${CUDAToolkit_VERSION}, for devices ${CMAKE_CUDA_ARCHITECTURES}")
  endif()
  if(muster_why_not)
    if(muster_with STREQUAL "AUTO")
      set(muster_why_NCCL "${muster_why_not}")
    else()
      message(FATAL_ERROR "MUSTER_WITH_NCCL is ${MUSTER_WITH_NCCL} but ${muster_why_not}; or build without it "
        "(-DMUSTER_WITH_NCCL=OFF)")
    endif()
  endif()
endif()
