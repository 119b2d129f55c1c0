# Finds NVIDIA's NCCL: NCCL_FOUND, NCCL_VERSION and the target NCCL::nccl. NCCL_ROOT or NCCL_HOME says where to look; it
# is also found beside CUDA's toolkit, and in the folders of Python's packages (nvidia-nccl-*, in nvidia/nccl/), for which
# NCCL_ROOT is the site-packages.
if(CUDAToolkit_FOUND)
  get_filename_component(nccl_beside_cuda "${CUDAToolkit_INCLUDE_DIRS}" DIRECTORY)
endif()
set(nccl_hints ENV NCCL_HOME ${nccl_beside_cuda} ${CUDAToolkit_ROOT})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_hints} PATH_SUFFIXES include nvidia/nccl/include ../nccl/include)
# Python's packages have no libnccl.so without a version.
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${nccl_hints}
  PATH_SUFFIXES lib lib64 nvidia/nccl/lib ../nccl/lib)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  list(TRANSFORM nccl_lines REPLACE "[^0-9]*([0-9]+)[^0-9]*$" "\\1")
  list(JOIN nccl_lines "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
