// Records as samples in memory.
#pragma once

#include <muster/data/dataset.hpp>
#include <muster/data/record_source.hpp>

namespace muster::inline v0 {

/// Reads all records of a source into a dataset: the numbers of a fixed record, whatever their types, become its
/// features, field after field; a sparse record stays one. The label is the first one, or 0 where there are none. Bad
/// records are errors, or kept with read_options::keep_bad_records.
///
/// Throws configuration_error for records of bytes, which have no numbers, and for a layout that the records do not
/// have; data_error for the first bad record.
[[nodiscard]] dataset load(const any_record_source& source, const read_options& options = {});

}  // namespace muster::inline v0
