# muster_add_mpi_test(<name> <target> RANKS <n> [ARGS <words>...] [TIMEOUT <seconds>] [LABELS <labels>...])
# A CTest test that starts <target> on <n> ranks with mpirun. Does nothing where muster is built without MPI.
function(muster_add_mpi_test name target)
  cmake_parse_arguments(PARSE_ARGV 2 test "" "RANKS;TIMEOUT" "ARGS;LABELS")
  if(NOT TARGET muster::mpi)
    return()
  endif()
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 60)
  endif()
  add_test(NAME ${name} COMMAND ${MUSTER_MPIRUN} ${MPIEXEC_NUMPROC_FLAG} ${test_RANKS} $<TARGET_FILE:${target}>
    ${test_ARGS})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_TIMEOUT} PROCESSORS ${test_RANKS} LABELS "${test_LABELS}"
    ENVIRONMENT "${MUSTER_MPIRUN_ENVIRONMENT}")
endfunction()

# MUSTER_MPIRUN is the launcher with what a test needs of it, for tests that write their own command line; they also set
# MUSTER_MPIRUN_ENVIRONMENT.
set(MUSTER_MPIRUN ${MPIEXEC_EXECUTABLE})
set(MUSTER_MPIRUN_ENVIRONMENT)
if(MPI_C_LIBRARY_VERSION_STRING MATCHES "Open MPI")
  # More ranks than cores are wanted here; and without --bind-to none the ranks of tests that run at the same time would
  # all sit on the same first cores.
  if(MUSTER_HAVE_ULFM)
    list(APPEND MUSTER_MPIRUN --with-ft ulfm --map-by :OVERSUBSCRIBE --bind-to none)
  else()
    list(APPEND MUSTER_MPIRUN --oversubscribe --bind-to none)
  endif()
  foreach(launcher OMPI PRTE)  # containers run as root
    list(APPEND MUSTER_MPIRUN_ENVIRONMENT ${launcher}_ALLOW_RUN_AS_ROOT=1 ${launcher}_ALLOW_RUN_AS_ROOT_CONFIRM=1)
  endforeach()
  if(MUSTER_SANITIZE MATCHES "address")
    # Open MPI's own leaks; the slow unwinder sees the callers in it by which they are known. LeakSanitizer crashes where
    # it looks into the thread-local memory of Open MPI's threads.
    list(APPEND MUSTER_MPIRUN_ENVIRONMENT ASAN_OPTIONS=fast_unwind_on_malloc=0
      LSAN_OPTIONS=use_tls=0:print_suppressions=0:suppressions=${PROJECT_SOURCE_DIR}/tests/suppressions/leaks.txt)
  endif()
  if(MUSTER_SANITIZE MATCHES "thread")
    list(APPEND MUSTER_MPIRUN_ENVIRONMENT
      TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/suppressions/threads.txt)
  endif()
endif()
