// Collectives of uneven pieces: the ranks' pieces have different numbers of elements.
//
// Counts follow the buffer that they divide, and their sum is the length of the buffer. A call without counts exchanges
// them first, and returns them with the data.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/comm/collectives/scatter.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class T>
inline constexpr bool counts_elements = std::integral<T> && !std::same_as<T, bool>;
}

/// A std::span, std::vector or array of integers: the number of elements of each rank's piece, by rank.
template <class R>
concept count_range =
    detail::is_contiguous_memory<R> && detail::counts_elements<std::remove_cv_t<std::ranges::range_value_t<R>>>;

/// The pieces of all ranks, one after another in the order of ranks, and the number of elements of each piece.
template <transferable T>
requires(!std::same_as<T, bool>) struct pieces {
  std::vector<T> data;
  std::vector<std::size_t> counts;  ///< by rank

  /// Returns the piece of a rank. O(rank).
  [[nodiscard]] std::span<const T> piece(int rank) const {
    std::size_t first = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rank); ++r) first += counts[r];
    return std::span(data).subspan(first, counts[static_cast<std::size_t>(rank)]);
  }
};

namespace detail {

/// A call with uneven pieces, and the division that the call refers to.
struct uneven_call {
  collective_call call;
  std::unique_ptr<const uneven_pieces> division;
};

/// The buffers of a call with uneven pieces, and their counts; empty for a buffer that is not divided.
struct uneven_buffers {
  std::span<const std::byte> in;
  std::span<const std::byte> out;
  std::vector<std::size_t> in_counts;
  std::vector<std::size_t> out_counts;
};

/// Divides the buffers of `call`, whose root is set, and completes its signature. Throws configuration_error for counts
/// that do not fit the group or the buffers, and for buffers that overlap. An input at the place of this rank's piece
/// of the output of an allgather or gather, and an output at the place of the piece of a scatter, is no overlap.
[[nodiscard]] uneven_call divide(group& ranks, collective_call call, uneven_buffers&& buffers);
/// Throws configuration_error unless the counts are one for each rank and have that sum.
void require_counts(group& ranks, collective kind, std::span<const std::size_t> counts, std::size_t elements,
                    std::size_t element_size);
[[noreturn]] void refuse_negative_count(group& ranks, collective kind, std::size_t rank, const std::string& count);

inline void run(group& ranks, uneven_call&& uneven) { run(ranks, std::move(uneven.call)); }
inline work start(group& ranks, uneven_call&& uneven) {
  return start(ranks, std::move(uneven.call), std::move(uneven.division));
}

/// Returns the counts as sizes. Throws configuration_error for a count below 0.
template <count_range C>
std::vector<std::size_t> sizes_of(group& ranks, collective kind, const C& counts) {
  std::vector<std::size_t> sizes;
  for (const auto count : counts) {
    if constexpr (std::is_signed_v<std::remove_cv_t<decltype(count)>>) {
      if (count < 0) refuse_negative_count(ranks, kind, sizes.size(), std::to_string(count));
    }
    sizes.push_back(static_cast<std::size_t>(count));
  }
  return sizes;
}

template <class R>
std::span<const std::byte> bytes_of(R& range) {
  return std::as_bytes(std::span(std::ranges::data(range), std::ranges::size(range)));
}

template <class In, class Out>
uneven_call make_uneven_call(group& ranks, collective kind, In& in, std::vector<std::size_t> in_counts, Out& out,
                             std::vector<std::size_t> out_counts, const collective_options& call_options, int root = 0,
                             reduction reduce = {}) {
  return divide(ranks, make_call(kind, in, out, 0, call_options, root, std::move(reduce)),
                {bytes_of(in), bytes_of(out), std::move(in_counts), std::move(out_counts)});
}

template <class In, class Out, class Counts>
uneven_call allgather_call(group& ranks, In& in, Out& out, const Counts& counts,
                           const collective_options& call_options) {
  return make_uneven_call(ranks, collective::allgather, in, {}, out, sizes_of(ranks, collective::allgather, counts),
                          call_options);
}

template <class In, class Counts, class Out, class Op>
uneven_call reduce_scatter_call(group& ranks, In& in, const Counts& counts, Out& out, Op op,
                                const collective_options& call_options) {
  return make_uneven_call(
      ranks, collective::reduce_scatter, in, sizes_of(ranks, collective::reduce_scatter, counts), out, {}, call_options,
      0, reduction_for<element_of<In>>(ranks, collective::reduce_scatter, std::move(op), call_options));
}

template <class In, class Out, class Counts>
uneven_call gather_call(group& ranks, In& in, Out& out, const Counts& counts, int root,
                        const collective_options& call_options) {
  require_root(ranks, collective::gather, root);
  auto sizes = ranks.rank() == root ? sizes_of(ranks, collective::gather, counts) : std::vector<std::size_t>();
  return make_uneven_call(ranks, collective::gather, in, {}, out, std::move(sizes), call_options, root);
}

template <class In, class Counts, class Out>
uneven_call scatter_call(group& ranks, In& in, const Counts& counts, Out& out, int root,
                         const collective_options& call_options) {
  require_root(ranks, collective::scatter, root);
  auto sizes = ranks.rank() == root ? sizes_of(ranks, collective::scatter, counts) : std::vector<std::size_t>();
  return make_uneven_call(ranks, collective::scatter, in, std::move(sizes), out, {}, call_options, root);
}

template <class In, class InCounts, class Out, class OutCounts>
uneven_call all_to_all_call(group& ranks, In& in, const InCounts& in_counts, Out& out, const OutCounts& out_counts,
                            const collective_options& call_options) {
  return make_uneven_call(ranks, collective::all_to_all, in, sizes_of(ranks, collective::all_to_all, in_counts), out,
                          sizes_of(ranks, collective::all_to_all, out_counts), call_options);
}

/// Returns the sum of the counts, which a rank has received from its peers.
[[nodiscard]] inline std::size_t sum_of(std::span<const std::size_t> counts) noexcept {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum += count;
  return sum;
}

/// Returns the options of the exchange of counts before a call.
[[nodiscard]] inline collective_options options_of_counts(const collective_options& call_options) {
  return {.timeout = call_options.timeout};
}

}  // namespace detail

