// Statistics of the training data, with the reading shared by the ranks.
#pragma once

#include <muster/comm/group.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/statistics.hpp>

namespace muster { inline namespace v0 {

/// statistics(of), each rank reading a part. Collective; the same bits at every rank, and for any number of them. What
/// the source knows already is taken from rank 0. Throws at every rank where one cannot read its part: at that one what
/// reading threw, else data_error; and what collectives throw.
[[nodiscard]] source_statistics statistics(const loader& of, group& among);

}}  // namespace muster::v0
