// Selects the coroutine of every collective and algorithm, over any transport.
#pragma once

#include <muster/comm/group/operation.hpp>

#include <muster/comm/algorithms/allreduce_by.hpp>
#include <muster/comm/algorithms/chain.hpp>
#include <muster/comm/algorithms/direct.hpp>
#include <muster/comm/algorithms/folding.hpp>
#include <muster/comm/algorithms/registry.hpp>
#include <muster/comm/algorithms/scan.hpp>
#include <muster/comm/block.hpp>
#include <muster/comm/group/group_state.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Does nothing, for a group with a single rank: `copy_alone` has completed the call.
inline task nothing(collective_context&) { co_return; }

inline task by_native(collective_context& ctx, const collective_call& call, bool check_full) {
  // A transport that compares signatures itself and can cancel a collective needs no barrier, whose messages carry the
  // signature.
  const bool large = payload_bytes(call, ctx.size()) > native_copied_up_to;
  if ((large || check_full) && !ctx.abilities().prefers_native) co_await dissemination_barrier(ctx);
  request req;
  if (ctx.native(call, req)) {
    co_await ctx.done(req);
    co_return;
  }
  // The transport does not implement this call, at every rank alike. The library's algorithms implement all calls.
  co_await make_task(ctx, call, ctx.choose(call.kind, payload_bytes(call, ctx.size())), false);
}

// Performs a reduce along a tree. Ranks other than the root combine in scratch memory.
inline task by_tree_reduce(collective_context& ctx, const collective_call& call) {
  const std::size_t bytes = call.count * call.element_size;
  const bool at_root = ctx.rank() == call.root;
  std::byte* const held = at_root ? call.out : ctx.scratch(bytes);  // `in` is only read
  if (bytes > 0 && held != call.in) std::memcpy(held, call.in, bytes);
  co_await tree_reduce(ctx, held, bytes, call.root, call.reduce);
}

// Returns the division of `data`, the output of an allgather or the input of a reduce_scatter.
inline blocks blocks_of(const collective_call& call, std::byte* data, int rank_count) {
  return {data, call.count, call.element_size, rank_count, call.uneven == nullptr ? nullptr : call.uneven->blocks()};
}

inline task by_ring_reduce_scatter(collective_context& ctx, const collective_call& call) {
  const std::size_t bytes = call.count * call.element_size;
  std::byte* const held = ctx.scratch(bytes);
  if (bytes > 0) std::memcpy(held, call.in, bytes);
  const blocks divided = blocks_of(call, held, ctx.size());
  co_await ring_reduce_scatter(ctx, divided, call.reduce);
  const auto mine = divided.at(ctx.rank());
  if (!mine.empty()) std::memcpy(call.out, mine.data(), mine.size());
}

inline task make_allreduce(collective_context& ctx, const collective_call& call, algorithm selected) {
  const std::size_t bytes = call.count * call.element_size;
  if (bytes > 0 && call.in != call.out) std::memcpy(call.out, call.in, bytes);
  return allreduce_by(ctx, selected, call.out, call.count, call.reduce);
}

inline task make_allgather(collective_context& ctx, const collective_call& call, algorithm selected) {
  const blocks divided = blocks_of(call, call.out, ctx.size());
  const auto mine = divided.at(ctx.rank());
  if (!mine.empty() && mine.data() != call.in) std::memcpy(mine.data(), call.in, mine.size());
  if (selected == algorithm::ring) return ring_allgather(ctx, divided);
  return recursive_doubling_allgather(ctx, divided);
}

