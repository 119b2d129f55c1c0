#include "row_store.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace muster::inline v0::ps::detail {

void row_store::next_push(const row_shape& shape) {
  ++pushes_;
  // Rows that are too old are as if they were gone; now and then they go.
  if (shape.most_age > 0 && pushes_ % (shape.most_age / 4 + 1) == 0)
    drop(shape, [&](std::size_t row) { return is_old(shape, row); });
}

row_store::touched_row row_store::touch(const row_shape& shape, std::uint64_t key) {
  std::size_t at = index_.find(key);
  const bool fresh = at == row_index::none;
  if (fresh) {
    if (shape.most_rows > 0 && times_.size() >= shape.most_rows) drop_excess(shape);
    at = index_.find_or_add(key);
    values_.resize(values_.size() + shape.stride);
    times_.push_back(0);
    if (shape.is_bounded()) touched_.push_back(0);
  }
  const auto all = std::span(values_).subspan(at * shape.stride, shape.stride);
  if (fresh || is_old(shape, at)) {
    std::fill(all.begin(), all.end(), 0.0f);
    std::fill_n(all.begin(), shape.width, shape.initial);
    times_[at] = 0;
  }
  if (shape.is_bounded()) touched_[at] = pushes_;
  return {all, times_[at]};
}

std::span<const float> row_store::find(const row_shape& shape, std::uint64_t key) const noexcept {
  const std::size_t at = index_.find(key);
  if (at == row_index::none || is_old(shape, at)) return {};
  return std::span(values_).subspan(at * shape.stride, shape.stride);
}

// An eighth of them, those that were pushed to least recently; among equals the smaller keys.
void row_store::drop_excess(const row_shape& shape) {
  std::vector<std::uint32_t> order(times_.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto count = std::max<std::size_t>(1, order.size() / 8);
  const auto& keys = index_.keys();
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count - 1), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) {
                     return std::pair(touched_[a], keys[a]) < std::pair(touched_[b], keys[b]);
                   });
  std::vector<bool> goes(order.size(), false);
  for (std::size_t i = 0; i < count; ++i) goes[order[i]] = true;
  drop(shape, [&](std::size_t row) { return goes[row]; });
}

// The others keep their order.
template <class Drop>
void row_store::drop(const row_shape& shape, const Drop& goes) {
  row_store left;
  left.pushes_ = pushes_;
  for (std::size_t row = 0; row < times_.size(); ++row) {
    if (goes(row)) continue;
    (void)left.index_.find_or_add(index_.keys()[row]);
    const auto from = values_.begin() + static_cast<std::ptrdiff_t>(row * shape.stride);
    left.values_.insert(left.values_.end(), from, from + static_cast<std::ptrdiff_t>(shape.stride));
    left.times_.push_back(times_[row]);
    left.touched_.push_back(touched_[row]);
  }
  *this = std::move(left);
}

// ---- elsewhere ----

void row_store::list(const row_shape& shape, muster::detail::wire_writer& to) const {
  std::vector<std::size_t> rows;
  for (std::size_t row = 0; row < times_.size(); ++row) {
    if (!is_old(shape, row)) rows.push_back(row);
  }
  to.add(std::uint64_t{rows.size()});
  for (const auto row : rows) to.add(index_.keys()[row]);
  for (const auto row : rows) to.add(times_[row]);
  for (const auto row : rows) to.add_bytes(std::as_bytes(std::span(values_).subspan(row * shape.stride, shape.stride)));
}

void row_store::save(muster::detail::wire_writer& to) const {
  to.add(pushes_);
  to.add(std::uint64_t{times_.size()});
  to.add_bytes(std::as_bytes(std::span(index_.keys())));
  to.add_bytes(std::as_bytes(std::span(times_)));
  to.add_bytes(std::as_bytes(std::span(touched_)));
  to.add_bytes(std::as_bytes(std::span(values_)));
}

bool row_store::load(const row_shape& shape, muster::detail::wire_reader& in) {
  *this = {};
  pushes_ = in.number<std::uint64_t>();
  const std::size_t rows =
      in.count(2 * sizeof(std::uint64_t) + shape.stride * sizeof(float), std::size_t{row_index::none} - 1);
  for (std::size_t i = 0; i < rows; ++i) {
    if (index_.find_or_add(in.number<std::uint64_t>()) != i) return false;
  }
  const auto take = [&](auto& to, std::size_t count) {
    to.resize(count);
    const auto bytes = in.bytes(count * sizeof(to[0]));
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
  };
  take(times_, rows);
  take(touched_, shape.is_bounded() ? rows : 0);
  take(values_, rows * shape.stride);
  return in.good() && std::all_of(touched_.begin(), touched_.end(), [&](auto one) { return one <= pushes_; });
}

}  // namespace muster::inline v0::ps::detail
