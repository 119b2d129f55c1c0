# Read by CMake after project(): a user whose own warnings are strict, and who takes muster's headers as they are (by
# default CMake makes those of imported targets system headers, whose warnings the compiler hides).
add_compile_options(-Wall -Wextra -Wpedantic -Wconversion -Werror)
set(CMAKE_NO_SYSTEM_FROM_IMPORTED ON)
