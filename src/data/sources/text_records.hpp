// Text as records that are parsed when they are read; private to the readers of text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <muster/data/dataset.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>
#include "blocked_records.hpp"
#include "scan.hpp"

namespace muster::inline v0::detail {

/// What a format of text knows. All of it is called by several threads at once.
struct text_format {
  std::string name;       ///< of the source
  std::string file;       ///< for errors
  std::size_t begin = 0;  ///< of the text: what is before it is no record
  text_survey start;      ///< what that has
  std::uint64_t way = 0;  ///< how the text is read, beside the schema: part of the digest
  /// How long a first piece of the text is, of about so many bytes and at the end of a record. Without `quotes` there
  /// are none, or they are not looked at.
  std::function<std::size_t(std::string_view rest, std::size_t bytes, bool quotes)> first_piece;
  /// What a piece holds.
  std::function<text_survey(std::string_view piece)> look_over;
  /// What all of it is, or a data_error.
  std::function<record_schema(const text_survey& total)> schema;
  /// Parses a piece that `before` comes before.
  std::function<void(std::string_view piece, const text_survey& before, record_block& to)> parse;
};

/// The records of such a text.
[[nodiscard]] blocked_records records_of_text(std::shared_ptr<const mapped_file> text, text_format format,
                                              const read_options& options, const text_limits& limits);

}  // namespace muster::inline v0::detail
