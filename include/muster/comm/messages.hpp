// Messages between two ranks of a group, beside its collectives.
//
// Messages from one rank to another with one tag arrive in the order in which they were sent. Messages are independent
// of the order of collectives: any number of messages and a collective may be outstanding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

/// Receives from any rank, as the rank of a `receive` or `probe`.
inline constexpr int any_rank = any_source;
/// The largest tag of a message.
inline constexpr int largest_message_tag = static_cast<int>(first_library_tag) - 2;

/// A message that a receive has received or a probe has found.
struct message_status {
  int source = -1;        ///< rank of the sender
  int tag = 0;            ///< the sender's tag
  std::size_t bytes = 0;  ///< length of the message

  /// Returns the number of elements of type T.
  template <transferable T>
  [[nodiscard]] std::size_t count() const noexcept {
    return bytes / sizeof(T);
  }
};

/// Options of a message; the last argument of every call.
struct message_options {
  int tag = 0;         ///< from 0 to `largest_message_tag`; a receive takes messages with its tag alone
  seconds timeout{0};  ///< limit from the first wait or test of the message on; 0 means the group's
  /// the message that an asynchronous receive or probe has found, written before its work is done
  message_status* status = nullptr;
};

namespace detail {

/// A send, a receive or both, with the element type erased.
struct message_call {
  const std::byte* out = nullptr;
  std::size_t out_bytes = 0;
  int to = 0;
  std::byte* in = nullptr;
  std::size_t in_bytes = 0;
  int from = 0;
  bool sends = false;
  bool receives = false;
  bool peeks = false;  // the receive is a probe
  dtype type = dtype::none;
  message_options options;
};

/// Runs a message and waits for its end. Throws its error.
message_status run(group& ranks, message_call message);
/// Starts a message and returns without waiting.
work start(group& ranks, const message_call& message);

template <class R>
message_call send_call(R& data, int to, const message_options& options) {
  const auto bytes = std::as_bytes(std::span(std::ranges::data(data), std::ranges::size(data)));
  message_call message;
  message.out = bytes.data();
  message.out_bytes = bytes.size();
  message.to = to;
  message.sends = true;
  message.type = type_code_of<element_of<R>>();
  message.options = options;
  return message;
}

template <class R>
message_call receive_call(R& data, int from, const message_options& options) {
  const auto bytes = std::as_writable_bytes(std::span(std::ranges::data(data), std::ranges::size(data)));
  message_call message;
  message.in = bytes.data();
  message.in_bytes = bytes.size();
  message.from = from;
  message.receives = true;
  message.type = type_code_of<element_of<R>>();
  message.options = options;
  return message;
}

template <class Out, class In>
message_call send_receive_call(Out& out, int to, In& in, int from, const message_options& options) {
  static_assert(std::same_as<element_of<Out>, element_of<In>>, "both buffers hold the same type");
  message_call message = receive_call(in, from, options);
  const message_call sent = send_call(out, to, options);
  message.out = sent.out;
  message.out_bytes = sent.out_bytes;
  message.to = to;
  message.sends = true;
  return message;
}

inline message_call probe_call(int from, const message_options& options) {
  message_call message;
  message.from = from;
  message.receives = true;
  message.peeks = true;
  message.options = options;
  return message;
}

}  // namespace detail

/// Sends `data` to rank `to`, which may be this rank if a receive is outstanding. Returns when `data` belongs to the
/// caller again: the message has arrived or is buffered. Throws timeout_error, peer_failure; configuration_error for a
/// wrong rank or tag.
template <element_range R>
void send(group& ranks, R&& data, int to, const message_options& options = {}) {
  detail::run(ranks, detail::send_call(data, to, options));
}

/// Starts a send; the message owns `data` until the work is done.
template <lasting_element_range R>
work send_async(group& ranks, R&& data, int to, const message_options& options = {}) {
  return detail::start(ranks, detail::send_call(data, to, options));
}

/// Receives a message from rank `from`, or from `any_rank`, into the start of `data`. Returns the sender and the
/// length. Throws mismatch_error for a message that is longer than `data` or has another element type; timeout_error,
/// peer_failure; configuration_error for a wrong rank or tag.
template <mutable_element_range R>
message_status receive(group& ranks, R&& data, int from, const message_options& options = {}) {
  return detail::run(ranks, detail::receive_call(data, from, options));
}

/// Starts a receive; the message owns `data` until the work is done.
template <lasting_mutable_range R>
work receive_async(group& ranks, R&& data, int from, const message_options& options = {}) {
  return detail::start(ranks, detail::receive_call(data, from, options));
}

/// Sends `out` to rank `to` and receives a message from rank `from` into `in` at the same time, with the same tag. The
/// buffers do not overlap. Returns and throws as `receive`.
template <element_range Out, mutable_element_range In>
message_status send_receive(group& ranks, Out&& out, int to, In&& in, int from, const message_options& options = {}) {
  return detail::run(ranks, detail::send_receive_call(out, to, in, from, options));
}

/// Starts a send and a receive; the messages own the buffers until the work is done.
template <lasting_element_range Out, lasting_mutable_range In>
work send_receive_async(group& ranks, Out&& out, int to, In&& in, int from, const message_options& options = {}) {
  return detail::start(ranks, detail::send_receive_call(out, to, in, from, options));
}

/// Waits for a message from rank `from`, or from `any_rank`, and returns its sender and length. The message stays for a
/// receive. Throws as `receive`.
inline message_status probe(group& ranks, int from, const message_options& options = {}) {
  return detail::run(ranks, detail::probe_call(from, options));
}

/// Starts a probe: the work is done when there is a message, which `message_options::status` then describes.
inline work probe_async(group& ranks, int from, const message_options& options = {}) {
  return detail::start(ranks, detail::probe_call(from, options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
