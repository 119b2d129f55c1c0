// Labels that are classes: whole numbers from 0, and their names.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 { namespace data {

/// Returns a label as a class: a whole number from 0, below `classes`. Throws data_error for any other label. The error
/// has no place; with_classes() throws errors with the place of the record.
[[nodiscard]] std::size_t class_of(float label, std::size_t classes);

/// Returns the records of a source, whose first label has to be a class: a whole number from 0, below `classes`. A
/// record with any other label is bad.
[[nodiscard]] any_record_source with_classes(any_record_source source, std::size_t classes);

/// Returns the records of a source with named classes: class k has the name names[k]. If the source has names
/// (record_schema::classes), its classes are matched by name and its labels are renumbered. The digest changes if the
/// source's names differ from `names`. Throws data_error for a class of the source that is not in `names`. If the
/// source has no names, its labels are unchanged, and a warning is logged.
[[nodiscard]] any_record_source with_classes(any_record_source source, const std::vector<std::string>& names);

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::class_of;
using data::with_classes;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
