# The installed muster: headers, libraries, a CMake package with one export set a component, pkg-config files. Its
# components are packages of Debian (packages.cmake): dev and mpi_dev, lib_<part> for each shared library, programs, examples.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME dev)

# muster_dev_component(<variable> <part>): the component of what a program is compiled with that uses the part.
function(muster_dev_component variable part)
  set(component dev)
  if(part STREQUAL "mpi")
    set(component mpi_dev)
  endif()
  set(${variable} ${component} PARENT_SCOPE)
endfunction()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/muster)

set(left_out PATTERN "transports/mpi" EXCLUDE)  # the headers of parts that are not there, or in a component of their own
if(NOT nccl IN_LIST muster_alone)
  list(APPEND left_out PATTERN "transports/nccl" EXCLUDE PATTERN "core/device" EXCLUDE PATTERN "train/device" EXCLUDE)
endif()
if(NOT TARGET muster_serve)
  list(APPEND left_out PATTERN "muster/serve" EXCLUDE PATTERN "torch/script_predictor.hpp" EXCLUDE)
endif()
if(NOT TARGET muster_torch)
  list(APPEND left_out PATTERN "muster/torch" EXCLUDE)
endif()
install(DIRECTORY include/muster DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" ${left_out})
if(TARGET muster_mpi)
  install(DIRECTORY include/muster/comm/transports/mpi DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/muster/comm/transports
    COMPONENT mpi_dev FILES_MATCHING PATTERN "*.hpp")
endif()

if(TARGET muster_info)
  set(programs muster_info)
  if(TARGET muster_launch)
    list(APPEND programs muster_launch muster_store)
  endif()
  if(TARGET muster_data_program)
    list(APPEND programs muster_data_program)
  endif()
  if(NOT MUSTER_DEBIAN AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} AND NOT IS_ABSOLUTE ${CMAKE_INSTALL_BINDIR})
    file(RELATIVE_PATH to_libraries /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(${programs} PROPERTIES INSTALL_RPATH "$ORIGIN/${to_libraries}")  # wherever the tree is moved
  endif()
  if(LibParquet_LIBRARY)  # in a folder of Python, which no linker looks in
    set_property(TARGET ${programs} APPEND PROPERTY INSTALL_RPATH ${LibParquet_FOLDER})
  endif()
  install(TARGETS ${programs} DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endif()

install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(NOT MUSTER_DEBIAN)  # Debian has its own copy
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")

# find_package(muster COMPONENTS comm) must not meet a target that needs MPI: hence a file of targets for each part.
foreach(part IN LISTS muster_parts muster_alone)
  muster_dev_component(component ${part})
  install(TARGETS muster_${part} EXPORT muster-${part}-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT lib_${part} NAMELINK_COMPONENT ${component}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component}
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT muster-${part}-targets NAMESPACE muster:: DESTINATION ${package_dir} COMPONENT ${component})
  if(TARGET muster_${part}_plugin)
    install(FILES $<TARGET_OBJECTS:muster_${part}_plugin> DESTINATION ${CMAKE_INSTALL_LIBDIR}/muster RENAME ${part}.o
      COMPONENT ${component})
  endif()
endforeach()

set(muster_shared ${BUILD_SHARED_LIBS})
set(muster_uses)  # lines of muster-config.cmake
foreach(part IN LISTS muster_parts muster_alone)
  string(APPEND muster_uses "set(muster_${part}_uses ${muster_${part}_uses})\n")
endforeach()
configure_package_config_file(cmake/muster-config.cmake.in ${PROJECT_BINARY_DIR}/cmake/muster-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/muster-config-version.cmake
  COMPATIBILITY SameMinorVersion)  # while it is 0.x
install(FILES
  ${PROJECT_BINARY_DIR}/cmake/muster-config.cmake
  ${PROJECT_BINARY_DIR}/cmake/muster-config-version.cmake
  cmake/FindLIBPQ.cmake
  cmake/FindLibParquet.cmake
  cmake/FindLibTorch.cmake
  cmake/FindNCCL.cmake
  cmake/FindZSTD.cmake
  DESTINATION ${package_dir})

# The .pc files find the prefix from where they lie, however deep the library folder is (lib, lib/x86_64-linux-gnu).
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" pc_up ${pc_up})
  set(pc_prefix "\${pcfiledir}/${pc_up}")
endif()
foreach(dir IN ITEMS LIBDIR INCLUDEDIR)
  set(pc_${dir} ${CMAKE_INSTALL_${dir}})
  if(NOT IS_ABSOLUTE ${pc_${dir}})
    set(pc_${dir} "\${prefix}/${pc_${dir}}")
  endif()
endforeach()

# What a part has its users define, and the object of its plug-in, goes into its .pc file too: interface_of(<part>) sets
# definitions, object and requires.
function(interface_of part)
  get_target_property(definitions muster_${part} INTERFACE_COMPILE_DEFINITIONS)
  if(NOT definitions)  # NOTFOUND
    set(definitions)
  endif()
  set(object)
  if(TARGET muster_${part}_plugin)
    set(object "\${libdir}/muster/${part}.o")
  endif()
  list(TRANSFORM definitions PREPEND -D)
  list(TRANSFORM muster_${part}_uses PREPEND muster- OUTPUT_VARIABLE requires)
  foreach(list IN ITEMS definitions object requires)
    set(${list} ${${list}} PARENT_SCOPE)
  endforeach()
endfunction()

# muster_install_pc(<name> <description> REQUIRES ... LIBS ... CFLAGS ...)
function(muster_install_pc pc_name pc_description)
  cmake_parse_arguments(PARSE_ARGV 2 pc "" "" "REQUIRES;LIBS;CFLAGS")
  foreach(list IN ITEMS REQUIRES LIBS CFLAGS)
    list(JOIN pc_${list} " " pc_${list})
  endforeach()
  configure_file(cmake/muster.pc.in ${PROJECT_BINARY_DIR}/cmake/${pc_name}.pc @ONLY)
  string(REGEX REPLACE "^muster-" "" part ${pc_name})
  muster_dev_component(component ${part})
  install(FILES ${PROJECT_BINARY_DIR}/cmake/${pc_name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT ${component})
endfunction()

# What a static library needs at the end has to be said to whoever links it; a shared one knows it itself.
muster_install_pc(muster-core "What all parts of muster stand on"
  LIBS -L\${libdir} -lmuster_core -pthread CFLAGS -I\${includedir} -DMUSTER_COMPILED=1 -pthread)
muster_install_pc(muster-headers "muster without a library of its own" LIBS -pthread CFLAGS -I\${includedir} -pthread)
if(mpi IN_LIST muster_parts)
  list(TRANSFORM MPI_C_INCLUDE_DIRS PREPEND -I OUTPUT_VARIABLE mpi_includes)
  list(TRANSFORM MPI_C_COMPILE_DEFINITIONS PREPEND -D OUTPUT_VARIABLE mpi_definitions)
  interface_of(mpi)
  muster_install_pc(muster-mpi "muster over MPI" REQUIRES ${requires}
    LIBS ${object} -L\${libdir} -lmuster_mpi ${MPI_C_LINK_FLAGS} ${MPI_C_LIBRARIES}
    CFLAGS ${definitions} ${mpi_definitions} ${mpi_includes} ${MPI_C_COMPILE_OPTIONS})
endif()
# muster_install_part_pc(<part> <description> <libraries that a static one needs>...): nothing where it is not built.
function(muster_install_part_pc part description)
  if(NOT TARGET muster_${part})
    return()
  endif()
  set(libraries)
  if(NOT BUILD_SHARED_LIBS)
    list(TRANSFORM ARGN REPLACE "^([^-].*)$" "-l\\1" OUTPUT_VARIABLE libraries)
  endif()
  interface_of(${part})
  muster_install_pc(muster-${part} ${description} REQUIRES ${requires}
    LIBS ${object} -L\${libdir} -lmuster_${part} ${libraries} CFLAGS ${definitions})
endfunction()
set(tbb)
if(MUSTER_HAVE_TBB)
  set(tbb -ltbb)
endif()
muster_install_part_pc(data "Data ingestion of muster" ${tbb})
muster_install_part_pc(comm "Groups and collectives of muster")
muster_install_part_pc(elastic "Elastic groups of muster")
muster_install_part_pc(ps "The parameter server of muster")
muster_install_part_pc(train "What muster has between a model and the ranks")
muster_install_part_pc(zlib "Compressed files for muster" -lz)
# The second is "dl", or nothing where the C library has it.
muster_install_part_pc(tcp "muster over TCP" -lcrypto ${CMAKE_DL_LIBS})
muster_install_part_pc(zstd "Zstandard for muster" -lzstd)
if(MUSTER_HAVE_PNG)
  set(png_of_jpeg -lpng)
endif()
muster_install_part_pc(jpeg "JPEG for muster" -ljpeg ${png_of_jpeg})
muster_install_part_pc(postgres "PostgreSQL as a source for muster" -lpq)
if(TARGET muster_parquet)
  set(parquet_libraries -lparquet -larrow)
  if(LibParquet_LIBRARY)
    set(parquet_libraries ${LibParquet_LIBRARY} ${LibParquet_ARROW_LIBRARY} -Wl,-rpath,${LibParquet_FOLDER})
    list(TRANSFORM parquet_libraries REPLACE "^/" "-Wl,/")  # a path is no name of a library
  endif()
  muster_install_part_pc(parquet "Parquet as a source for muster" ${parquet_libraries})
endif()
muster_install_part_pc(etcd "A store for muster that an etcd keeps" -lcurl)
muster_install_part_pc(http "Servers of HTTP and S3 as sources for muster" -lcurl)
muster_install_part_pc(serve "A server for models" -lsimdjson)
if(TARGET muster_torch)
  get_filename_component(libtorch_folder ${LibTorch_LIBRARY} DIRECTORY)
  muster_install_pc(muster-torch "muster for models in LibTorch" REQUIRES muster-train
    LIBS -L${libtorch_folder} -Wl,-rpath,${libtorch_folder} -ltorch_cpu -lc10
    CFLAGS -DMUSTER_HAS_TORCH=1 -isystem ${LibTorch_INCLUDE_DIR} -isystem ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
endif()
muster_install_part_pc(nccl "muster among devices, by NCCL" -lnccl -L${CUDAToolkit_LIBRARY_DIR} -lcudart)
set(pc_parts ${muster_parts})
if(MUSTER_DEBIAN)  # muster-mpi.pc is in a package that may not be installed
  list(REMOVE_ITEM pc_parts mpi)
endif()
list(TRANSFORM pc_parts PREPEND muster-)
list(REVERSE pc_parts)  # a library before those that it uses
muster_install_pc(muster "${PROJECT_DESCRIPTION}" REQUIRES ${pc_parts})
