#include "text_records.hpp"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include "../cache/content_digest.hpp"

namespace muster::inline v0::detail {
namespace {

// The index has some 50 bytes a block: in larger texts blocks are larger.
constexpr std::size_t most_text_blocks = std::size_t{1} << 18;
// What a block may be once it is parsed: several are held, and one is parsed by each thread.
constexpr std::uint64_t most_block_bytes = std::uint64_t{4} << 20;
// The text that may be mapped while it is cut, which touches a page here and there.
constexpr std::size_t cut_at_once = std::size_t{16} << 20;

// What is known of a text, and parses it.
struct indexed_text {
  std::shared_ptr<const mapped_file> text;
  text_format format;
  std::vector<text_survey> before;     // what comes before each block, and all of it
  std::vector<std::uint64_t> offsets;  // where each block begins in the text, and the end
  std::uint64_t content = 0;           // digest of the text

  // Cuts the text and counts what is in the pieces; none of it stays mapped.
  text_survey look_over(std::size_t piece_bytes, bool quotes, int threads) {
    const std::string_view all = text->text();
    std::size_t forgotten = 0;
    const auto pieces = cut_text(all.substr(format.begin), [&](std::string_view rest) {
      const std::size_t at = all.size() - rest.size();
      if (at - forgotten >= cut_at_once) {
        text->forget(all.substr(forgotten, at - forgotten));
        forgotten = at;
      }
      return format.first_piece(rest, piece_bytes, quotes);
    });
    std::vector<std::uint64_t> digests(pieces.size());
    before.clear();
    const text_survey total = look_over_pieces(pieces.size(), threads, before, format.start, [&](std::size_t i) {
      digests[i] = digest_block(std::as_bytes(std::span(pieces[i])));
      const text_survey found = format.look_over(pieces[i]);
      text->forget(pieces[i]);
      return found;
    });
    before.push_back(total);
    offsets.assign(1, format.begin);
    for (const std::string_view piece : pieces) offsets.push_back(offsets.back() + piece.size());
    muster::digest sum;
    for (const std::uint64_t one : digests) sum.add(one);
    content = sum.value();
    return total;
  }

  [[nodiscard]] std::uint64_t entries(std::size_t number) const noexcept {
    return before[number + 1].entries - before[number].entries;
  }
  [[nodiscard]] std::uint64_t largest_block(std::uint64_t record_bytes) const noexcept {
    std::uint64_t largest = 0;
    for (std::size_t number = 0; number + 1 < before.size(); ++number) {
      const std::uint64_t rows = before[number + 1].rows - before[number].rows;
      const std::uint64_t bytes = record_bytes != 0 ? rows * record_bytes : entries(number) * sizeof(sparse_entry);
      if (rows > 1) largest = std::max(largest, bytes);
    }
    return largest;
  }

  void parse(std::size_t number, record_block& to) const {
    if (to.width == 0) to.bytes.resize(entries(number) * sizeof(sparse_entry));
    const auto piece = text->text().substr(offsets[number], offsets[number + 1] - offsets[number]);
    format.parse(piece, before[number], to);
    text->forget(piece);
  }
};

}  // namespace

blocked_records records_of_text(std::shared_ptr<const mapped_file> text, text_format format,
                                const read_options& options, const text_limits& limits) {
  const auto indexed = std::make_shared<indexed_text>();
  indexed->text = std::move(text);
  indexed->format = std::move(format);
  block_index index;
  index.name = indexed->format.name;
  index.keep_bad = options.keep_bad_records;
  std::size_t piece = std::max(limits.piece_bytes, indexed->text->text().size() / most_text_blocks);
  for (bool quotes = false;;) {
    const text_survey total = indexed->look_over(piece, quotes, options.threads);
    if (total.quotes && !quotes) {  // then newlines may be within rows, where it was cut
      quotes = true;
      continue;
    }
    index.schema = indexed->format.schema(total);
    const std::uint64_t record = index.schema.record_bytes();
    const std::uint64_t all = record != 0 ? total.rows * record : total.entries * sizeof(sparse_entry);
    index.mean_bytes = std::max<std::uint64_t>(all / total.rows, 1);
    const std::uint64_t largest = indexed->largest_block(record);
    if (largest <= most_block_bytes || piece == 1) break;
    piece = std::max<std::size_t>(
        1, static_cast<std::size_t>(static_cast<double>(piece) / 2 * (double{most_block_bytes} / double(largest))));
  }
  for (const text_survey& at : indexed->before) index.firsts.push_back(at.rows);
  index.digest = digest().add(indexed->content).add(to_string(index.schema)).add(indexed->format.way).value();
  index.make = [indexed](std::size_t number, record_block& to) { indexed->parse(number, to); };
  return blocked_records(std::move(index), limits.cache_bytes);
}

}  // namespace muster::inline v0::detail
