// Arrays in NumPy's own file format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <string>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 {

/// Opens an array: record i is array[i], named "values". `labels` names an NPY file of shape (n) with a number for each
/// record, or of shape (n, k) with k labels each, or is empty for none. The files are mapped. Throws data_error.
[[nodiscard]] fixed_records open_npy(const std::string& path, const std::string& labels = "",
                                     const http_options& http = {});

}}  // namespace muster::v0
