#include "typed_call.hpp"

#include <string>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/comm/collectives/call.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

template <class F>
bool with_any_element(dtype type, const F& f) {
  return with_one_of<float, double, std::int64_t, std::int32_t, std::uint8_t, std::int8_t, std::int16_t, std::uint16_t,
                     std::uint32_t, std::uint64_t, bool, float16, bfloat16>(type, f);
}

template <class F>
bool with_integer(dtype type, const F& f) {
  return with_one_of<std::int64_t, std::int32_t, std::uint8_t, std::int8_t, std::int16_t, std::uint16_t, std::uint32_t,
                     std::uint64_t, bool>(type, f);
}

struct bits_of_both {
  template <class T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(a & b);
  }
};
struct bits_of_any {
  template <class T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(a | b);
  }
};
struct bits_that_differ {
  template <class T>
  T operator()(T a, T b) const noexcept {
    return static_cast<T>(a ^ b);
  }
};

[[noreturn]] void refuse_reduction(const typed_call& call, std::string_view name) {
  throw configuration_error(std::string(to_string(call.kind)) + ": " + std::string(to_string(call.in.type)) +
                            " elements have no operation " + std::string(name) +
                            " (it is for whole numbers); choose another operation or type");
}

reduction bit_reduction_of(const typed_call& call) {
  reduction result;
  const bool known = with_integer(call.in.type, [&](auto zero) {
    using element = decltype(zero);
    if (call.bits == bit_operation::bit_and) result = reduction::of<element>(bits_of_both());
    if (call.bits == bit_operation::bit_or) result = reduction::of<element>(bits_of_any());
    if (call.bits == bit_operation::bit_xor) result = reduction::of<element>(bits_that_differ());
  });
  if (!known) refuse_reduction(call, "on bits");
  return result;
}

reduction reduction_of(const typed_call& call) {
  if (call.bits != bit_operation::none) return bit_reduction_of(call);
  reduction result;
  const bool known = with_any_element(call.in.type, [&](auto zero) {
    using element = decltype(zero);
    switch (call.op) {
      case operation::sum:
        result = reduction::of<element>(sum);
        break;
      case operation::product:
        result = reduction::of<element>(product);
        break;
      case operation::min:
        result = reduction::of<element>(min);
        break;
      case operation::max:
        result = reduction::of<element>(max);
        break;
      case operation::mean:
        result = reduction::of<element>(mean);
        break;
      default:
        refuse_reduction(call, to_string(call.op));
    }
  });
  if (!known) refuse_reduction(call, to_string(call.op));
  return result;
}

bool reduces(collective kind) {
  return kind == collective::allreduce || kind == collective::reduce || kind == collective::reduce_scatter;
}

void require_same_types(group& ranks, const typed_call& call) {
  const bool uses_out = call.kind != collective::barrier && call.out.type != dtype::none;
  if (!uses_out || call.in.type == dtype::none || call.in.type == call.out.type) return;
  (void)ranks;
  throw configuration_error(std::string(to_string(call.kind)) + ": the input has " +
                            std::string(to_string(call.in.type)) + " elements and the output " +
                            std::string(to_string(call.out.type)) + " (both have the same type); convert the input");
}

// Checks the buffers as the collectives of known types do, and returns the count of the signature.
std::size_t checked_count(group& ranks, const typed_call& call) {
  const auto size = static_cast<std::size_t>(ranks.size());
  const auto own_block = [&](std::size_t total) { return block_of(total, ranks.rank(), ranks.size()).count; };
  const bool is_root = ranks.rank() == call.root;
  const std::size_t in = call.in.count, out = call.out.count;
  switch (call.kind) {
    case collective::allreduce:
      require_size(ranks, call.kind, "output", out, in);
      return in;
    case collective::reduce:
      if (is_root) require_size(ranks, call.kind, "output", out, in);
      return in;
    case collective::broadcast:
      return in;
    case collective::allgather:
      require_size(ranks, call.kind, "input", in, own_block(out));
      return out;
    case collective::reduce_scatter:
      require_size(ranks, call.kind, "output", out, own_block(in));
      return in;
    case collective::gather:
      if (is_root) require_size(ranks, call.kind, "output", out, in * size);
      return in;
    case collective::scatter:
      if (is_root) require_size(ranks, call.kind, "input", in, out * size);
      return out;
    case collective::all_to_all:
      require_size(ranks, call.kind, "output", out, in);
      require_size(ranks, call.kind, "input", in, in / size * size);
      return in / size;
    default:
      return 0;
  }
}

collective_call erased(group& ranks, const typed_call& call) {
  require_same_types(ranks, call);
  require_root(ranks, call.kind, call.root);
  const dtype type = call.in.type != dtype::none ? call.in.type : call.out.type;
  reduction reduce = reduces(call.kind) ? reduction_of(call) : reduction();
  const auto code = reduce.code();
  return collective_call({.count = checked_count(ranks, call),
                          .root = call.root,
                          .kind = call.kind,
                          .type = type,
                          .op = code,
                          .algorithm = call.options.algorithm},
                         call.in.data, call.out.data, type == dtype::none ? 1 : size_of(type), std::move(reduce),
                         call.options.timeout);
}

}  // namespace

void run(group& ranks, const typed_call& call) { run(ranks, erased(ranks, call)); }

work start(group& ranks, const typed_call& call) { return start(ranks, erased(ranks, call)); }

operation operation_named(std::string_view name) {
  const std::vector<std::string> names{"sum", "product", "min", "max", "mean"};
  for (const auto known : {operation::sum, operation::product, operation::min, operation::max, operation::mean}) {
    if (name == to_string(known)) return known;
  }
  const auto near = closest(name, names);
  throw configuration_error("there is no operation '" + std::string(name) + "' (sum, product, min, max and mean are)" +
                            (near ? "; did you mean " + *near + "?" : "; choose sum, product, min, max or mean"));
}

}}}  // namespace muster::v0::detail
