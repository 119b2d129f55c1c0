// The parameter server alone: tables on servers, pushes and pulls of workers.
#pragma once

#include <muster/comm/context.hpp>
#include <muster/ps/client.hpp>
#include <muster/ps/consistency.hpp>
#include <muster/ps/job.hpp>
#include <muster/ps/table.hpp>

#ifndef MUSTER_COMPILED
#include <muster/ps/detail/definitions.hpp>
#endif
