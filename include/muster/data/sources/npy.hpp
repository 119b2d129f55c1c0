// Arrays in NumPy's file format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <string>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 { namespace data {

/// Opens an array. Record i is array[i], and its field is named "values". `labels` names an NPY file of shape (n) with
/// a number for each record, or of shape (n, k) with k labels for each record. If `labels` is empty, there are no
/// labels. The files are mapped. Throws data_error.
[[nodiscard]] fixed_records open_npy(const std::string& path, const std::string& labels = "",
                                     const http_options& http = {});

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
