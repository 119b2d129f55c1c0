#include "transport.hpp"

#include <sched.h>

#include <algorithm>

#include <muster/core/error.hpp>

#include "../../timing.hpp"
#include "connect.hpp"

namespace muster::inline v0::detail {

shm_transport::shm_transport(std::shared_ptr<shm_host> host, std::vector<int> members, int rank,
                             std::span<const std::uint64_t> lanes)
    : board_(std::move(host), std::move(members), rank, lanes),
      messages_(board_),
      native_(board_),
      memory_(&board_.host().own()) {}

shm_transport::~shm_transport() { board_.leave(called_); }

transport_abilities shm_transport::abilities() const {
  auto made = shm_abilities;
  made.detects_death = board_.host().sees_death();
  return made;
}

bool shm_transport::native(const collective_call& call, request& r) {
  called(call.mark());
  r.state = native_state;
  r.owner = this;  // before it begins: what throws there is taken back like the rest
  const auto begun = native_.start(call);
  if (begun != shm_native::begun::yes) r.owner = nullptr;
  return begun != shm_native::begun::no;
}

void shm_transport::cancel(request& r) noexcept {
  if (r.state == native_state) {
    r.owner = nullptr;
    native_.cancel();
  } else {
    messages_.cancel(r);
  }
}

bool shm_transport::move_buffer(request& r, std::byte* to) noexcept {
  if (r.state == native_state) return false;
  r.data = to;
  return true;
}

void shm_transport::notify(int peer, const notice& message) {
  post& to = board_.posts(rank(), peer);
  const std::uint64_t written = to.written.load(std::memory_order_relaxed);
  const std::uint64_t unread = written - to.read.load(std::memory_order_acquire);
  // A position is news for a moment only; the last place is kept for how this rank ends.
  if (unread >= post::room || (unread + 1 >= post::room && message.what == notice::kind::position)) return;
  notice& slot = to.ring[written % post::room];
  slot = message;
  slot.origin = rank();
  to.written.store(written + 1, std::memory_order_release);
  board_.lane(peer).news.fetch_add(1, std::memory_order_release);
  board_.wake(peer);
}

bool shm_transport::read_posts(notice& message) {
  for (int from = 0; from < size(); ++from) {
    post& in = board_.posts(from, rank());
    const std::uint64_t read = in.read.load(std::memory_order_relaxed);
    if (in.written.load(std::memory_order_acquire) == read) continue;
    message = in.ring[read % post::room];
    message.origin = from;  // whatever it says
    message.text[sizeof message.text - 1] = '\0';
    in.read.store(read + 1, std::memory_order_release);
    return true;
  }
  return false;
}

void shm_transport::tell_gone(int peer, notice& message) const {
  message = {};
  message.what = notice::kind::gone;
  message.origin = peer;
  message.status = static_cast<int>(error_kind::peer_failure);
  const auto process = std::to_string(board_.host().process(board_.host_rank(peer)));
  message.set_text("rank " + std::to_string(board_.name_of(peer)) + " is gone (its process " + process +
                   " ended and did not finish what this group does); see what its launcher says of it");
}

// Whether that rank's last words, read or not, were why it gives up.
bool shm_transport::has_said_why(int peer) {
  const post& in = board_.posts(peer, rank());
  const std::uint64_t written = in.written.load(std::memory_order_acquire);
  return written > 0 && in.ring[(written - 1) % post::room].what != notice::kind::position;
}

// A peer that ended without a word. One that left word is no news of this transport's: the reason is in the notice. One
// that lives may have left because of an exception on its way out, which ends this group before the one that will say
// so.
int shm_transport::find_silent_end() {
  const auto now = clock::now();
  for (;;) {
    const int gone = board_.find_gone(called_ == 0 ? 0 : called_ - 1);
    if (gone < 0) break;
    leavers_.push_back({gone, board_.host().ended(board_.host_rank(gone)) ? now : now + transport_timing::late_notice});
  }
  const auto silent = std::find_if(leavers_.begin(), leavers_.end(),
                                   [&](const leaver& one) { return now >= one.until && !has_said_why(one.rank); });
  if (silent == leavers_.end()) return -1;
  const int rank = silent->rank;
  leavers_.erase(silent);
  return rank;
}

bool shm_transport::poll(notice& message) {
  const std::uint32_t news = board_.mine().news.load(std::memory_order_acquire);
  if (news == news_ && suspect_ < 0) return false;
  // Where one rank speaks of trouble another may be dead, and that is the better word.
  if (suspect_ < 0) suspect_ = find_silent_end();
  if (suspect_ >= 0) {
    tell_gone(std::exchange(suspect_, -1), message);
    return true;
  }
  if (read_posts(message)) return true;
  news_ = news;
  return false;
}

void shm_transport::pause(clock::time_point until) {
  board_.doze(until);
  look_after_peers();
}

void shm_transport::look_after_peers() {
  const auto now = clock::now();
  if (suspect_ >= 0 || now < next_look_) return;
  next_look_ = now + transport_timing::death_poll;
  suspect_ = find_silent_end();
}

std::uint64_t shm_transport::prepare(std::span<const int> members) {
  board_.host().give_back(false);
  return shm_board::allocate_lane(board_.host().own(), static_cast<int>(members.size()));
}

std::unique_ptr<shm_transport> shm_transport::make_subgroup(const subgroup_call& some) {
  std::vector<std::uint64_t> lanes;
  std::vector<int> on_host;
  for (const int member : some.members) {
    lanes.push_back(some.words[static_cast<std::size_t>(member)]);
    on_host.push_back(board_.host_rank(member));
  }
  return std::make_unique<shm_transport>(board_.shared_host(), std::move(on_host), some.place_of(rank()), lanes);
}

}  // namespace muster::inline v0::detail
