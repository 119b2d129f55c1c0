#include "replica_line.hpp"

#include <poll.h>

#include <array>
#include <cerrno>

#include "store_guest.hpp"
#include "wire.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::size_t head_bytes = 4;
constexpr std::size_t most_before_hello = std::size_t{64} << 10;
constexpr std::size_t largest_message = std::size_t{512} << 20;  // the contents of a store and what clients were told
constexpr std::chrono::seconds for_an_address{1};
constexpr std::chrono::seconds for_a_greeting{5};

void append(std::string& to, const replica_message& what) {
  const auto body = what.encode();
  put(to, static_cast<std::uint32_t>(body.size()));
  to += body;
}

}  // namespace

replica_line::replica_line(std::vector<address> to, std::uint64_t wanted, const replica_member& self,
                           const job_secret& secret, clock::time_point now)
    : self_(self),
      secret_(secret),
      places_(std::move(to)),
      wanted_(wanted),
      outgoing_(true),
      give_up_(now + for_an_address) {
  connect_next();
}

replica_line::replica_line(tcp_socket came, const replica_member& self, const job_secret& secret, clock::time_point now)
    : self_(self),
      secret_(secret),
      socket_(std::move(came)),
      greeting_(handshake::answer(secret, store_server_name)),
      give_up_(now + for_a_greeting) {
  socket_.set_no_delay();
}

bool replica_line::wants_to_write() const noexcept {
  if (connecting_ || !out_.empty()) return true;
  return greeting_ && greeting_->now() == handshake::state::sending;
}

void replica_line::advance(clock::time_point now, const listener& hear) {
  if (state_ != state::opening && state_ != state::standing) return;
  try {
    if (connecting_ && !finish_connecting()) {
      if (connecting_ && now > give_up_) {
        all_refused_ = false;
        give_up_ = now + for_an_address;
        connect_next();
      }
      return;
    }
    if (!known_ && greet()) {
      known_ = true;
      greeting_.reset();
      if (outgoing_) append(out_, {.what = replica_message::kind::hello, .index = wanted_, .member = self_});
    }
    if (state_ == state::opening && now > give_up_) state_ = state::ended;
    if (!known_ || state_ == state::ended) return;
    read(hear);
    write();
  } catch (const socket_error& failed) {
    turned_away_ = outgoing_ && proved_ && !known_ && failed.closed();
    state_ = state::ended;
  }
}

void replica_line::send(const replica_message& what) {
  append(state_ == state::standing ? out_ : early_, what);
  if (state_ == state::standing) write();
}

void replica_line::connect_next() {
  for (connecting_ = false; next_place_ < places_.size();) {
    try {
      socket_ = tcp_socket::start_connect(places_[next_place_++]);
      connecting_ = true;
      return;
    } catch (const socket_error& failed) {
      all_refused_ = all_refused_ && failed.code() == ECONNREFUSED;
    }
  }
  state_ = all_refused_ && !places_.empty() ? state::refused : state::ended;
}

bool replica_line::finish_connecting() {
  if (!wait_for(socket_.file(), POLLOUT, {})) return false;
  try {
    socket_.finish_connect();
  } catch (const socket_error& failed) {
    all_refused_ = all_refused_ && failed.code() == ECONNREFUSED;
    connect_next();
    return false;
  }
  connecting_ = false;
  socket_.set_no_delay();
  greeting_ = handshake::connect(secret_, {store_client_name, store_server_name, 0, 1});
  return true;
}

// Whether both have proved that they are of one job.
bool replica_line::greet() {
  using stage = handshake::state;
  for (;;) {
    switch (greeting_->now()) {
      case stage::sending: {
        const auto bytes = greeting_->output();
        const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};  // sendmsg reads it only
        const auto sent = socket_.try_write({&piece, 1});
        if (sent == 0) return false;
        greeting_->sent(sent);
        break;
      }
      case stage::reading: {
        std::array<std::byte, 128> room;
        const auto got = socket_.try_read(std::span(room).first(greeting_->wanted()));
        if (!got) return false;
        if (*got == 0) throw socket_error(ECONNRESET, "the other side closed the connection");
        greeting_->received(std::span(room).first(*got));
        proved_ = true;  // it answers, so what follows is a proof
        break;
      }
      case stage::asking:
        greeting_->accept();
        break;
      case stage::done:
        return true;
      case stage::refused:
      case stage::stranger:
        throw socket_error(ECONNRESET, "the other side is not of this job");
    }
  }
}

void replica_line::read(const listener& hear) {
  std::array<std::byte, std::size_t{64} << 10> room;
  for (;;) {
    const auto got = socket_.try_read(room);
    if (!got) return;
    if (*got == 0) throw socket_error(ECONNRESET, "the other side closed the connection");
    in_.append(reinterpret_cast<const char*>(room.data()), *got);
    take_frames(hear);
    if (*got < room.size() || (state_ != state::opening && state_ != state::standing)) return;
  }
}

void replica_line::take_frames(const listener& hear) {
  std::size_t used = 0;
  while (in_.size() - used >= head_bytes) {
    std::string_view rest = std::string_view(in_).substr(used);
    const std::size_t length = take<std::uint32_t>(rest);
    if (length > (other_ ? largest_message : most_before_hello))
      throw socket_error(EPROTO, "the other side talks garbage");
    if (rest.size() < length) break;
    const auto said = replica_message::decode(rest.substr(0, length));
    if (!said) throw socket_error(EPROTO, "the other side talks garbage");
    used += head_bytes + length;
    if (other_) {
      hear(*said);
    } else {
      meet(*said);
      if (state_ != state::standing) break;
    }
  }
  in_.erase(0, used);
}

void replica_line::meet(const replica_message& said) {
  if (said.what != replica_message::kind::hello || said.member.id == 0) {
    throw socket_error(EPROTO, "the other side talks garbage");
  }
  const auto looks_for = outgoing_ ? wanted_ : said.index;
  const auto found = outgoing_ ? said.member.id : self_.id;
  if (!outgoing_) append(out_, {.what = replica_message::kind::hello, .member = self_});
  if (looks_for != 0 && looks_for != found) {  // its port has another owner now
    write();
    state_ = outgoing_ ? state::refused : state::ended;
    return;
  }
  other_ = said.member;
  state_ = state::standing;
  out_ += early_;
  early_.clear();
}

// As much as goes without waiting. Where nothing goes any more there may be last words to read, and then the end.
void replica_line::write() {
  try {
    while (written_ < out_.size()) {
      const iovec piece{out_.data() + written_, out_.size() - written_};
      const auto sent = socket_.try_write({&piece, 1});
      if (sent == 0) return;
      written_ += sent;
    }
  } catch (const socket_error& failed) {
    if (!failed.closed()) throw;
  }
  out_.clear();
  written_ = 0;
}

}  // namespace muster::inline v0::detail
