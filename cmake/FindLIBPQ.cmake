# Finds libpq, PostgreSQL's client library: LIBPQ_FOUND, the target LIBPQ::LIBPQ. CMake's own FindPostgreSQL also wants
# headers of the server in some of its versions. Installed with muster, whose static libmuster_postgres needs it again.
find_path(LIBPQ_INCLUDE_DIR libpq-fe.h PATH_SUFFIXES postgresql pgsql)
find_library(LIBPQ_LIBRARY pq)
mark_as_advanced(LIBPQ_INCLUDE_DIR LIBPQ_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LIBPQ REQUIRED_VARS LIBPQ_LIBRARY LIBPQ_INCLUDE_DIR)

if(LIBPQ_FOUND AND NOT TARGET LIBPQ::LIBPQ)
  add_library(LIBPQ::LIBPQ UNKNOWN IMPORTED)
  set_target_properties(LIBPQ::LIBPQ PROPERTIES IMPORTED_LOCATION ${LIBPQ_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${LIBPQ_INCLUDE_DIR})
endif()
