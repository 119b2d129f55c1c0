// A case of a collective at one rank, compared to its oracle: the result that a single thread computes from all inputs.
// Every rank can compute all inputs, since they are functions of (case, rank, index).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/comm/collectives/scatter.hpp>
#include <muster/core/buffer.hpp>
#include <muster/testing/scenario.hpp>

namespace muster { inline namespace v0 { namespace testing {

namespace detail {

/// Returns the period of the values, a prime number, so that large buffers are filled and compared at the speed of
/// memory. No block or chunk is a multiple of the period, so an element at a wrong place has a wrong value.
inline std::size_t period_of(const scenario& s) {
  constexpr std::size_t primes[] = {251, 509, 1021, 2039};
  return primes[s.seed % std::size(primes)];
}

/// Returns the input of a rank at an index: a small integer, so that sums and products over nine ranks are exact in
/// every type and order. Any difference from the oracle is then an error and not rounding.
template <class T>
T value_at(const scenario& s, int rank, std::size_t index) {
  const std::size_t i = index % period_of(s);
  const std::uint64_t word = mix(s.seed ^ mix(static_cast<std::uint64_t>(rank) * 0x9e37u + i));
  if (s.op == operation::product) return static_cast<T>(static_cast<float>(1 + word % 2 * (i % 3 == 0 ? 1 : 0)));
  return static_cast<T>(static_cast<float>(word % 10));
}

struct largest_value {  // a user's function with state, which must be sent along
  int bias = 0;
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

/// Returns the result of the case's reduction at index i, over all ranks.
template <class T>
T combined(const scenario& s, int rank_count, std::size_t i) {
  long double result = static_cast<long double>(value_at<T>(s, 0, i));
  for (int r = 1; r < rank_count; ++r) {
    const auto v = static_cast<long double>(value_at<T>(s, r, i));
    if (s.op == operation::sum || s.op == operation::mean) result += v;
    if (s.op == operation::product) result *= v;
    if (s.op == operation::min) result = std::fmin(result, v);
    if (s.op == operation::max || s.op == operation::user) result = std::fmax(result, v);
  }
  if constexpr (std::is_same_v<T, bool>) return result != 0;
  if constexpr (std::is_integral_v<T>) {  // sums wrap around in the type, like the library's sums
    T wrapped = static_cast<T>(static_cast<long long>(result));
    if (s.op == operation::mean) wrapped = static_cast<T>(static_cast<long long>(wrapped) / rank_count);
    return wrapped;
  } else {
    if (s.op != operation::mean) return static_cast<T>(static_cast<float>(result));
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(result) / static_cast<T>(rank_count);
    else
      return static_cast<T>(static_cast<float>(result) / static_cast<float>(rank_count));
  }
}

template <class Function>
void with_operation(operation op, Function function) {
  switch (op) {
    case operation::product:
      return function(product);
    case operation::min:
      return function(min);
    case operation::max:
      return function(max);
    case operation::mean:
      return function(mean);
    case operation::user:
      return function(largest_value{7});
    default:
      return function(sum);
  }
}

template <class T>
class checker {
 public:
  checker(const scenario& s, group& world) : s_(s), world_(world), n_(world.size()), me_(world.rank()) {
    const auto [in_count, out_count] = counts();
    fill(in_, in_count, s_.registered_in, s_.kind == collective::scatter ? s_.root : me_);
    make(out_, out_count, s_.registered_out);
    const auto mine = block_of(s_.count, me_, n_);
    if (s_.kind == collective::allgather && s_.in_place)
      std::copy(in().begin(), in().end(), out().begin() + static_cast<std::ptrdiff_t>(mine.first));
  }

  void start() {
    const collective_options call_options{.algorithm = s_.algorithm};
    const auto whole_in = in();
    const auto whole_out = out();
    const auto mine = block_of(s_.count, me_, n_);
    switch (s_.kind) {
      case collective::broadcast:
        return launch(muster::detail::broadcast_call(world_, whole_in, s_.root, call_options));
      case collective::reduce:
        return with_operation(s_.op, [&](auto op) {
          launch(muster::detail::reduce_call(world_, whole_in, is_in_place() ? whole_in : whole_out, op, s_.root,
                                             call_options));
        });
      case collective::allreduce:
        return with_operation(s_.op, [&](auto op) {
          launch(
              muster::detail::allreduce_call(world_, whole_in, is_in_place() ? whole_in : whole_out, op, call_options));
        });
      case collective::allgather: {
        const auto block = s_.in_place ? whole_out.subspan(mine.first, mine.count) : whole_in;
        return launch(muster::detail::allgather_call(world_, block, whole_out, call_options));
      }
      case collective::reduce_scatter:
        return with_operation(s_.op, [&](auto op) {
          launch(muster::detail::reduce_scatter_call(world_, whole_in, whole_out, op, call_options));
        });
      case collective::gather:
        return launch(muster::detail::gather_call(world_, whole_in, whole_out, s_.root, call_options));
      case collective::scatter:
        return launch(muster::detail::scatter_call(world_, whole_in, whole_out, s_.root, call_options));
      case collective::all_to_all:
        return launch(muster::detail::all_to_all_call(world_, whole_in, whole_out, call_options));
      default:
        return launch(muster::detail::barrier_call(call_options));
    }
  }

