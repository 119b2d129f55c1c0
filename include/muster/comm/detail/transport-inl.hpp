#pragma once

#include <muster/comm/transport.hpp>

#include <algorithm>

#include <muster/core/copy.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE std::string describe(const collective_signature& signature) {
  if (signature.kind == collective::finish) return "the end of its run";
  std::string text(to_string(signature.kind));
  if (signature.kind == collective::barrier) return text;
  const bool rooted = signature.kind == collective::broadcast || signature.kind == collective::reduce ||
                      signature.kind == collective::gather || signature.kind == collective::scatter;
  const bool has_count = !signature.is_uneven() || signature.count > 0;
  text += " of " + (has_count ? std::to_string(signature.count) + " " : "") + std::string(to_string(signature.type));
  if (is_record(signature.type)) text += " of " + std::to_string(size_of(signature.type)) + " bytes";
  if (signature.op != operation::none) text += ", " + std::string(to_string(signature.op));
  if (signature.is_uneven())
    text += signature.kind == collective::allreduce ? ", in several buffers" : ", uneven pieces";
  if (rooted) text += ", root " + std::to_string(signature.is_uneven() ? ~signature.root : signature.root);
  return text + ", by " + std::string(to_string(signature.algorithm));
}

MUSTER_INLINE control_message control_message::rank_ended(int rank, std::string_view reason) noexcept {
  control_message message;
  message.type = kind::peer_ended;
  message.origin = rank;
  message.status = static_cast<int>(error_kind::peer_failure);
  message.set_text(reason);
  return message;
}

MUSTER_INLINE int subgroup_call::new_rank_of(int rank) const {
  const auto found = std::find(members.begin(), members.end(), rank);
  if (found != members.end()) return static_cast<int>(found - members.begin());
  throw configuration_error("rank " + std::to_string(rank) +
                            " is not a member of the group that it asks for (programming error)");
}

namespace detail {

MUSTER_INLINE void check_arrival(const request& receive, int sender, const collective_signature& signature,
                                 std::size_t bytes) {
  if (receive.tag != 0) {
    const bool has_type = receive.signature.type != dtype::none;  // a message of the public calls: see messages-inl.hpp
    const bool has_other_type = has_type && signature.type != dtype::none && signature.type != receive.signature.type;
    if (bytes <= receive.bytes && !has_other_type) return;
    const std::string name = " from rank " + std::to_string(sender) + " with tag " +
                             std::to_string(has_type ? receive.tag - 1 : receive.tag);
    if (has_other_type)
      throw message_mismatch("a message" + name + " has elements of " + std::string(to_string(signature.type)) +
                             " (the receive has elements of " + std::string(to_string(receive.signature.type)) +
                             "); receive the type that is sent");
    throw message_mismatch("a message of " + std::to_string(bytes) + " bytes" + name +
                           " does not fit (the receive has room for " + std::to_string(receive.bytes) +
                           "); receive into a larger buffer");
  }
  if (signature == receive.signature && bytes == receive.bytes) return;
  std::string text = "the ranks disagree about collective " + std::to_string(receive.signature.sequence) +
                     " of the group (this rank is in " + describe(receive.signature) + "; rank " +
                     std::to_string(sender) + " is in ";
  auto with_other_counts = signature;
  const bool has_digest = signature.kind == collective::allgather || signature.kind == collective::reduce_scatter ||
                          signature.kind == collective::allreduce;
  if (has_digest && signature.is_uneven() && receive.signature.is_uneven())
    with_other_counts.root = receive.signature.root;
  if (with_other_counts != receive.signature) {
    text += describe(signature);
  } else {
    const std::size_t size = std::max<std::size_t>(size_of(signature.type), 1);
    text += "the same with other counts";
    if (bytes != receive.bytes) {
      text += ": it sends " + std::to_string(bytes / size) + " elements in place of " +
              std::to_string(receive.bytes / size);
    }
  }
  if (signature.sequence != receive.signature.sequence)
    text += ", its collective " + std::to_string(signature.sequence);
  throw mismatch_error(text + "); every rank must make the same calls in the same order");
}

MUSTER_INLINE void deliver(request& receive, const std::byte* incoming, std::size_t bytes, std::uint64_t offset) {
  if (bytes == 0) return;
  std::byte* into = receive.data + offset;
  if (receive.combine == nullptr) return copy_bytes(into, incoming, bytes);
  const reduction& reduce = *receive.combine;
  if (reinterpret_cast<std::uintptr_t>(incoming) % reduce.element_size() == 0)
    return reduce.combine(into, incoming, bytes, receive.incoming_first);
  alignas(64) std::byte aligned[4096];  // elements at any address are copied to an aligned buffer
  while (bytes > 0) {
    const std::size_t n = std::min(bytes, sizeof aligned / reduce.element_size() * reduce.element_size());
    std::memcpy(aligned, incoming, n);
    reduce.combine(into, aligned, n, receive.incoming_first);
    into += n;
    incoming += n;
    bytes -= n;
  }
}

}  // namespace detail
}}  // namespace muster::v0
