#include "store_guest.hpp"

#include <array>

namespace muster::inline v0::detail {
namespace {

constexpr seconds patience_with_strangers{5};
constexpr seconds patience_with_guests{30};

}  // namespace

job_secret store_secret(std::string_view token) {
  const std::string_view parts[] = {"store", token};
  return job_secret(parts);
}

bool store_guest::serve(store_table& table, clock::time_point now) {
  try {
    if (!known_ && !greet()) return false;
    if (!known_) return true;
    if (!write(now) || (wants_to_read() && !read_some())) return false;
    do {
      if (!take_frames(table, now) || !write(now)) return false;
    } while (wants_to_read() && has_whole_frame());
    return true;
  } catch (const socket_error& failed) {
    left_ = failed.closed();
    return false;
  }
}

// False when this is no client of ours.
bool store_guest::greet() {
  greeting_.advance(socket_);
  if (greeting_.now() == handshake::state::asking) {
    greeting_.accept();
    greeting_.advance(socket_);
  }
  known_ = greeting_.now() == handshake::state::done;
  return greeting_.now() != handshake::state::stranger;
}

// A piece at a time: who asks much does not keep the others waiting.
bool store_guest::read_some() {
  constexpr std::size_t piece = std::size_t{64} << 10;
  const std::size_t before = in_.size();
  in_.resize(before + piece);
  const auto got = socket_.try_read(std::as_writable_bytes(std::span(in_)).subspan(before));
  in_.resize(before + got.value_or(0));
  left_ = got == std::size_t{0};
  return got != 0;
}

bool store_guest::has_whole_frame() const noexcept { return first_frame(in_).what == store_frame::state::whole; }

// As many as it has room for the answers of.
bool store_guest::take_frames(store_table& table, clock::time_point now) {
  std::size_t used = 0;
  while (wants_to_read()) {
    const auto frame = first_frame(std::string_view(in_).substr(used));
    if (frame.what == store_frame::state::part) break;
    const auto asked =
        frame.what == store_frame::state::whole ? parse_request(frame.body) : std::optional<store_request>();
    if (!asked || !table.handle(number_, *asked, now)) {
      offended_ = true;
      return false;
    }
    used += frame.bytes;
  }
  in_.erase(0, used);
  return true;
}

void store_guest::tell(const store_reply& said) {
  if (owed() == 0) {
    out_.clear();
    written_ = 0;
  }
  if (owed() < too_much) append_frame(out_, said);
}

bool store_guest::write(clock::time_point now) {
  try {
    if (owed() == 0) {
      last_ = now;
      return true;
    }
    const iovec piece{out_.data() + written_, owed()};
    const std::size_t sent = socket_.try_write({&piece, 1});
    written_ += sent;
    if (sent > 0) last_ = now;
    if (owed() >= too_much) offended_ = true;  // something was left out: nothing that follows would be right
    if (written_ >= enough) {
      out_.erase(0, written_);
      written_ = 0;
    }
    return !offended_;
  } catch (const socket_error& failed) {
    left_ = failed.closed();
    return false;
  }
}

bool store_guest::is_stalled(clock::time_point now) const noexcept {
  if (!known_) return now - last_ > patience_with_strangers;
  return owed() > 0 && now - last_ > patience_with_guests;
}

}  // namespace muster::inline v0::detail