  /// Waits for the call. Throws where the result differs from the oracle, or where a rank wrote outside its buffer.
  void end() {
    if (s_.seed % 2 == 0) {
      while (!work_.wait_for(seconds(0.001))) {
      }
    } else if (s_.seed % 3 == 0) {
      while (!work_.test()) std::this_thread::yield();
    }
    work_.wait();
    expect_results();
    const bool in_is_result = s_.kind == collective::broadcast || is_in_place();
    const int input_rank = s_.kind == collective::scatter ? s_.root : me_;
    if (!in_is_result) expect(in(), "the input", [&](std::size_t i) { return value_at<T>(s_, input_rank, i); });
    expect_frame(in_, "the input");
    expect_frame(out_, "the output");
  }

 private:
  // Returns the number of elements in this rank's input and output.
  [[nodiscard]] std::pair<std::size_t, std::size_t> counts() const {
    const std::size_t all = s_.count * static_cast<std::size_t>(n_);
    const std::size_t mine = block_of(s_.count, me_, n_).count;
    const bool is_root = me_ == s_.root;
    switch (s_.kind) {
      case collective::broadcast:
        return {s_.count, 0};
      case collective::reduce:
        return {s_.count, is_root ? s_.count : 0};
      case collective::allreduce:
        return {s_.count, s_.count};
      case collective::reduce_scatter:
        return {s_.count, mine};
      case collective::allgather:
        return {mine, s_.count};
      case collective::gather:
        return {s_.count, is_root ? all : 0};
      case collective::scatter:
        return {is_root ? all : 0, s_.count};
      case collective::all_to_all:
        return {all, all};
      default:
        return {0, 0};
    }
  }
  [[nodiscard]] bool is_in_place() const {
    const bool has_result = s_.kind == collective::allreduce || (s_.kind == collective::reduce && me_ == s_.root);
    return s_.in_place && has_result;
  }

  void expect_results() {
    const auto mine = block_of(s_.count, me_, n_);
    const auto value_of = [&](int rank, std::size_t first) {
      return [this, rank, first](std::size_t i) { return value_at<T>(s_, rank, first + i); };
    };
    const auto expect_parts = [&](std::size_t first) {
      for (int r = 0; r < n_; ++r)
        expect(out().subspan(static_cast<std::size_t>(r) * s_.count, s_.count), "a part", value_of(r, first));
    };
    switch (s_.kind) {
      case collective::broadcast:
        return expect(in(), "the data", value_of(s_.root, 0));
      case collective::reduce:
      case collective::allreduce:
        if (s_.kind == collective::reduce && me_ != s_.root) return;
        return expect(is_in_place() ? in() : out(), "the result",
                      [&](std::size_t i) { return combined<T>(s_, n_, i); });
      case collective::reduce_scatter:
        return expect(out(), "the block", [&](std::size_t i) { return combined<T>(s_, n_, mine.first + i); });
      case collective::allgather:
        for (int r = 0; r < n_; ++r) {
          const auto block = block_of(s_.count, r, n_);
          expect(out().subspan(block.first, block.count), "a block", value_of(r, 0));
        }
        return;
      case collective::gather:
        if (me_ == s_.root) expect_parts(0);
        return;
      case collective::scatter:
        return expect(out(), "the part", value_of(s_.root, static_cast<std::size_t>(me_) * s_.count));
      case collective::all_to_all:
        return expect_parts(static_cast<std::size_t>(me_) * s_.count);
      default:
        return;
    }
  }

  // A buffer has a frame that no rank may write: `misaligned` elements before the data, and one element after the data.
  [[nodiscard]] std::size_t before() const { return static_cast<std::size_t>(s_.misaligned); }
  [[nodiscard]] std::span<T> inside(buffer<T>& framed) const {
    return framed.empty() ? std::span<T>() : framed.span().subspan(before(), framed.size() - before() - 1);
  }
  [[nodiscard]] std::span<T> in() { return inside(in_); }
  [[nodiscard]] std::span<T> out() { return inside(out_); }

