// The description of a source of data by muster-data: format, columns, classes, and the first samples.
#pragma once

#include <string>

#include <muster/data/bad_records.hpp>
#include <muster/data/dataset.hpp>

#include "print.hpp"

/// Returns the options with which muster-data opens a source.
muster::read_options options_for(bool keep_bad_records, int threads);

/// Opens a source, and shows that this lasts: a text is read from its begin to its end.
muster::any_record_source open_visibly(const std::string& specification, const muster::read_options& options);

/// Returns the file or folder of a `records:` source, without `?follow`. Returns an empty text for another source.
std::string path_of_records(const std::string& specification);

/// Returns the place and the problem of a bad record.
json describe_bad(const muster::bad_record& bad);

/// Returns the properties of a source. Reads at most the first 256 records, for the number of missing values, and for
/// the first two samples as a program receives them.
json describe_source(const std::string& specification, int threads);
