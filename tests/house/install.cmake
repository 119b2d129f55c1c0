# cmake -D build=... -D stage=... -P install.cmake: installs what was built, and nothing that lay there before.
file(REMOVE_RECURSE ${stage})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${build} --prefix ${stage} COMMAND_ERROR_IS_FATAL ANY)
