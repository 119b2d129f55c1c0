// Text as samples in memory or as records that are parsed when they are read: what its formats share; private to
// muster's own sources.
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

/// How often `byte` is in `text`, at the speed of memory.
[[nodiscard]] std::uint64_t count_byte(std::string_view text, char byte) noexcept;

/// A word in quotes, cut if it is long, with escapes for what does not print.
[[nodiscard]] std::string quoted(std::string_view word);

/// What a piece of text holds, as it is counted before it is parsed.
struct text_survey {
  std::uint64_t lines = 0;
  std::uint64_t rows = 0;
  std::uint64_t entries = 0;
  std::uint64_t largest = 0;  // index, as written
  bool quotes = false;        // whether rows may hold newlines

  text_survey& operator+=(const text_survey& other);
};

/// A format of text. The text is gone over twice: a survey counts what each piece holds, at the speed of memory; then
/// there is a place for everything, and pieces are parsed right into theirs. Only the second pass judges: what is wrong
/// may survey wrongly, but nothing is written outside its place. All functions are called by several threads at once.
class text_format {
 public:
  explicit text_format(std::string path) : file(std::move(path)) {}
  virtual ~text_format() = default;

  /// How long a first piece of the text is, of about so many bytes and at the end of a row. Without `quotes` there are
  /// none, or they are not looked at.
  [[nodiscard]] virtual std::size_t first_piece(std::string_view rest, std::size_t bytes, bool quotes) const;
  /// What a piece holds.
  [[nodiscard]] virtual text_survey look_over(std::string_view piece) const = 0;
  /// The features of all of it, and whether they are dense; a data_error for text without rows.
  [[nodiscard]] virtual std::pair<std::size_t, bool> shape(const text_survey& total) const = 0;
  /// Parses a piece that `before` comes before, which tells of the whole text whether it has quotes.
  virtual void parse(std::string_view piece, const text_survey& before, const row_places& to) const = 0;

  const std::string file;          ///< for errors
  std::size_t begin = 0;           ///< of the text: what is before it is no row
  text_survey start;               ///< what that has
  std::uint64_t way = 0;           ///< how the text is read, beside the schema: part of the digest
  std::vector<std::string> notes;  ///< guesses; see any_record_source::notes()
  table_names columns;             ///< names, if the text is a table
};

/// Text is parsed in pieces of about this size: many for the threads, each long beside what starting it takes.
inline constexpr std::size_t text_piece_bytes = std::size_t{1} << 20;

/// The samples of a text. The result does not depend on the size of pieces.
[[nodiscard]] dataset dataset_of_text(std::string_view text, const text_format& format, std::string name,
                                      const read_options& options, std::size_t piece_bytes = text_piece_bytes);

/// Its records, parsed when they are read.
[[nodiscard]] any_record_source records_of_text(std::shared_ptr<const mapped_file> text,
                                                std::shared_ptr<const text_format> format, std::string name,
                                                const read_options& options, const text_limits& limits);

/// A file of text by the format that `make` makes of it. With read_options::on_demand one of more than 64 MiB (once
/// decompressed) is not held: an index of it is, and the blocks that were parsed last, less than 256 MiB in all. It is
/// gone over once, at opening, to count; what is wrong with a line is told when that is read, as a data_error or, with
/// read_options::keep_bad_records, a bad record. Its digest is of the text.
[[nodiscard]] opened_source open_text(
    std::string name, const std::string& path, const read_options& options,
    const std::function<std::shared_ptr<const text_format>(std::string_view text)>& make);

}}}  // namespace muster::v0::detail
