// Collectives of uneven pieces against their oracle. All values are functions of (case, rank, index), so that every
// rank can compute all inputs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/comm/collectives/uneven.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/random.hpp>
#include "comm/oracle.hpp"

namespace test {

/// A case: a collective with the counts counts[sender][receiver]; in a collective other than all_to_all, the counts of
/// the pieces are in row 0.
struct uneven_case {
  std::uint64_t seed = 0;
  muster::collective kind = muster::collective::allgather;
  muster::algorithm algorithm = muster::algorithm::automatic;
  std::vector<std::vector<std::size_t>> counts;
  int root = 0;
  int type = 0;
  bool async = false;
  bool in_place = false;
  bool exchanges_counts = false;  // the call has no counts
  std::uint32_t registered = 0;   // ranks with buffers in the memory of the transport
  bool mean = false;

  [[nodiscard]] std::string describe() const {
    std::string text = std::string(to_string(kind)) + " by " + std::string(to_string(algorithm)) + ", counts";
    for (const auto& row : counts) {
      for (const std::size_t count : row) text += " " + std::to_string(count);
      text += ";";
    }
    return text + " root " + std::to_string(root) + ", type " + std::to_string(type) + (async ? ", async" : "") +
           (in_place ? ", in place" : "") + (exchanges_counts ? ", counts exchanged" : "") + ", registered " +
           std::to_string(registered) + (mean ? ", mean" : "");
  }
};

/// Returns the counts of a row: some zero, all, all but one at one rank, or one rank with everything.
inline std::vector<std::size_t> draw_counts(muster::random_stream& random, std::size_t n) {
  const std::size_t sizes[] = {2, 30, 30, 300, 3000, 40000};
  std::size_t largest = sizes[random.below(std::size(sizes))];
  if (random.below(100) == 0) largest = 400000;
  const auto shape = random.below(6);
  const auto chosen = random.below(n);
  std::vector<std::size_t> counts(n);
  for (std::size_t r = 0; r < n; ++r) {
    counts[r] = random.below(largest + 1);
    if (shape == 0 && r != chosen) counts[r] = 0;
    if (shape == 1 && r == chosen) counts[r] = 0;
    if (shape == 2 && random.below(2) == 0) counts[r] = 0;
    if (shape == 3) counts[r] = largest;
  }
  if (random.below(20) == 0) counts.assign(n, 0);
  return counts;
}

inline uneven_case draw_uneven(muster::random_stream& random, int rank_count, bool has_native) {
  using muster::collective;
  constexpr collective kinds[] = {collective::allgather, collective::gather, collective::scatter,
                                  collective::all_to_all, collective::reduce_scatter};
  const auto n = static_cast<std::size_t>(rank_count);
  uneven_case c;
  c.seed = random();
  c.kind = kinds[random.below(std::size(kinds))];
  for (std::size_t row = 0; row < (c.kind == collective::all_to_all ? n : 1); ++row)
    c.counts.push_back(draw_counts(random, n));
  const bool chooses = c.kind == collective::allgather || c.kind == collective::reduce_scatter;
  const auto algorithms = muster::algorithms_of(c.kind);
  if (const auto drawn = algorithms[random.below(algorithms.size())];
      chooses && random.below(2) == 0 && (drawn != muster::algorithm::native || has_native))
    c.algorithm = drawn;
  c.root = static_cast<int>(random.below(n));
  c.type = static_cast<int>(random.below(4));
  c.async = random.below(3) == 0;
  c.in_place = random.below(2) == 0;
  c.exchanges_counts = random.below(4) == 0;
  const std::uint32_t masks[] = {0, ~0u, static_cast<std::uint32_t>(random())};
  c.registered = masks[random.below(std::size(masks))];
  c.mean = random.below(4) == 0;
  return c;
}

template <class T>
class uneven_checker {
 public:
  uneven_checker(const uneven_case& c, muster::group& world)
      : c_(c), world_(world), n_(static_cast<std::size_t>(world.size())), me_(static_cast<std::size_t>(world.rank())) {}

  void run() {
    switch (c_.kind) {
      case muster::collective::allgather:
        return allgather();
      case muster::collective::gather:
        return gather();
      case muster::collective::scatter:
        return scatter();
      case muster::collective::all_to_all:
        return all_to_all();
      default:
        return reduce_scatter();
    }
  }

 private:
  using sizes = std::vector<std::size_t>;