/// Gathers uneven pieces at all ranks: `out` becomes all ranks' `in`, in the order of ranks. `in` of rank r has
/// `counts[r]` elements, and may be this rank's piece of `out`. The counts are the same at every rank. Throws
/// mismatch_error, timeout_error, peer_failure; configuration_error for wrong counts or sizes.
template <element_range In, mutable_element_range Out, count_range Counts>
void allgather(group& ranks, In&& in, Out&& out, const Counts& counts, const collective_options& call_options = {}) {
  detail::run(ranks, detail::allgather_call(ranks, in, out, counts, call_options));
}

/// Starts an allgather of uneven pieces; the call owns the buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out, count_range Counts>
work allgather_async(group& ranks, In&& in, Out&& out, const Counts& counts,
                     const collective_options& call_options = {}) {
  return detail::start(ranks, detail::allgather_call(ranks, in, out, counts, call_options));
}

/// Returns all ranks' `in`, which have any length. Exchanges the counts first, as a collective of its own.
template <element_range In>
[[nodiscard]] auto allgather(group& ranks, In&& in, const collective_options& call_options = {}) {
  pieces<detail::element_of<In>> result;
  result.counts.resize(static_cast<std::size_t>(ranks.size()));
  const std::size_t mine[] = {std::ranges::size(in)};
  allgather(ranks, mine, result.counts, detail::options_of_counts(call_options));
  result.data.resize(detail::sum_of(result.counts));
  allgather(ranks, in, result.data, result.counts, call_options);
  return result;
}

/// Gathers uneven pieces at the root: `out` becomes all ranks' `in`, in the order of ranks. `in` of rank r has
/// `counts[r]` elements, and may be the root's piece of `out`. `out` and `counts` are used at the root alone. Throws
/// mismatch_error, timeout_error, peer_failure; configuration_error for a wrong root, counts or sizes.
template <element_range In, mutable_element_range Out, count_range Counts>
void gather(group& ranks, In&& in, Out&& out, const Counts& counts, int root,
            const collective_options& call_options = {}) {
  detail::run(ranks, detail::gather_call(ranks, in, out, counts, root, call_options));
}

/// Starts a gather of uneven pieces; the call owns the buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out, count_range Counts>
work gather_async(group& ranks, In&& in, Out&& out, const Counts& counts, int root,
                  const collective_options& call_options = {}) {
  return detail::start(ranks, detail::gather_call(ranks, in, out, counts, root, call_options));
}

/// Returns all ranks' `in`, which have any length, at the root; nothing at the other ranks. Exchanges the counts first,
/// as a collective of its own.
template <element_range In>
[[nodiscard]] auto gather(group& ranks, In&& in, int root, const collective_options& call_options = {}) {
  pieces<detail::element_of<In>> result;
  detail::require_root(ranks, collective::gather, root);
  if (ranks.rank() == root) result.counts.resize(static_cast<std::size_t>(ranks.size()));
  const std::size_t mine[] = {std::ranges::size(in)};
  gather(ranks, mine, result.counts, root, detail::options_of_counts(call_options));
  result.data.resize(detail::sum_of(result.counts));
  gather(ranks, in, result.data, result.counts, root, call_options);
  return result;
}

/// Scatters uneven pieces from the root: `out` becomes this rank's piece of the root's `in`. `out` of rank r has
/// `counts[r]` elements, and may be the root's piece of `in`. `in` and `counts` are used at the root alone. Throws
/// mismatch_error, timeout_error, peer_failure; configuration_error for a wrong root, counts or sizes.
template <element_range In, count_range Counts, mutable_element_range Out>
void scatter(group& ranks, In&& in, const Counts& counts, Out&& out, int root,
             const collective_options& call_options = {}) {
  detail::run(ranks, detail::scatter_call(ranks, in, counts, out, root, call_options));
}

