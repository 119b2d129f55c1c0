// Ranks exchange what is combined, in pieces: one is combined while the next travels.
#pragma once

#include <algorithm>

#include <muster/comm/block.hpp>
#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// `f.exchange` of what is combined with `in`. Where the transport would hold all of it until it is there, it goes in
/// pieces, two under way at a time.
inline task exchange_pieces(executor& f, int to, std::span<const std::byte> out, int from, std::span<std::byte> in,
                            const reduction& how) {
  if (!f.abilities().combines_whole) {
    co_await f.exchange(to, out, from, in, &how);
    co_return;
  }
  const std::size_t sends = pieces_of(out.size());
  const std::size_t receives = pieces_of(in.size());
  request sending[2];
  request receiving[2];
  for (std::size_t k = 0; k <= std::max(sends, receives); ++k) {
    if (k < receives) {
      const auto piece = piece_of(in, k);
      f.receive_combine(receiving[k % 2], from, piece.data(), piece.size(), how);
    }
    if (k < sends) {
      const auto piece = piece_of(out, k);
      f.send(sending[k % 2], to, piece.data(), piece.size());
    }
    if (k > 0 && k <= receives) co_await f.done(receiving[(k - 1) % 2]);
    if (k > 0 && k <= sends) co_await f.done(sending[(k - 1) % 2]);
  }
}

/// This rank and its partner combine what they have, each into its own: in pieces, two under way at a time. A piece is
/// combined where it lies as soon as it has been sent from there, and else put aside until then.
inline task exchange_combine(executor& f, int partner, std::byte* data, std::size_t bytes, const reduction& how) {
  const std::size_t count = pieces_of(bytes);
  std::byte* const aside = f.scratch(2 * std::min(bytes, exchange_piece));
  request sending[2];
  request receiving[2];
  bool in_place[2] = {};
  for (std::size_t k = 0; k <= count; ++k) {
    if (k < count) {
      const auto here = piece_of(std::span(data, bytes), k);
      request& in = receiving[k % 2];
      f.send(sending[k % 2], partner, here.data(), here.size());
      in_place[k % 2] = executor::is_over(sending[k % 2]);
      if (in_place[k % 2]) {
        f.receive_combine(in, partner, here.data(), here.size(), how);
      } else {
        f.receive(in, partner, aside + k % 2 * exchange_piece, here.size());
      }
    }
    if (k == 0) continue;
    const std::size_t last = (k - 1) % 2;
    co_await f.done(receiving[last]);
    co_await f.done(sending[last]);
    if (!in_place[last]) {
      const auto here = piece_of(std::span(data, bytes), k - 1);
      how.combine(here.data(), aside + last * exchange_piece, here.size(), partner < f.rank());
    }
  }
}

}}}  // namespace muster::v0::detail