  static T frame() { return static_cast<T>(9.0f); }
  void make(buffer<T>& framed, std::size_t count, std::uint32_t registered_ranks) {
    auto* const source = has_bit(registered_ranks, me_) ? world_.transport().memory() : nullptr;
    framed = buffer<T>(before() + count + 1, source);  // not a vector, since std::vector<bool> is not an array
    std::fill(framed.begin(), framed.begin() + before(), frame());
    framed[framed.size() - 1] = frame();
  }
  // Makes the buffer, and fills it with the values of `rank`. Bit r of `registered_ranks`: the buffer of rank r is
  // registered memory.
  void fill(buffer<T>& framed, std::size_t count, std::uint32_t registered_ranks, int rank) {
    make(framed, count, registered_ranks);
    const std::size_t period = std::min(count, period_of(s_));
    T* const data = framed.data() + before();
    for (std::size_t i = 0; i < period; ++i) data[i] = value_at<T>(s_, rank, i);
    for (std::size_t i = period; i < count; i += period) std::copy_n(data, std::min(period, count - i), data + i);
  }

  void launch(collective_call&& call) {
    if (s_.async) {
      work_ = muster::detail::start(world_, std::move(call));
    } else {
      muster::detail::run(world_, std::move(call));
    }
  }

  template <class Oracle>
  void expect(std::span<const T> got, const char* region, Oracle oracle) const {
    const std::size_t period = std::min(got.size(), period_of(s_));
    buffer<T> expected(period);
    for (std::size_t i = 0; i < period; ++i) expected[i] = oracle(i);
    for (std::size_t i = 0; i < got.size(); i += period) {
      const std::size_t n = std::min(period, got.size() - i);
      // Compares bytes first, which is fast. Numbers with different bytes may still be equal (a long double has unused
      // bytes).
      if (std::memcmp(&got[i], expected.data(), n * sizeof(T)) == 0) continue;
      for (std::size_t k = 0; k < n; ++k) {
        if (got[i + k] != expected[k]) complain(region, i + k, got[i + k], expected[k]);
      }
    }
  }
  void expect_frame(const buffer<T>& framed, const char* region) const {
    if (framed.empty()) return;
    const auto expect_at = [&](std::size_t i) {
      if (framed[i] != frame()) complain((std::string("the memory around ") + region).c_str(), i, framed[i], frame());
    };
    for (std::size_t i = 0; i < before(); ++i) expect_at(i);
    expect_at(framed.size() - 1);
  }
  [[noreturn]] void complain(const char* region, std::size_t i, T got, T expected) const {
    std::ostringstream text;
    text << "rank " << me_ << ", element " << i << " of " << region << ": " << static_cast<long double>(got)
         << " instead of " << static_cast<long double>(expected);
    throw std::runtime_error(text.str());
  }

  const scenario s_;
  group& world_;
  int n_;
  int me_;
  buffer<T> in_;
  buffer<T> out_;
  work work_;  // declared last, so that it is destroyed before the buffers
};

template <class T>
std::function<void()> begin_as(const scenario& s, group& world) {
  const auto instance = std::make_shared<checker<T>>(s, world);
  if (s.delays) {
    random_stream delays(s.seed, static_cast<std::uint64_t>(world.rank()));
    if (delays.below(3) == 0) std::this_thread::yield();
    if (delays.below(3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(delays.below(200)));
  }
  instance->start();
  return [instance] { instance->end(); };
}

template <class... Types>
std::function<void()> begin_as_its_type(const scenario& s, group& world) {
  std::function<void()> end;
  (void)((s.type == type_code_of<Types>() && (end = begin_as<Types>(s, world), true)) || ...);
  return end;
}

}  // namespace detail

/// Starts the case at this rank. The returned function must be called once: it waits, and throws where the result
/// differs from the oracle, or where a rank wrote outside its buffer.
[[nodiscard]] inline std::function<void()> begin(const scenario& s, group& world) {
  return detail::begin_as_its_type<bool, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t,
                                   std::uint32_t, std::int64_t, std::uint64_t, float16, bfloat16, float, double,
                                   long double>(s, world);
}

/// Runs the case at this rank. Throws where the result differs from the oracle.
inline void check(const scenario& s, group& world) { begin(s, world)(); }

}}}  // namespace muster::v0::testing

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