  // Element i of the piece that `sender` has for `receiver`. Sums over nine ranks are exact in every type.
  [[nodiscard]] T value(std::size_t sender, std::size_t receiver, std::size_t i) const {
    return static_cast<T>(muster::mix(c_.seed + sender * 77 + receiver * 1009 + i % 251) % 10);
  }
  [[nodiscard]] const sizes& counts() const { return c_.counts[0]; }
  [[nodiscard]] sizes received_counts() const {
    sizes column;
    for (const auto& row : c_.counts) column.push_back(row[me_]);
    return column;
  }
  static std::size_t sum(const sizes& all) { return muster::detail::sum_of(all); }

  [[nodiscard]] muster::buffer<T> make(std::size_t count) const {
    const bool registered = (c_.registered >> (me_ % 32) & 1) != 0;
    muster::buffer<T> made(count + 1, registered ? world_.transport().memory() : nullptr);
    std::fill(made.begin(), made.end(), T{99});  // the last element is a frame
    return made;
  }
  static std::span<T> inside(muster::buffer<T>& made) { return made.span().first(made.size() - 1); }
  void fill(std::span<T> piece, std::size_t sender, std::size_t receiver) const {
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = value(sender, receiver, i);
  }
  void expect(std::span<const T> piece, std::size_t sender, std::size_t receiver) const {
    for (std::size_t i = 0; i < piece.size(); ++i) require(piece[i], value(sender, receiver, i), i);
  }
  void require(T got, T expected, std::size_t i) const {
    if (got == expected) return;
    throw std::runtime_error("rank " + std::to_string(me_) + ", element " + std::to_string(i) + " is " +
                             std::to_string(got) + ", not " + std::to_string(expected));
  }
  void require_frame(const muster::buffer<T>& made) const { require(made[made.size() - 1], T{99}, made.size() - 1); }
  void require_counts(const sizes& got, const sizes& expected) const {
    if (got != expected) throw std::runtime_error("rank " + std::to_string(me_) + " got other counts");
  }
  // Calls `each(piece, rank)` for the pieces of `data`.
  template <class Data, class Each>
  static void for_pieces(Data data, const sizes& counts, Each each) {
    std::size_t first = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      each(data.subspan(first, counts[r]), r);
      first += counts[r];
    }
  }
  [[nodiscard]] std::size_t first_of(std::size_t rank) const {
    return sum(sizes(counts().begin(), counts().begin() + static_cast<std::ptrdiff_t>(rank)));
  }
  [[nodiscard]] muster::collective_options call_options() const { return {.algorithm = c_.algorithm}; }

  void allgather() {
    auto out = make(sum(counts()));
    auto own = make(counts()[me_]);
    const auto mine = c_.in_place ? inside(out).subspan(first_of(me_), counts()[me_]) : inside(own);
    fill(mine, me_, 0);
    if (c_.exchanges_counts) {
      const auto all = muster::allgather(world_, mine, call_options());
      require_counts(all.counts, counts());
      return for_pieces(std::span(all.data), counts(), [&](auto piece, auto r) { expect(piece, r, 0); });
    }
    if (c_.async) {
      muster::allgather_async(world_, mine, inside(out), counts(), call_options()).wait();
    } else {
      muster::allgather(world_, mine, inside(out), counts(), call_options());
    }
    for_pieces(inside(out), counts(), [&](auto piece, auto r) { expect(piece, r, 0); });
    require_frame(out);
    require_frame(own);
  }

  void gather() {
    const bool is_root = me_ == static_cast<std::size_t>(c_.root);
    auto out = make(is_root ? sum(counts()) : 0);
    auto own = make(counts()[me_]);
    const auto mine = c_.in_place && is_root ? inside(out).subspan(first_of(me_), counts()[me_]) : inside(own);
    fill(mine, me_, 0);
    if (c_.exchanges_counts) {
      const auto all = muster::gather(world_, mine, c_.root);
      require_counts(all.counts, is_root ? counts() : sizes());
      return for_pieces(std::span(all.data), all.counts, [&](auto piece, auto r) { expect(piece, r, 0); });
    }
    const auto given = is_root ? counts() : sizes();
    if (c_.async) {
      muster::gather_async(world_, mine, inside(out), given, c_.root).wait();
    } else {
      muster::gather(world_, mine, inside(out), given, c_.root);
    }
    if (is_root) for_pieces(inside(out), counts(), [&](auto piece, auto r) { expect(piece, r, 0); });
    require_frame(out);
    require_frame(own);
  }

