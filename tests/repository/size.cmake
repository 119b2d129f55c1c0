# cmake -D program=... -D strip=... -D most=BYTES -P size.cmake: the size of a program without its symbols.
execute_process(COMMAND ${strip} -o ${program}.stripped ${program} COMMAND_ERROR_IS_FATAL ANY)
file(SIZE ${program}.stripped size)
message(STATUS "${program} has ${size} bytes without symbols (at most ${most})")
if(size GREATER most)
  message(FATAL_ERROR "the program has more than ${most} bytes; see which functions of muster it links (nm --size-sort)")
endif()