/// Starts a scatter of uneven pieces; the call owns the buffers until the work is done.
template <lasting_element_range In, count_range Counts, lasting_mutable_range Out>
work scatter_async(group& ranks, In&& in, const Counts& counts, Out&& out, int root,
                   const collective_options& call_options = {}) {
  return detail::start(ranks, detail::scatter_call(ranks, in, counts, out, root, call_options));
}

/// Returns this rank's piece of the root's `in`, which is used at the root alone. Sends each rank its count first, as a
/// collective of its own.
template <class T>
[[nodiscard]] std::vector<T> scatter(group& ranks, const pieces<T>& in, int root,
                                     const collective_options& call_options = {}) {
  detail::require_root(ranks, collective::scatter, root);
  if (ranks.rank() == root) detail::require_counts(ranks, collective::scatter, in.counts, in.data.size(), sizeof(T));
  std::size_t mine[1];
  scatter(ranks, in.counts, mine, root, detail::options_of_counts(call_options));
  std::vector<T> result(mine[0]);
  scatter(ranks, in.data, in.counts, result, root, call_options);
  return result;
}

/// Exchanges uneven pieces: piece r of `out` becomes the piece for this rank in rank r's `in`. Rank r's count for this
/// rank in `in_counts` is this rank's count for rank r in `out_counts`. The buffers do not overlap. Throws
/// mismatch_error, timeout_error, peer_failure; configuration_error for wrong counts or sizes.
template <element_range In, count_range InCounts, mutable_element_range Out, count_range OutCounts>
void all_to_all(group& ranks, In&& in, const InCounts& in_counts, Out&& out, const OutCounts& out_counts,
                const collective_options& call_options = {}) {
  detail::run(ranks, detail::all_to_all_call(ranks, in, in_counts, out, out_counts, call_options));
}

/// Starts an all-to-all of uneven pieces; the call owns the buffers until the work is done.
template <lasting_element_range In, count_range InCounts, lasting_mutable_range Out, count_range OutCounts>
work all_to_all_async(group& ranks, In&& in, const InCounts& in_counts, Out&& out, const OutCounts& out_counts,
                      const collective_options& call_options = {}) {
  return detail::start(ranks, detail::all_to_all_call(ranks, in, in_counts, out, out_counts, call_options));
}

/// Returns the pieces for this rank of all ranks' `in`. Exchanges the counts first, as a collective of its own.
template <class T>
[[nodiscard]] pieces<T> all_to_all(group& ranks, const pieces<T>& in, const collective_options& call_options = {}) {
  detail::require_counts(ranks, collective::all_to_all, in.counts, in.data.size(), sizeof(T));
  pieces<T> result;
  result.counts.resize(in.counts.size());
  all_to_all(ranks, in.counts, result.counts, detail::options_of_counts(call_options));
  result.data.resize(detail::sum_of(result.counts));
  all_to_all(ranks, in.data, in.counts, result.data, result.counts, call_options);
  return result;
}

/// Combines and scatters uneven pieces: `out` becomes this rank's piece of op over all ranks' `in`. `in` has the same
/// length at every rank and does not overlap `out`, which has `counts[rank]` elements. The counts are the same at every
/// rank. Throws mismatch_error, timeout_error, peer_failure; configuration_error for wrong counts or sizes.
template <element_range In, count_range Counts, mutable_element_range Out,
          reduction_operation<detail::element_of<In>> Op>
void reduce_scatter(group& ranks, In&& in, const Counts& counts, Out&& out, Op op,
                    const collective_options& call_options = {}) {
  detail::run(ranks, detail::reduce_scatter_call(ranks, in, counts, out, std::move(op), call_options));
}

/// Starts a reduce-scatter of uneven pieces; the call owns the buffers until the work is done.
template <lasting_element_range In, count_range Counts, lasting_mutable_range Out,
          reduction_operation<detail::element_of<In>> Op>
work reduce_scatter_async(group& ranks, In&& in, const Counts& counts, Out&& out, Op op,
                          const collective_options& call_options = {}) {
  return detail::start(ranks, detail::reduce_scatter_call(ranks, in, counts, out, std::move(op), call_options));
}

/// Returns this rank's piece of `count` elements of op over all ranks' `in`, and the counts of all ranks. Exchanges the
/// counts first, as a collective of its own.
template <element_range In, reduction_operation<detail::element_of<In>> Op>
[[nodiscard]] auto reduce_scatter(group& ranks, In&& in, std::size_t count, Op op,
                                  const collective_options& call_options = {}) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, std::span<const std::size_t>(&count, 1), counts, detail::options_of_counts(call_options));
  std::vector<detail::element_of<In>> result(count);
  reduce_scatter(ranks, in, counts, result, std::move(op), call_options);
  return std::pair(std::move(result), std::move(counts));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
