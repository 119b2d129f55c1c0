# Which optional parts are built: sets MUSTER_HAVE_<PART> of MPI, ZLIB, TCP, ZSTD, LIBPQ and ETCD from MUSTER_WITH_* and what
# is installed.

# muster_find_part(<PART> <Debian package> <arguments of find_package>...)
# A macro, so that what find_package sets reaches the caller.
macro(muster_find_part part debian)
  set(MUSTER_HAVE_${part} FALSE)
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
    elseif(muster_with STREQUAL "AUTO")
      message(STATUS "muster is built without ${part} (${muster_package} was not found); Debian has it in ${debian}")
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
  message(STATUS "muster::mpi uses ${muster_mpi_version}")
endif()
muster_find_part(ZLIB zlib1g-dev ZLIB)
muster_find_part(TCP libssl-dev OpenSSL COMPONENTS Crypto)  # for the challenges by which ranks prove who they are
set(MUSTER_PMIX_INCLUDE_DIRS)
if(MUSTER_HAVE_TCP)
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(MUSTER_PMIX QUIET pmix)
  endif()
  if(NOT MUSTER_PMIX_INCLUDE_DIRS)
    message(STATUS "muster::tcp is built without PMIx (it was not found); Debian has it in libpmix-dev")
  endif()
endif()
list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake)
muster_find_part(ZSTD libzstd-dev ZSTD)
muster_find_part(LIBPQ libpq-dev LIBPQ)
muster_find_part(ETCD libcurl4-openssl-dev CURL 7.85)

# NCCL: this version has no transport over it, so there is no target yet; ON says so instead of building something else.
string(TOUPPER "${MUSTER_WITH_NCCL}" muster_with)
if(muster_with STREQUAL "AUTO")
  find_package(NCCL QUIET)
  if(NCCL_FOUND)
    message(STATUS "NCCL ${NCCL_VERSION} is here, but this version of muster has no NCCL transport yet")
  endif()
elseif(muster_with)
  message(FATAL_ERROR "MUSTER_WITH_NCCL is ${MUSTER_WITH_NCCL} but this version of muster has no NCCL transport yet; "
    "leave it at AUTO")
endif()
