// A training loop and what it needs: ranks, data, a model's arena, optimizers, schedules, checkpoints.
#pragma once

#include <muster/comm/context.hpp>
#include <muster/data.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/training.hpp>

#ifndef MUSTER_COMPILED
#include <muster/train/detail/definitions.hpp>
#endif
