#include <muster/data/sources/libsvm.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>
#include "decimal.hpp"
#include "libsvm_lines.hpp"
#include "scan.hpp"
#include "text_records.hpp"

// The text is gone over twice. A survey finds what each piece holds (lines, samples, entries, the largest index)
// without looking at numbers, which runs at the speed of memory; then the result has a place for everything and the
// pieces are parsed right into it, at the same time. Only the second pass judges: what is wrong may survey wrongly, but
// then it is found before anything is handed out, and nothing is written outside its place on the way. Where bad lines
// are kept, which have no entries, the survey parses to find them.

namespace muster::inline v0 {
namespace {

using namespace detail::libsvm;

using detail::text_survey;

// Indices ascend, so that the last one of a line is the largest. One that is none counts as 0.
std::uint64_t last_index(line_of_text line) {
  const char* p = line.end;
  while (p != line.begin && p[-1] != ':') --p;
  if (p == line.begin) return 0;
  const char* const colon = p - 1;
  p = colon;
  while (p != line.begin && detail::is_digit(p[-1])) --p;
  std::uint64_t index = 0;
  for (; p != colon && index <= largest_index; ++p) index = index * 10 + static_cast<std::uint64_t>(*p - '0');
  return index <= largest_index ? index : 0;
}

text_survey look_over(std::string_view text) {
  text_survey found;
  const bool comments = has_comments(text);
  if (!comments) found.entries = detail::count_byte(text, ':');
  while (!text.empty()) {
    const line_of_text line = take_line(text, comments);
    ++found.lines;
    if (line.blank()) continue;
    ++found.rows;
    if (comments) found.entries += static_cast<std::uint64_t>(std::count(line.begin, line.end, ':'));
    found.largest = std::max(found.largest, last_index(line));
  }
  return found;
}

bool ends_word(const char* p, const char* end) { return p == end || is_blank(*p); }

// Parses one line that is not blank; calls store(index from 0, value) for each feature, in order.
template <class Store>
void parse_line(line_of_text line, const complaint& complaint, float& label, Store store) {
  const char* p = skip_blanks(line.begin, line.end);
  auto [after, code] = detail::parse_float(p, line.end, label);
  if (code != std::errc() || !ends_word(after, line.end)) complaint.bad_label(p);
  std::uint64_t previous = 0;
  while ((p = skip_blanks(after, line.end)) != line.end) {
    // Digit by digit: the next index mostly has as many as the last one, which is guessed right.
    std::uint64_t index = 0;
    const char* q = p;
    for (; q != line.end && detail::is_digit(*q) && index <= largest_index; ++q) {
      index = index * 10 + static_cast<std::uint64_t>(*q - '0');
    }
    if (q == line.end || *q != ':' || index <= previous || index > largest_index) complaint.bad_index(p, previous);
    float value = 0;
    ++q;
    if (q != line.end && detail::is_digit(*q) && ends_word(q + 1, line.end)) {  // flags and counts: most sparse data
      value = static_cast<float>(*q - '0');
      after = q + 1;
    } else {
      const auto read = detail::parse_float(q, line.end, value);
      if (read.ec != std::errc() || !ends_word(read.ptr, line.end)) complaint.bad_value(q, index);
      after = read.ptr;
    }
    store(static_cast<std::uint32_t>(index - 1), value);
    previous = index;
  }
}

// Calls each(line, complaint about it, row) for every sample of a piece that begins at `first`.
template <class Each>
void for_each_sample(std::string_view piece, const std::string& file, const text_survey& first, Each each) {
  std::uint64_t number = first.lines;
  std::uint64_t row = first.rows;
  const bool comments = has_comments(piece);
  while (!piece.empty()) {
    const line_of_text line = take_line(piece, comments);
    ++number;
    if (!line.blank()) each(line, complaint(file, number, line), row++);
  }
}

// look_over() that parses, so that it knows the lines that say no sample: they are rows without entries, with their
// lines and rows counted from those of the piece.
text_survey look_for_bad(std::string_view piece, const std::string& file, std::vector<bad_record>& bad) {
  text_survey found{.lines = static_cast<std::uint64_t>(std::count(piece.begin(), piece.end(), '\n'))};
  for_each_sample(piece, file, {}, [&](line_of_text line, const complaint& complaint, std::uint64_t row) {
    text_survey of_line{.rows = 1};
    float label = 0;
    try {
      parse_line(line, complaint, label, [&](std::uint32_t index, float /*value*/) {
        ++of_line.entries;
        of_line.largest = index + std::uint64_t{1};
      });
    } catch (const data_error& error) {
      of_line = {.rows = 1};
      bad.push_back({row, error.where(), error.problem()});
    }
    found += of_line;
  });
  return found;
}

// Parses a piece right into the result, but for the bad ones of its rows.
void parse_piece(std::string_view piece, const std::string& file, const text_survey& first,
                 std::span<const bad_record> bad, dataset_builder& to) {
  const bool sparse = !to.offsets().empty();
  const auto labels = to.labels();
  const auto offsets = to.offsets();
  std::uint64_t next = first.entries;
  for_each_sample(piece, file, first, [&](line_of_text line, const complaint& complaint, std::uint64_t row) {
    if (!bad.empty() && bad.front().id == row) {
      bad = bad.subspan(1);
    } else if (sparse) {
      // Each feature has taken a colon that the survey counted, so that `next` stays within its piece.
      parse_line(line, complaint, labels[row],
                 [&next, indices = to.indices(), values = to.values()](std::uint32_t index, float value) {
                   indices[next] = index;
                   values[next++] = value;
                 });
    } else {
      parse_line(line, complaint, labels[row], [values = to.row(row)](std::uint32_t index, float value) {
        if (index < values.size()) values[index] = value;  // else a later index of the line is lower, and refused
      });
    }
    if (sparse) offsets[row + 1] = next;
  });
}

// The features of the data, and whether they are dense.
std::pair<std::size_t, bool> shape_of(const text_survey& total, const read_options& options, const std::string& file) {
  if (total.rows == 0) {
    throw data_error({file}, "has no samples (blank lines and comments are all there is); check how it was made");
  }
  const std::size_t features = std::max<std::size_t>(total.largest, options.min_features);
  const bool mostly_given = features <= 2 * total.entries / total.rows;
  return {features, options.layout == layout::dense || (options.layout == layout::automatic && mostly_given)};
}

[[noreturn]] void refuse_without_features(const std::string& file) {
  throw data_error({file}, "has no features (every line is a label alone); check how it was made");
}

// Parses a piece of `features` that are dense, or sparse (0).
void parse_block(std::string_view piece, const std::string& file, const text_survey& before, std::size_t features,
                 detail::record_block& to) {
  std::size_t entries = 0;
  for_each_sample(piece, file, before, [&](line_of_text line, const complaint& complaint, std::uint64_t row) {
    const std::size_t at = row - before.rows;
    const std::size_t first = entries;
    try {
      if (features == 0) {
        parse_line(line, complaint, to.labels[at], [&](std::uint32_t index, float value) {
          const sparse_entry entry{index, value};
          const std::size_t place = entries++ * sizeof entry;
          // A bad line may have more than is left: there is room for those of the others.
          if (place < to.bytes.size()) std::memcpy(to.bytes.data() + place, &entry, sizeof entry);
        });
      } else {
        parse_line(line, complaint, to.labels[at], [values = to.row(at)](std::uint32_t index, float value) {
          if (index < values.size()) values[index] = value;  // else a later index of the line is lower, and refused
        });
      }
    } catch (const data_error& error) {
      entries = first;
      if (features != 0) std::ranges::fill(to.row(at), 0.0f);
      to.labels[at] = 0;
      to.bad.push_back({row, error.where(), error.problem()});
    }
    if (features == 0) to.ends[at] = entries * sizeof(sparse_entry);
  });
}

}  // namespace

dataset detail::parse_libsvm(std::string_view text, const std::string& file, std::string name,
                             const read_options& options, std::size_t piece_bytes) {
  const auto pieces = cut_text(text, [&](std::string_view rest) { return first_lines(rest, piece_bytes); });
  std::vector<text_survey> before;
  std::vector<std::vector<bad_record>> bad(pieces.size());
  const text_survey total = look_over_pieces(pieces.size(), options.threads, before, {}, [&](std::size_t i) {
    return options.keep_bad_records ? look_for_bad(pieces[i], file, bad[i]) : look_over(pieces[i]);
  });
  const auto [features, dense] = shape_of(total, options, file);
  dataset_builder builder = make_builder(std::move(name), file, total, features, dense);
  std::vector<bad_record> all;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (bad_record& record : bad[i]) {
      record.id += before[i].rows;
      record.where.line += before[i].lines;
      all.push_back(record);
    }
  }
  parallel_for(pieces.size(), options.threads,
               [&](std::size_t i) { parse_piece(pieces[i], file, before[i], bad[i], builder); });
  if (features == 0) {
    if (!all.empty()) throw data_error(all.front().where, all.front().problem);
    refuse_without_features(file);
  }
  builder.set_bad(std::move(all));
  return builder.finish(options.threads);
}

