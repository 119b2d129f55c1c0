// Statistics of the training data, read by all ranks together.
#pragma once

#include <muster/comm/group.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/source_statistics.hpp>

namespace muster { inline namespace v0 {

/// Returns the same result as `statistics(training_data)`, with a part of the data read by each rank. Collective. The
/// result has the same bits at every rank and for any number of ranks. Statistics that the source already knows are
/// those at rank 0. Throws at every rank where any rank cannot read its part: at that rank the exception of the read,
/// at the others data_error. Also throws the errors of collectives.
[[nodiscard]] source_statistics statistics(const loader& training_data, group& ranks);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
