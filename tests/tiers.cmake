# Tiers of tests (docs/testing.md): the label of a test is the first tier that runs it. No label: the default tier.

# muster_tier(quick|all|long <tests>...): gives these tests a tier.
function(muster_tier tier)
  set_property(TEST ${ARGN} PROPERTY LABELS ${tier})
endfunction()

# Programs of the quick tier; tools/test.sh --quick builds these alone.
add_custom_target(quick)
