#include "comm/oracle.hpp"

#include <cmath>
#include <cstring>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <muster/comm/collectives/algo/chooser.hpp>
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

namespace test {
std::string scenario::describe(int ranks) const {
  std::ostringstream text;
  text << "seed " << seed << ": " << to_string(kind) << " by " << to_string(how) << ", " << ranks << " ranks, " << count
       << ' ' << to_string(type) << ' ' << to_string(op) << ", root " << root << (in_place ? ", in place" : "")
       << (async ? ", async" : "") << ", off by " << misaligned;
  return text.str();
}

scenario draw(muster::random_stream& random, int ranks, std::size_t largest) {
  using muster::collective;
  scenario s;
  s.seed = random();
  constexpr collective kinds[] = {collective::broadcast,      collective::reduce,     collective::allreduce,
                                  collective::allgather,      collective::gather,     collective::scatter,
                                  collective::reduce_scatter, collective::all_to_all, collective::barrier};
  s.kind = kinds[random.below(std::size(kinds))];
  if (random.below(3) == 0) s.kind = collective::allreduce;
  std::vector<muster::algorithm> hows{muster::algorithm::automatic};
  for (const auto how : muster::algorithms_of(s.kind)) {
    if (how != muster::algorithm::native) hows.push_back(how);
  }
  s.how = hows[random.below(hows.size())];
  s.type = static_cast<muster::dtype>(1 + random.below(14));
  s.op = static_cast<muster::operation>(1 + random.below(6));
  if (s.type == muster::dtype::boolean && s.op == muster::operation::mean) s.op = muster::operation::sum;
  constexpr std::size_t primes[] = {2, 3, 5, 7, 11, 13, 127, 1009};
  switch (random.below(6)) {
    case 0:
      s.count = random.below(3);
      break;
    case 1:
      s.count = primes[random.below(std::size(primes))];
      break;
    case 2:
      s.count = static_cast<std::size_t>(ranks) * random.below(40);
      break;
    case 3:
      s.count = static_cast<std::size_t>(ranks) * random.below(40) + 1;
      break;
    case 4:
      s.count = random.below(300);
      break;
    default:
      s.count = static_cast<std::size_t>(std::exp(random.uniform() * std::log(static_cast<double>(largest))));
      break;
  }
  s.root = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
  s.in_place = random.below(2) == 0;
  s.async = random.below(3) == 0;
  s.misaligned = static_cast<int>(random.below(3));
  return s;
}

namespace {

/// The input of rank r at index i: small whole numbers, so that sums and products over nine ranks are exact in every
/// type whatever the order; then any difference from the oracle is a fault and not rounding.
template <class T>
T value_at(const scenario& s, int rank, std::size_t i) {
  const std::uint64_t word = muster::mix(s.seed ^ muster::mix(static_cast<std::uint64_t>(rank) * 0x9e37u + i));
  if (s.op == muster::operation::product)
    return static_cast<T>(static_cast<float>(1 + word % 2 * (i % 3 == 0 ? 1 : 0)));
  return static_cast<T>(static_cast<float>(word % 10));
}

struct largest_magnitude {  // a user's function; with state, to see that it travels
  int bias = 0;
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

template <class T>
T combined(const scenario& s, int ranks, std::size_t i) {
  using muster::operation;
  long double result = static_cast<long double>(value_at<T>(s, 0, i));
  for (int r = 1; r < ranks; ++r) {
    const auto v = static_cast<long double>(value_at<T>(s, r, i));
    if (s.op == operation::sum || s.op == operation::mean) result += v;
    if (s.op == operation::product) result *= v;
    if (s.op == operation::min) result = std::fmin(result, v);
    if (s.op == operation::max || s.op == operation::user) result = std::fmax(result, v);
  }
  if constexpr (std::is_same_v<T, bool>) return result != 0;
  if constexpr (std::is_integral_v<T>) {  // sums wrap around in the type, as the library's do
    T wrapped = static_cast<T>(static_cast<long long>(result));
    if (s.op == operation::mean) wrapped = static_cast<T>(static_cast<long long>(wrapped) / ranks);
    return wrapped;
  } else {
    if (s.op != operation::mean) return static_cast<T>(static_cast<float>(result));
    if constexpr (std::is_floating_point_v<T>)
      return static_cast<T>(result) / static_cast<T>(ranks);
    else
      return static_cast<T>(static_cast<float>(result) / static_cast<float>(ranks));
  }
}

template <class Function>
void with_operation(muster::operation op, Function function) {
  switch (op) {
    case muster::operation::product:
      return function(muster::product);
    case muster::operation::min:
      return function(muster::min);
    case muster::operation::max:
      return function(muster::max);
    case muster::operation::mean:
      return function(muster::mean);
    case muster::operation::user:
      return function(largest_magnitude{7});
    default:
      return function(muster::sum);
  }
}

template <class T>
class checker {
 public:
  checker(const scenario& s, muster::group& world) : s_(s), world_(world), n_(world.size()), me_(world.rank()) {}

