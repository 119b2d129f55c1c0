#include "stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include <muster/core/crc32c.hpp>

namespace muster::inline v0::detail {
namespace {

bool would_block(int code) { return code == EAGAIN || code == EWOULDBLOCK || code == EINTR; }

std::string text_of(int code) {
  if (code == ECONNRESET || code == EPIPE) return "its connection was reset";
  if (code == ETIMEDOUT) return "its host does not answer";
  return "its connection broke: " + std::generic_category().message(code);
}

}  // namespace

tcp_stream::tcp_stream(tcp_socket socket, int index, std::size_t window, matcher::arrival& arrival)
    : to(arrival),
      next_in(static_cast<std::uint64_t>(index)),
      socket_(std::move(socket)),
      window_(window),
      buffer_(window + 512) {}

bool has_unsent_bytes(int file) noexcept {
  tcp_info state{};
  socklen_t length = sizeof state;
  int bytes = 0;
  return ::getsockopt(file, IPPROTO_TCP, TCP_INFO, &state, &length) == 0 && state.tcpi_state != TCP_CLOSE &&
         ::ioctl(file, TIOCOUTQ, &bytes) == 0 && bytes > 0;
}

// ---- out ----

void outgoing_frame::set(frame what, request* from, const std::byte* payload) noexcept {
  // Below this a line more costs as much as it saves.
  constexpr std::uint64_t worth_a_lead = 1024;
  if (what.bytes >= worth_a_lead)
    what.lead = static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(payload) % frame_bytes);
  const frame_header header = encode(what);
  std::copy(header.begin(), header.end(), head.begin());
  head_bytes = frame_bytes + what.lead;
  data = payload;
  bytes = what.bytes;
  foot_bytes = foot_of(what);
  sent = 0;
  of = from;
  checked = (what.flags & frame::has_checksum) != 0;
  summed = 0;
  sum = 0;
  if (length() > head.size()) return;
  std::byte* at = head.data() + head_bytes;
  if (bytes > 0) std::memcpy(at, payload, static_cast<std::size_t>(bytes));
  std::fill_n(at + bytes, foot_bytes, std::byte{0});
  if (checked) {
    sum = crc32c({payload, static_cast<std::size_t>(bytes)});
    std::memcpy(at + bytes, &sum, sizeof sum);
  }
  head_bytes = static_cast<std::size_t>(length());
  bytes = foot_bytes = 0;
  of = nullptr;
}

void tcp_stream::push(std::size_t budget, bool more) {
  const int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0);
  const auto of_payload = [&] {
    return out_.sent > out_.head_bytes ? std::min(out_.sent - out_.head_bytes, out_.bytes) : 0;
  };
  while (busy_ && budget > 0) {
    iovec pieces[3];
    std::size_t count = 0;
    std::size_t asked = 0;
    const auto add = [&](const std::byte* data, std::uint64_t bytes) {
      pieces[count++] = {const_cast<std::byte*>(data), static_cast<std::size_t>(bytes)};  // it is only read
      asked += static_cast<std::size_t>(bytes);
    };
    if (out_.sent < out_.head_bytes) add(out_.head.data() + out_.sent, out_.head_bytes - out_.sent);
    const std::uint64_t at = of_payload();
    const std::uint64_t piece = std::min<std::uint64_t>(out_.bytes - at, budget);
    if (piece > 0) add(out_.data + at, piece);
    if (out_.checked && at + piece > out_.summed) {
      out_.sum = crc32c({out_.data + out_.summed, static_cast<std::size_t>(at + piece - out_.summed)}, out_.sum);
      out_.summed = at + piece;
      std::memcpy(out_.foot.data(), &out_.sum, sizeof out_.sum);
    }
    if (at + piece == out_.bytes && out_.foot_bytes > 0) {
      const std::uint64_t behind = out_.head_bytes + out_.bytes;
      const std::uint64_t gone = out_.sent > behind ? out_.sent - behind : 0;
      add(out_.foot.data() + gone, out_.foot_bytes - gone);
    }
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    const ssize_t n = count == 1 ? ::send(socket_.file(), pieces[0].iov_base, pieces[0].iov_len, flags)
                                 : ::sendmsg(socket_.file(), &message, flags);
    if (n < 0) {
      if (would_block(errno)) return;
      throw stream_broken{text_of(errno)};
    }
    const auto sent = static_cast<std::size_t>(n);
    out_.sent += sent;
    budget -= std::min(sent, budget);
    if (out_.sent == out_.length()) busy_ = false;
    if (sent < asked) return;  // the system has no more room
  }
}

// ---- in ----

std::size_t tcp_stream::receive(std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t n = pieces.size() == 1 ? ::recv(socket_.file(), pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT)
                                       : ::recvmsg(socket_.file(), &message, MSG_DONTWAIT);
  if (n > 0) return static_cast<std::size_t>(n);
  if (n < 0) {
    if (would_block(errno)) return 0;
    throw stream_broken{text_of(errno)};
  }
  if (goodbye && empty() && !in_payload) return 0;
  throw stream_broken{in_payload || !empty() ? "its connection ended in the middle of a message"
                                             : "its connection ended"};
}

bool tcp_stream::peek(frame& head) {
  if (end_ - begin_ < frame_bytes) return false;
  const frame_fault fault = decode(std::span<const std::byte, frame_bytes>(buffer_.data() + begin_, frame_bytes), head);
  if (fault != frame_fault::none) throw stream_broken{"it sent a malformed frame: " + std::string(to_string(fault))};
  return end_ - begin_ >= frame_bytes + head.lead;
}

std::size_t tcp_stream::read(std::uint64_t most) {
  // What is left here is a piece of a header, of an element or of a foot.
  if (begin_ >= 2 * frame_bytes || begin_ == end_) {
    const std::size_t held_here = end_ - begin_;
    std::memmove(buffer_.data() + place(), buffer_.data() + begin_, held_here);
    begin_ = place();
    end_ = begin_ + held_here;
  }
  iovec piece{buffer_.data() + end_, static_cast<std::size_t>(std::min<std::uint64_t>(most, buffer_.size() - end_))};
  const std::size_t n = receive({&piece, 1});
  end_ += n;
  return n;
}

std::size_t tcp_stream::read_to(std::span<std::byte> into, bool whole) {
  constexpr std::size_t a_little = 4096;
  const auto behind = static_cast<std::size_t>((position_ + into.size()) % frame_bytes);
  iovec pieces[2] = {{into.data(), into.size()},
                     {buffer_.data() + behind, std::min(a_little, buffer_.size() - behind)}};
  const std::size_t n = receive({pieces, whole ? std::size_t{2} : std::size_t{1}});
  const std::size_t taken = std::min(n, into.size());
  position_ += taken;
  begin_ = behind;
  end_ = behind + (n - taken);
  return n;
}

}  // namespace muster::inline v0::detail
