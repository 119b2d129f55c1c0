// Reads text as samples in memory, or as records that are parsed when they are read. This is the common part of the
// formats of text. Private to muster's own sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <muster/data/dataset.hpp>
#include <muster/data/open.hpp>
#include <muster/data/sources/mapped_file.hpp>
#include "blocked_records.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Returns the number of times that `text` has `byte`. As fast as memory.
[[nodiscard]] std::uint64_t count_byte(std::string_view text, char byte) noexcept;

/// Returns a word in quotes. A long word is truncated, and unprintable bytes are escaped.
[[nodiscard]] std::string quoted(std::string_view word);

/// The number of lines, rows and entries in a piece of text, which is counted before the piece is parsed.
struct text_survey {
  std::uint64_t lines = 0;
  std::uint64_t rows = 0;
  std::uint64_t entries = 0;
  std::uint64_t largest_index = 0;  // largest index, as written
  bool quotes = false;              // true if rows may have newlines within quotes

  text_survey& operator+=(const text_survey& addend);
};

/// A format of text. Text is read in two passes. The first pass is a survey, which counts each piece's rows and
/// entries as fast as memory. Then memory for all rows is allocated, and the second pass parses each piece into its
/// part of the memory. Only the second pass detects errors: a survey of faulty text may have wrong counts, but the
/// second pass never writes outside the piece's part. Several threads call all functions at the same time.
class text_format {
 public:
  explicit text_format(std::string path) : file(std::move(path)) {}
  virtual ~text_format() = default;

  /// Returns the size of the first piece of the text, which has about `bytes` bytes and ends at the end of a row. If
  /// `quotes` is false, the text has no quotes or quotes are ignored.
  [[nodiscard]] virtual std::size_t first_piece(std::string_view rest, std::size_t bytes, bool quotes) const;
  /// Counts the lines, rows and entries of a piece.
  [[nodiscard]] virtual text_survey survey(std::string_view piece) const = 0;
  /// Returns the number of features of the whole text, and true if rows are dense. Throws data_error for text without
  /// rows.
  [[nodiscard]] virtual std::pair<std::size_t, bool> shape(const text_survey& total) const = 0;
  /// Parses a piece into `rows`. `before` is the survey of the text in front of the piece, except that before.quotes is
  /// true if the whole text has quotes.
  virtual void parse(std::string_view piece, const text_survey& before, const row_places& rows) const = 0;

  const std::string file;          ///< name of the file, for errors
  std::size_t begin = 0;           ///< begin of the rows; the text in front is not a row
  text_survey start;               ///< survey of the text in front of `begin`
  std::uint64_t read_mode = 0;     ///< options of reading that are not in the schema: part of the digest
  std::vector<std::string> notes;  ///< guesses; see any_record_source::notes()
  table_names columns;             ///< names of columns, if the text is a table
};

/// Approximate size of a piece of text. Small enough for many pieces for each thread, and large enough that the cost of
/// starting a piece is small.
inline constexpr std::size_t text_piece_bytes = std::size_t{1} << 20;

/// Returns the samples of a text. The result does not depend on the size of pieces.
[[nodiscard]] dataset dataset_of_text(std::string_view text, const text_format& format, std::string name,
                                      const read_options& options, std::size_t piece_bytes = text_piece_bytes);

/// Returns the records of a text, which are parsed when they are read.
[[nodiscard]] any_record_source records_of_text(std::shared_ptr<const mapped_file> text,
                                                std::shared_ptr<const text_format> format, std::string name,
                                                const read_options& options, const text_limits& limits);

/// Opens a file of text in the format that `make` returns. With read_options::on_demand, a file of more than 64 MiB
/// (after decompression) is not kept in memory. Memory holds only an index and the blocks that were parsed last, less
/// than 256 MiB in total. Opening reads the text once, to count its rows. The error of a faulty line is reported when
/// the line is read: as a data_error or, with read_options::keep_bad_records, as a bad record. The digest of such a
/// file covers the text, the schema and the options of reading.
[[nodiscard]] opened_source open_text(
    std::string name, const std::string& path, const read_options& options,
    const std::function<std::shared_ptr<const text_format>(std::string_view text)>& make);

}}}  // namespace muster::v0::detail
