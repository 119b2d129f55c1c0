// Bounded rows compared with a plain map, and copies of rows that stay equal.
#include <muster/ps/runtime/row_store.hpp>

#include <algorithm>
#include <map>
#include <vector>

#include <muster/core/random.hpp>

#include "catch.hpp"

namespace rows_of = muster::ps::detail;

namespace {

struct plain_row {
  std::vector<float> values;
  std::uint64_t times = 0;
  std::uint64_t touched = 0;
};

// The documented behaviour of `row_store`, in the simplest form.
class plain_rows {
 public:
  explicit plain_rows(const rows_of::row_shape& shape) : shape_(shape) {}
  void next_push() {
    ++pushes_;
    if (shape_.most_age > 0 && pushes_ % (shape_.most_age / 4 + 1) == 0)
      std::erase_if(rows_, [&](const auto& entry) { return is_old(entry.second); });
  }
  plain_row& touch(std::uint64_t key) {
    if (!rows_.contains(key) && shape_.most_rows > 0 && rows_.size() >= shape_.most_rows) {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> order;
      for (const auto& [row_key, row] : rows_) order.emplace_back(row.touched, row_key);
      std::sort(order.begin(), order.end());
      order.resize(std::max<std::size_t>(1, order.size() / 8));
      for (const auto& [when, row_key] : order) rows_.erase(row_key);
    }
    auto& row = rows_[key];
    if (row.values.empty() || is_old(row)) {
      row.values.assign(shape_.stride, 0.0f);
      std::fill_n(row.values.begin(), shape_.width, shape_.initial);
      row.times = 0;
    }
    row.touched = pushes_;
    return row;
  }
  [[nodiscard]] const plain_row* find(std::uint64_t key) const {
    const auto found = rows_.find(key);
    return found == rows_.end() || is_old(found->second) ? nullptr : &found->second;
  }
  [[nodiscard]] std::size_t size() const { return rows_.size(); }

 private:
  [[nodiscard]] bool is_old(const plain_row& row) const {
    return shape_.most_age > 0 && pushes_ - row.touched > shape_.most_age;
  }
  rows_of::row_shape shape_;
  std::map<std::uint64_t, plain_row> rows_;
  std::uint64_t pushes_ = 0;
};

std::string saved(const rows_of::row_store& rows) {
  muster::detail::wire_writer out;
  rows.save(out);
  return out.take();
}

}  // namespace

TEST_CASE("rows are kept, dropped and begun anew as the bounds say, and a copy goes on alike") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    muster::random_stream draw(seed, 7);
    const rows_of::row_shape shape{.width = 2,
                                   .stride = 2 + draw.below(3),
                                   .initial = 0.5f,
                                   .most_rows = draw.below(3) == 0 ? 0 : 1 + draw.below(60),
                                   .most_age = draw.below(3) == 0 ? 0 : 1 + draw.below(30)};
    INFO("seed " << seed << ", at most " << shape.most_rows << " rows, age " << shape.most_age);
    plain_rows expected(shape);
    rows_of::row_store rows;
    for (int push = 0; push < 300; ++push) {
      rows.next_push(shape);
      expected.next_push();
      for (auto n = 1 + draw.below(6); n > 0; --n) {
        const auto key = draw.below(2) == 0 ? draw.below(20) : draw.below(400);
        auto row = rows.touch(shape, key);
        auto& expected_row = expected.touch(key);
        REQUIRE(
            std::equal(row.values.begin(), row.values.end(), expected_row.values.begin(), expected_row.values.end()));
        REQUIRE(row.times == expected_row.times);
        for (std::size_t k = 0; k < shape.stride; ++k)
          row.values[k] = expected_row.values[k] = static_cast<float>(draw.below(1000));
        row.times = ++expected_row.times;
      }
      if (shape.most_rows > 0) REQUIRE(expected.size() <= shape.most_rows);
      const auto key = draw.below(400);
      const auto found = rows.find(shape, key);
      const auto* const expected_row = expected.find(key);
      REQUIRE(found.empty() == (expected_row == nullptr));
      if (expected_row != nullptr)
        REQUIRE(std::equal(found.begin(), found.end(), expected_row->values.begin(), expected_row->values.end()));
      if (draw.below(20) != 0) continue;
      // A copy replaces the rows, as at a server that learns the range.
      const auto text = saved(rows);
      rows_of::row_store copy;
      muster::detail::wire_reader in(text);
      REQUIRE(copy.load(shape, in));
      REQUIRE(in.is_complete());
      REQUIRE(saved(copy) == text);
      rows = std::move(copy);
    }
  }
}

TEST_CASE("what no store has saved is refused") {
  const rows_of::row_shape shape{.width = 3, .stride = 3, .most_rows = 9};
  rows_of::row_store rows;
  for (std::uint64_t key = 0; key < 5; ++key) {
    rows.next_push(shape);
    (void)rows.touch(shape, key * 77);
  }
  const auto text = saved(rows);
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    muster::random_stream draw(seed, 3);
    auto wrong = text;
    if (draw.below(2) == 0)
      wrong.resize(draw.below(text.size()));
    else
      wrong[draw.below(40)] = static_cast<char>(draw.below(256));
    rows_of::row_store copy;
    muster::detail::wire_reader in(wrong);
    if (copy.load(shape, in)) (void)copy.touch(shape, 77);  // accepted bytes give a consistent store
  }
}