// Computes a mean whose sum needs a wider type. Peers compare the signature of the program's call.
inline task by_wider_sum(collective_context& ctx, const collective_call& call, algorithm selected, bool check_full) {
  const auto& wide = *call.reduce.wide();
  const bool is_scattered = call.kind == collective::reduce_scatter;
  const bool receives_result = call.kind != collective::reduce || ctx.rank() == call.root;
  const std::size_t results =
      is_scattered ? blocks_of(call, nullptr, ctx.size()).elements(ctx.rank()).count : call.count;
  std::byte* const elements = ctx.scratch(call.count * wide.element_size);
  std::byte* const sums = is_scattered ? ctx.scratch(results * wide.element_size) : elements;
  if (call.count > 0) wide.widen(call.in, elements, call.count, ctx.size());
  collective_call inner(call, elements, receives_result ? sums : nullptr, wide.element_size, wide.sum(), call.timeout);
  inner.type = wide.type;
  inner.op = operation::sum;
  inner.step_of = &call.signature();
  inner.uneven = call.uneven;
  co_await make_task(ctx, inner, selected, check_full);
  if (receives_result && results > 0) wide.narrow(sums, call.out, results, ctx.size());
}

// Performs an allreduce of several buffers as one: they are packed one after another.
inline task by_buffers(collective_context& ctx, const collective_call& call, algorithm selected, bool check_full) {
  std::byte* const packed = ctx.scratch(call.count * call.element_size);
  std::byte* place = packed;
  for (const auto buffer : call.uneven->buffers) {
    if (!buffer.empty()) std::memcpy(place, buffer.data(), buffer.size());
    place += buffer.size();
  }
  collective_call inner(call, packed, packed, call.element_size, reduction(call.reduce), call.timeout);
  inner.root = 0;
  inner.step_of = &call.signature();
  co_await make_task(ctx, inner, selected, check_full);
  place = packed;
  for (const auto buffer : call.uneven->buffers) {
    if (!buffer.empty()) std::memcpy(buffer.data(), place, buffer.size());
    place += buffer.size();
  }
}

// Copies in to out for a group with a single rank; for a mean the copy is a division by one. A reproducible sum has the
// same zeros and NaN as with more ranks.
inline void copy_alone(const collective_call& call) {
  const std::size_t bytes = (call.uneven != nullptr ? call.uneven->largest : call.count) * call.element_size;
  if (call.reduce.folds_at_once(1)) {
    std::byte* const out[] = {call.out};
    const std::byte* const in[] = {call.in};
    if (bytes > 0) call.reduce.fold(out, in, bytes);
    return;
  }
  if (bytes > 0 && call.out != nullptr && call.in != nullptr && call.in != call.out)
    std::memcpy(call.out, call.in, bytes);
}

// Performs a gather, scatter or all_to_all of uneven pieces. The root of a gather or scatter knows the counts alone, so
// no other rank can pass on pieces.
inline task make_uneven(collective_context& ctx, const collective_call& call) {
  const auto& division = *call.uneven;
  const std::size_t size = call.element_size;
  const rank_pieces in{const_cast<std::byte*>(call.in), 0, division.in.data(), size};
  const rank_pieces out{call.out, 0, division.out.data(), size};
  if (call.kind == collective::gather) return direct_gather(ctx, {call.in, division.own * size}, out, ~call.root);
  if (call.kind == collective::scatter) return direct_scatter(ctx, in, {call.out, division.own * size}, ~call.root);
  return direct_all_to_all(ctx, in, out);
}

MUSTER_INLINE task await(collective_context& ctx, request& req) { co_await ctx.done(req); }

MUSTER_INLINE std::size_t payload_bytes(const collective_call& call, int rank_count) {
  const bool counts_pieces =
      call.kind == collective::gather || call.kind == collective::scatter || call.kind == collective::all_to_all;
  return call.count * call.element_size * (counts_pieces ? static_cast<std::size_t>(rank_count) : 1);
}

inline task make_reduce_scatter(collective_context& ctx, const collective_call& call, algorithm selected) {
  if (selected == algorithm::ring) return by_ring_reduce_scatter(ctx, call);
  return direct_reduce_scatter(ctx, blocks_of(call, const_cast<std::byte*>(call.in), ctx.size()), call.out,
                               call.reduce);
}

