// Reads text as samples in memory, or as records that are parsed when they are read. This is the common part of the
// formats of text. Private to muster's own sources.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/data/cache/content_digest.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/open.hpp>
#include <muster/data/sources/blocked_records.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

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

// Largest number of blocks. The index has about 60 bytes for each block, so a larger text has larger blocks.
inline constexpr std::size_t most_text_blocks = std::size_t{1} << 18;
// Largest size of a parsed block. The cache holds several blocks, and each thread parses a block.
inline constexpr std::uint64_t most_block_bytes = std::uint64_t{4} << 20;
// Largest size of the text that stays mapped. Calling forget() after each block would cost a sixth of the time of
// parsing.
inline constexpr std::size_t most_mapped = std::size_t{16} << 20;

// A text in pieces, with a survey for each piece.
struct surveyed_text {
  std::vector<std::string_view> pieces;
  // Survey of the text in front of each piece, followed by the survey of the whole text.
  std::vector<text_survey> before;
  std::uint64_t content = 0;  // digest of the text, if the text is from a file

  [[nodiscard]] std::uint64_t rows(std::size_t piece) const { return before[piece + 1].rows - before[piece].rows; }
  [[nodiscard]] std::uint64_t entries(std::size_t piece) const {
    return before[piece + 1].entries - before[piece].entries;
  }
};

// Limits the mapped part of a file's text: calls mapped_file::forget() whenever most_mapped bytes were used. Thread
// safe.
class mapped_text {
 public:
  explicit mapped_text(const mapped_file* file) : file_(file) {}

  void used(std::string_view part) {
    constexpr std::size_t mapped_at_once = std::size_t{2} << 20;  // a folio: the kernel maps all its pages together
    if (file_ == nullptr) return;
    const auto folio = reinterpret_cast<std::uintptr_t>(part.data()) / mapped_at_once;
    const std::size_t more = folio_.exchange(folio) == folio ? part.size() : std::max(part.size(), mapped_at_once);
    if (mapped_.fetch_add(more) + more < most_mapped) return;
    mapped_ = 0;
    file_->forget();
  }

 private:
  const mapped_file* file_;
  std::atomic<std::uintptr_t> folio_{0};  // folio of the previous part
  std::atomic<std::size_t> mapped_{0};
};

inline surveyed_text survey_text(std::string_view text, const text_format& format, std::size_t piece_bytes, int threads,
                                 const mapped_file* file = nullptr) {
  mapped_text pages(file);
  for (bool quotes = false;; quotes = true) {  // with quotes, newlines may be within rows, and pieces were cut there
    surveyed_text result;
    for (std::size_t at = format.begin; at < text.size(); at += result.pieces.back().size()) {
      result.pieces.push_back(text.substr(at, format.first_piece(text.substr(at), piece_bytes, quotes)));
      pages.used(result.pieces.back());
    }
    result.before.resize(result.pieces.size());
    std::vector<std::uint64_t> digests(result.pieces.size());
    parallel_for(result.pieces.size(), threads, [&](std::size_t i) {
      if (file != nullptr) digests[i] = digest_block(std::as_bytes(std::span(result.pieces[i])));
      result.before[i] = format.survey(result.pieces[i]);
      pages.used(result.pieces[i]);
    });
    text_survey total = format.start;
    for (text_survey& piece : result.before) total += std::exchange(piece, total);
    result.before.push_back(total);
    muster::digest sum;
    for (const std::uint64_t piece_digest : digests) sum.add(piece_digest);
    result.content = sum.value();
    if (total.quotes && !quotes) continue;
    for (text_survey& before : result.before) before.quotes = total.quotes;
    return result;
  }
}

// Returns a builder with memory for the surveyed rows. Throws data_error, which names `file`, if they do not fit.
inline dataset_builder builder_of(std::string name, const std::string& file, const text_survey& total,
                                  std::size_t features, bool dense) {
  try {
    return dense ? dataset_builder::dense(std::move(name), total.rows, features)
                 : dataset_builder::sparse(std::move(name), total.rows, features, total.entries);
  } catch (const std::bad_alloc&) {
    throw data_error({file}, "does not fit into memory (" + std::to_string(total.rows) + " samples of " +
                                 std::to_string(features) + " features, " + (dense ? "dense" : "sparse") + "); " +
                                 (dense ? "read it with the sparse layout or split it" : "split it"));
  }
}

inline void require_features(const std::string& file, std::size_t features) {
  if (features != 0) return;
  throw data_error({file}, "has no features (every line has only a label); check how it was made");
}

// Written in a form that compilers vectorise: single-byte counters, which are summed before they overflow.
inline std::uint64_t count_byte(std::string_view text, char byte) noexcept {
  constexpr std::size_t lanes = 32;
  std::uint64_t count = 0;
  const char* p = text.data();
  std::size_t remaining = text.size();
  while (remaining >= lanes) {
    std::array<unsigned char, lanes> found{};
    const std::size_t rounds = std::min<std::size_t>(remaining / lanes, 255);
    for (std::size_t round = 0; round < rounds; ++round, p += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        found[lane] = static_cast<unsigned char>(found[lane] + (p[lane] == byte ? 1 : 0));
      }
    }
    for (const unsigned char lane : found) count += lane;
    remaining -= rounds * lanes;
  }
  return count + static_cast<std::uint64_t>(std::count(p, p + remaining, byte));
}

