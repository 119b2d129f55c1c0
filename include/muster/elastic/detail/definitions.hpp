// All definitions of muster::elastic and of the layers below it, for a program that compiles muster from its headers
// alone.
#pragma once

#include <muster/comm/detail/definitions.hpp>
#include <muster/data/detail/definitions.hpp>

#include <muster/elastic/detail/elastic_backend-inl.hpp>
#include <muster/elastic/detail/elastic_settings-inl.hpp>
#include <muster/elastic/detail/followed_data-inl.hpp>
#include <muster/elastic/detail/member_links-inl.hpp>
#include <muster/elastic/detail/place_shards-inl.hpp>
#include <muster/elastic/detail/rebuild-inl.hpp>
#include <muster/elastic/detail/session-inl.hpp>
#include <muster/elastic/detail/state-inl.hpp>
#include <muster/elastic/detail/state_transfer-inl.hpp>
