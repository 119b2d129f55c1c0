#include "state_line.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

namespace muster::inline v0::detail {
namespace {

constexpr std::size_t piece_bytes = std::size_t{256} << 10;
constexpr std::chrono::milliseconds between_questions{20};

}  // namespace

std::uint64_t state_share::size(std::uint64_t whole) const noexcept {
  const std::uint64_t pieces_of_all = (whole + piece_bytes - 1) / piece_bytes;
  if (which >= pieces_of_all) return 0;
  const std::uint64_t mine = (pieces_of_all - which + of - 1) / of;
  const bool has_last = (pieces_of_all - 1) % of == which;
  return mine * piece_bytes - (has_last ? pieces_of_all * piece_bytes - whole : 0);
}

std::vector<std::span<std::byte>> state_share::pieces(std::span<const std::span<std::byte>> whole) const {
  std::vector<std::span<std::byte>> mine;
  std::size_t at = 0;  // in all of it
  for (auto rest : whole) {
    while (!rest.empty()) {
      const std::size_t length = std::min(rest.size(), piece_bytes - at % piece_bytes);
      if (at / piece_bytes % of == which) mine.push_back(rest.first(length));
      rest = rest.subspan(length);
      at += length;
    }
  }
  return mine;
}

std::vector<std::span<std::byte>> replicated_bytes(const state& of) {
  std::vector<std::span<std::byte>> found;
  for (const auto& part : of.parts()) {
    if (part.kind == state_kind::replicated && !part.save) found.push_back(part.bytes);
  }
  return found;
}

std::vector<std::span<std::byte>> brought_bytes(const state& of) {
  std::vector<std::span<std::byte>> found;
  for (const auto& one : of.replays()) found.insert(found.end(), one.brought.begin(), one.brought.end());
  return found;
}

std::uint64_t size_of(std::span<const std::span<std::byte>> all) noexcept {
  std::uint64_t bytes = 0;
  for (const auto& one : all) bytes += one.size();
  return bytes;
}

state_offer describe_state(const state& of) {
  digest names;
  for (const auto& part : of.parts()) {
    names.add(part.name).add(static_cast<std::uint64_t>(part.kind)).add(part.save ? 0 : part.bytes.size());
  }
  for (const auto& one : brought_bytes(of)) names.add(std::uint64_t{one.size()});
  state_offer made;
  made.names = names.value();
  made.bytes = size_of(replicated_bytes(of));
  made.brought = size_of(brought_bytes(of));
  made.steps = of.steps();
  return made;
}

job_secret secret_of_line(std::string_view token, std::string_view card) {
  const std::array<std::string_view, 3> parts{"state for those that join", token, card};
  return job_secret(parts);
}

void state_line::wait(short events, clock::time_point until) const {
  do {
    if (given_up_()) throw socket_error(ECANCELED, "nobody waits for it any more");
    if (clock::now() >= until) throw socket_error(ETIMEDOUT, socket_.peer().to_string() + " says nothing");
  } while (!wait_for(socket_.file(), events, std::min(until, clock::now() + between_questions)));
}

void state_line::read(std::span<std::byte> into, clock::time_point until) {
  while (!into.empty()) {
    const auto got = socket_.try_read(into);
    if (got && *got == 0) throw socket_error(ECONNRESET, socket_.peer().to_string() + " closed the connection");
    if (got)
      into = into.subspan(*got);
    else
      wait(POLLIN, until);
  }
}

void state_line::write(std::span<iovec> pieces, clock::time_point until) {
  for (pieces = drop_front(pieces, 0); !pieces.empty();) {
    const std::size_t sent = socket_.try_write(pieces);
    pieces = drop_front(pieces, sent);
    if (sent == 0) wait(POLLOUT, until);
  }
}

void state_line::meet(handshake& talk, clock::time_point until) {
  using stage = handshake::state;
  std::array<std::byte, 96> room{};
  for (;;) {
    switch (talk.now()) {
      case stage::sending: {
        const auto bytes = talk.output();
        iovec out{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg reads it only
        write(std::span(&out, 1), until);
        talk.sent(bytes.size());
        break;
      }
      case stage::reading: {
        const auto wanted = std::span(room).first(std::min(talk.wanted(), room.size()));
        read(wanted, until);
        talk.received(wanted);
        break;
      }
      case stage::asking:
        talk.accept();
        break;
      case stage::done:
        return;
      case stage::refused:
      case stage::stranger:
        throw error(error_kind::other, socket_.peer().to_string() + " is not of this job");
    }
  }
}

}  // namespace muster::inline v0::detail
