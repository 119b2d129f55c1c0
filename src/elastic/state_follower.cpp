#include "state_follower.hpp"

#include <poll.h>

#include <algorithm>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>

#include "../comm/tcp/connect.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::chrono::seconds for_agreement{5};
constexpr int attempts_to_agree = 3;
// All members are to hear of the step before they are there.
constexpr std::chrono::milliseconds notice_of_snapshot{30};

// Who has followed for so long and was never at rest follows as well as it can.
constexpr std::chrono::seconds for_keeping_up{2};

class too_late : public error {
 public:
  too_late() : error(error_kind::other, "the members were beyond the step that was asked for") {}
};

}  // namespace

state_follower::state_follower(state& of, std::span<const std::string> cards, std::string_view token,
                               const std::function<bool()>& given_up)
    : replays_(of.replays()), replicated_(replicated_bytes(of)), brought_(brought_bytes(of)) {
  if (replays_.empty()) throw error(error_kind::other, "no owner of the state says how steps are done again");
  for (int left = attempts_to_agree; left > 0; --left) {
    sources_.clear();
    try {
      agree(of, cards, token, given_up);
      return;
    } catch (const too_late&) {
      if (left == 1) throw;
    }
  }
}

void state_follower::agree(state& of, std::span<const std::string> cards, std::string_view token,
                           const std::function<bool()>& given_up) {
  const auto until = clock::now() + for_agreement;
  const auto mine = describe_state(of);
  std::uint64_t furthest = 0;
  std::uint64_t shortest = static_cast<std::uint64_t>(clock::duration(notice_of_snapshot).count());
  for (std::size_t i = 0; i < cards.size(); ++i) {
    const auto addresses = read_card(cards[i], static_cast<int>(i)).addresses;
    auto& from = sources_.emplace_back(state_line(tcp_socket::connect(addresses, until), given_up));
    from.line.socket().set_no_delay();
    auto talk = handshake::connect(secret_of_line(token, cards[i]),
                                   {1, 0, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(cards.size())});
    from.line.meet(talk, until);
    const auto offer = from.line.read_value<state_offer>(until);
    if (offer.brought == 0 || offer.names != mine.names || offer.bytes != mine.bytes || offer.brought != mine.brought ||
        offer.steps < of.steps())
      throw error(error_kind::other, "the state of the others is not one that this process can follow");
    furthest = std::max(furthest, offer.steps);
    if (offer.step_time != 0) shortest = std::min(shortest, offer.step_time);
  }
  const auto notice = static_cast<std::uint64_t>(clock::duration(notice_of_snapshot).count());
  wanted_at_ = furthest + 1 + (notice + shortest - 1) / std::max<std::uint64_t>(shortest, 1);
  for (auto& from : sources_) from.line.write_value(wanted_at_, until);
  for (auto& from : sources_) {
    if (from.line.read_value<std::uint64_t>(until) != 1) throw too_late();
  }
  for (auto& from : sources_) await_head(from);
}

// Steps may come so fast that there is always one under way.
void state_follower::look_around(clock::time_point now, bool at_rest) noexcept {
  if (is_there_ || at_ == 0) return;
  const bool nothing_waits =
      std::all_of(sources_.begin(), sources_.end(), [](const source& one) { return one.head.behind <= 1; });
  is_there_ = (at_rest && nothing_waits) || now - snapshot_came_ > for_keeping_up;
}

bool state_follower::advance(clock::time_point until) {
  std::vector<pollfd> watched;
  while (!over_) {
    bool moved = false;
    watched.clear();
    try {
      for (auto& from : sources_) {
        while (!from.waits && read_some(from)) moved = true;
        if (!from.waits) watched.push_back({from.line.socket().file(), POLLIN, 0});
      }
      if (watched.empty()) {
        step_forward();
        moved = true;
      }
    } catch (const error& failed) {  // a member has ended, or the state became another: what came so far is of use
      log(log_level::debug, std::string("the others are followed no more: ") + failed.what());
      over_ = true;
      break;
    }
    const auto now = clock::now();
    if (moved) last_came_ = now;
    look_around(now, !moved);
    if (moved && now < until) continue;
    if (now >= until) break;
    const auto span = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    (void)::poll(watched.data(), watched.size(), static_cast<int>(std::min<long long>(span, 1000)));
  }
  return !over_;
}

// Some bytes of one member; false when there are none now.
bool state_follower::read_some(source& from) {
  while (from.next < from.wanted.size() && from.wanted[from.next].empty()) ++from.next;
  if (from.next < from.wanted.size()) {
    auto& into = from.wanted[from.next];
    const auto got = from.line.socket().try_read(into);
    if (got && *got == 0) throw error(error_kind::other, "a member closed the connection");
    if (!got) return false;
    into = into.subspan(*got);
    return true;
  }
  if (from.in_head) {
    begin_message(from);
  } else {
    from.waits = true;
  }
  return true;
}

void state_follower::begin_message(source& from) {
  const state_share share{static_cast<std::size_t>(&from - sources_.data()), sources_.size()};
  const auto& whole = from.head.what == state_message::kind::snapshot ? replicated_ : brought_;
  const bool is_next = from.head.what == state_message::kind::snapshot ? at_ == 0 && from.head.number == wanted_at_
                                                                       : at_ != 0 && from.head.number == at_ + 1;
  if (from.head.what == state_message::kind::pause) {
    from.paused = from.head.number;
    return await_head(from);
  }
  if (!is_next || from.head.bytes != share.size(size_of(whole)))
    throw error(error_kind::other, "a member sent something else than what comes next");
  if (!began_) began_ = clock::now();
  from.in_head = false;
  from.next = 0;
  from.wanted = share.pieces(whole);
}

// All have sent what they have of one message.
void state_follower::step_forward() {
  if (at_ == 0) {
    at_ = wanted_at_;
    snapshot_came_ = clock::now();
    span_ = snapshot_came_ - *began_;
  } else {
    for (const auto& one : replays_) one.again();
    ++at_;
    ++repeated_;
  }
  for (auto& from : sources_) {
    from.waits = false;
    await_head(from);
  }
}

void state_follower::await_head(source& from) {
  from.in_head = true;
  from.next = 0;
  from.wanted = {std::as_writable_bytes(std::span(&from.head, 1))};
}

void state_follower::finish(std::uint64_t generation, clock::duration most) {
  constexpr std::chrono::milliseconds slice{1};
  const auto is_done = [&] {
    return std::all_of(sources_.begin(), sources_.end(), [&](const source& one) { return one.paused >= generation; });
  };
  last_came_ = clock::now();
  while (!is_done() && clock::now() - last_came_ < most && advance(clock::now() + slice)) {
  }
}

}  // namespace muster::inline v0::detail
