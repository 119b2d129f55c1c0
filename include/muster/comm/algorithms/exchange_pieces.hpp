// Exchange of data that is combined, in pieces: one piece is combined while the next piece is sent.
#pragma once

#include <algorithm>

#include <muster/comm/block.hpp>
#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Sends `out` to `receiver`, and combines the data from `sender` into `in`. If the transport buffers whole messages
/// before it combines them, the data is sent in pieces, two outstanding at a time.
inline task exchange_pieces(collective_context& ctx, int receiver, std::span<const std::byte> out, int sender,
                            std::span<std::byte> in, const reduction& reduce) {
  if (!ctx.abilities().buffers_whole_message) {
    co_await ctx.exchange(receiver, out, sender, in, &reduce);
    co_return;
  }
  const std::size_t sends = pieces_of(out.size());
  const std::size_t receives = pieces_of(in.size());
  request sending[2];
  request receiving[2];
  for (std::size_t k = 0; k <= std::max(sends, receives); ++k) {
    if (k < receives) {
      const auto piece = piece_of(in, k);
      ctx.receive_combine(receiving[k % 2], sender, piece.data(), piece.size(), reduce);
    }
    if (k < sends) {
      const auto piece = piece_of(out, k);
      ctx.send(sending[k % 2], receiver, piece.data(), piece.size());
    }
    if (k > 0 && k <= receives) co_await ctx.done(receiving[(k - 1) % 2]);
    if (k > 0 && k <= sends) co_await ctx.done(sending[(k - 1) % 2]);
  }
}

/// Exchanges `data` with a partner and combines the partner's data into `data`, at both ranks, in pieces, two
/// outstanding at a time. If the send of a piece is already done, the partner's piece is combined on arrival; otherwise
/// the piece is received into scratch memory, and combined after the send.
inline task exchange_combine(collective_context& ctx, int partner, std::byte* data, std::size_t bytes,
                             const reduction& reduce) {
  const std::size_t count = pieces_of(bytes);
  std::byte* const staging = ctx.scratch(2 * std::min(bytes, exchange_piece));
  request sending[2];
  request receiving[2];
  bool in_place[2] = {};
  for (std::size_t k = 0; k <= count; ++k) {
    if (k < count) {
      const auto piece = piece_of(std::span(data, bytes), k);
      request& in = receiving[k % 2];
      ctx.send(sending[k % 2], partner, piece.data(), piece.size());
      in_place[k % 2] = collective_context::is_over(sending[k % 2]);
      if (in_place[k % 2]) {
        ctx.receive_combine(in, partner, piece.data(), piece.size(), reduce);
      } else {
        ctx.receive(in, partner, staging + k % 2 * exchange_piece, piece.size());
      }
    }
    if (k == 0) continue;
    const std::size_t last = (k - 1) % 2;
    co_await ctx.done(receiving[last]);
    co_await ctx.done(sending[last]);
    if (!in_place[last]) {
      const auto piece = piece_of(std::span(data, bytes), k - 1);
      reduce.combine(piece.data(), staging + last * exchange_piece, piece.size(), partner < ctx.rank());
    }
  }
}

}}}  // namespace muster::v0::detail
