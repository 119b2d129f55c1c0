# cmake -D stage=... -D source=... -P exported_flags.cmake: the installed package tells consumers nothing of how muster
# itself was compiled, and nothing of where its sources and build lay.
file(GLOB_RECURSE files ${stage}/*-targets*.cmake ${stage}/muster-config.cmake ${stage}/*.pc)
if(NOT files)
  message(FATAL_ERROR "no package was installed under ${stage}")
endif()
foreach(file IN LISTS files)
  file(READ ${file} text)
  foreach(forbidden IN ITEMS "-W(all|extra|error|pedantic|shadow|conversion)" "-march" "-fsanitize" "-O[0-9s]" "muster_build_flags" "muster_native_flags" "${source}")
    if(text MATCHES "${forbidden}")
      message(SEND_ERROR "${file} holds '${forbidden}', which is no business of consumers")
    endif()
  endforeach()
endforeach()