  void run() {
    const std::size_t all = s_.count * static_cast<std::size_t>(n_);
    const muster::options how{.how = s_.how};
    switch (s_.kind) {
      case muster::collective::broadcast: {
        auto data = filled(me_, s_.count);
        finish(s_.async, muster::broadcast_async(world_, view(data), s_.root, how));
        return expect(view(data), [&](std::size_t i) { return value_at<T>(s_, s_.root, i); });
      }
      case muster::collective::reduce: {
        auto in = filled(me_, s_.count);
        const bool here = me_ == s_.root;
        muster::buffer<T> out(here ? s_.count + offset() : offset());
        with_operation(s_.op, [&](auto op) {
          if (here && s_.in_place) {
            finish(s_.async, muster::reduce_async(world_, view(in), view(in), op, s_.root, how));
          } else {
            finish(s_.async, muster::reduce_async(world_, view(in), view(out), op, s_.root, how));
          }
        });
        if (here)
          return expect(s_.in_place ? view(in) : view(out), [&](std::size_t i) { return combined<T>(s_, n_, i); });
        return expect(view(in), [&](std::size_t i) { return value_at<T>(s_, me_, i); });
      }
      case muster::collective::allreduce: {
        auto in = filled(me_, s_.count);
        muster::buffer<T> out(s_.count + offset());
        with_operation(s_.op, [&](auto op) {
          if (s_.in_place) return finish(s_.async, muster::allreduce_async(world_, view(in), op, how));
          return finish(s_.async, muster::allreduce_async(world_, view(in), view(out), op, how));
        });
        return expect(s_.in_place ? view(in) : view(out), [&](std::size_t i) { return combined<T>(s_, n_, i); });
      }
      case muster::collective::allgather: {
        const auto mine = muster::block_of(s_.count, me_, n_);
        auto in = filled(me_, mine.count);
        muster::buffer<T> out(s_.count + offset());
        if (s_.in_place) {
          std::copy(view(in).begin(), view(in).end(), view(out).begin() + static_cast<std::ptrdiff_t>(mine.first));
          finish(s_.async, muster::allgather_async(world_, view(out).subspan(mine.first, mine.count), view(out), how));
        } else {
          finish(s_.async, muster::allgather_async(world_, view(in), view(out), how));
        }
        return expect(view(out), [&](std::size_t i) {
          int r = 0;
          while (i >= muster::block_of(s_.count, r, n_).first + muster::block_of(s_.count, r, n_).count) ++r;
          return value_at<T>(s_, r, i - muster::block_of(s_.count, r, n_).first);
        });
      }
      case muster::collective::reduce_scatter: {
        const auto mine = muster::block_of(s_.count, me_, n_);
        auto in = filled(me_, s_.count);
        muster::buffer<T> out(mine.count + offset());
        with_operation(s_.op, [&](auto op) {
          finish(s_.async, muster::reduce_scatter_async(world_, view(in), view(out), op, how));
        });
        expect(view(in), [&](std::size_t i) { return value_at<T>(s_, me_, i); });
        return expect(view(out), [&](std::size_t i) { return combined<T>(s_, n_, mine.first + i); });
      }
      case muster::collective::gather: {
        auto in = filled(me_, s_.count);
        muster::buffer<T> out((me_ == s_.root ? all : 0) + offset());
        finish(s_.async, muster::gather_async(world_, view(in), view(out), s_.root, how));
        return expect(view(out),
                      [&](std::size_t i) { return value_at<T>(s_, static_cast<int>(i / s_.count), i % s_.count); });
      }
      case muster::collective::scatter: {
        auto in = filled(s_.root, me_ == s_.root ? all : 0);
        muster::buffer<T> out(s_.count + offset());
        finish(s_.async, muster::scatter_async(world_, view(in), view(out), s_.root, how));
        return expect(view(out), [&](std::size_t i) {
          return value_at<T>(s_, s_.root, static_cast<std::size_t>(me_) * s_.count + i);
        });
      }
      case muster::collective::all_to_all: {
        auto in = filled(me_, all);
        muster::buffer<T> out(all + offset());
        finish(s_.async, muster::all_to_all_async(world_, view(in), view(out), how));
        return expect(view(out), [&](std::size_t i) {
          return value_at<T>(s_, static_cast<int>(i / s_.count),
                             static_cast<std::size_t>(me_) * s_.count + i % s_.count);
        });
      }
      default:
        finish(s_.async, muster::barrier_async(world_, how));
    }
  }

