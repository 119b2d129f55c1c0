#pragma once

#include <muster/core/source_patience.hpp>

#include <algorithm>
#include <atomic>

#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

inline constinit std::atomic<double> source_patience{seconds::max().count()};

MUSTER_INLINE void limit_source_patience(seconds limit) noexcept { source_patience = limit.count(); }

MUSTER_INLINE seconds within_source_patience(seconds timeout) noexcept {
  return std::min(timeout, seconds(source_patience.load()));
}

}}}  // namespace muster::v0::detail
