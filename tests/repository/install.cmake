# cmake -D build=... -D stage=... -P install.cmake: installs what was built, and nothing that lay there before.
file(REMOVE_RECURSE ${stage})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${stage} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE papers ${stage}/*/LICENSE ${stage}/*/settings.md)
list(LENGTH papers found)
if(NOT found EQUAL 2)
  message(FATAL_ERROR "the installed tree lacks the licence or the manual (found: ${papers}); see cmake/install.cmake")
endif()
