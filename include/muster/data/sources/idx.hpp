// The IDX format of MNIST and its kin (http://yann.lecun.com/exdb/mnist/).
#pragma once

#include <string>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 {

/// Opens an IDX file, plain or compressed: record i is slice i along the first extent, of the others' shape, named
/// "image" when they are two and "values" otherwise. `labels` names an IDX file of shape (n) with a label for each, or
/// of shape (n, k) with k labels each, or is empty for none. A plain file of bytes is mapped; other numbers are turned
/// into this machine's byte order in memory. Throws data_error with the place.
[[nodiscard]] fixed_records open_idx(const std::string& path, const std::string& labels = "",
                                     const http_options& http = {});

}}  // namespace muster::v0
