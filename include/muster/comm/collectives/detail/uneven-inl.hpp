// Checks of the counts of uneven pieces.
#pragma once

#include <muster/comm/collectives/buffers.hpp>
#include <muster/comm/collectives/uneven.hpp>

#include <algorithm>
#include <functional>
#include <limits>

#include <muster/comm/group/group_state.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

[[noreturn]] inline void refuse_counts(group& ranks, collective kind, const std::string& text) {
  refuse_arguments(&ranks, std::string(to_string(kind)) + ": " + text);
}

MUSTER_INLINE void refuse_negative_count(group& ranks, collective kind, std::size_t rank, const std::string& count) {
  refuse_counts(ranks, kind,
                "the count of rank " + std::to_string(rank) + " is " + count +
                    " (a piece has at least 0 elements); give a count from 0 on");
}

// Returns the offsets of the pieces. Throws configuration_error for counts that do not fit the group or the buffer.
inline std::vector<std::size_t> offsets_of(group& ranks, collective kind, std::string_view buffer_name,
                                           std::span<const std::size_t> counts, std::size_t elements,
                                           std::size_t element_size) {
  if (counts.size() != static_cast<std::size_t>(ranks.size()))
    refuse_counts(ranks, kind,
                  "there are " + std::to_string(counts.size()) + " counts (the group has " +
                      std::to_string(ranks.size()) + " ranks); give a count for each rank");
  std::vector<std::size_t> offsets = {0};
  const std::size_t most = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / element_size;
  for (const std::size_t count : counts) {
    if (count > most - offsets.back())
      refuse_counts(ranks, kind,
                    "the sum of the counts up to rank " + std::to_string(offsets.size() - 1) + ", whose count is " +
                        std::to_string(count) + ", overflows (a buffer has at most " + std::to_string(most) +
                        " elements); give smaller counts");
    offsets.push_back(offsets.back() + count);
  }
  if (offsets.back() != elements)
    refuse_counts(ranks, kind,
                  "the " + std::string(buffer_name) + " buffer has " + std::to_string(elements) +
                      " elements (the sum of its counts is " + std::to_string(offsets.back()) + "); give it that size");
  return offsets;
}

MUSTER_INLINE void require_counts(group& ranks, collective kind, std::span<const std::size_t> counts,
                                  std::size_t elements, std::size_t element_size) {
  (void)offsets_of(ranks, kind, "input", counts, elements, element_size);
}

// Returns the digest of the division, in 31 bits.
inline std::int32_t digest_of(std::span<const std::size_t> offsets) {
  digest all;
  for (const std::size_t offset : offsets) all.add(offset);
  return static_cast<std::int32_t>(all.value() >> 33);
}

// Throws configuration_error if this rank's piece and the buffer that is not divided differ in size.
inline void require_own_piece(group& ranks, collective kind, std::string_view buffer_name, std::size_t elements,
                              std::size_t count) {
  if (elements == count) return;
  refuse_counts(ranks, kind,
                "the " + std::string(buffer_name) + " buffer has " + std::to_string(elements) +
                    " elements (the count of this rank, " + std::to_string(ranks.rank()) + ", is " +
                    std::to_string(count) + "); give it that size");
}

// Throws configuration_error if the buffers overlap, unless one buffer is `in_place` in the other.
inline void require_apart(group& ranks, collective kind, const uneven_buffers& buffers, bool in_place) {
  const std::less<const std::byte*> before;
  const auto* const in = buffers.in.data();
  const auto* const out = buffers.out.data();
  const bool overlap = !buffers.in.empty() && !buffers.out.empty() && before(in, out + buffers.out.size()) &&
                       before(out, in + buffers.in.size());
  if (overlap && !in_place)
    refuse_counts(ranks, kind,
                  "the input and the output overlap (the call reads one and writes the other); give it two buffers");
}

