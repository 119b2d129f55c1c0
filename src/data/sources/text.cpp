#include "text.hpp"

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

// The index has some 60 bytes a block: in larger texts blocks are larger.
constexpr std::size_t most_text_blocks = std::size_t{1} << 18;
// What a block may be once it is parsed: several are held, and one is parsed by each thread.
constexpr std::uint64_t most_block_bytes = std::uint64_t{4} << 20;
// The text that may be mapped: to forget each block at once costs a sixth of the time that parsing takes.
constexpr std::size_t most_mapped = std::size_t{16} << 20;

// A text in pieces that were looked over.
struct surveyed_text {
  std::vector<std::string_view> pieces;
  std::vector<text_survey> before;  // what comes before each piece, and all of it
  std::uint64_t content = 0;        // digest of the text, if it is of a file

  [[nodiscard]] std::uint64_t rows(std::size_t piece) const { return before[piece + 1].rows - before[piece].rows; }
  [[nodiscard]] std::uint64_t entries(std::size_t piece) const {
    return before[piece + 1].entries - before[piece].entries;
  }
};

// Has a file forget its text whenever so much may be mapped of what was used. Thread safe.
class mapped_text {
 public:
  explicit mapped_text(const mapped_file* file) : file_(file) {}

  void used(std::string_view part) {
    constexpr std::size_t mapped_at_once = std::size_t{2} << 20;  // a folio: all of it comes with a page of it
    if (file_ == nullptr) return;
    const auto folio = reinterpret_cast<std::uintptr_t>(part.data()) / mapped_at_once;
    const std::size_t more = folio_.exchange(folio) == folio ? part.size() : std::max(part.size(), mapped_at_once);
    if (mapped_.fetch_add(more) + more < most_mapped) return;
    mapped_ = 0;
    file_->forget();
  }

 private:
  const mapped_file* file_;
  std::atomic<std::uintptr_t> folio_{0};  // of the part before
  std::atomic<std::size_t> mapped_{0};
};

surveyed_text survey(std::string_view text, const text_format& format, std::size_t piece_bytes, int threads,
                     const mapped_file* file = nullptr) {
  mapped_text pages(file);
  for (bool quotes = false;; quotes = true) {  // if there are any, newlines may be within rows, where it was cut
    surveyed_text made;
    for (std::size_t at = format.begin; at < text.size(); at += made.pieces.back().size()) {
      made.pieces.push_back(text.substr(at, format.first_piece(text.substr(at), piece_bytes, quotes)));
      pages.used(made.pieces.back());
    }
    made.before.resize(made.pieces.size());
    std::vector<std::uint64_t> digests(made.pieces.size());
    parallel_for(made.pieces.size(), threads, [&](std::size_t i) {
      if (file != nullptr) digests[i] = digest_block(std::as_bytes(std::span(made.pieces[i])));
      made.before[i] = format.look_over(made.pieces[i]);
      pages.used(made.pieces[i]);
    });
    text_survey total = format.start;
    for (text_survey& piece : made.before) total += std::exchange(piece, total);
    made.before.push_back(total);
    muster::digest sum;
    for (const std::uint64_t one : digests) sum.add(one);
    made.content = sum.value();
    if (total.quotes && !quotes) continue;
    for (text_survey& before : made.before) before.quotes = total.quotes;
    return made;
  }
}

// Memory for what was surveyed.
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
  throw data_error({file}, "has no features (every line is a label alone); check how it was made");
}

}  // namespace

// In a form that compilers turn into vector instructions: counters of one byte, emptied before they overflow.
std::uint64_t count_byte(std::string_view text, char byte) noexcept {
  constexpr std::size_t lanes = 32;
  std::uint64_t count = 0;
  const char* p = text.data();
  std::size_t left = text.size();
  while (left >= lanes) {
    std::array<unsigned char, lanes> found{};
    const std::size_t rounds = std::min<std::size_t>(left / lanes, 255);
    for (std::size_t round = 0; round < rounds; ++round, p += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        found[lane] = static_cast<unsigned char>(found[lane] + (p[lane] == byte ? 1 : 0));
      }
    }
    for (const unsigned char lane : found) count += lane;
    left -= rounds * lanes;
  }
  return count + static_cast<std::uint64_t>(std::count(p, p + left, byte));
}

std::string quoted(std::string_view word) {
  constexpr std::size_t most = 40;
  constexpr char hex[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : word.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text.append("\\x").append(1, hex[byte >> 4]).append(1, hex[byte & 15]);
    }
  }
  return text + (word.size() > most ? "...'" : "'");
}

text_survey& text_survey::operator+=(const text_survey& other) {
  lines += other.lines;
  rows += other.rows;
  entries += other.entries;
  largest = std::max(largest, other.largest);
  quotes = quotes || other.quotes;
  return *this;
}

std::size_t text_format::first_piece(std::string_view rest, std::size_t bytes, bool /*quotes*/) const {
  if (rest.size() <= bytes) return rest.size();
  return std::min(rest.find('\n', bytes - 1), rest.size() - 1) + 1;
}

dataset dataset_of_text(std::string_view text, const text_format& format, std::string name, const read_options& options,
                        std::size_t piece_bytes) {
  const surveyed_text all = survey(text, format, piece_bytes, options.threads);
  const auto [features, dense] = format.shape(all.before.back());
  dataset_builder builder = builder_of(std::move(name), format.file, all.before.back(), features, dense);
  std::vector<std::vector<bad_record>> bad(all.pieces.size());
  parallel_for(all.pieces.size(), options.threads, [&, dense = dense](std::size_t i) {
    const text_survey& before = all.before[i];
    row_places to{.labels = builder.labels().data() + before.rows, .width = builder.row(0).size()};
    to.bad = options.keep_bad_records ? &bad[i] : nullptr;
    if (dense) {
      to.values = builder.row(before.rows).data();
      to.step = builder.stride();
    } else {
      to.indices = builder.indices().data() + before.entries;
      to.values = builder.values().data() + before.entries;
      to.step = 1;
      to.entries = all.entries(i);
      to.ends = builder.offsets().data() + before.rows + 1;
      to.entries_before = before.entries;
    }
    format.parse(all.pieces[i], before, to);
  });
  std::vector<bad_record> found;
  for (auto& piece : bad) std::move(piece.begin(), piece.end(), std::back_inserter(found));
  if (features == 0 && !found.empty()) throw data_error(found.front().where, found.front().problem);
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
    *all = survey(text->text(), *format, piece, options.threads, text.get());
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
  for (const text_survey& at : all->before) index.firsts.push_back(at.rows);
  index.digest = digest().add(all->content).add(to_string(index.schema)).add(format->way).value();
  auto pages = std::make_shared<mapped_text>(text.get());
  index.file = text;
  index.make = [text = std::move(text), pages, format = std::move(format), all](std::size_t number, record_block& to) {
    format->parse(all->pieces[number], all->before[number], to.rows(all->entries(number)));
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
  throw data_error({path}, "was changed while it was read (the samples would be of both); start again");
}

}}}  // namespace muster::v0::detail
