#include "text_records.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include "../cache/content_digest.hpp"

namespace muster::inline v0::detail {
namespace {

// The index has 40 bytes a block: in larger texts blocks are larger.
constexpr std::size_t most_blocks = std::size_t{1} << 18;
// What a block may be once it is parsed: several are held, and one is parsed by each thread.
constexpr std::uint64_t most_block_bytes = std::uint64_t{4} << 20;
// The text that may be mapped while it is cut, which touches a page here and there.
constexpr std::size_t cut_at_once = std::size_t{16} << 20;

}  // namespace

struct text_records::state {
  state(std::shared_ptr<const mapped_file> file, text_format of, const read_options& options, const text_limits& limits)
      : text(std::move(file)), format(std::move(of)), keep_bad(options.keep_bad_records), cache(limits.cache_bytes) {
    std::size_t piece = std::max(limits.piece_bytes, text->text().size() / most_blocks);
    for (bool quotes = false;;) {
      const text_survey total = look_over(piece, quotes, options.threads);
      if (total.quotes && !quotes) {  // then newlines may be within rows, where it was cut
        quotes = true;
        continue;
      }
      schema = format.schema(total);
      size = total.rows;
      record_bytes = schema.record_bytes();
      const std::uint64_t all = record_bytes != 0 ? size * record_bytes : total.entries * sizeof(sparse_entry);
      mean_bytes = std::max<std::uint64_t>(all / size, 1);
      const std::uint64_t largest = largest_block();
      if (largest <= most_block_bytes || piece == 1) break;
      piece = std::max<std::size_t>(
          1, static_cast<std::size_t>(static_cast<double>(piece) / 2 * (double{most_block_bytes} / double(largest))));
    }
    digest = muster::digest().add(content).add(to_string(schema)).add(format.way).value();
  }

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

  [[nodiscard]] std::uint64_t block_bytes(std::size_t number) const noexcept {
    return record_bytes != 0 ? (before[number + 1].rows - before[number].rows) * record_bytes
                             : (before[number + 1].entries - before[number].entries) * sizeof(sparse_entry);
  }
  [[nodiscard]] std::uint64_t largest_block() const noexcept {
    std::uint64_t largest = 0;
    for (std::size_t number = 0; number + 1 < before.size(); ++number) {
      if (before[number + 1].rows - before[number].rows > 1) largest = std::max(largest, block_bytes(number));
    }
    return largest;
  }
  [[nodiscard]] std::size_t block_of(sample_id id) const noexcept {
    const auto behind = std::upper_bound(before.begin(), before.end(), id,
                                         [](sample_id wanted, const text_survey& at) { return wanted < at.rows; });
    return static_cast<std::size_t>(behind - before.begin()) - 1;
  }

  [[nodiscard]] std::shared_ptr<const text_block> block(std::size_t number) const {
    if (auto found = cache.get(number)) return found;
    // A thread that wants the same one waits, and does not parse it too.
    const std::lock_guard lock(parsing[number % parsing.size()]);
    if (auto found = cache.get(number)) return found;
    auto made = std::make_shared<text_block>();
    const std::uint64_t rows = before[number + 1].rows - before[number].rows;
    made->labels.resize(rows);
    made->bytes.resize(block_bytes(number));
    made->width = record_bytes / sizeof(float);
    if (record_bytes == 0) made->ends.resize(rows);
    const auto piece = text->text().substr(offsets[number], offsets[number + 1] - offsets[number]);
    format.parse(piece, before[number], *made);
    text->forget(piece);
    cache.put(number, made);
    return made;
  }

  std::shared_ptr<const mapped_file> text;
  text_format format;
  bool keep_bad;
  record_schema schema;
  std::uint64_t size = 0;
  std::uint64_t digest = 0;
  std::uint64_t content = 0;           // digest of the text
  std::uint64_t record_bytes = 0;      // 0: sparse
  std::uint64_t mean_bytes = 0;        // of a record
  std::vector<text_survey> before;     // what comes before each block, and all of it
  std::vector<std::uint64_t> offsets;  // where each block begins in the text, and the end
  mutable lru_cache_of<text_block> cache;
  mutable std::array<std::mutex, 64> parsing;  // of block number modulo their number
};

text_records::text_records(std::shared_ptr<const mapped_file> text, text_format format, const read_options& options,
                           const text_limits& limits)
    : state_(std::make_shared<const state>(std::move(text), std::move(format), options, limits)) {}

const std::string& text_records::name() const noexcept { return state_->format.name; }
std::uint64_t text_records::size() const noexcept { return state_->size; }
std::uint64_t text_records::digest() const noexcept { return state_->digest; }
const record_schema& text_records::schema() const noexcept { return state_->schema; }
std::uint64_t text_records::block_records() const noexcept {
  constexpr std::uint64_t bytes = std::uint64_t{4} << 20;  // as in start_of() of a loader
  return std::max<std::uint64_t>(bytes / state_->mean_bytes, 1);
}

void text_records::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  if (state_->record_bytes != 0) return static_cast<void>(std::fill_n(out.begin(), ids.size(), state_->record_bytes));
  std::shared_ptr<const text_block> block;
  std::size_t number = 0;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (const std::size_t of = state_->block_of(ids[k]); !block || of != number) block = state_->block(number = of);
    const std::size_t at = ids[k] - state_->before[number].rows;
    out[k] = block->ends[at] - (at == 0 ? 0 : block->ends[at - 1]);
  }
}

void text_records::read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad) const {
  std::shared_ptr<const text_block> block;
  std::size_t number = 0;
  std::byte* to = rows.bytes.data();
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (const std::size_t of = state_->block_of(ids[k]); !block || of != number) block = state_->block(number = of);
    const std::size_t at = ids[k] - state_->before[number].rows;
    const auto found = std::ranges::lower_bound(block->bad, ids[k], {}, &bad_record::id);
    if (found != block->bad.end() && found->id == ids[k]) {
      if (bad == nullptr || !state_->keep_bad) throw data_error(found->where, found->problem);
      bad->push_back(*found);
    }
    if (!rows.labels.empty()) rows.labels[k] = block->labels[at];
    if (rows.bytes.empty()) continue;
    const std::size_t end = block->ends.empty() ? (at + 1) * state_->record_bytes : block->ends[at];
    const std::size_t begin = !block->ends.empty() ? (at == 0 ? 0 : block->ends[at - 1]) : end - state_->record_bytes;
    if (end != begin) std::memcpy(to, block->bytes.data() + begin, end - begin);
    to += end - begin;
  }
}

}  // namespace muster::inline v0::detail
