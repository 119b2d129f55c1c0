// Updates: one step of an optimizer over spans, in one pass over memory. The loops have no branches, so that the
// compiler vectorises them. Each element's arithmetic is independent, so spans may be cut anywhere. GCC vectorises the
// square roots of Adam and AdaGrad only with -fno-math-errno.
#pragma once

#include <muster/core/update/adagrad.hpp>
#include <muster/core/update/adam.hpp>
#include <muster/core/update/assign.hpp>
#include <muster/core/update/lars.hpp>
#include <muster/core/update/sgd.hpp>
#include <muster/core/update/update_step.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
