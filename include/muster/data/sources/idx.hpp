// The IDX format of MNIST and similar data sets (http://yann.lecun.com/exdb/mnist/).
#pragma once

#include <string>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 { namespace data {

/// Opens an IDX file, plain or compressed. Record i is slice i along the first extent, with the shape of the remaining
/// extents. Its field is named "image" if there are two remaining extents and "values" otherwise. `labels` names an IDX
/// file of shape (n) with a label for each record, or of shape (n, k) with k labels for each record. If `labels` is
/// empty, there are no labels. A plain file of bytes is mapped. Other numbers are converted to this machine's byte
/// order in memory. Throws data_error with the place.
[[nodiscard]] fixed_records open_idx(const std::string& path, const std::string& labels = "",
                                     const http_options& http = {});

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
