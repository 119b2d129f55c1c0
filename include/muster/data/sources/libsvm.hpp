// The text format of LIBSVM and SVMlight: one sample a line, `label index:value index:value ...`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <muster/data/dataset.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data {

/// Reads a LIBSVM file, plain or compressed (gzip or Zstandard).
///
/// A label is any finite number (`-1`, `+1`, `0`, `3`). Indices count from 1, ascend and are at most 2^32 - 1. Values
/// are finite and read like std::from_chars<float>. A value too small for a float is zero. Words are separated by
/// blanks and tabs, and `#` starts a comment. Blank lines, CRLF and a missing newline at the end are accepted. The
/// `qid:` field of ranking data is refused.
///
/// Holds only the text and the result in memory. Reads in parallel. Throws data_error naming file, line and column of
/// the first error.
[[nodiscard]] dataset read_libsvm(const std::string& path, const read_options& options = {});

/// Parses text in memory in the same way. `name` replaces the file name in errors and becomes the dataset's name.
[[nodiscard]] dataset parse_libsvm(std::string_view text, const std::string& name, const read_options& options = {});

namespace detail {

class text_format;

/// Returns the format by which open_source() reads a LIBSVM file. `file` is used in errors.
[[nodiscard]] std::shared_ptr<const text_format> format_of_libsvm(const std::string& file, const read_options& options);

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