 private:
  [[nodiscard]] std::size_t offset() const { return static_cast<std::size_t>(s_.misaligned); }
  std::span<T> view(muster::buffer<T>& v) const { return v.span().subspan(offset()); }
  muster::buffer<T> filled(int rank, std::size_t count) const {
    muster::buffer<T> v(count + offset());  // not a vector: that of bool is no array
    for (std::size_t i = 0; i < count; ++i) view(v)[i] = value_at<T>(s_, rank, i);
    return v;
  }
  static void finish(bool by_testing, muster::work work) {
    if (by_testing) {
      while (!work.wait_for(muster::seconds(0.001))) {
      }
    }
    work.wait();
  }
  template <class Oracle>
  void expect(std::span<const T> got, Oracle oracle) const {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const T wanted = oracle(i);
      if (got[i] == wanted) continue;
      std::ostringstream text;
      text << "rank " << me_ << ", element " << i << ": " << static_cast<long double>(got[i]) << " instead of "
           << static_cast<long double>(wanted) << " in " << s_.describe(n_);
      throw std::runtime_error(text.str());
    }
  }

  const scenario& s_;
  muster::group& world_;
  int n_;
  int me_;
};

}  // namespace

void check(const scenario& s, muster::group& world) {
  switch (s.type) {
    case muster::dtype::boolean:
      return checker<bool>(s, world).run();
    case muster::dtype::int8:
      return checker<std::int8_t>(s, world).run();
    case muster::dtype::uint8:
      return checker<std::uint8_t>(s, world).run();
    case muster::dtype::int16:
      return checker<std::int16_t>(s, world).run();
    case muster::dtype::uint16:
      return checker<std::uint16_t>(s, world).run();
    case muster::dtype::int32:
      return checker<std::int32_t>(s, world).run();
    case muster::dtype::uint32:
      return checker<std::uint32_t>(s, world).run();
    case muster::dtype::int64:
      return checker<std::int64_t>(s, world).run();
    case muster::dtype::uint64:
      return checker<std::uint64_t>(s, world).run();
    case muster::dtype::float16:
      return checker<muster::float16>(s, world).run();
    case muster::dtype::bfloat16:
      return checker<muster::bfloat16>(s, world).run();
    case muster::dtype::float64:
      return checker<double>(s, world).run();
    case muster::dtype::extended:
      return checker<long double>(s, world).run();
    default:
      return checker<float>(s, world).run();
  }
}

}  // namespace test