// Completes the signature. Gather and scatter have a root, and the other collectives have the digest of the counts that
// all ranks have in common.
inline void complete_signature(collective_call& call, const uneven_pieces& division) {
  const bool has_common_counts = call.kind == collective::allgather || call.kind == collective::reduce_scatter;
  if (has_common_counts) {
    const auto& offsets = division.out.empty() ? division.in : division.out;
    call.count = offsets.back();
    call.root = digest_of(offsets);
  } else {
    call.algorithm = algorithm::direct;
  }
  call.root = ~call.root;
}

MUSTER_INLINE uneven_call pack(group& ranks, collective_call call, std::vector<std::span<std::byte>>&& buffers) {
  auto division = std::make_unique<uneven_pieces>();
  division->in.reserve(buffers.size() + 1);
  division->in.push_back(0);
  for (const auto buffer : buffers) {
    const std::size_t elements = buffer.size() / call.element_size;
    if (elements > std::numeric_limits<std::size_t>::max() / call.element_size - division->in.back())
      refuse_counts(ranks, call.kind, "the sum of the sizes of the buffers overflows (programming error)");
    division->in.push_back(division->in.back() + elements);
  }
  division->buffers = std::move(buffers);
  call.count = division->in.back();
  call.root = ~digest_of(division->in);
  call.in = call.out = nullptr;
  call.uneven = division.get();
  return {std::move(call), std::move(division)};
}

MUSTER_INLINE uneven_call divide(group& ranks, collective_call call, uneven_buffers&& buffers) {
  const collective kind = call.kind;
  const std::size_t size = call.element_size;
  const auto me = static_cast<std::size_t>(ranks.rank());
  const bool rooted = kind == collective::gather || kind == collective::scatter;
  if (rooted || kind == collective::all_to_all) {
    if (call.algorithm != algorithm::automatic && call.algorithm != algorithm::direct)
      refuse_counts(ranks, kind,
                    "uneven pieces cannot run by " + std::string(to_string(call.algorithm)) +
                        " (only by direct); choose direct or auto");
  }
  auto division = std::make_unique<uneven_pieces>();
  const bool divides_in = kind != collective::allgather && kind != collective::gather;
  const bool divides_out = kind != collective::scatter && kind != collective::reduce_scatter;
  const bool takes_part_in_division = !rooted || ranks.rank() == call.root;
  if (divides_in && takes_part_in_division)
    division->in = offsets_of(ranks, kind, "input", buffers.in_counts, buffers.in.size() / size, size);
  if (divides_out && takes_part_in_division)
    division->out = offsets_of(ranks, kind, "output", buffers.out_counts, buffers.out.size() / size, size);
  for (const auto* const counts : {&buffers.in_counts, &buffers.out_counts}) {
    for (const std::size_t count : *counts) division->largest = std::max(division->largest, count);
  }
  bool in_place = false;
  if (kind == collective::all_to_all) {
    if (buffers.in_counts[me] != buffers.out_counts[me])
      refuse_counts(ranks, kind,
                    "the counts of this rank, " + std::to_string(me) + ", for itself differ (" +
                        std::to_string(buffers.in_counts[me]) + " of the input, " +
                        std::to_string(buffers.out_counts[me]) + " of the output); give it equal counts");
  } else {
    const auto& own = divides_in ? buffers.out : buffers.in;
    const auto& divided = divides_in ? buffers.in : buffers.out;
    division->own = own.size() / size;
    if (takes_part_in_division) {
      const auto& offsets = divides_in ? division->in : division->out;
      require_own_piece(ranks, kind, divides_in ? "output" : "input", division->own, offsets[me + 1] - offsets[me]);
      in_place = kind != collective::reduce_scatter && own.data() == divided.data() + offsets[me] * size;
    }
  }
  if (takes_part_in_division) require_apart(ranks, kind, buffers, in_place);
  complete_signature(call, *division);
  call.uneven = division.get();
  return {std::move(call), std::move(division)};
}

}}}  // namespace muster::v0::detail
