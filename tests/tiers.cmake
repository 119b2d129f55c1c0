# Tiers of tests (docs/testing.md): the label of a test is the first tier that runs it. No label: the default tier.

# muster_tier(quick|all|long <tests>...): gives these tests a tier.
function(muster_tier tier)
  set_property(TEST ${ARGN} PROPERTY LABELS ${tier})
endfunction()

# muster_tier_of_rest(<tier> [<regex>]): gives a tier to the tests of this folder that have none yet and match.
function(muster_tier_of_rest tier)
  get_property(tests DIRECTORY PROPERTY TESTS)
  if(ARGN)
    list(FILTER tests INCLUDE REGEX ${ARGN})
  endif()
  foreach(test IN LISTS tests)
    get_test_property(${test} LABELS label)
    if(NOT label)
      muster_tier(${tier} ${test})
    endif()
  endforeach()
endfunction()

# Programs of the quick tier; tools/test.sh --quick builds these alone.
add_custom_target(quick)
