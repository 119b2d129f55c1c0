#include "text_format.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <new>
#include <span>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/data/dataset_builder.hpp>
#include "../cache/content_digest.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// Largest number of blocks. The index has about 60 bytes for each block, so a larger text has larger blocks.
constexpr std::size_t most_text_blocks = std::size_t{1} << 18;
// Largest size of a parsed block. The cache holds several blocks, and each thread parses a block.
constexpr std::uint64_t most_block_bytes = std::uint64_t{4} << 20;
// Largest size of the text that stays mapped. Calling forget() after each block would cost a sixth of the time of
// parsing.
constexpr std::size_t most_mapped = std::size_t{16} << 20;

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

surveyed_text survey_text(std::string_view text, const text_format& format, std::size_t piece_bytes, int threads,
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
dataset_builder builder_of(std::string name, const std::string& file, const text_survey& total, std::size_t features,
                           bool dense) {
  try {
    return dense ? dataset_builder::dense(std::move(name), total.rows, features)
                 : dataset_builder::sparse(std::move(name), total.rows, features, total.entries);
  } catch (const std::bad_alloc&) {
    throw data_error({file}, "does not fit into memory (" + std::to_string(total.rows) + " samples of " +
                                 std::to_string(features) + " features, " + (dense ? "dense" : "sparse") + "); " +
                                 (dense ? "read it with the sparse layout or split it" : "split it"));
  }
}

void require_features(const std::string& file, std::size_t features) {
  if (features != 0) return;
  throw data_error({file}, "has no features (every line has only a label); check how it was made");
}

}  // namespace

// Written in a form that compilers vectorise: single-byte counters, which are summed before they overflow.
std::uint64_t count_byte(std::string_view text, char byte) noexcept {
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

std::string quoted(std::string_view word) {
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

text_survey& text_survey::operator+=(const text_survey& addend) {
  lines += addend.lines;
  rows += addend.rows;
  entries += addend.entries;
  largest_index = std::max(largest_index, addend.largest_index);
  quotes = quotes || addend.quotes;
  return *this;
}

std::size_t text_format::first_piece(std::string_view rest, std::size_t bytes, bool /*quotes*/) const {
  if (rest.size() <= bytes) return rest.size();
  return std::min(rest.find('\n', bytes - 1), rest.size() - 1) + 1;
}

dataset dataset_of_text(std::string_view text, const text_format& format, std::string name, const read_options& options,
                        std::size_t piece_bytes) {
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

any_record_source records_of_text(std::shared_ptr<const mapped_file> text, std::shared_ptr<const text_format> format,
                                  std::string name, const read_options& options, const text_limits& limits) {
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
  index.file = text;
  index.make = [text = std::move(text), pages, format = std::move(format), all](std::size_t number,
                                                                                record_block& block) {
    format->parse(all->pieces[number], all->before[number], block.rows(all->entries(number)));
    pages->used(all->pieces[number]);
  };
  return any_record_source(blocked_records(std::move(index), limits.cache_bytes));
}

opened_source open_text(std::string name, const std::string& path, const read_options& options,
                        const std::function<std::shared_ptr<const text_format>(std::string_view text)>& make) {
  name = without_secrets(name);
  auto file = std::make_shared<const mapped_file>(path, compressed_files::decoded, options.http);
  auto format = make(file->text());
  if (options.on_demand && file->text().size() > most_text_in_memory)
    return records_of_text(std::move(file), std::move(format), std::move(name), options, {});
  auto opened = dataset_of_text(file->text(), *format, std::move(name), options);
  if (file->host_state_now() == file->host_state()) return opened;
  throw data_error({path}, "was changed while it was read (the samples would be from both versions); start again");
}

}}}  // namespace muster::v0::detail
