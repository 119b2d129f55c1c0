// The steps of a chain that are no functions of the user's; private to loader.
#pragma once

#include <memory>

#include <muster/data/record_step.hpp>

namespace muster::inline v0::detail {

/// The start of a chain.
[[nodiscard]] std::unique_ptr<record_step> make_source_step(any_record_source source);
/// What cache() puts on a chain.
[[nodiscard]] std::unique_ptr<record_step> make_cache_step(cache_options options);

}  // namespace muster::inline v0::detail