inline std::string quoted(std::string_view word) {
  constexpr std::size_t longest = 40;
  constexpr char hex[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : word.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text.append("\\x").append(1, hex[byte >> 4]).append(1, hex[byte & 15]);
    }
  }
  return text + (word.size() > longest ? "...'" : "'");
}

inline text_survey& text_survey::operator+=(const text_survey& addend) {
  lines += addend.lines;
  rows += addend.rows;
  entries += addend.entries;
  largest_index = std::max(largest_index, addend.largest_index);
  quotes = quotes || addend.quotes;
  return *this;
}

inline std::size_t text_format::first_piece(std::string_view rest, std::size_t bytes, bool /*quotes*/) const {
  if (rest.size() <= bytes) return rest.size();
  return std::min(rest.find('\n', bytes - 1), rest.size() - 1) + 1;
}

inline dataset dataset_of_text(std::string_view text, const text_format& format, std::string name,
                               const read_options& options, std::size_t piece_bytes) {
  const surveyed_text all = survey_text(text, format, piece_bytes, options.threads);
  const auto [features, dense] = format.shape(all.before.back());
  dataset_builder builder = builder_of(std::move(name), format.file, all.before.back(), features, dense);
  std::vector<std::vector<bad_record>> bad(all.pieces.size());
  parallel_for(all.pieces.size(), options.threads, [&, dense = dense](std::size_t i) {
    const text_survey& before = all.before[i];
    row_places rows{.labels = builder.labels().data() + before.rows, .width = builder.row(0).size()};
    rows.bad = options.keep_bad_records ? &bad[i] : nullptr;
    if (dense) {
      rows.values = builder.row(before.rows).data();
      rows.step = builder.stride();
    } else {
      rows.indices = builder.indices().data() + before.entries;
      rows.values = builder.values().data() + before.entries;
      rows.step = 1;
      rows.entries = all.entries(i);
      rows.ends = builder.offsets().data() + before.rows + 1;
      rows.entries_before = before.entries;
    }
    format.parse(all.pieces[i], before, rows);
  });
  std::vector<bad_record> found;
  for (auto& piece : bad) std::move(piece.begin(), piece.end(), std::back_inserter(found));
  if (features == 0 && !found.empty()) throw data_error(found.front().location, found.front().problem);
  require_features(format.file, features);
  builder.set_bad(std::move(found));
  builder.set_columns(format.columns, format.notes);
  return builder.finish(options.threads);
}

inline any_record_source records_of_text(std::shared_ptr<const mapped_file> text,
                                         std::shared_ptr<const text_format> format, std::string name,
                                         const read_options& options, const text_limits& limits) {
  const auto all = std::make_shared<surveyed_text>();
  block_index index;
  index.name = std::move(name);
  index.keep_bad = options.keep_bad_records;
  index.notes = format->notes;
  index.columns = format->columns;
  std::size_t piece = std::max(limits.piece_bytes, text->text().size() / most_text_blocks);
  for (;;) {
    *all = survey_text(text->text(), *format, piece, options.threads, text.get());
    const text_survey& total = all->before.back();
    const auto [features, dense] = format->shape(total);
    require_features(format->file, features);
    index.schema = dense ? dense_schema(features) : record_schema{record_form::sparse, {}, features, {"label"}};
    index.schema.classes = format->columns.classes;
    const std::uint64_t row = index.schema.record_bytes();
    index.mean_bytes = std::max<std::uint64_t>(dense ? row : total.entries * sizeof(sparse_entry) / total.rows, 1);
    std::uint64_t largest = 0;
    for (std::size_t i = 0; i < all->pieces.size(); ++i) {
      const std::uint64_t bytes = dense ? all->rows(i) * row : all->entries(i) * sizeof(sparse_entry);
      if (all->rows(i) > 1) largest = std::max(largest, bytes);
    }
    if (largest <= most_block_bytes || piece == 1) break;
    piece = std::max<std::size_t>(
        1, static_cast<std::size_t>(static_cast<double>(piece) / 2 * (double{most_block_bytes} / double(largest))));
  }
  for (const text_survey& survey : all->before) index.firsts.push_back(survey.rows);
  index.digest = digest().add(all->content).add(to_string(index.schema)).add(format->read_mode).value();
  auto pages = std::make_shared<mapped_text>(text.get());
  index.files = {text};
  index.make = [text = std::move(text), pages, format = std::move(format), all](std::size_t number,
                                                                                record_block& block) {
    format->parse(all->pieces[number], all->before[number], block.rows(all->entries(number)));
    pages->used(all->pieces[number]);
  };
  return any_record_source(blocked_records(std::move(index), limits.cache_bytes));
}

inline opened_source open_text(std::string name, const std::string& path, const read_options& options,
                               const std::function<std::shared_ptr<const text_format>(std::string_view text)>& make) {
  name = muster::detail::without_secrets(name);
  auto file = std::make_shared<const mapped_file>(path, compressed_files::decoded, options.http);
  auto format = make(file->text());
  if (options.on_demand && file->text().size() > most_text_in_memory)
    return records_of_text(std::move(file), std::move(format), std::move(name), options, {});
  auto opened = dataset_of_text(file->text(), *format, std::move(name), options);
  if (file->host_state_now() == file->host_state()) return opened;
  throw data_error({path}, "was changed while it was read (the samples would be from both versions); start again");
}

}}}}  // namespace muster::v0::data::detail
