// The arguments that collectives accept and refuse, at compile time.
#include <array>
#include <list>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/core/buffer.hpp>
#include "catch.hpp"

namespace {

template <class R, class Op>
concept can_allreduce = requires(muster::group& g, R&& r, Op op) {
  muster::allreduce(g, std::forward<R>(r), op);
};
template <class R, class Op>
concept can_allreduce_async = requires(muster::group& g, R&& r, Op op) {
  muster::allreduce_async(g, std::forward<R>(r), op);
};
template <class R>
concept can_broadcast = requires(muster::group& g, R&& r) {
  muster::broadcast(g, std::forward<R>(r), 0);
};
template <class In, class Out>
concept can_allgather = requires(muster::group& g, In&& in, Out&& out) {
  muster::allgather(g, std::forward<In>(in), std::forward<Out>(out));
};

using sum_type = decltype(muster::sum);

// Contiguous ranges of elements; const if they are only read.
static_assert(can_allreduce<std::vector<float>&, sum_type>);
static_assert(can_allreduce<std::span<double>, sum_type>);
static_assert(can_allreduce<std::array<int, 4>&, sum_type>);
static_assert(can_allreduce<std::span<muster::bfloat16>, decltype(muster::mean)>);
static_assert(can_allgather<const std::vector<float>&, std::vector<float>&>);
static_assert(can_broadcast<muster::buffer<float>&>);

// A const range is not written, and a range that is not an array is not read.
static_assert(!can_allreduce<const std::vector<float>&, sum_type>);
static_assert(!can_allreduce<std::span<const float>, sum_type>);
static_assert(!can_allgather<std::vector<float>&, const std::vector<float>&>);
static_assert(!can_broadcast<std::list<float>&>);
static_assert(!can_broadcast<std::vector<bool>&>);
static_assert(!can_broadcast<std::vector<std::string>&>);
static_assert(!can_broadcast<std::vector<float*>&>);

// An operation must fit its elements.
struct joins {
  std::string operator()(const std::string& a, const std::string& b) const { return a + b; }
};
static_assert(!can_allreduce<std::vector<float>&, joins>);
static_assert(can_allreduce<std::vector<float>&, decltype([](float a, float b) { return a > b ? a : b; })>);

// A work outlives the call, so the memory must outlive the call too. A temporary view is not temporary memory.
static_assert(can_allreduce_async<std::vector<float>&, sum_type>);
static_assert(can_allreduce_async<std::span<float>, sum_type>);
static_assert(!can_allreduce_async<std::vector<float>, sum_type>);

// Handles can be moved and not copied.
static_assert(std::is_move_constructible_v<muster::group> && !std::is_copy_constructible_v<muster::group>);
static_assert(std::is_move_assignable_v<muster::work> && !std::is_copy_constructible_v<muster::work>);
static_assert(!std::is_move_constructible_v<muster::request>);

}  // namespace

TEST_CASE("a default work is done") {
  muster::work nothing;
  CHECK(nothing.test());
  nothing.wait();
}