any_record_source detail::libsvm_records(std::shared_ptr<const mapped_file> text, const std::string& file,
                                         const read_options& options, const text_limits& limits) {
  text_format format;
  format.name = "libsvm:" + file;
  format.file = file;
  format.first_piece = [](std::string_view rest, std::size_t bytes, bool /*quotes*/) {
    return first_lines(rest, bytes);
  };
  format.look_over = [file, keep = options.keep_bad_records](std::string_view piece) {
    std::vector<bad_record> bad;
    return keep ? look_for_bad(piece, file, bad) : look_over(piece);
  };
  format.schema = [file, options](const text_survey& total) {
    const auto [features, dense] = shape_of(total, options, file);
    if (features == 0) refuse_without_features(file);
    return dense ? dense_schema(features) : record_schema{record_form::sparse, {}, features, {"label"}};
  };
  format.parse = [file](std::string_view piece, const text_survey& before, record_block& to) {
    parse_block(piece, file, before, to.width, to);
  };
  return any_record_source(records_of_text(std::move(text), std::move(format), options, limits));
}

any_record_source libsvm_source(const std::string& path, const read_options& options) {
  auto file = std::make_shared<const mapped_file>(path);
  if (file->text().size() > detail::most_text_in_memory)
    return detail::libsvm_records(std::move(file), path, options, {});
  return any_record_source(
      detail::parse_libsvm(file->text(), path, "libsvm:" + path, options, detail::text_piece_bytes));
}

dataset read_libsvm(const std::string& path, const read_options& options) {
  const mapped_file file(path);
  return detail::parse_libsvm(file.text(), path, "libsvm:" + path, options, detail::text_piece_bytes);
}

dataset parse_libsvm(std::string_view text, const std::string& name, const read_options& options) {
  return detail::parse_libsvm(text, name, name, options, detail::text_piece_bytes);
}

}  // namespace muster::inline v0
