// Every collective by every algorithm it has, over any transport.
#include <muster/comm/algorithms/allreduce.hpp>
#include <muster/comm/algorithms/chain.hpp>
#include <muster/comm/algorithms/direct.hpp>
#include <muster/comm/algorithms/registry.hpp>
#include <muster/comm/block.hpp>

#include "../group/group_state.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// A group of one has no rank to send to: the copy before has done its work.
task nothing(executor&) { co_return; }

task by_native(executor& f, const collective_call& what, bool check_full) {
  // What compares signatures itself and can be taken back needs no barrier with messages that carry the signature.
  const bool large = payload_bytes(what, f.size()) > native_copied_up_to;
  if ((large || check_full) && !f.abilities().native_first) co_await dissemination_barrier(f);
  request r;
  if (f.native(what, r)) {
    co_await f.done(r);
    co_return;
  }
  // The transport lacks this type or operation, at every rank alike: the library's own has all.
  co_await make_task(f, what, f.choose(what.kind, payload_bytes(what, f.size())), false);
}

task by_reduce(executor& f, const collective_call& what) {
  const std::size_t bytes = what.count * what.element_size;
  const bool at_root = f.rank() == what.root;
  std::byte* const held = at_root ? what.out : f.scratch(bytes);  // `in` is only read
  if (bytes > 0 && held != what.in) std::memcpy(held, what.in, bytes);
  co_await tree_reduce(f, held, bytes, what.root, what.reduce);
}

task by_ring_reduce_scatter(executor& f, const collective_call& what) {
  const std::size_t bytes = what.count * what.element_size;
  std::byte* const held = f.scratch(bytes);
  if (bytes > 0) std::memcpy(held, what.in, bytes);
  const blocks parts{held, what.count, what.element_size, f.size()};
  co_await ring_reduce_scatter(f, parts, what.reduce);
  const auto mine = parts.at(f.rank());
  if (!mine.empty()) std::memcpy(what.out, mine.data(), mine.size());
}

task make_allreduce(executor& f, const collective_call& what, algorithm how) {
  const std::size_t bytes = what.count * what.element_size;
  if (bytes > 0 && what.in != what.out) std::memcpy(what.out, what.in, bytes);
  return allreduce_by(f, how, what.out, what.count, what.reduce);
}

task make_allgather(executor& f, const collective_call& what, algorithm how) {
  const blocks parts{what.out, what.count, what.element_size, f.size()};
  const auto mine = parts.at(f.rank());
  if (!mine.empty() && mine.data() != what.in) std::memcpy(mine.data(), what.in, mine.size());
  if (how == algorithm::ring) return ring_allgather(f, parts);
  return recursive_doubling_allgather(f, parts);
}

// A mean whose sum needs a wider type. Peers compare what was called.
task by_wider_sum(executor& f, const collective_call& what, algorithm how, bool check_full) {
  const auto& wide = *what.reduce.wide();
  const bool cut = what.kind == collective::reduce_scatter;
  const bool takes = what.kind != collective::reduce || f.rank() == what.root;
  const std::size_t results = cut ? block_of(what.count, f.rank(), f.size()).count : what.count;
  std::byte* const elements = f.scratch(what.count * wide.element_size);
  std::byte* const sums = cut ? f.scratch(results * wide.element_size) : elements;
  if (what.count > 0) wide.widen(what.in, elements, what.count, f.size());
  collective_call inner(what, elements, takes ? sums : nullptr, wide.element_size, wide.sum(), what.timeout);
  inner.type = wide.type;
  inner.op = operation::sum;
  inner.step_of = &what.signature();
  co_await make_task(f, inner, how, check_full);
  if (takes && results > 0) wide.narrow(sums, what.out, results, f.size());
}

// A group of one: what is asked for is a copy, and for a mean a division by one.
void copy_alone(const collective_call& what) {
  const std::size_t bytes = what.count * what.element_size;
  if (bytes > 0 && what.out != nullptr && what.in != nullptr && what.in != what.out)
    std::memcpy(what.out, what.in, bytes);
}

}  // namespace

task await(executor& f, request& r) { co_await f.done(r); }

std::size_t payload_bytes(const collective_call& what, int ranks) {
  const bool counts_pieces =
      what.kind == collective::gather || what.kind == collective::scatter || what.kind == collective::all_to_all;
  return what.count * what.element_size * (counts_pieces ? static_cast<std::size_t>(ranks) : 1);
}

task make_task(executor& f, const collective_call& what, algorithm how, bool check_full) {
  if (f.size() == 1) {
    copy_alone(what);
    return nothing(f);
  }
  if (what.reduce.wide() != nullptr) return by_wider_sum(f, what, how, check_full);
  if (how == algorithm::native) return by_native(f, what, check_full);
  const std::size_t bytes = what.count * what.element_size;
  if (const auto body = registered_body(what.kind, how)) {
    if (what.kind == collective::allreduce && bytes > 0 && what.in != what.out) std::memcpy(what.out, what.in, bytes);
    return body(f, what);
  }
  switch (what.kind) {
    case collective::broadcast:
      if (how == algorithm::chain) return chain_broadcast(f, what.out, bytes, what.root);
      return tree_broadcast(f, what.out, bytes, what.root);
    case collective::reduce:
      return by_reduce(f, what);
    case collective::allreduce:
      return make_allreduce(f, what, how);
    case collective::allgather:
      return make_allgather(f, what, how);
    case collective::reduce_scatter:
      if (how == algorithm::ring) return by_ring_reduce_scatter(f, what);
      return direct_reduce_scatter(f, {const_cast<std::byte*>(what.in), what.count, what.element_size, f.size()},
                                   what.out, what.reduce);
    case collective::gather:
      if (how == algorithm::direct) return direct_gather(f, what.in, what.out, bytes, what.root);
      return tree_gather(f, what.in, what.out, bytes, what.root);
    case collective::scatter:
      if (how == algorithm::direct) return direct_scatter(f, what.in, what.out, bytes, what.root);
      return tree_scatter(f, what.in, what.out, bytes, what.root);
    case collective::all_to_all:
      return direct_all_to_all(f, what.in, what.out, bytes);
    case collective::barrier:
    case collective::finish:
      return dissemination_barrier(f);
    case collective::none:
      break;
  }
  return nothing(f);
}

}}}  // namespace muster::v0::detail