  void scatter() {
    const bool is_root = me_ == static_cast<std::size_t>(c_.root);
    const auto root = static_cast<std::size_t>(c_.root);
    auto in = make(is_root ? sum(counts()) : 0);
    auto own = make(counts()[me_]);
    if (is_root) for_pieces(inside(in), counts(), [&](auto piece, auto r) { fill(piece, root, r); });
    if (c_.exchanges_counts) {
      muster::pieces<T> all;
      if (is_root) all = {{inside(in).begin(), inside(in).end()}, counts()};
      const auto mine = muster::scatter(world_, all, c_.root);
      if (mine.size() != counts()[me_]) throw std::runtime_error("a wrong count");
      return expect(mine, root, me_);
    }
    const auto mine = c_.in_place && is_root ? inside(in).subspan(first_of(me_), counts()[me_]) : inside(own);
    const auto given = is_root ? counts() : sizes();
    if (c_.async) {
      muster::scatter_async(world_, inside(in), given, mine, c_.root).wait();
    } else {
      muster::scatter(world_, inside(in), given, mine, c_.root);
    }
    expect(mine, root, me_);
    require_frame(in);
    require_frame(own);
  }

  void all_to_all() {
    const auto& given = c_.counts[me_];
    const auto expected = received_counts();
    auto in = make(sum(given));
    auto out = make(sum(expected));
    for_pieces(inside(in), given, [&](auto piece, auto r) { fill(piece, me_, r); });
    if (c_.exchanges_counts) {
      const muster::pieces<T> mine{{inside(in).begin(), inside(in).end()}, given};
      const auto all = muster::all_to_all(world_, mine);
      require_counts(all.counts, expected);
      return for_pieces(std::span(all.data), expected, [&](auto piece, auto r) { expect(piece, r, me_); });
    }
    if (c_.async) {
      muster::all_to_all_async(world_, inside(in), given, inside(out), expected).wait();
    } else {
      muster::all_to_all(world_, inside(in), given, inside(out), expected);
    }
    for_pieces(inside(out), expected, [&](auto piece, auto r) { expect(piece, r, me_); });
    require_frame(in);
    require_frame(out);
  }

  void reduce_scatter() {
    if (c_.mean) return reduce_scatter_by(muster::mean);
    return reduce_scatter_by(muster::sum);
  }
  template <class Op>
  void reduce_scatter_by(Op op) {
    auto in = make(sum(counts()));
    auto out = make(counts()[me_]);
    for_pieces(inside(in), counts(), [&](auto piece, auto r) { fill(piece, me_, r); });
    const auto check = [&](auto mine) {
      for (std::size_t i = 0; i < mine.size(); ++i) {
        T total{};
        for (std::size_t r = 0; r < n_; ++r) total = static_cast<T>(total + value(r, me_, i));
        require(mine[i], c_.mean ? static_cast<T>(total / static_cast<T>(n_)) : total, i);
      }
    };
    if (c_.exchanges_counts) {
      const auto [mine, all_counts] = muster::reduce_scatter(world_, inside(in), counts()[me_], op, call_options());
      require_counts(all_counts, counts());
      return check(std::span(mine));
    }
    if (c_.async) {
      muster::reduce_scatter_async(world_, inside(in), counts(), inside(out), op, call_options()).wait();
    } else {
      muster::reduce_scatter(world_, inside(in), counts(), inside(out), op, call_options());
    }
    check(inside(out));
    require_frame(in);
    require_frame(out);
  }

  const uneven_case& c_;
  muster::group& world_;
  std::size_t n_;
  std::size_t me_;
};

/// Checks the cases at this rank. Collective. Throws std::runtime_error that names the rank, the element and the case.
inline void check_uneven(const case_list& cases, muster::group& world) {
  for (std::uint64_t index = cases.first; index < cases.first + cases.count; ++index) {
    muster::random_stream random(cases.seed + 7, static_cast<std::uint64_t>(world.size()) << 48 | index);
    const auto drawn = draw_uneven(random, world.size(), world.abilities().native_collectives);
    try {
      if (drawn.type == 0) uneven_checker<std::uint8_t>(drawn, world).run();
      if (drawn.type == 1) uneven_checker<std::int32_t>(drawn, world).run();
      if (drawn.type == 2) uneven_checker<float>(drawn, world).run();
      if (drawn.type == 3) uneven_checker<double>(drawn, world).run();
    } catch (const std::exception& failure) {
      throw std::runtime_error(std::string(failure.what()) + "; uneven case " + std::to_string(index) + " over " +
                               std::string(world.abilities().name) + ": " + drawn.describe() +
                               "; MUSTER_TEST_SEED=" + std::to_string(cases.seed) +
                               " MUSTER_TEST_CASE=" + std::to_string(index) + " runs it alone");
    }
  }
}

}  // namespace test
