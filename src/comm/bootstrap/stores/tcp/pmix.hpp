// What the launcher's PMIx carries between the ranks: one text, from rank 0 to all.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Collective over all ranks that a launcher with PMIx (https://pmix.org) started together: what `text_of_first` makes
/// at rank 0, at every rank. Nothing, and why, where there is no PMIx to be had, or it numbers this rank otherwise.
/// libpmix is loaded when it is needed and not before. Works beside an MPI of the same process that uses it too,
/// before, after and during. Throws timeout_error. One thread at a time.
[[nodiscard]] std::optional<std::string> share_by_pmix(int rank, const std::function<std::string()>& text_of_first,
                                                       clock::time_point until, std::string& why_not);

}}}  // namespace muster::v0::detail