// Returns the task of a collective in which each rank sends or receives a piece for each rank.
inline task make_task_of_pieces(collective_context& ctx, const collective_call& call, algorithm selected) {
  if (call.uneven != nullptr) return make_uneven(ctx, call);
  const std::size_t bytes = call.count * call.element_size;
  const bool is_direct = selected == algorithm::direct;
  const rank_pieces in{const_cast<std::byte*>(call.in), bytes};
  if (call.kind == collective::all_to_all) return direct_all_to_all(ctx, in, {call.out, bytes});
  if (call.kind == collective::scatter)
    return is_direct ? direct_scatter(ctx, in, {call.out, bytes}, call.root)
                     : tree_scatter(ctx, call.in, call.out, bytes, call.root);
  return is_direct ? direct_gather(ctx, {call.in, bytes}, {call.out, bytes}, call.root)
                   : tree_gather(ctx, call.in, call.out, bytes, call.root);
}

// Returns the task of muster's own algorithm for the kind of collective.
inline task make_own_task(collective_context& ctx, const collective_call& call, algorithm selected) {
  const std::size_t bytes = call.count * call.element_size;
  switch (call.kind) {
    case collective::broadcast:
      if (selected == algorithm::chain) return chain_broadcast(ctx, call.out, bytes, call.root);
      return tree_broadcast(ctx, call.out, bytes, call.root);
    case collective::reduce:
      return by_tree_reduce(ctx, call);
    case collective::allreduce:
      return make_allreduce(ctx, call, selected);
    case collective::allgather:
      return make_allgather(ctx, call, selected);
    case collective::reduce_scatter:
      return make_reduce_scatter(ctx, call, selected);
    case collective::gather:
    case collective::scatter:
    case collective::all_to_all:
      return make_task_of_pieces(ctx, call, selected);
    case collective::barrier:
    case collective::finish:
      return dissemination_barrier(ctx);
    case collective::scan:
    case collective::exclusive_scan:
      return doubling_scan(ctx, call);
    case collective::none:
      break;
  }
  return nothing(ctx);
}

MUSTER_INLINE task make_task(collective_context& ctx, const collective_call& call, algorithm selected,
                             bool check_full) {
  if (ctx.size() == 1 && !(call.packs_buffers() && call.reduce.folds_at_once(1))) {
    if (call.kind != collective::exclusive_scan) copy_alone(call);
    return nothing(ctx);
  }
  if (call.packs_buffers()) return by_buffers(ctx, call, selected, check_full);
  if (call.reduce.wide() != nullptr) return by_wider_sum(ctx, call, selected, check_full);
  if (selected == algorithm::native) return by_native(ctx, call, check_full);
  if (call.reduce.folds_at_once(ctx.size())) {
    if (call.kind == collective::reduce) return folding_reduce(ctx, call);
    const blocks divided = blocks_of(call, const_cast<std::byte*>(call.in), ctx.size());
    if (call.kind == collective::reduce_scatter) return folding_reduce_scatter(ctx, divided, call.out, call.reduce);
    if ((selected == algorithm::recursive_doubling || selected == algorithm::tree) &&
        call.count * call.element_size * static_cast<std::size_t>(ctx.size()) <= gathered_up_to)
      return gathering_allreduce(ctx, call);
    return make_allreduce(ctx, call, algorithm::direct);
  }
  const std::size_t bytes = call.count * call.element_size;
  if (const auto body = registered_body(call.kind, selected)) {
    if (call.uneven != nullptr) return make_task(ctx, call, ctx.choose(call.kind, bytes), check_full);
    if (call.kind == collective::allreduce && bytes > 0 && call.in != call.out) std::memcpy(call.out, call.in, bytes);
    return body(ctx, call);
  }
  return make_own_task(ctx, call, selected);
}

}}}  // namespace muster::v0::detail
