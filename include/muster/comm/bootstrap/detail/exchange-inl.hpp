#pragma once

#include <muster/comm/bootstrap/exchange.hpp>

#include <algorithm>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// An exchange. Each rank writes its number of ranks and its text. Rank 0 collects the texts and writes all texts under
// one prefix. Each rank removes its own text when it has read all texts. If the ranks have different numbers of ranks,
// rank 0 writes a refusal instead.
class exchange_round {
 public:
  exchange_round(any_store& store, std::string_view prefix, int rank, int rank_count, clock::time_point until)
      : store_(store), prefix_(prefix), rank_(rank), rank_count_(rank_count), until_(until) {}

  std::vector<std::string> run(std::string_view mine) {
    const std::string counted = std::to_string(rank_count_) + " " + std::string(mine);
    const auto result = store_.compare_and_swap(key_of(rank_), 0, counted, until_);
    if (!result.swapped) {
      throw configuration_error(
          "rank " + std::to_string(rank_) + " has already written to '" + prefix_ + "' of the store " + store_.where() +
          " (the rank was started twice, or two jobs use one store); give each job its own store");
    }
    auto words = rank_ == 0 ? collect(mine) : receive();
    store_.compare_and_swap(key_of(rank_), result.now.version, std::nullopt, until_);
    if (rank_ == 0) await_readers();
    if (!refusal_.empty()) throw configuration_error(refusal_);
    return words;
  }

 private:
  // Reads the text of another rank, and sets the refusal if that rank has another number of ranks.
  std::string read(int rank, const store_entry& entry) {
    const auto space = entry.value.find(' ');
    const auto count = parse_number<int>(std::string_view(entry.value).substr(0, space)).value_or(0);
    versions_.push_back(entry.version);
    if (count != rank_count_) refuse(rank_count_, rank, count);
    return entry.value.substr(std::min(space, entry.value.size() - 1) + 1);
  }

  void refuse(int size_of_first, int rank, int size) {
    refusal_ = "rank 0 was started with a size of " + std::to_string(size_of_first) + ", and rank " +
               std::to_string(rank) + " with a size of " + std::to_string(size) +
               " (WORLD_SIZE differs, or two jobs use " + store_.where() +
               "); start all ranks with the same WORLD_SIZE, and give each job its own store";
  }

  std::vector<std::string> collect(std::string_view mine) {
    std::vector<std::string> words{std::string(mine)};
    versions_ = {0};
    for (int rank = 1; rank < rank_count_ && refusal_.empty(); ++rank) {
      const auto entry = store_.watch(key_of(rank), 0, until_);
      if (!entry) throw_timeout("did not all arrive");
      words.push_back(read(rank, *entry));
    }
    // A rank above the number of ranks belongs to a start with another number.
    if (const auto extra = store_.get(key_of(rank_count_), until_)) (void)read(rank_count_, extra);
    if (!refusal_.empty()) {
      publish(prefix_ + "/all", refusal_);
      return {};
    }
    detail::wire_writer written;
    for (const auto& word : words) written.add_text(word);
    const std::string all = written.take();
    for (std::size_t at = 0; at < all.size(); at += store_value_limit) {
      publish(piece(pieces_++), std::string_view(all).substr(at, store_value_limit));
    }
    publish(prefix_ + "/all", std::to_string(pieces_));  // written last: a rank that reads it finds all pieces
    return words;
  }

  std::vector<std::string> receive() {
    const auto published = store_.watch(prefix_ + "/all", 0, until_);
    if (!published) throw_timeout("did not all arrive");
    const auto pieces = parse_number<std::size_t>(published->value);
    if (!pieces) refusal_ = published->value;
    std::string all;
    for (std::size_t i = 0; i < pieces.value_or(0); ++i) all += store_.get(piece(i), until_).value;

    std::vector<std::string> words;
    for (detail::wire_reader reader(all); !reader.rest().empty();) words.emplace_back(reader.text());
    if (pieces && words.size() != static_cast<std::size_t>(rank_count_))
      refuse(static_cast<int>(words.size()), rank_, rank_count_);
    return words;
  }

  void await_readers() {
    if (!refusal_.empty()) await_refused();
    for (int rank = 1; rank < rank_count_ && refusal_.empty(); ++rank) {
      const auto version = versions_[static_cast<std::size_t>(rank)];
      if (!store_.watch(key_of(rank), version, until_))
        throw_timeout("did not all read the values of the others", true);
    }
    for (std::size_t i = 0; i < pieces_; ++i) remove(piece(i));
    remove(prefix_ + "/all");
  }

  // Waits until the other ranks have read the refusal, for a short time, since some of them may never arrive.
  void await_refused() {
    const auto until = std::min(until_, deadline_after(seconds(1)));
    for (int rank = 1; rank <= rank_count_; ++rank) {
      const auto entry = store_.watch(key_of(rank), 0, until);
      if (entry) (void)store_.watch(key_of(rank), entry->version, until);
    }
  }

  void publish(const std::string& key, std::string_view value) {
    if (store_.compare_and_swap(key, 0, value, until_).swapped) return;
    throw configuration_error("'" + key + "' is in the store " + store_.where() +
                              " already (two jobs use one store); give each job its own store");
  }

  void remove(const std::string& key) {
    store_.compare_and_swap(key, store_.get(key, until_).version, std::nullopt, until_);
  }

  // Throws at the deadline and names the missing ranks. `readers`: false: ranks without a text are missing; true: ranks
  // that have not removed their text are missing, because a rank removes its text after it has read all texts.
  [[noreturn]] void throw_timeout(const std::string& problem, bool readers = false) {
    std::vector<int> missing;
    try {
      const auto late = deadline_after(seconds(1));
      for (int rank = 0; rank < rank_count_; ++rank) {
        if (rank != rank_ && static_cast<bool>(store_.get(key_of(rank), late)) == readers) missing.push_back(rank);
      }
    } catch (const timeout_error&) {  // the store does not answer either
    }
    const std::string absent = missing.empty() ? "no rank is known to be missing; " + store_.where() + " is slow"
                                               : "missing: rank " + format_ranks(missing);
    throw timeout_error("exchange", missing,
                        "the ranks " + problem + " at '" + prefix_ + "' in time (" + absent +
                            "); look at what those ranks do, or raise --timeout / MUSTER_TIMEOUT");
  }

  [[nodiscard]] std::string key_of(int rank) const { return prefix_ + "/" + std::to_string(rank); }
  [[nodiscard]] std::string piece(std::size_t i) const { return prefix_ + "/all/" + std::to_string(i); }

  any_store& store_;
  std::string prefix_;
  int rank_;
  int rank_count_;
  clock::time_point until_;
  std::vector<std::uint64_t> versions_;  // rank 0: versions of the ranks' texts
  std::size_t pieces_ = 0;
  std::string refusal_;  // why the ranks cannot form a job; empty: they can
};

}  // namespace detail

MUSTER_INLINE std::vector<std::string> exchange(any_store& store, std::string_view prefix, int rank, int rank_count,
                                                std::string_view mine, clock::time_point until) {
  detail::check_store_value(mine, store.where());
  if (rank_count == 1) return {std::string(mine)};
  return detail::exchange_round(store, prefix, rank, rank_count, until).run(mine);
}

}}  // namespace muster::v0
