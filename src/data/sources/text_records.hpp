// Text as records that are parsed when they are read: held are an index of the text, and the blocks that were parsed
// last; private to the readers of text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/data/dataset.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>
#include "../cache/lru_cache.hpp"
#include "scan.hpp"

namespace muster::inline v0::detail {

/// The records of a block of text, in order. Made with room for what the survey of the block counted, all zero.
struct text_block {
  std::vector<float> labels;
  std::vector<std::byte> bytes;
  std::size_t width = 0;            ///< floats of a record; 0: they are sparse
  std::vector<std::uint64_t> ends;  ///< of each sparse record, in `bytes`
  std::vector<bad_record> bad;      ///< by id; theirs are zeros

  /// The floats of record `at` of the block.
  [[nodiscard]] std::span<float> row(std::size_t at) noexcept {
    return {reinterpret_cast<float*>(bytes.data()) + at * width, width};
  }
  /// Bytes of memory.
  [[nodiscard]] std::size_t size() const noexcept {
    return sizeof *this + bytes.size() + labels.size() * sizeof(float) + ends.size() * sizeof(std::uint64_t) +
           bad.size() * sizeof(bad_record);
  }
};

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
  std::function<void(std::string_view piece, const text_survey& before, text_block& to)> parse;
};

/// Rows of so many floats, with a label.
[[nodiscard]] inline record_schema dense_schema(std::uint64_t features) {
  return {record_form::fixed, {{"features", dtype::float32, {features}}}, 0, {"label"}};
}

/// A record_source of such a text.
class text_records {
 public:
  text_records(std::shared_ptr<const mapped_file> text, text_format format, const read_options& options,
               const text_limits& limits);

  [[nodiscard]] const std::string& name() const noexcept;
  [[nodiscard]] std::uint64_t size() const noexcept;
  [[nodiscard]] std::uint64_t digest() const noexcept;
  [[nodiscard]] const record_schema& schema() const noexcept;
  /// Records that are better read together: in block_window order, a block has so many.
  [[nodiscard]] std::uint64_t block_records() const noexcept;
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};

}  // namespace muster::inline v0::detail
