# cmake -D source=... -D build=... -D options=... -D targets=... -P build_consumer.cmake: configures and builds a project
# from nothing, so that no answer of a former run stands in its cache.
file(REMOVE_RECURSE ${build}/CMakeCache.txt ${build}/CMakeFiles)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${source} -B ${build} ${options} COMMAND_ERROR_IS_FATAL ANY)
set(target_options)
if(targets)
  set(target_options --target ${targets})
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} --parallel 2 ${target_options} COMMAND_ERROR_IS_FATAL ANY)
