// The text format of LIBSVM and SVMlight: one sample a line, `label index:value index:value ...`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <muster/data/dataset.hpp>
#include <muster/data/sources/mapped_file.hpp>  // also so that a program with muster::zlib reads .gz

namespace muster::inline v0 {

/// Reads a LIBSVM file, plain or gzip.
///
/// A label is any finite number (`-1`, `+1`, `0`, `3`). Indices count from 1, ascend and are at most 2^32 - 1; values
/// are finite and read as std::from_chars<float> reads them, one too small for a float being zero. Words are separated
/// by blanks and tabs; `#` starts a comment; blank lines, CRLF and a missing newline at the end are all right. The
/// `qid:` of ranking data is refused.
///
/// Holds the text and the result, and no more; reads in parallel. Throws data_error naming file, line and column of the
/// first thing that is wrong.
[[nodiscard]] dataset read_libsvm(const std::string& path, const read_options& options = {});

/// The same from text in memory; `name` stands for the file in errors and becomes the dataset's name.
[[nodiscard]] dataset parse_libsvm(std::string_view text, const std::string& name, const read_options& options = {});

/// A file as records. One of more than 64 MiB (once decompressed) is not held: an index of it is, and the blocks that
/// were parsed last, less than 256 MiB in all. It is gone over once, at opening, to count; what is wrong with a line is
/// told when that is read, as a data_error or, with read_options::keep_bad_records, a bad record. Its digest is of the
/// text. What is smaller is read_libsvm().
[[nodiscard]] any_record_source libsvm_source(const std::string& path, const read_options& options = {});

namespace detail {

/// parse_libsvm() with the size of the pieces that threads share, so that tests can make them small. The result does
/// not depend on it. `file` is for errors.
[[nodiscard]] dataset parse_libsvm(std::string_view text, const std::string& file, std::string name,
                                   const read_options& options, std::size_t piece_bytes);

/// libsvm_source() of whatever size.
[[nodiscard]] any_record_source libsvm_records(std::shared_ptr<const mapped_file> text, const std::string& file,
                                               const read_options& options, const text_limits& limits);

}  // namespace detail

}  // namespace muster::inline v0
