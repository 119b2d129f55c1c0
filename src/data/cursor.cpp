#include <muster/data/cursor.hpp>

#include <cstdio>
#include <iterator>

#include "order/batch_sampler.hpp"

namespace muster::inline v0 {

live_cursor::live_cursor(detail::batch_sampler& plan) noexcept : muster::cursor(plan.cursor()), plan_(&plan) {}
const cursor& live_cursor::now() const noexcept { return plan_->cursor(); }
bool live_cursor::epoch_is_over() const noexcept { return detail::batch_sampler::batch_size(now()) == 0; }
void live_cursor::open(const cursor& there) const { plan_->open(there); }
void live_cursor::commit() const { plan_->commit(); }
void live_cursor::next_epoch() const { plan_->next_epoch(); }

std::string_view to_string(sample_order order) noexcept {
  constexpr std::string_view names[] = {"sequential", "shuffled", "feistel", "block_window"};
  const auto index = static_cast<std::size_t>(order);
  return index < std::size(names) ? names[index] : std::string_view("unknown");
}

std::string detail::difference(const cursor& there, const cursor& here) {
  std::string text;
  const auto compare = [&](const char* what, const std::string& one, const std::string& other) {
    if (one == other) return;
    text.append(text.empty() ? "" : ", ").append("the ").append(what);
    text.append(" is ").append(one).append(" there and ").append(other).append(" here");
  };
  const auto hex = [](std::uint64_t digest) {
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(digest));
    return std::string(digits);
  };
  compare("version", std::to_string(there.version), std::to_string(here.version));
  compare("number of samples", std::to_string(there.size), std::to_string(here.size));
  compare("dataset's digest", hex(there.dataset), hex(here.dataset));
  compare("order", std::string(to_string(there.order)), std::string(to_string(here.order)));
  compare("seed", std::to_string(there.seed), std::to_string(here.seed));
  compare("block", std::to_string(there.block), std::to_string(here.block));
  compare("window", std::to_string(there.window), std::to_string(here.window));
  compare("drop_last", std::to_string(there.drop_last), std::to_string(here.drop_last));
  compare("batch per rank", std::to_string(there.per_rank), std::to_string(here.per_rank));
  compare(here.per_rank != 0 ? "batch" : "global batch", std::to_string(there.batch), std::to_string(here.batch));
  return text;
}

}  // namespace muster::inline v0
