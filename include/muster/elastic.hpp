// Elastic sessions, for a program with its own training loop: ranks leave, fail and join, and the state goes on.
#pragma once

#include <muster/collectives.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/elastic/elastic.hpp>
#include <muster/elastic/followed_data.hpp>
#include <muster/elastic/place_shards.hpp>
#include <muster/elastic/session.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>

#ifndef MUSTER_COMPILED
#include <muster/elastic/detail/definitions.hpp>
#endif
