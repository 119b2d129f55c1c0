// Uses the launcher's PMIx to send one text from rank 0 to all ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Returns the result of `text_of_first` at rank 0, at every rank. Collective over all ranks that a launcher with PMIx
/// (https://pmix.org) started together. Returns nothing, and sets `why_not`, if PMIx is not available or assigns
/// another number to this rank. libpmix is loaded at the first use. It works beside an MPI of the same process that
/// uses PMIx too, before, during and after MPI. Throws timeout_error. Used by at most one thread at a time.
[[nodiscard]] std::optional<std::string> share_by_pmix(int rank, const std::function<std::string()>& text_of_first,
                                                       clock::time_point until, std::string& why_not);

#ifndef MUSTER_COMPILED
inline std::optional<std::string> share_by_pmix(int, const std::function<std::string()>&, clock::time_point,
                                                std::string& why_not) {
  why_not = "muster's headers are used without its library";
  return std::nullopt;
}
#endif

}}}  // namespace muster::v0::detail
