# Finds libzstd: ZSTD_FOUND, ZSTD_VERSION, the target ZSTD::ZSTD. Installed with muster, whose static libmuster_zstd needs
# it again; not every distribution of Zstandard brings a CMake package of its own.
find_path(ZSTD_INCLUDE_DIR zstd.h)
find_library(ZSTD_LIBRARY zstd)
mark_as_advanced(ZSTD_INCLUDE_DIR ZSTD_LIBRARY)

if(ZSTD_INCLUDE_DIR)
  file(STRINGS ${ZSTD_INCLUDE_DIR}/zstd.h zstd_lines REGEX "#define ZSTD_VERSION_(MAJOR|MINOR|RELEASE)")
  list(TRANSFORM zstd_lines REPLACE "[^0-9]*([0-9]+).*" "\\1")
  list(JOIN zstd_lines "." ZSTD_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ZSTD REQUIRED_VARS ZSTD_LIBRARY ZSTD_INCLUDE_DIR VERSION_VAR ZSTD_VERSION)

if(ZSTD_FOUND AND NOT TARGET ZSTD::ZSTD)
  add_library(ZSTD::ZSTD UNKNOWN IMPORTED)
  set_target_properties(ZSTD::ZSTD PROPERTIES IMPORTED_LOCATION ${ZSTD_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${ZSTD_INCLUDE_DIR})
endif()
