# Finds LibTorch: LibTorch_FOUND, LibTorch_VERSION and the target LibTorch::LibTorch. Looks where find_package(Torch) does: in
# Torch_DIR, Torch_ROOT and CMAKE_PREFIX_PATH, such as the path that Python's torch.utils.cmake_prefix_path names, and in the
# system. Unlike TorchConfig.cmake it enables no language, and finds a LibTorch for CUDA on a machine without CUDA's toolkit: the
# target then has the part for the host. A project that has called find_package(Torch) keeps what that has found.
set(libtorch_hints)
foreach(hint IN LISTS Torch_DIR Torch_ROOT CMAKE_PREFIX_PATH ITEMS $ENV{Torch_ROOT} $ENV{Torch_DIR})
  # The folder itself, and those above share/cmake and share/cmake/Torch.
  list(APPEND libtorch_hints ${hint} ${hint}/../.. ${hint}/../../..)
endforeach()
find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/version.h HINTS ${libtorch_hints} PATH_SUFFIXES include)
find_library(LibTorch_LIBRARY torch_cpu HINTS ${libtorch_hints} PATH_SUFFIXES lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${libtorch_hints} PATH_SUFFIXES lib)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_LIBRARY LibTorch_C10_LIBRARY)

set(LibTorch_VERSION)
if(LibTorch_INCLUDE_DIR)
  foreach(file IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT LibTorch_VERSION AND EXISTS ${LibTorch_INCLUDE_DIR}/${file})
      file(STRINGS ${LibTorch_INCLUDE_DIR}/${file} libtorch_lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      list(TRANSFORM libtorch_lines REPLACE ".* ([0-9]+)$" "\\1")
      list(JOIN libtorch_lines "." LibTorch_VERSION)
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET LibTorch::LibTorch)
  # Libraries of different C++ ABIs link, and fail at the first std::string.
  get_filename_component(libtorch_folder ${LibTorch_LIBRARY} DIRECTORY)
  set(libtorch_abi 1)
  foreach(file IN ITEMS ${libtorch_folder}/../share/cmake/Torch/TorchConfig.cmake ${libtorch_folder}/cmake/Torch/TorchConfig.cmake)
    if(EXISTS ${file})
      file(STRINGS ${file} libtorch_lines REGEX "_GLIBCXX_USE_CXX11_ABI=[01]")
      if(libtorch_lines MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
        set(libtorch_abi ${CMAKE_MATCH_1})
      endif()
    endif()
  endforeach()
  set(libtorch_own_abi 1)
  if("${CMAKE_CXX_FLAGS} ${TORCH_CXX_FLAGS}" MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
    set(libtorch_own_abi ${CMAKE_MATCH_1})
  endif()
  if(NOT libtorch_abi EQUAL libtorch_own_abi)
    message(FATAL_ERROR "LibTorch ${LibTorch_VERSION} in ${libtorch_folder} has another C++ ABI (it was built with "
      "_GLIBCXX_USE_CXX11_ABI=${libtorch_abi}, and this project with ${libtorch_own_abi}); build all of the project with "
      "-DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=${libtorch_abi}, or use another LibTorch (-DTorch_ROOT=...)")
  endif()
  if(CMAKE_CXX_FLAGS MATCHES "-std=(c|gnu)\\+\\+(98|03|0x|11|14|17)( |$)" OR (CMAKE_CXX_STANDARD AND CMAKE_CXX_STANDARD MATCHES "^(98|11|14|17)$"))
    message(FATAL_ERROR "muster::torch cannot be compiled as this project is (C++20 is needed, and CMAKE_CXX_STANDARD is "
      "'${CMAKE_CXX_STANDARD}', CMAKE_CXX_FLAGS '${CMAKE_CXX_FLAGS}'); set -DCMAKE_CXX_STANDARD=20, and no -std in the flags")
  endif()
  add_library(LibTorch::LibTorch INTERFACE IMPORTED)
  set_target_properties(LibTorch::LibTorch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  if(TARGET torch)  # the project's own find_package(Torch)
    set_property(TARGET LibTorch::LibTorch PROPERTY INTERFACE_LINK_LIBRARIES ${TORCH_LIBRARIES})
  else()
    foreach(part IN ITEMS LIBRARY C10_LIBRARY)
      add_library(LibTorch::${part} SHARED IMPORTED)
      set_target_properties(LibTorch::${part} PROPERTIES IMPORTED_LOCATION ${LibTorch_${part}})
    endforeach()
    set_property(TARGET LibTorch::LibTorch PROPERTY INTERFACE_LINK_LIBRARIES LibTorch::LIBRARY LibTorch::C10_LIBRARY)
  endif()
endif()
