// Updates: one step of an optimizer over spans, in one pass over memory. Their loops have no branches, so that they are
// as wide as the vectors of the machine; each element's arithmetic stands by itself, so spans may be cut anywhere. GCC
// makes vectors of the roots of Adam and AdaGrad with -fno-math-errno alone.
#pragma once

#include <muster/core/update/adagrad.hpp>
#include <muster/core/update/adam.hpp>
#include <muster/core/update/assign.hpp>
#include <muster/core/update/lars.hpp>
#include <muster/core/update/sgd.hpp>
#include <muster/core/update/step.hpp>
