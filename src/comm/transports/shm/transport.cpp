#include "transport.hpp"

#include "../../timing.hpp"
#include "connect.hpp"

namespace muster { inline namespace v0 { namespace detail {

shm_transport::shm_transport(std::shared_ptr<shm_host> host, std::vector<int> members, int rank,
                             std::span<const std::uint64_t> slots)
    : shm_(std::move(host), std::move(members), rank, slots),
      messages_(shm_),
      native_(shm_),
      memory_(&shm_.host().own()) {}

transport_abilities shm_transport::abilities() const {
  auto made = shm_abilities;
  made.detects_death = shm_.host().sees_death();
  return made;
}

bool shm_transport::native(const collective_call& call, request& r) {
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

void shm_transport::notify(int peer, const control_message& message) {
  post& to = shm_.posts(rank(), peer);
  const std::uint64_t written = to.written.load(std::memory_order_relaxed);
  const std::uint64_t unread = written - to.read.load(std::memory_order_acquire);
  // A position is news for a moment only; the last place is kept for how this rank ends.
  if (unread >= post::room || (unread + 1 >= post::room && message.what == control_message::kind::position)) return;
  control_message& slot = to.ring[written % post::room];
  slot = message;
  slot.origin = rank();
  to.written.store(written + 1, std::memory_order_release);
  shm_.slot(peer).news.fetch_add(1, std::memory_order_release);
  shm_.wake(peer);
}

bool shm_transport::read_posts(control_message& message) {
  for (int from = 0; from < size(); ++from) {
    post& in = shm_.posts(from, rank());
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

void shm_transport::tell_gone(int peer, control_message& message) const {
  const auto process = std::to_string(shm_.host().process(shm_.host_rank(peer)));
  message = control_message::gone_rank(
      peer, "rank " + std::to_string(shm_.name_of(peer)) + " is gone (its process " + process +
                " ended before it finished the group's collectives); see the output of its launcher");
}

bool shm_transport::poll(control_message& message) {
  const std::uint32_t news = shm_.mine().news.load(std::memory_order_acquire);
  if (news == news_ && suspect_ < 0) return false;
  // Where one rank speaks of trouble another may be dead, and that is the better word.
  if (suspect_ < 0) suspect_ = shm_.find_gone();
  if (suspect_ >= 0) {
    tell_gone(std::exchange(suspect_, -1), message);
    return true;
  }
  if (read_posts(message)) return true;
  news_ = news;
  return false;
}

void shm_transport::pause(clock::time_point until) {
  shm_.wait(until);
  look_after_peers();
}

void shm_transport::look_after_peers() {
  const auto now = clock::now();
  if (suspect_ >= 0 || now < next_look_) return;
  next_look_ = now + transport_timing::death_poll;
  suspect_ = shm_.find_gone();
}

std::uint64_t shm_transport::prepare(std::span<const int> members) {
  shm_.host().give_back(false);
  return shm_group::allocate_slot(shm_.host().own(), static_cast<int>(members.size()));
}

std::unique_ptr<shm_transport> shm_transport::make_subgroup(const subgroup_call& some) {
  std::vector<std::uint64_t> slots;
  std::vector<int> on_host;
  for (const int member : some.members) {
    slots.push_back(some.words[static_cast<std::size_t>(member)]);
    on_host.push_back(shm_.host_rank(member));
  }
  return std::make_unique<shm_transport>(shm_.shared_host(), std::move(on_host), some.place_of(rank()), slots);
}

}}}  // namespace muster::v0::detail
