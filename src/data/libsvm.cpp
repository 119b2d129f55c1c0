#include <muster/data/libsvm.hpp>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/decimal.hpp>
#include "libsvm_lines.hpp"
#include "parallel.hpp"
#include "scan.hpp"

// The text is gone over twice. A survey finds what each piece holds (lines, samples, entries, the largest index)
// without looking at numbers, which runs at the speed of memory; then the result has a place for everything and the
// pieces are parsed right into it, at the same time. Only the second pass judges: what is wrong may survey wrongly, but
// then it is found before anything is handed out, and nothing is written outside its place on the way.

namespace muster::inline v0 {
namespace {

using namespace detail::libsvm;

struct libsvm_survey {
  std::uint64_t lines = 0;
  std::uint64_t rows = 0;
  std::uint64_t entries = 0;
  std::uint64_t largest = 0;  // index, as written

  libsvm_survey& operator+=(const libsvm_survey& other) {
    lines += other.lines;
    rows += other.rows;
    entries += other.entries;
    largest = std::max(largest, other.largest);
    return *this;
  }
};

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

// Lines of a piece that say no sample, by their number in the file, ascending.
struct bad_line {
  data_location where;
  std::string problem;
};
using bad_lines = std::vector<bad_line>;

bool is_bad(const bad_lines& bad, std::uint64_t number) {
  const auto found = std::lower_bound(bad.begin(), bad.end(), number, [](const bad_line& line, std::uint64_t wanted) {
    return line.where.line < wanted;
  });
  return found != bad.end() && found->where.line == number;
}

// `before` are the lines in front of the text. Bad lines are rows without entries.
libsvm_survey look_over(std::string_view text, std::uint64_t before, const bad_lines& bad) {
  libsvm_survey found;
  const bool comments = has_comments(text);
  const bool together = !comments && bad.empty();
  if (together) found.entries = detail::count_byte(text, ':');
  while (!text.empty()) {
    const line_of_text line = take_line(text, comments);
    ++found.lines;
    if (line.blank()) continue;
    ++found.rows;
    if (!bad.empty() && is_bad(bad, before + found.lines)) continue;
    if (!together) found.entries += static_cast<std::uint64_t>(std::count(line.begin, line.end, ':'));
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

// Calls each(line, complaint about it, row) for every sample of a piece that begins at `first`, but leave_out(row) for
// the bad ones.
template <class Each, class LeaveOut>
void for_each_sample(std::string_view piece, const std::string& file, const libsvm_survey& first, const bad_lines& bad,
                     Each each, LeaveOut leave_out) {
  std::uint64_t number = first.lines;
  std::uint64_t row = first.rows;
  const bool comments = has_comments(piece);
  while (!piece.empty()) {
    const line_of_text line = take_line(piece, comments);
    ++number;
    if (line.blank()) continue;
    if (!bad.empty() && is_bad(bad, number)) {
      leave_out(row++);
    } else {
      each(line, complaint(file, number, line), row++);
    }
  }
}

void parse_dense(std::string_view piece, const std::string& file, const libsvm_survey& first, const bad_lines& bad,
                 dataset_builder& to) {
  const auto each = [&](line_of_text line, const complaint& complaint, std::uint64_t row) {
    const std::span<float> values = to.row(row);
    parse_line(line, complaint, to.labels()[row], [values](std::uint32_t index, float value) {
      if (index < values.size()) values[index] = value;  // else a later index of the line is lower, and refused
    });
  };
  for_each_sample(piece, file, first, bad, each, [](std::uint64_t /*row*/) {});
}

void parse_sparse(std::string_view piece, const std::string& file, const libsvm_survey& first, const bad_lines& bad,
                  dataset_builder& to) {
  std::uint64_t next = first.entries;
  const auto each = [&](line_of_text line, const complaint& complaint, std::uint64_t row) {
    // Each feature has taken a colon that the survey counted, so that `next` stays within its piece.
    parse_line(line, complaint, to.labels()[row],
               [&, indices = to.indices(), values = to.values()](std::uint32_t index, float value) {
                 indices[next] = index;
                 values[next++] = value;
               });
    to.offsets()[row + 1] = next;
  };
  for_each_sample(piece, file, first, bad, each, [&](std::uint64_t row) { to.offsets()[row + 1] = next; });
}

// The lines of a piece that parse_dense() and parse_sparse() would complain about.
bad_lines find_bad(std::string_view piece, const std::string& file, const libsvm_survey& first) {
  bad_lines bad;
  const auto each = [&](line_of_text line, const complaint& complaint, std::uint64_t /*row*/) {
    float label = 0;
    try {
      parse_line(line, complaint, label, [](std::uint32_t /*index*/, float /*value*/) {});
    } catch (const data_error& error) {
      bad.push_back({error.where(), error.problem()});
    }
  };
  for_each_sample(piece, file, first, {}, each, [](std::uint64_t /*row*/) {});
  return bad;
}

// The bad lines of a piece as records, numbered as its rows are.
void add_bad_records(std::string_view piece, const std::string& file, const libsvm_survey& first, bad_lines& bad,
                     std::vector<bad_record>& to) {
  if (bad.empty()) return;
  auto next = bad.begin();
  for_each_sample(
      piece, file, first, bad, [](line_of_text, const complaint&, std::uint64_t) {},
      [&](std::uint64_t row) {
        to.push_back({row, std::move(next->where), std::move(next->problem)});
        ++next;
      });
}

bool mostly_given(const libsvm_survey& total, std::size_t features) {
  return features <= 2 * total.entries / total.rows;
}

dataset_builder make_builder(std::string name, const std::string& file, const libsvm_survey& total,
                             std::size_t features, layout layout) {
  const bool dense = layout == layout::dense || (layout == layout::automatic && mostly_given(total, features));
  try {
    return dense ? dataset_builder::dense(std::move(name), total.rows, features)
                 : dataset_builder::sparse(std::move(name), total.rows, features, total.entries);
  } catch (const std::bad_alloc&) {
    throw data_error({file}, "does not fit into memory (" + std::to_string(total.rows) + " samples of " +
                                 std::to_string(features) + " features, " + (dense ? "dense" : "sparse") + "); " +
                                 (dense ? "read it with the sparse layout" : "split it"));
  }
}

}  // namespace

dataset detail::parse_libsvm(std::string_view text, const std::string& file, std::string name,
                             const read_options& options, std::size_t piece_bytes) {
  const auto pieces = cut_lines(text, piece_bytes);
  std::vector<libsvm_survey> firsts(pieces.size());  // what a piece holds, and then what comes before it
  std::vector<bad_lines> bad(pieces.size());
  libsvm_survey total;
  const auto look_over_all = [&] {
    parallel_for(pieces.size(), options.threads,
                 [&](std::size_t i) { firsts[i] = look_over(pieces[i], firsts[i].lines, bad[i]); });
    total = {};
    for (libsvm_survey& piece : firsts) {
      const libsvm_survey before = total;
      total += piece;
      piece = before;
    }
  };
  look_over_all();
  if (options.keep_bad_records) {
    parallel_for(pieces.size(), options.threads, [&](std::size_t i) { bad[i] = find_bad(pieces[i], file, firsts[i]); });
    look_over_all();
  }
  if (total.rows == 0) {
    throw data_error({file}, "has no samples (blank lines and comments are all there is); check how it was made");
  }
  const std::size_t features = std::max<std::size_t>(total.largest, options.min_features);

  dataset_builder builder = make_builder(std::move(name), file, total, features, options.layout);
  const bool sparse = !builder.offsets().empty();
  parallel_for(pieces.size(), options.threads, [&](std::size_t i) {
    (sparse ? parse_sparse : parse_dense)(pieces[i], file, firsts[i], bad[i], builder);
  });
  std::vector<bad_record> bad_records;
  for (std::size_t i = 0; i < pieces.size(); ++i) add_bad_records(pieces[i], file, firsts[i], bad[i], bad_records);
  if (features == 0) {
    if (!bad_records.empty()) throw data_error(bad_records.front().where, bad_records.front().problem);
    throw data_error({file}, "has no features (every line is a label alone); check how it was made");
  }
  builder.set_bad(std::move(bad_records));
  return builder.finish(options.threads);
}

dataset read_libsvm(const std::string& path, const read_options& options) {
  const text_file file(path);
  return detail::parse_libsvm(file.text(), path, "libsvm:" + path, options, detail::text_piece_bytes);
}

dataset parse_libsvm(std::string_view text, const std::string& name, const read_options& options) {
  return detail::parse_libsvm(text, name, name, options, detail::text_piece_bytes);
}

}  // namespace muster::inline v0
