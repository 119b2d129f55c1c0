# Packages of Debian by `cpack -G DEB` (the preset "debian"): a package for each component of install.cmake.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME muster)
set(CPACK_PACKAGE_VENDOR "The muster authors")
set(CPACK_PACKAGE_CONTACT "The muster authors <maintainers@muster.invalid>" CACHE STRING "Maintainer of the packages")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/src)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)

execute_process(COMMAND gzip -9nc ${PROJECT_SOURCE_DIR}/packaging/changelog
  OUTPUT_FILE ${PROJECT_BINARY_DIR}/changelog.Debian.gz COMMAND_ERROR_IS_FATAL ANY)
set(muster_about "muster trains one model on many ranks: threads, processes or hosts.\nRanks may die, join and leave.")
set(CPACK_COMPONENTS_ALL)

# muster_package(<component> <package> <section> <summary> [DEPENDS <components>...] [PACKAGES <dependencies>]
# [RECOMMENDS <packages>] [MORE <sentences>])
function(muster_package component package section summary)
  cmake_parse_arguments(PARSE_ARGV 4 more "" "PACKAGES;RECOMMENDS;MORE" "DEPENDS")
  string(TOUPPER ${component} upper)
  install(FILES packaging/copyright ${PROJECT_BINARY_DIR}/changelog.Debian.gz DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package}
    COMPONENT ${component})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${more_PACKAGES}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_PACKAGE_RECOMMENDS "${more_RECOMMENDS}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${muster_about}\n${more_MORE}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${upper}_DEPENDS ${more_DEPENDS} PARENT_SCOPE)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)
endfunction()

set(libraries)
foreach(part IN LISTS muster_parts muster_alone)
  get_target_property(type muster_${part} TYPE)
  if(type STREQUAL "SHARED_LIBRARY")
    list(TRANSFORM muster_${part}_uses PREPEND lib_ OUTPUT_VARIABLE uses)
    muster_package(lib_${part} libmuster-${part}${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR} libs
      "distributed training for C++ (library ${part})" DEPENDS ${uses} MORE "This package has the shared library muster::${part}.")
    string(TOUPPER ${part} upper)
    set(CPACK_DEBIAN_LIB_${upper}_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/triggers)
    list(APPEND libraries lib_${part})
  endif()
endforeach()
set(without_mpi ${libraries})
list(REMOVE_ITEM without_mpi lib_mpi)
muster_package(dev libmuster-dev libdevel "distributed training for C++ (headers)" DEPENDS ${without_mpi} RECOMMENDS nlohmann-json3-dev
  MORE "This package has the headers, the CMake package and the pkg-config files\nof all parts except muster::mpi, and the manual.")
if(TARGET muster_mpi)
  muster_package(mpi_dev libmuster-mpi-dev libdevel "distributed training for C++ (headers, MPI)" DEPENDS dev lib_mpi
    PACKAGES libopenmpi-dev MORE "This package has the headers, the CMake package and the pkg-config file\nof muster::mpi.")
endif()
muster_package(programs muster-tools utils "distributed training for C++ (programs)" DEPENDS ${libraries} PACKAGES python3
  RECOMMENDS "python3-yaml, python3-matplotlib" MORE "This package has the launcher, the store, the programs for data, and the\nbenchmark platform.")
if(MUSTER_BUILD_EXAMPLES)
  muster_package(examples muster-examples misc "distributed training for C++ (examples)" DEPENDS ${libraries}
    RECOMMENDS "libmuster-dev, muster-tools"
    MORE "This package has the sources of the examples and the programs of the\nreference tasks.")
endif()
include(CPack)
